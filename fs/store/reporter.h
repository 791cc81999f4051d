/* Reporter: the thread that posts reports to agents: this mount's state, and what became of their versions.
 */
#ifndef WS_FS_STORE_REPORTER_H
#define WS_FS_STORE_REPORTER_H
#include "fs/store/state.h"

WS_MUST_USE int ws_reporter_start(struct ws_store *s, struct ws_error *err);
/* After s->threads_stop: waits for the thread; reports that were not sent are dropped. */
void ws_reporter_stop(struct ws_store *s);

#endif
