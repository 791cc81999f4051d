/* Pool: regions that were faulted in once are used again, because first touch is slow.
 *
 * ws_pool_put hands a region back. It waits on a list until no process has it open or mapped any more, and is
 * then kept for reuse or freed. A region that readers outside have had is always freed: their pipes and sockets
 * may still hold pages of it (ws_region_idle). What is kept, free and reserved together, is at most keep_bytes. A
 * new region displaces the oldest, since a model that changes its size does not change it back. One background
 * thread of low priority checks the list and makes reserves. Thread safe. */
#ifndef WS_TRANSPORTS_MEMORY_POOL_H
#define WS_TRANSPORTS_MEMORY_POOL_H
#include "transports/memory/region.h"

#define WS_POOL_MAX_RESERVES 256

struct ws_pool;
/* n_threads: for faulting in reserves. */
WS_MUST_USE int ws_pool_new(struct ws_pool **out, uint64_t keep_bytes, unsigned n_threads,
                            struct ws_error *err);
/* An idle recycled region that fits without wasting half of it (its size becomes size_bytes; contents undefined),
 * else one whose reserve is half made, else a new one (zero, not touched yet). The caller has budgeted the
 * memory. Fulfils one reserve of that size. */
WS_MUST_USE int ws_pool_get(struct ws_pool *p, uint64_t size_bytes, struct ws_region **out,
                            struct ws_error *err);
void ws_pool_put(struct ws_pool *p, struct ws_region *r); /* NULL is fine; imported: freed */
/* Requests one more faulted-in region of that size: n calls, n regions, those that are free already included.
 * They are made as far as keep_bytes and the machine's memory allow. 0 forgets all requests. */
void ws_pool_reserve(struct ws_pool *p, uint64_t size_bytes);
/* Frees free regions, reserves too, until at most `bytes` of them are left. */
void ws_pool_trim(struct ws_pool *p, uint64_t bytes);
struct ws_pool_stats {
    uint64_t free_bytes;    /* to be used again; a reserve that is being made included */
    uint64_t waiting_bytes; /* handed back, still read by some process */
    size_t n_free, n_waiting;
    size_t n_wanted; /* reserves that were requested and are not made yet */
};
void ws_pool_stats(struct ws_pool *p, struct ws_pool_stats *out);
/* Frees everything but the regions that callers have. Waits for no reader. */
void ws_pool_free(struct ws_pool *p);

#endif
