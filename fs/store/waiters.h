/* Waiters: requests for bytes of a version that are not here yet, in the order in which they came. A waiter
 * is completed by the thread that brings its last block, by the end of the pull, or by the deadline thread.
 */
#ifndef WS_FS_STORE_WAITERS_H
#define WS_FS_STORE_WAITERS_H
#include "fs/store/state.h"

/* Are the bytes here that a waiter with these values (ws_version_await) waits for? Takes no lock. */
bool ws_waiter_is_satisfied(struct ws_version *v, size_t file, size_t first, size_t n);
/* ws_version_await with the priority of the pull that it may start, and a fixed deadline. */
WS_MUST_USE int ws_waiters_add(struct ws_version *v, size_t file, size_t first, size_t n,
                               enum ws_priority priority, uint64_t deadline_ns, struct ws_waiter *w);
/* With store->lock: the deadline thread looks at the waiters no later than then. */
void ws_waiters_schedule(struct ws_store *s, uint64_t at_ns);
/* With store->lock: takes out the waiters whose bytes are here, and with code < 0 all others too, which get
 * that result. The caller passes the chain to ws_waiters_complete. */
struct ws_waiter *ws_waiters_collect(struct ws_version *v, int code);
/* Without any lock: calls done on each. */
void ws_waiters_complete(struct ws_waiter *chain);
/* Collects and completes those whose bytes are here; costs one load where none waits. Without any lock. */
void ws_waiters_wake(struct ws_version *v);
/* Starts and ends the deadline thread. stop: every waiter that is left gets -ECANCELED. */
WS_MUST_USE int ws_waiters_start(struct ws_store *s, struct ws_error *err);
void ws_waiters_stop(struct ws_store *s);

#endif
