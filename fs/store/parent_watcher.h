/* Parent watcher: the thread that watches the parents which pulls use (parents.h says how a failure is noticed). */
#ifndef WS_FS_STORE_PARENT_WATCHER_H
#define WS_FS_STORE_PARENT_WATCHER_H
#include "fs/store/state.h"

/* Looks twice a second, and when *has_suspects (guarded by store->lock): pollers whose is_suspect is set. Until *stop.
 * store->changed is broadcast after either. Without any lock. */
void ws_parent_watcher_run(struct ws_store *s, const atomic_bool *stop, bool *has_suspects);

#endif
