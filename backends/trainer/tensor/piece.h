/* Piece: the part of a tensor that one rank holds, as plain numbers; how pieces of many ranks cover a tensor
 * exactly; and which rank writes a piece that several hold. Pure functions. */
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
WS_MUST_USE int ws_tensor_of(const wsync_param *a, struct ws_tensor *t, struct ws_error *err);
/* Checks a public piece against its tensor and makes it plain (WHOLE becomes a box). -EINVAL. */
WS_MUST_USE int ws_piece_of(const wsync_piece *piece, const struct ws_tensor *t, struct ws_piece *out,
                            struct ws_error *err);
/* The strides of a box of these sizes as they are meant, where zeroes stand for contiguous ones. */
void ws_strides_meant(const int64_t *given, bool strided, const uint64_t *size, unsigned n_dims,
                      int64_t out[WSYNC_MAX_DIMS]);
uint64_t ws_piece_elements(const struct ws_piece *p, unsigned n_dims);
bool ws_piece_equal(const struct ws_piece *a, const struct ws_piece *b, unsigned n_dims);
/* Is the box (not empty) one run of a row-major tensor of this shape? Then it begins at *start. */
bool ws_box_is_run(const uint64_t *shape, unsigned n_dims, const uint64_t *offset, const uint64_t *size,
                   uint64_t *start);
/* Is it one run of the row-major tensor? Then *start and *count (elements) say which. */
bool ws_piece_as_range(const struct ws_piece *p, const struct ws_tensor *t, uint64_t *start, uint64_t *count);

/* The piece as a tensor of its own, dense: *t and *p become that tensor and all of it. */
void ws_piece_alone(struct ws_tensor *t, struct ws_piece *p);

/* One rank's piece of one tensor. */
struct ws_piece_claim {
    struct ws_piece piece;
    unsigned rank;
    size_t param; /* the rank's own index */
    bool writes;  /* set by ws_claims_settle */
};
/* Gives each distinct piece of a tensor one writer, the rank with the fewest bytes so far (load[rank], bytes,
 * updated), and checks that the distinct pieces cover the tensor exactly. -EINVAL names the tensor and the
 * ranks of pieces that overlap; -ENODATA what nobody holds. */
WS_MUST_USE int ws_claims_settle(const struct ws_tensor *t, struct ws_piece_claim *claims, size_t n,
                                 uint64_t *load, struct ws_error *err);

#endif
