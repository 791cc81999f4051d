/* Box: an n-dimensional slice of a tensor, as runs of bytes that follow each other in the row-major tensor;
 * any part of them, converted on the way. Pure functions over host memory.
 *
 * A box's bytes are counted in the order of the tensor, so what lies in one block of a file is one stretch of
 * them, which may begin and end within an element. */
#ifndef WS_TRANSPORTS_SIMD_BOX_H
#define WS_TRANSPORTS_SIMD_BOX_H
#include "transports/base/limits.h"
#include "transports/simd/convert.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* shape: the tensor's; offset, size: the box; src_strides: of the source, in its elements, any sign, 0 for
 * what is repeated. element_bytes: in the tensor. */
struct ws_box {
    unsigned n_dims;
    const uint64_t *shape, *offset, *size;
    const int64_t *src_strides;
    size_t element_bytes;
    enum ws_conversion conversion;
};

/* A box as nested loops over runs, which are as long as they can be; steps are bytes. */
struct ws_runs {
    enum ws_conversion conversion;
    size_t element_bytes, src_element_bytes;
    uint64_t bytes; /* of all runs */
    uint64_t begin; /* the first one's place in the tensor */
    uint64_t run_bytes;
    int64_t run_step; /* between a run's elements in the source */
    unsigned n_loops; /* outermost first */
    uint64_t count[WS_MAX_DIMS];
    uint64_t dst_step[WS_MAX_DIMS];
    int64_t src_step[WS_MAX_DIMS];
};
void ws_runs_of(struct ws_runs *r, const struct ws_box *box);
/* The same box where its elements lie one after the other in the source; converted: they are the tensor's. */
void ws_runs_packed(struct ws_runs *out, const struct ws_runs *r, bool converted);
/* The source's elements as they are, one after the other: the way of bringing them there. */
void ws_runs_raw(struct ws_runs *out, const struct ws_runs *r);
/* How many of its bytes lie before that byte of the tensor. */
uint64_t ws_runs_before(const struct ws_runs *r, uint64_t at);
/* Which byte of the tensor one of its bytes is. */
uint64_t ws_runs_place(const struct ws_runs *r, uint64_t byte);

/* A place among the bytes of a box, and how many are to come. */
struct ws_cursor {
    const struct ws_runs *runs;
    const unsigned char *src; /* of the present run */
    uint64_t dst, at, left;   /* its place in the tensor; bytes of it that are done; of the whole stretch */
    uint64_t index[WS_MAX_DIMS];
};
/* src: the box's first element. from + n <= r->bytes. */
void ws_cursor_seek(struct ws_cursor *c, const struct ws_runs *r, const void *src, uint64_t from, uint64_t n);
/* Bytes that follow each other in the tensor from c->dst + c->at on; 0: it has ended. */
uint64_t ws_cursor_ready(const struct ws_cursor *c);
/* Where these lie as they are in the source; NULL: they have to be gathered or converted. */
const unsigned char *ws_cursor_plain(const struct ws_cursor *c);
/* Moves on by n <= ready. take also stores them, and returns how many elements that begin among them were
 * finite and became infinite. */
void ws_cursor_skip(struct ws_cursor *c, uint64_t n);
uint64_t ws_cursor_take(struct ws_cursor *c, void *dst, size_t n);

/* All of it: dst is the tensor's first byte, src the box's first element. Returns what take does, added up.
 */
uint64_t ws_copy_box(void *dst, const void *src, const struct ws_box *box);

#endif
