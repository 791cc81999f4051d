/* Sharding: which parts of a global tensor a rank's local one is made of. The arithmetic of
 * torch.distributed.tensor (Shard, _StridedShard, Replicate over an n-dimensional mesh), without torch. Pure
 * functions. */
#ifndef WS_TRAINER_TENSOR_SHARDING_H
#define WS_TRAINER_TENSOR_SHARDING_H
#include "backends/trainer/wsync.h"
#include "transports/base/error.h"
#include <stddef.h>

/* A run of indices of one dimension: global [start, start + count), which lies at `local` of the rank's own.
 */
struct ws_element_range {
    uint64_t start, count, local;
};
/* The runs that one dimension's local part is made of, in its order; neighbours are merged. */
struct ws_index_runs {
    size_t n, cap;
    struct ws_element_range *run;
};
struct ws_sharding {
    unsigned n_dims;
    struct ws_index_runs dims[WSYNC_MAX_DIMS];
};

/* What the placements (outer mesh dimension first) leave of a tensor of this shape. -EINVAL: a placement
 * makes no sense (err names `name`); -E2BIG: too many runs; -ENOMEM. The caller releases it, after an error
 * too. */
WS_MUST_USE int ws_sharding_make(const char *name, const uint64_t *shape, unsigned n_dims,
                                 const wsync_placement *placements, unsigned n_placements,
                                 struct ws_sharding *out, struct ws_error *err);
/* How many indices of a dimension the rank holds. */
uint64_t ws_index_runs_count(const struct ws_index_runs *r);
void ws_sharding_release(struct ws_sharding *s);

#endif
