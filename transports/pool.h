/* Pool: regions that were faulted in once are used again, because first touch is slow. */
#ifndef WS_TRANSPORTS_POOL_H
#define WS_TRANSPORTS_POOL_H
#include "transports/region.h"

/* A pool recycles regions: put hands a region back, it waits on a list until it is idle and is then
 * reused for the same or a smaller size (ftruncate) within `keep_bytes`, else freed. Thread safe;
 * one background thread looks after the list and pre-faults. */
struct ws_pool;
WS_MUST_USE int ws_pool_new(struct ws_pool **out, uint64_t keep_bytes, unsigned n_threads,
                            struct ws_error *err);
/* Takes an idle recycled region that fits (its size becomes size_bytes; contents undefined) or a new
 * one (prefaulted in background order). */
WS_MUST_USE int ws_pool_get(struct ws_pool *p, uint64_t size_bytes, struct ws_region **out,
                            struct ws_error *err);
void ws_pool_put(struct ws_pool *p, struct ws_region *r);
/* Makes sure that a faulted-in region of that size will be there soon, within keep_bytes. */
void ws_pool_reserve(struct ws_pool *p, uint64_t size_bytes);
struct ws_pool_stats {
    uint64_t free_bytes, waiting_bytes; /* waiting: handed back, still read by somebody */
    size_t n_free, n_waiting;
};
void ws_pool_stats(struct ws_pool *p, struct ws_pool_stats *out);
/* Frees everything but regions that are out. */
void ws_pool_free(struct ws_pool *p);

#endif
