/* Parent watch: which parents of trees (fs/store/parents.h) a pull leaves because they are slow, silent, or parents no
 * more, and when it goes back to them. */
#ifndef WS_FS_PULL_PARENT_WATCH_H
#define WS_FS_PULL_PARENT_WATCH_H
#include "fs/pull/source_select.h"

/* As ws_puller's watch_parents. With store->lock. */
uint64_t ws_parent_watch_look(struct ws_source_select *sel, uint64_t now_ns);
/* Is the source of the attempt a parent? With store->lock. */
bool ws_parent_watch_is_parent(const struct ws_source_attempt *attempt);
/* Has an agent named another parent for the stripe since it began? Who goes on to wait at the one before could wait for
 * a mount that by now waits for this one. With store->lock. */
bool ws_parent_watch_is_of_before(const struct ws_source_attempt *attempt);

#endif
