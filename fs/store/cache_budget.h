/* Room: memory for a version within the cache, made by evicting others. */
#ifndef WS_FS_STORE_CACHE_BUDGET_H
#define WS_FS_STORE_CACHE_BUDGET_H
#include "fs/store/state.h"

/* Takes bytes of the cache for v (v->own_bytes), evicting what may go; waits a moment for memory that
 * is on its way back. -ENOSPC with what could be dropped; -ECANCELED when *stop. Without any lock. */
WS_MUST_USE int ws_room_take(struct ws_version *v, uint64_t bytes, const atomic_bool *stop,
                             struct ws_error *err);
/* The same for memory that is not v's own but goes when what is made for it is done (a delta on its way):
 * adds them to *lent. */
WS_MUST_USE int ws_room_lend(struct ws_version *v, uint64_t bytes, uint64_t *lent, const atomic_bool *stop,
                             struct ws_error *err);
void ws_room_return(struct ws_store *s, uint64_t lent); /* without any lock */
/* What the cache may hold now: what is no version's is counted, too, of regions that wait in the pool, and of
 * those that were closed while others had them. */
struct ws_room {
    uint64_t limit;
};
struct ws_room ws_room_now(struct ws_store *s); /* without any lock */
/* Is there room for bytes of v while base stays? With store->lock. */
bool ws_room_has_beside(const struct ws_room *r, struct ws_version *base, struct ws_version *v,
                        uint64_t bytes);
/* What cache= is by default where so much is available: the most of it, and never what the daemon itself
 * needs. */
uint64_t ws_room_default(uint64_t available);
/* The cache's size, or less where the machine has less; held: what is in it. */
uint64_t ws_room_limit(uint64_t cache, uint64_t held, uint64_t available);
/* After the regions were taken from the pool: what the pool keeps for later must fit beside them. */
void ws_room_trim(struct ws_store *s);
/* Has the pool fault in regions for one more version like this one, where there is room for it. */
void ws_room_reserve(struct ws_store *s, const struct ws_manifest *m);
/* Bytes for people: "1.2 GB". */
void ws_room_text(uint64_t bytes, char out[16]);

#endif
