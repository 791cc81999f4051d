/* Overlap: do two of a tensor's distinct pieces share an element? For the boxes of a mesh, and for ranges, it
 * takes n log n steps: planes that cut no box divide them until each is alone. Pure functions. */
#ifndef WS_TRAINER_TENSOR_OVERLAP_H
#define WS_TRAINER_TENSOR_OVERLAP_H
#include "backends/trainer/tensor/piece.h"

/* holders: one for each distinct piece; their order changes. -EINVAL names the tensor and the ranks of two
 * pieces that overlap, or of a range and a box that is not contiguous, which cannot be compared. */
WS_MUST_USE int ws_overlap_check(const struct ws_tensor *t, const struct ws_piece_holder **holders, size_t n,
                                 struct ws_error *err);

#endif
