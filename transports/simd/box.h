/* Box: an n-dimensional slice of a tensor, as extents: bytes that are contiguous in the row-major tensor. Any range
 * of its bytes can be copied, converted on the way. Pure functions over host memory.
 *
 * A box's bytes are counted in the order of the tensor, so those in one block of a file are one range, which may
 * begin and end within an element. */
#ifndef WS_TRANSPORTS_SIMD_BOX_H
#define WS_TRANSPORTS_SIMD_BOX_H
#include "transports/base/limits.h"
#include "transports/simd/convert.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* shape: the tensor's; offset, size: the box; src_strides: the source's, in its elements, of any sign, 0 for a
 * repeated dimension. element_bytes: in the tensor. */
struct ws_box {
    unsigned n_dims;
    const uint64_t *shape, *offset, *size;
    const int64_t *src_strides;
    size_t element_bytes;
    enum ws_conversion conversion;
};

/* A box as nested loops over extents, which are as long as they can be; steps are in bytes. */
struct ws_box_extents {
    enum ws_conversion conversion;
    size_t element_bytes, src_element_bytes;
    uint64_t bytes; /* of all extents */
    uint64_t begin; /* the first one's place in the tensor */
    uint64_t extent_bytes;
    int64_t extent_step; /* between an extent's elements in the source */
    unsigned n_loops;    /* outermost first */
    uint64_t count[WS_MAX_DIMS];
    uint64_t dst_step[WS_MAX_DIMS];
    int64_t src_step[WS_MAX_DIMS];
};
void ws_box_extents_init(struct ws_box_extents *r, const struct ws_box *box);
/* The same box where its elements lie packed in the source; converted: they have the tensor's type already. */
void ws_box_extents_packed(struct ws_box_extents *out, const struct ws_box_extents *r, bool converted);
/* Packs the source's elements without conversion: to gather them elsewhere first. */
void ws_box_extents_raw(struct ws_box_extents *out, const struct ws_box_extents *r);
/* How many of the box's bytes lie before byte `at` of the tensor. */
uint64_t ws_box_extents_before(const struct ws_box_extents *r, uint64_t at);
/* The place in the tensor of a byte of the box. */
uint64_t ws_box_extents_place(const struct ws_box_extents *r, uint64_t byte);

/* A position among the bytes of a box, and how many are left. */
struct ws_box_cursor {
    const struct ws_box_extents *extents;
    const unsigned char *src; /* of the present extent */
    uint64_t dst, at, left; /* the extent's place in the tensor; its bytes that are done; bytes left in all */
    uint64_t index[WS_MAX_DIMS];
};
/* src: the box's first element. from + n <= r->bytes. */
void ws_box_cursor_seek(struct ws_box_cursor *c, const struct ws_box_extents *r, const void *src,
                        uint64_t from, uint64_t n);
/* How many bytes are contiguous in the tensor from c->dst + c->at on; 0: the cursor has ended. */
uint64_t ws_box_cursor_ready(const struct ws_box_cursor *c);
/* Where these bytes lie contiguous in the source; NULL: they have to be gathered or converted. */
const unsigned char *ws_box_cursor_plain(const struct ws_box_cursor *c);
/* Where they lie contiguous in the source as elements of another type, and begin with an element. NULL: otherwise. */
const unsigned char *ws_box_cursor_unconverted(const struct ws_box_cursor *c);
/* Moves on by n <= ready. copy also stores these bytes, and returns how many elements that begin among them were
 * finite and became infinite. */
void ws_box_cursor_skip(struct ws_box_cursor *c, uint64_t n);
uint64_t ws_box_cursor_copy(struct ws_box_cursor *c, void *dst, size_t n);

/* Copies the whole box: dst is the tensor's first byte, src the box's first element. Returns how many finite
 * elements became infinite. */
uint64_t ws_box_copy(void *dst, const void *src, const struct ws_box *box);

#endif
