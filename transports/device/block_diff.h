/* Diff: what changed in blocks of a device's memory since the copies of them that were kept there: what
 * WS_KERNEL_DIFF_COUNT and WS_KERNEL_DIFF_PACK (transports/device/kernels/diff.h) are told, and deltas made
 * of what they found.
 *
 * A list is used by one thread at a time. It is host memory: the caller brings blocks, parts and tiles to the
 * device, and counts and changes back. */
#ifndef WS_TRANSPORTS_DEVICE_BLOCK_DIFF_H
#define WS_TRANSPORTS_DEVICE_BLOCK_DIFF_H
#include "transports/delta/block.h"
#include "transports/device/device.h"
#include "transports/device/kernels/diff.h"

#define WS_DIFF_MOST_BLOCKS 1024 /* of a list */

struct ws_diff {
    struct ws_diff_block *blocks;
    uint32_t *first; /* n_blocks + 1: each block's first part */
    size_t *len;
    uint32_t n_blocks, room_blocks;
    struct ws_diff_part *parts;
    uint32_t *tiles; /* n_parts + 1: before each part, and of all; NULL while there is no block */
    uint32_t n_parts, room_parts;
};

void ws_diff_init(struct ws_diff *d);
void ws_diff_free(struct ws_diff *d);
void ws_diff_clear(struct ws_diff *d); /* keeps its memory for the next blocks */

/* Is there room for one more block? */
bool ws_diff_full(const struct ws_diff *d);
/* A block of a list that is not full: len bytes, at least 1, that lie at `offset` of a file with widths w,
 * and the copy that was kept, both addresses of the device. -ENOMEM. */
WS_MUST_USE int ws_diff_add(struct ws_diff *d, const void *bytes, void *kept, size_t len,
                            const struct ws_widths *w, uint64_t offset, struct ws_error *err);
/* One of the two; a: with addresses of the device; n_tiles: d->tiles[d->n_parts]. */
WS_MUST_USE int ws_diff_launch(struct ws_queue *q, enum ws_kernel k, const struct ws_diff_args *a,
                               uint32_t n_tiles, struct ws_error *err);

/* What they found, on the host. room: as the kernels were told. */
struct ws_diff_found {
    const uint32_t *part_changed, *block_changed;
    uint32_t *at, *changes, room; /* at: overwritten by ws_diff_encode */
};
/* How many numbers at the beginning of at and changes are of use; they need not be there yet. */
uint32_t ws_diff_packed(const struct ws_diff *d, const struct ws_diff_found *f);
/* Is block i among what is packed? */
bool ws_diff_is_packed(const struct ws_diff *d, const struct ws_diff_found *f, uint32_t i);
/* The delta of block i, once: ws_delta_encode's bytes. *out_bytes 0: nothing changed. -E2BIG: too much has,
 * or it was not packed: the block is sent whole. *n_changed is set in all cases: elements. */
WS_MUST_USE int ws_diff_encode(const struct ws_diff *d, const struct ws_diff_found *f, uint32_t i,
                               unsigned char *out, size_t *out_bytes, uint32_t *n_changed,
                               struct ws_error *err);

#endif
