/* Cache budget: memory for a version within cache=, for which other versions are evicted. */
#ifndef WS_FS_STORE_CACHE_BUDGET_H
#define WS_FS_STORE_CACHE_BUDGET_H
#include "fs/store/state.h"

/* Adds bytes of the cache to v->own_bytes. Evicts what may go, and waits a moment for memory that is about to
 * come back. -ENOSPC: err names what the operator could drop; -ECANCELED: *stop. Without any lock. */
WS_MUST_USE int ws_cache_budget_claim(struct ws_version *v, uint64_t bytes, const atomic_bool *stop,
                                      struct ws_error *err);
/* The same for memory that is needed only while v is being made, such as a delta's: adds the bytes to
 * *borrowed, which the caller returns. */
WS_MUST_USE int ws_cache_budget_borrow(struct ws_version *v, uint64_t bytes, uint64_t *borrowed,
                                       const atomic_bool *stop, struct ws_error *err);
/* As borrow, for what may never be wanted: nothing of its kind gives way to it. */
WS_MUST_USE int ws_cache_budget_borrow_ahead(struct ws_version *v, uint64_t bytes, uint64_t *borrowed,
                                             const atomic_bool *stop, struct ws_error *err);
void ws_cache_budget_return(struct ws_store *s, uint64_t borrowed); /* without any lock */
/* What the cache may hold now. It counts versions, regions that wait in the pool, and regions that were
 * closed while other processes map them. */
struct ws_cache_budget {
    uint64_t limit;
};
struct ws_cache_budget ws_cache_budget_now(struct ws_store *s); /* without any lock */
/* Do bytes of v fit into the cache while base stays in it? With store->lock. */
bool ws_cache_budget_fits_beside(const struct ws_cache_budget *budget, struct ws_version *base,
                                 struct ws_version *v, uint64_t bytes);
/* The default of cache= on a machine with so much memory available: most of it, without what the daemon
 * itself needs. */
uint64_t ws_cache_budget_default(uint64_t available);
/* The cache's size, or less where the machine has less memory left. held: bytes that are in it. */
uint64_t ws_cache_budget_limit(uint64_t cache, uint64_t held, uint64_t available);
/* After regions were taken from the pool: makes the regions that the pool keeps fit beside them. */
void ws_cache_budget_trim_pool(struct ws_store *s);
/* Has the pool fault in regions for one more version like this one, if it fits into the cache. */
void ws_cache_budget_prepare_next(struct ws_store *s, const struct ws_manifest *m);

#endif
