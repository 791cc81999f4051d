/* Block diff: what changed in blocks of a device's memory since the shadow copies of them there. It makes the
 * arguments of WS_KERNEL_DIFF_COUNT and WS_KERNEL_DIFF_PACK (transports/device/kernels/diff.h), and deltas of
 * their results.
 *
 * One thread at a time uses a list. It is host memory: the caller copies blocks, spans and tiles to the device,
 * and counts and changes back. */
#ifndef WS_TRANSPORTS_DEVICE_BLOCK_DIFF_H
#define WS_TRANSPORTS_DEVICE_BLOCK_DIFF_H
#include "transports/base/vector.h"
#include "transports/delta/block.h"
#include "transports/device/device.h"
#include "transports/device/kernels/diff.h"

#define WS_BLOCK_DIFF_MAX_BLOCKS 1024 /* of a list */

/* What the host has to know of a block beside what the kernels do. */
struct ws_block_diff_extent {
    uint32_t first_span, n_spans;
    size_t len;
};
WS_VECTOR(ws_block_diff_blocks, struct ws_diff_block);
WS_VECTOR(ws_block_diff_extents, struct ws_block_diff_extent);
WS_VECTOR(ws_block_diff_spans, struct ws_diff_span);
WS_VECTOR(ws_block_diff_tiles, uint32_t);

struct ws_block_diff {
    struct ws_block_diff_blocks blocks;
    struct ws_block_diff_extents extents; /* as many */
    struct ws_block_diff_spans spans;
    struct ws_block_diff_tiles
        tiles; /* before each span, and at last of all; empty while there is no block */
};

void ws_block_diff_init(struct ws_block_diff *d);
void ws_block_diff_free(struct ws_block_diff *d);
void ws_block_diff_clear(struct ws_block_diff *d); /* keeps its memory for the next blocks */

/* Adds a block to a list of fewer than WS_BLOCK_DIFF_MAX_BLOCKS: len bytes, at least 1, that lie at `offset` of a file with widths w,
 * and the shadow copy, both addresses of the device. -ENOMEM. */
WS_MUST_USE int ws_block_diff_add(struct ws_block_diff *d, const void *bytes, void *shadow, size_t len,
                                  const struct ws_element_widths *w, uint64_t offset, struct ws_error *err);
/* Queues one of the two kernels. a: with addresses of the device; n_tiles: the last of d->tiles. */
WS_MUST_USE int ws_block_diff_launch(struct ws_device_queue *q, enum ws_kernel k,
                                     const struct ws_diff_args *a, uint32_t n_tiles, struct ws_error *err);

/* The kernels' results, on the host. room: as in their arguments. */
struct ws_block_diff_result {
    const uint32_t *span_changed, *block_changed;
    uint32_t *at, *changes, room; /* at: overwritten by ws_block_diff_encode */
};
/* How many numbers at the beginning of at and changes are results; they need not have been copied yet. */
uint32_t ws_block_diff_n_packed(const struct ws_block_diff *d, const struct ws_block_diff_result *f);
/* Has the kernel packed block i? */
bool ws_block_diff_is_packed(const struct ws_block_diff *d, const struct ws_block_diff_result *f, uint32_t i);
/* The delta of block i, once: ws_delta_block_encode's bytes. *out_bytes 0: nothing changed. -E2BIG: too much has,
 * or it was not packed: the block is sent whole. *n_changed is set in all cases: elements. */
WS_MUST_USE int ws_block_diff_encode(const struct ws_block_diff *d, const struct ws_block_diff_result *f,
                                     uint32_t i, unsigned char *out, size_t *out_bytes, uint32_t *n_changed,
                                     struct ws_error *err);

#endif
