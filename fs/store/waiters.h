/* Waits: who is waiting for bytes of a version, in the order of asking. Answered by whoever brings
 * the last block, by the end of a pull, or by the clock thread at the deadline. */
#ifndef WS_FS_STORE_WAITERS_H
#define WS_FS_STORE_WAITERS_H
#include "fs/store/state.h"

/* Is what w waits for here? Takes no lock. */
bool ws_wait_is_over(struct ws_version *v, size_t file, size_t first, size_t n);
/* ws_version_wait with the priority of the pull that it may start, and an absolute deadline. */
WS_MUST_USE int ws_waits_ask(struct ws_version *v, size_t file, size_t first, size_t n,
                             enum ws_priority priority, uint64_t deadline_ns, struct ws_wait *w);
/* With store->lock: has the clock thread look no later than then. */
void ws_waits_look_at(struct ws_store *s, uint64_t at_ns);
/* With store->lock: takes out the waits that are over, and with code < 0 all others too, which get
 * that result. The chain goes to ws_waits_tell. */
struct ws_wait *ws_waits_take(struct ws_version *v, int code);
/* Without any lock: calls done on each. */
void ws_waits_tell(struct ws_wait *chain);
/* Take and tell those that are over; costs one load where nobody waits. Without any lock. */
void ws_waits_answer(struct ws_version *v);
/* Starts and ends the clock thread. Stop: every wait that is left gets -ECANCELED. */
WS_MUST_USE int ws_waits_start(struct ws_store *s, struct ws_error *err);
void ws_waits_stop(struct ws_store *s);

#endif
