/* Pool: regions that were faulted in once are used again, because first touch is slow.
 *
 * put hands a region back; it waits on a list until nobody has it open or mapped any more in any process,
 * and is then kept for reuse, or freed: always where readers outside had it, whose pipes and sockets may
 * still hold pages of it (ws_region_idle). What is kept, free and reserved together, is at most keep_bytes; a
 * newcomer pushes the oldest out, for models change their size, not back again. One background thread of low
 * priority looks after the list and makes reserves. Thread safe. */
#ifndef WS_TRANSPORTS_MEMORY_POOL_H
#define WS_TRANSPORTS_MEMORY_POOL_H
#include "transports/memory/region.h"

#define WS_POOL_MAX_RESERVES 256

struct ws_pool;
/* n_threads: for faulting in reserves. */
WS_MUST_USE int ws_pool_new(struct ws_pool **out, uint64_t keep_bytes, unsigned n_threads,
                            struct ws_error *err);
/* Takes an idle recycled region that fits without wasting half of it (its size becomes size_bytes;
 * contents undefined), else one whose reserve is half made, else a new one (zero, not touched yet).
 * The caller has budgeted the memory. Fulfils one reserve of that size. */
WS_MUST_USE int ws_pool_get(struct ws_pool *p, uint64_t size_bytes, struct ws_region **out,
                            struct ws_error *err);
void ws_pool_put(struct ws_pool *p, struct ws_region *r); /* NULL is fine; imported: freed */
/* Asks that one more faulted-in region of that size be there soon: n calls, n regions, those that are
 * free already counted. As far as keep_bytes and the machine's memory allow; 0 forgets all that
 * is asked for. */
void ws_pool_reserve(struct ws_pool *p, uint64_t size_bytes);
/* Frees free regions, reserves too, until at most `bytes` of them are left. */
void ws_pool_trim(struct ws_pool *p, uint64_t bytes);
struct ws_pool_stats {
    uint64_t free_bytes;    /* to be used again; a reserve that is being made included */
    uint64_t waiting_bytes; /* handed back, still read by somebody */
    size_t n_free, n_waiting;
    size_t n_wanted; /* reserves asked for and not there yet */
};
void ws_pool_stats(struct ws_pool *p, struct ws_pool_stats *out);
/* Frees everything but regions that are out. Waits for no reader. */
void ws_pool_free(struct ws_pool *p);

#endif
