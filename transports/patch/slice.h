/* Slice: which elements of a tensor lie where in a memory: a box of n dimensions with strides on both sides. Pure functions. */
#ifndef WS_TRANSPORTS_PATCH_SLICE_H
#define WS_TRANSPORTS_PATCH_SLICE_H
#include "transports/base/error.h"
#include "transports/base/limits.h"
#include <stdbool.h>
#include <stdint.h>

/* One side: element (i0, i1, ...) lies at low + the sum of each i times its stride, where a dimension that is `down` counts from its
 * end. */
struct ws_slice_side {
    uint64_t low, high; /* the first element that it has, and the last */
    uint64_t stride[WS_MAX_DIMS];
    bool down[WS_MAX_DIMS];
    uint8_t order[WS_MAX_DIMS]; /* dimensions by stride, the largest first */
};
struct ws_slice {
    unsigned n_dims; /* as few as say the same; in the order of from's strides */
    uint64_t shape[WS_MAX_DIMS];
    uint64_t count; /* elements; 0: none, and nothing else is set */
    struct ws_slice_side to, from;
};

/* to, from: where element (0, 0, ...) lies. Elements of the memory: to_elements; of the tensor: from_elements. -EINVAL: something lies
 * outside; -EOPNOTSUPP: two elements have one place, or the strides are of another kind than a box's. */
WS_MUST_USE int ws_slice_init(struct ws_slice *s, unsigned n_dims, const uint64_t *shape, uint64_t to,
                              const int64_t *to_strides, uint64_t to_elements, uint64_t from,
                              const int64_t *from_strides, uint64_t from_elements, struct ws_error *err);
/* Where an element of the tensor lies in memory; false: the slice has it not. */
bool ws_slice_to(const struct ws_slice *s, uint64_t from, uint64_t *to);
/* The other way. */
bool ws_slice_from(const struct ws_slice *s, uint64_t to, uint64_t *from);

#endif
