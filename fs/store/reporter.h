/* Reporter: posts reports to agents, each by a thread of its own: this mount's state, and what became of their
 * versions. */
#ifndef WS_FS_STORE_REPORTER_H
#define WS_FS_STORE_REPORTER_H
#include "fs/store/state.h"

/* After s->threads_stop and s->stop: waits for the threads; reports that were not sent are dropped. */
void ws_reporter_stop(struct ws_store *s);

#endif
