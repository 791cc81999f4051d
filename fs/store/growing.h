/* Growing: blocks of a version that are coming, whose first bytes are passed on to other mounts before the last are here.
 *
 * A block is 4 MiB: where each mount of a tree waits for all of it before it passes any on, the last mount waits for a block
 * a level, and links stand still meanwhile. So what a lane has stored of a block may be read at once, but for its last
 * piece: that is kept back until the block's hash is right. So nobody gets a whole block from here that was not verified
 * here. A block that turns out wrong, or whose lane is cut, begins anew, as another attempt, maybe from another source. Who
 * has read some of the one before waits for all of it then, and compares: a source that dies costs those below no
 * connection, only wrong bytes do.
 *
 * Of versions whose lanes store right into the region (not of parts, nor where blocks are made aside). */
#ifndef WS_FS_STORE_GROWING_H
#define WS_FS_STORE_GROWING_H
#include "fs/store/state.h"

#define WS_GROWING_STEP (256UL << 10) /* who waits for more hears of it so often */

/* Of a version from its first transfer on. No memory: no block is passed on before it is here. */
void ws_growing_new(struct ws_version *v);
void ws_growing_free(struct ws_version *v);
/* By lane (below WS_MAX_STREAMS), each on a thread of its own: the first n bytes of a block are in the region, n growing from
 * call to call. Wakes waiters now and then. */
void ws_growing_store(struct ws_version *v, unsigned lane, size_t file, size_t block, uint64_t n);
/* The lane's block, if it has one, is here, or will not be by this attempt. */
void ws_growing_end(struct ws_version *v, unsigned lane);

/* How many of a block's first bytes may be read that is not here; 0: none. They stay what they are as long as another call
 * says the same *attempt, which is never 0: who reads them asks again afterwards. Any thread, without a lock. */
uint64_t ws_growing_bytes(const struct ws_version *v, size_t file, size_t block, uint64_t *attempt);

#endif
