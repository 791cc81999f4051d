/* Broadcast: a full pull takes part in its source's broadcasts (transports/nccl/broadcast.h) before it
 * fetches anything, if its strategies have broadcast before the one by which the source serves. */
#ifndef WS_FS_PULL_BROADCAST_H
#define WS_FS_PULL_BROADCAST_H
#include "fs/pull/source_select.h"

/* Every region must be there. What fails is left to the transfer that follows, and the reason is recorded in
 * the selection. how: "broadcast to 4 at 38.2 GB/s in 2 rounds"; empty: nothing came by it. */
void ws_pull_broadcast(struct ws_source_select *sel, const atomic_int *priority, char how[WS_HOW_CHARS]);

#endif
