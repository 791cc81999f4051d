/* Rounds: a full pull takes part in its source's broadcasts before anything is fetched, where its strategies
 * have broadcast before what else the source can be reached by (transports/nccl/broadcast.h). */
#ifndef WS_FS_PULL_BROADCAST_H
#define WS_FS_PULL_BROADCAST_H
#include "fs/pull/source_select.h"

/* Every region is there. Whatever fails, or was wrong, is left to the transfer that follows, and why is noted
 * in the route. *how: "broadcast to 4 at 38.2 GB/s in 2 rounds"; empty: nothing came by it. */
void ws_rounds_run(struct ws_route *r, const atomic_int *priority, char how[WS_HOW_CHARS]);

#endif
