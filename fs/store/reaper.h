/* Reaper: gives back the memory of versions that nothing refers to any more. */
#ifndef WS_FS_STORE_REAPER_H
#define WS_FS_STORE_REAPER_H
#include "fs/store/state.h"

/* A version whose last reference was put. */
void ws_reaper_add(struct ws_version *v);        /* without store->lock */
void ws_reaper_add_locked(struct ws_version *v); /* with it */
WS_MUST_USE int ws_reaper_start(struct ws_store *s, struct ws_error *err);
/* After s->threads_stop: waits for the thread. From then on the last put of a version reaps it, and the
 * reclaim hook is not called any more. */
void ws_reaper_stop(struct ws_store *s);

#endif
