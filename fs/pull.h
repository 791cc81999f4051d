/* Pull: the thread that brings a version here, one a version at a time. */
#ifndef WS_FS_PULL_H
#define WS_FS_PULL_H
#include "fs/store_state.h"

/* How much of a version is wanted. A look at a folder needs the manifest, a look at tensors/ the
 * headers, and only an open needs the weights. */
enum ws_goal { WS_GOAL_MANIFEST, WS_GOAL_HEADERS, WS_GOAL_ALL };
enum ws_goal ws_goal_of(size_t file, size_t n); /* of a wait */

/* All with store->lock held. */

/* Starts a pull, or has the running one go further or more urgently. 0 also when nothing is to be
 * done; negative: why none can start now (nobody has it, or the last one failed within a second). */
WS_MUST_USE int ws_pull_ask(struct ws_version *v, enum ws_goal goal, enum ws_priority priority);
/* When the last byte came, of a whole block or not, or the pull began. */
uint64_t ws_pull_progress_ns(const struct ws_pull *p);
bool ws_pull_wants_all(const struct ws_pull *p);
struct ws_route *ws_pull_route(struct ws_pull *p);
void ws_pull_stop(struct ws_pull *p); /* does not wait */

#endif
