#include "backends/trainer/extract/fused.h"
#include "backends/trainer/tensor/piece.h"
#include "transports/base/limits.h"
#include "transports/base/vector.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ws_fused_part *ws_fused_add(struct ws_fused *f, const char *name, unsigned n_dims)
{
    struct ws_fused_part *parts = ws_vector_room(f->parts, f->n, sizeof(*parts));
    if (!parts)
        return NULL;
    f->parts = parts;
    struct ws_fused_part *p = &parts[f->n];
    *p = (struct ws_fused_part){.name = strdup(name), .n_dims = n_dims};
    if (!p->name)
        return NULL;
    memcpy(p->size, f->shape, sizeof(p->size));
    f->n++;
    return p;
}

void ws_fused_release(struct ws_fused *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->parts[i].name);
    free(f->parts);
    *f = (struct ws_fused){0};
}

int ws_fused_plain(struct ws_fused *f, const char *name)
{
    struct ws_fused_part *p = ws_fused_add(f, name, f->n_dims);
    if (!p)
        return -ENOMEM;
    memcpy(p->shape, f->shape, sizeof(p->shape));
    return 0;
}

int ws_fused_rows(struct ws_fused *f, const char *name, uint64_t rows, struct ws_error *err)
{
    if (f->n_dims == 0 || f->shape[0] < rows)
        return ws_error_set(err, EINVAL, "%s has %" PRIu64 " rows where %" PRIu64 " are needed", name,
                            f->n_dims ? f->shape[0] : 0, rows);
    struct ws_fused_part *p = ws_fused_add(f, name, f->n_dims);
    if (!p)
        return ws_error_set(err, ENOMEM, "no memory for %s", name);
    memcpy(p->shape, f->shape, sizeof(p->shape));
    p->shape[0] = p->size[0] = rows;
    return 0;
}

/* `name` with '*' as a number, behind the prefix. */
static int expand(char out[WS_MAX_TENSOR_NAME + 1], const char *held, size_t prefix, const char *name,
                  uint64_t number)
{
    const char *star = strchr(name, '*');
    int n = star ? snprintf(out, WS_MAX_TENSOR_NAME + 1, "%.*s%.*s%" PRIu64 "%s", (int)prefix, held,
                            (int)(star - name), name, number, star + 1)
                 : snprintf(out, WS_MAX_TENSOR_NAME + 1, "%.*s%s", (int)prefix, held, name);
    return n > WS_MAX_TENSOR_NAME ? -E2BIG : 0;
}

/* Do the fusion's tensors fill n indices? */
static bool fills(const wsync_fusion *fusion, uint64_t n)
{
    if (!fusion->sizes)
        return n % fusion->n_names == 0;
    for (unsigned k = 0; k < fusion->n_names; k++) {
        if (fusion->sizes[k] > n)
            return false;
        n -= fusion->sizes[k];
    }
    return n == 0;
}

int ws_fused_stack(struct ws_fused *f, const wsync_fusion *fusion, const char *held, size_t prefix,
                   struct ws_error *err)
{
    unsigned drop = fusion->stacked != 0, dim = fusion->dim;
    uint64_t stack = drop ? f->shape[0] : 1;
    if (f->n_dims <= drop || dim >= f->n_dims || dim < drop || fusion->n_names == 0 ||
        !fills(fusion, f->shape[dim]))
        return ws_error_set(err, EINVAL,
                            "%s has %u dimensions, and %u tensors side by side along dimension %u do "
                            "not fill it%s",
                            held, f->n_dims, fusion->n_names, dim, fusion->sizes ? "" : " evenly");
    if (stack > WS_MAX_TENSORS / fusion->n_names)
        return ws_error_set(err, E2BIG, "%s stacks %" PRIu64 " tensors; at most %d", held, stack,
                            WS_MAX_TENSORS);
    for (uint64_t i = 0; i < stack; i++) {
        uint64_t from = 0;
        for (unsigned k = 0; k < fusion->n_names; k++) {
            char name[WS_MAX_TENSOR_NAME + 1];
            if (expand(name, held, prefix, fusion->names[k], i))
                return ws_error_set(err, E2BIG, "a name made of %s has over %d bytes", held,
                                    WS_MAX_TENSOR_NAME);
            struct ws_fused_part *p = ws_fused_add(f, name, f->n_dims - drop);
            if (!p)
                return ws_error_set(err, ENOMEM, "no memory for the tensors of %s", held);
            if (drop) {
                p->drops = true;
                p->from[0] = i;
                p->size[0] = 1;
            }
            p->from[dim] = from;
            p->size[dim] = fusion->sizes ? fusion->sizes[k] : f->shape[dim] / fusion->n_names;
            from += p->size[dim];
            for (unsigned d = drop; d < f->n_dims; d++)
                p->shape[d - drop] = p->size[d];
        }
    }
    return 0;
}

/* Rows of the held tensor that are rows of a tensor of the file's, which has `all`. */
static int add_rows(struct ws_fused *f, const char *name, uint64_t all, uint64_t from, uint64_t n,
                    uint64_t to, struct ws_error *err)
{
    struct ws_fused_part *p = ws_fused_add(f, name, f->n_dims);
    if (!p)
        return ws_error_set(err, ENOMEM, "no memory for %s", name);
    memcpy(p->shape, f->shape, sizeof(p->shape));
    p->shape[0] = all;
    p->from[0] = from;
    p->size[0] = n;
    p->to[0] = to;
    return 0;
}

/* One group's queries and gates, from a row on. */
static int add_gated(struct ws_fused *f, const char *name, uint64_t all, uint64_t row, uint64_t group,
                     uint64_t queries, uint64_t head_dim, struct ws_error *err)
{
    int rc = 0;
    for (uint64_t gate = 0; gate < 2; gate++)
        for (uint64_t i = 0; rc == 0 && i < queries; i++)
            rc = add_rows(f, name, all, row + (gate * queries + i) * head_dim, head_dim,
                          ((group * queries + i) * 2 + gate) * head_dim, err);
    return rc;
}

int ws_fused_qkv(struct ws_fused *f, const char *const names[3], uint64_t heads, uint64_t kv_heads,
                 uint64_t head_dim, bool gated, struct ws_error *err)
{
    const uint64_t all_queries = gated ? 2 * heads : heads;
    if (heads == 0 || kv_heads == 0 || head_dim == 0 || heads % kv_heads || f->n_dims == 0 ||
        f->shape[0] / head_dim != all_queries + 2 * kv_heads || f->shape[0] % head_dim)
        return ws_error_set(err, EINVAL,
                            "%s and its key and value cannot be taken from %" PRIu64 " rows: %" PRIu64
                            " heads%s, %" PRIu64 " key and value heads of %" PRIu64 " rows are %" PRIu64,
                            names[0], f->n_dims ? f->shape[0] : 0, heads, gated ? " and their gates" : "",
                            kv_heads, head_dim, (all_queries + 2 * kv_heads) * head_dim);
    uint64_t queries = heads / kv_heads, row = 0;
    uint64_t per_group[3] = {all_queries / kv_heads * head_dim, head_dim, head_dim};
    int rc = 0;
    for (uint64_t group = 0; group < kv_heads; group++) {
        for (unsigned k = 0; rc == 0 && k < 3; k++) {
            const uint64_t all = kv_heads * per_group[k];
            rc = k == 0 && gated ? add_gated(f, names[k], all, row, group, queries, head_dim, err)
                                 : add_rows(f, names[k], all, row, per_group[k], group * per_group[k], err);
            row += per_group[k];
        }
    }
    return rc;
}

int ws_fused_groups(struct ws_fused *f, const char *const *names, const uint64_t *sizes, unsigned n,
                    uint64_t groups, struct ws_error *err)
{
    uint64_t from = 0, rows = 0;
    bool even = groups > 0;
    int rc = 0;
    for (unsigned i = 0; even && i < n; i++) {
        even = sizes[i] % groups == 0;
        rows += sizes[i];
    }
    if (!even || f->n_dims == 0 || f->shape[0] != rows)
        return ws_error_set(err, EINVAL, "%s cannot be taken from %" PRIu64 " rows of %" PRIu64 " groups",
                            names[0], f->n_dims ? f->shape[0] : 0, groups);
    for (unsigned first = 0, end; rc == 0 && first < n; first = end) {
        uint64_t all = 0, before = 0; /* rows of this tensor; of a group, in the sections before */
        for (end = first; end < n && strcmp(names[end], names[first]) == 0; end++)
            all += sizes[end];
        for (unsigned i = first; i < end; i++) {
            const uint64_t each = sizes[i] / groups;
            for (uint64_t group = 0; rc == 0 && group < groups; group++)
                rc = add_rows(f, names[i], all, from + group * each, each, group * (all / groups) + before,
                              err);
            from += sizes[i];
            before += each;
        }
    }
    return rc;
}

bool ws_fused_box(const struct ws_fused *f, const struct ws_fused_part *p, const uint64_t *offset,
                  const uint64_t *size, uint64_t out_offset[WSYNC_MAX_DIMS],
                  uint64_t out_size[WSYNC_MAX_DIMS], uint64_t at[WSYNC_MAX_DIMS])
{
    unsigned drop = p->drops;
    for (unsigned d = 0; d < f->n_dims; d++) {
        uint64_t a = p->from[d] > offset[d] ? p->from[d] : offset[d];
        uint64_t b =
            p->from[d] + p->size[d] < offset[d] + size[d] ? p->from[d] + p->size[d] : offset[d] + size[d];
        if (a >= b)
            return false;
        at[d] = a;
        if (d >= drop) {
            out_offset[d - drop] = p->to[d - drop] + (a - p->from[d]);
            out_size[d - drop] = b - a;
        }
    }
    return true;
}

int ws_fused_range(const struct ws_fused *f, const struct ws_fused_part *p, uint64_t start, uint64_t count,
                   uint64_t *out_start, uint64_t *out_count, uint64_t *at)
{
    uint64_t from, to, n = 1;
    unsigned drop = p->drops;
    for (unsigned d = 0; d < f->n_dims; d++)
        n *= p->size[d];
    if (!ws_piece_box_is_contiguous(f->shape, f->n_dims, p->from, p->size, &from) ||
        !ws_piece_box_is_contiguous(p->shape, p->n_dims, p->to, p->size + drop, &to))
        return -EOPNOTSUPP;
    uint64_t a = from > start ? from : start, b = from + n < start + count ? from + n : start + count;
    *out_count = a < b ? b - a : 0;
    *out_start = to + (a - from);
    *at = a;
    return 0;
}
