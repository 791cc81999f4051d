/* Piece: the part of a tensor that one rank holds, as plain numbers; whether the pieces of all ranks cover
 * the tensor exactly; and which rank writes a piece that several hold. Pure functions. */
#ifndef WS_TRAINER_TENSOR_PIECE_H
#define WS_TRAINER_TENSOR_PIECE_H
#include "backends/trainer/wsync.h"
#include "transports/base/error.h"
#include "transports/format/safetensors.h"
#include <stdbool.h>

struct ws_piece {
    bool range;                                      /* else a box */
    uint64_t offset[WS_MAX_DIMS], size[WS_MAX_DIMS]; /* box */
    uint64_t start, count;                           /* range, in elements */
};

/* Checks a public parameter's name, dtype and shape; out borrows the name. -EINVAL. */
WS_MUST_USE int ws_tensor_from_param(const wsync_param *a, struct ws_tensor *t, struct ws_error *err);
/* Checks a public piece against its tensor and makes it plain (WHOLE becomes a box). -EINVAL. */
WS_MUST_USE int ws_piece_from_public(const wsync_piece *piece, const struct ws_tensor *t,
                                     struct ws_piece *out, struct ws_error *err);
/* The strides of a box of these sizes, in elements: the given ones, or contiguous ones where all are zero and
 * `strided` is not set. */
void ws_piece_strides(const int64_t *given, bool strided, const uint64_t *size, unsigned n_dims,
                      int64_t out[WSYNC_MAX_DIMS]);
uint64_t ws_piece_elements(const struct ws_piece *p, unsigned n_dims);
bool ws_piece_equal(const struct ws_piece *a, const struct ws_piece *b, unsigned n_dims);
/* Is the box (not empty) contiguous in a row-major tensor of this shape? Then it begins at element *start. */
bool ws_piece_box_is_contiguous(const uint64_t *shape, unsigned n_dims, const uint64_t *offset,
                                const uint64_t *size, uint64_t *start);
/* Is the piece contiguous in the row-major tensor? Then it is the *count elements from *start on. */
bool ws_piece_as_range(const struct ws_piece *p, const struct ws_tensor *t, uint64_t *start, uint64_t *count);

/* Makes the piece a dense tensor of its own: *t becomes that tensor, and *p all of it. */
void ws_piece_make_dense(struct ws_tensor *t, struct ws_piece *p);

/* A rank that holds a piece of a tensor. */
struct ws_piece_holder {
    struct ws_piece piece;
    unsigned rank;
    size_t param; /* the rank's own index */
    bool writes;  /* set by ws_piece_assign_writers */
};
/* Gives each distinct piece of a tensor one writer: the holder that has the fewest bytes to write so far
 * (load[rank], in bytes, updated). Checks that the distinct pieces cover the tensor exactly. -EINVAL names
 * the tensor and the ranks whose pieces overlap; -ENODATA: elements that no rank holds. */
WS_MUST_USE int ws_piece_assign_writers(const struct ws_tensor *t, struct ws_piece_holder *holders, size_t n,
                                        uint64_t *load, struct ws_error *err);

#endif
