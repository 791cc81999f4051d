/* Prepare: the first phase of a release, and versions that other mounts' engines need. */
#ifndef WS_FS_SWITCH_PREPARE_H
#define WS_FS_SWITCH_PREPARE_H
#include "fs/engines/controller.h"

/* As a job: the version is pulled, for a release also compared with what is served, and the agent hears how that ended.
 * release 0: it is fetched for another mount. */
void ws_prepare_start(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                      const struct ws_version_id *to, uint64_t release);

#endif
