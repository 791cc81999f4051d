/* Fused: the tensors of the file that one tensor of a framework is made of: one to one, stacked experts, gate
 * and up, query, key and value interleaved by group, a vocabulary with padding. Each is a box of the held
 * tensor; what no box covers is padding, and is not copied. */
#ifndef WS_TRAINER_EXTRACT_FUSED_H
#define WS_TRAINER_EXTRACT_FUSED_H
#include "backends/trainer/wsync.h"
#include "transports/base/error.h"
#include <stdbool.h>
#include <stddef.h>

struct ws_fused_part {
    char *name; /* the file's */
    unsigned n_dims;
    uint64_t shape[WSYNC_MAX_DIMS];
    bool drops; /* leaves out the held tensor's dimension 0, which has size 1 in the box */
    uint64_t from[WSYNC_MAX_DIMS], size[WSYNC_MAX_DIMS]; /* the box, in the held tensor's dimensions */
    uint64_t to[WSYNC_MAX_DIMS];                         /* where it lies, in this one's */
};
struct ws_fused {
    unsigned n_dims; /* of the held tensor, all ranks together */
    uint64_t shape[WSYNC_MAX_DIMS];
    size_t n;
    struct ws_fused_part *parts;
};

/* Adds a part and hands it out to be filled; from, to and shape are zero, size is the held tensor's shape.
 * name is copied. NULL: no memory. */
struct ws_fused_part *ws_fused_add(struct ws_fused *f, const char *name, unsigned n_dims);
void ws_fused_release(struct ws_fused *f);

/* The whole tensor under another name. -ENOMEM. */
WS_MUST_USE int ws_fused_plain(struct ws_fused *f, const char *name);
/* A fusion's tensors, under `prefix` (what stands before fusion->held in the held name). -EINVAL: the shape
 * cannot be cut so. */
WS_MUST_USE int ws_fused_stack(struct ws_fused *f, const wsync_fusion *fusion, const char *held,
                               size_t prefix, struct ws_error *err);
/* Megatron's query, key and value: of each of kv_heads groups its query heads, its key and its value,
 * head_dim rows each. names: of the three. gated: of a group its query heads, then their gates, where the file has each head
 * before its gate. -EINVAL: other rows. */
WS_MUST_USE int ws_fused_qkv(struct ws_fused *f, const char *const names[3], uint64_t heads,
                             uint64_t kv_heads, uint64_t head_dim, bool gated, struct ws_error *err);
/* Sections one below the other, of sizes[i] rows, each of as many groups of rows. Those with one name that follow each
 * other are one tensor of the file, which has group by group the rows of each section in turn. -EINVAL: other rows. */
WS_MUST_USE int ws_fused_groups(struct ws_fused *f, const char *const *names, const uint64_t *sizes,
                                unsigned n, uint64_t groups, struct ws_error *err);
/* The first rows of a padded tensor. -EINVAL: it has fewer. */
WS_MUST_USE int ws_fused_rows(struct ws_fused *f, const char *name, uint64_t rows, struct ws_error *err);

/* What a box of the held tensor gives to a part: the common box in the part's dimensions (offset, size) and
 * where it begins in the held one (at). false: nothing. */
bool ws_fused_box(const struct ws_fused *f, const struct ws_fused_part *p, const uint64_t *offset,
                  const uint64_t *size, uint64_t out_offset[WSYNC_MAX_DIMS],
                  uint64_t out_size[WSYNC_MAX_DIMS], uint64_t at[WSYNC_MAX_DIMS]);
/* The same for a range of the flattened held tensor: *out_start in the flattened part, *at in the held one.
 * 0: *out_count elements, may be none; -EOPNOTSUPP: the part is no single run of the held tensor. */
WS_MUST_USE int ws_fused_range(const struct ws_fused *f, const struct ws_fused_part *p, uint64_t start,
                               uint64_t count, uint64_t *out_start, uint64_t *out_count, uint64_t *at);

#endif
