/* Learned file: what was learned of models with need=learn (store/learned.h), over a restart. It lies beside the settings,
 * as it may be larger than they may become: a model has 100,000 names. It is written by the reconciler, some seconds after
 * something was learned, and at the end. One that is lost or damaged costs one version that comes whole. */
#ifndef WS_FS_SWITCH_LEARNED_FILE_H
#define WS_FS_SWITCH_LEARNED_FILE_H
#include "fs/engines/controller.h"

/* At the start, before any source is there. */
void ws_learned_file_read(struct ws_control *c);
/* Where something has changed, and not more often than every few seconds unless `now`. One thread at a time. */
void ws_learned_file_save(struct ws_control *c, bool now);

#endif
