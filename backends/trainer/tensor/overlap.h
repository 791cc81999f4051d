/* Overlap: whether two of a tensor's distinct pieces share an element. Of a mesh's boxes, or of ranges, it
 * takes n log n steps: planes that cut no box part them until each is alone. Pure functions. */
#ifndef WS_TRAINER_TENSOR_OVERLAP_H
#define WS_TRAINER_TENSOR_OVERLAP_H
#include "backends/trainer/tensor/piece.h"

/* Pieces that differ, one claim each; they are put into another order. -EINVAL names the tensor and the ranks
 * of two that overlap, or of a range and a box that is no run, which cannot be compared. */
WS_MUST_USE int ws_overlap_check(const struct ws_tensor *t, const struct ws_piece_claim **claims, size_t n,
                                 struct ws_error *err);

#endif
