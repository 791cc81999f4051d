/* Encode: makes the delta of two versions whose bytes are in memory. */
#ifndef WS_TRANSPORTS_DELTA_ENCODE_H
#define WS_TRANSPORTS_DELTA_ENCODE_H
#include "transports/base/workers.h"
#include "transports/delta/delta.h"
#include <stdatomic.h>

struct ws_delta_side {
    const struct ws_manifest *manifest;
    const unsigned char *const *files; /* the bytes of each file, in the manifest's order; NULL for size 0 */
};

/* Adds a record for each block that differs and has none yet, on all workers, and ends the delta. It ends
 * whole, or given up: when *stop (NULL: never) is set, when there is no memory, or when it has grown beyond
 * most_bytes. level: as ws_delta_record_make's. Blocks with equal hashes are not read. Both sides' bytes must
 * stay until it returns. */
void ws_delta_encode(struct ws_delta *d, const struct ws_delta_side *base, const struct ws_delta_side *target,
                     int level, uint64_t most_bytes, struct ws_workers *workers, const atomic_bool *stop);

/* The same block by block, for a caller that has a reason for an order of its own. */
struct ws_delta_comparer;
/* Both sides and their bytes stay the caller's until it is freed; the headers of the target's safetensors files have to
 * be there already. NULL: no memory. */
struct ws_delta_comparer *ws_delta_comparer_new(const struct ws_delta_side *base,
                                                const struct ws_delta_side *target, int level,
                                                unsigned n_workers);
void ws_delta_comparer_free(struct ws_delta_comparer *c); /* NULL is fine */
/* Has the block the same hash in both manifests? */
bool ws_delta_comparer_is_equal(const struct ws_delta_comparer *c, size_t file, size_t block);
/* The record of a block that differs, by numbers of the target's manifest; the caller's. worker: below n_workers, each
 * used by one thread at a time. NULL: no memory. */
struct ws_delta_record *ws_delta_comparer_block(struct ws_delta_comparer *c, size_t file, size_t block,
                                                unsigned worker);

#endif
