/* Report: tells agents where this mount stands and what became of their versions, in the background. */
#ifndef WS_FS_STORE_REPORTER_H
#define WS_FS_STORE_REPORTER_H
#include "fs/store/state.h"

WS_MUST_USE int ws_reporter_start(struct ws_store *s, struct ws_error *err);
/* After s->threads_stop: waits for the thread; what was not sent is forgotten. */
void ws_reporter_stop(struct ws_store *s);

#endif
