/* Sharding: which parts of a global tensor a rank's local one is made of. The arithmetic of
 * torch.distributed.tensor (Shard, _StridedShard, Replicate over an n-dimensional mesh), without torch. Pure
 * functions. */
#ifndef WS_TRAINER_TENSOR_SHARDING_H
#define WS_TRAINER_TENSOR_SHARDING_H
#include "backends/trainer/wsync.h"
#include "transports/base/vector.h"

/* Indices of one dimension: global [start, start + count), which lie from `local` on in the rank's part. */
struct ws_element_range {
    uint64_t start, count, local;
};
/* The ranges that make up one dimension's local part, in its order; neighbours are merged. */
WS_VECTOR(ws_element_ranges, struct ws_element_range);
struct ws_sharding {
    unsigned n_dims;
    struct ws_element_ranges dims[WSYNC_MAX_DIMS];
};

/* The sizes of the sections that a SECTION_SHARD's dimension is made of. */
struct ws_sections {
    const uint64_t *sizes;
    unsigned n;
};
/* Applies the placements (outer mesh dimension first) to a tensor of this shape. -EINVAL: a placement is not
 * possible (err names `name`); -E2BIG: too many ranges; -ENOMEM. The caller releases *out, after an error
 * too. */
WS_MUST_USE int ws_sharding_make(const char *name, const uint64_t *shape, unsigned n_dims,
                                 const wsync_placement *placements, unsigned n_placements,
                                 struct ws_sections sections, struct ws_sharding *out, struct ws_error *err);
/* How many indices of a dimension the rank holds. */
uint64_t ws_element_ranges_count(const struct ws_element_ranges *r);
void ws_sharding_release(struct ws_sharding *s);

#endif
