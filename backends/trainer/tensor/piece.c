#include "backends/trainer/tensor/piece.h"
#include "backends/trainer/tensor/overlap.h"
#include "transports/base/text.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static uint64_t elements_of(const struct ws_tensor *t)
{
    uint64_t n = 1;
    for (unsigned d = 0; d < t->n_dims; d++)
        n *= t->shape[d]; /* checked against overflow when the tensor was made */
    return n;
}

#define SAME(name) ((int)WSYNC_##name == (int)WS_##name)
_Static_assert(SAME(BOOL) && SAME(U8) && SAME(I8) && SAME(F8_E5M2) && SAME(F8_E4M3) && SAME(F8_E8M0) &&
                   SAME(F8_E4M3FNUZ) && SAME(F8_E5M2FNUZ) && SAME(F4) && SAME(F6_E2M3) && SAME(F6_E3M2) &&
                   SAME(I16) && SAME(U16) && SAME(F16) && SAME(BF16) && SAME(I32) && SAME(U32) && SAME(F32) &&
                   SAME(F64) && SAME(I64) && SAME(U64) && SAME(C64),
               "the public types are the safetensors' ones");

int ws_tensor_from_param(const wsync_param *a, struct ws_tensor *t, struct ws_error *err)
{
    uint64_t bytes;
    if (!a->name || !*a->name || strlen(a->name) > WS_MAX_TENSOR_NAME)
        return ws_error_set(err, EINVAL, "a parameter has no name or one of over %d bytes",
                            WS_MAX_TENSOR_NAME);
    for (size_t i = 0, n = strlen(a->name), k; i < n; i += k)
        if ((k = ws_utf8_length(a->name + i, n - i)) == 0)
            return ws_error_set(err, EINVAL,
                                "the name of the parameter %s is no UTF-8, as a safetensors file's are",
                                a->name);
    if ((unsigned)a->dtype >= WS_DTYPE_COUNT)
        return ws_error_set(err, EINVAL, "the parameter %s has no known dtype (%d)", a->name, (int)a->dtype);
    if (a->n_dims > WS_MAX_DIMS)
        return ws_error_set(err, EINVAL, "the parameter %s has %u dimensions; at most %d", a->name, a->n_dims,
                            WS_MAX_DIMS);
    *t = (struct ws_tensor){.name = a->name, .dtype = (enum ws_dtype)a->dtype, .n_dims = a->n_dims};
    memcpy(t->shape, a->shape, a->n_dims * sizeof(t->shape[0]));
    if (ws_dtype_bytes(t->dtype, t->shape, t->n_dims, &bytes))
        return ws_error_set(err, EINVAL, "the shape of %s is too large or ends within a byte", a->name);
    return 0;
}

int ws_piece_from_public(const wsync_piece *piece, const struct ws_tensor *t, struct ws_piece *out,
                         struct ws_error *err)
{
    *out = (struct ws_piece){0};
    switch (piece->kind) {
    case WSYNC_WHOLE:
        memcpy(out->size, t->shape, sizeof(out->size));
        return 0;
    case WSYNC_BOX:
        for (unsigned d = 0; d < t->n_dims; d++) {
            if (piece->size[d] > t->shape[d] || piece->offset[d] > t->shape[d] - piece->size[d])
                return ws_error_set(err, EINVAL,
                                    "the box of %s is out of range: dimension %u has %" PRIu64
                                    " elements, the box "
                                    "begins at %" PRIu64 " and has %" PRIu64,
                                    t->name, d, t->shape[d], piece->offset[d], piece->size[d]);
            out->offset[d] = piece->offset[d];
            out->size[d] = piece->size[d];
        }
        return 0;
    case WSYNC_RANGE: {
        uint64_t n = elements_of(t);
        if (piece->count > n || piece->start > n - piece->count)
            return ws_error_set(err, EINVAL,
                                "the range of %s is out of range: it has %" PRIu64
                                " elements, the range begins at %" PRIu64 " and has %" PRIu64,
                                t->name, n, piece->start, piece->count);
        out->range = true;
        out->start = piece->start;
        out->count = piece->count;
        return 0;
    }
    }
    return ws_error_set(err, EINVAL, "the piece of %s is of no known kind (%d)", t->name, (int)piece->kind);
}

void ws_piece_strides(const int64_t *given, bool strided, const uint64_t *size, unsigned n_dims,
                      int64_t out[WSYNC_MAX_DIMS])
{
    int64_t step = 1;
    for (unsigned d = 0; d < n_dims; d++)
        strided = strided || given[d] != 0;
    for (unsigned d = n_dims; d-- > 0; step *= (int64_t)size[d])
        out[d] = strided ? given[d] : step;
}

uint64_t ws_piece_elements(const struct ws_piece *p, unsigned n_dims)
{
    uint64_t n = 1;
    if (p->range)
        return p->count;
    for (unsigned d = 0; d < n_dims; d++)
        n *= p->size[d];
    return n;
}

bool ws_piece_equal(const struct ws_piece *a, const struct ws_piece *b, unsigned n_dims)
{
    if (a->range != b->range)
        return false;
    if (a->range)
        return a->start == b->start && a->count == b->count;
    return memcmp(a->offset, b->offset, n_dims * sizeof(a->offset[0])) == 0 &&
           memcmp(a->size, b->size, n_dims * sizeof(a->size[0])) == 0;
}

bool ws_piece_box_is_contiguous(const uint64_t *shape, unsigned n_dims, const uint64_t *offset,
                                const uint64_t *size, uint64_t *start)
{
    uint64_t step = 1;
    bool full = true; /* all dimensions further in are whole */
    *start = 0;
    for (unsigned d = n_dims; d-- > 0;) {
        if (!full && size[d] != 1)
            return false;
        full = full && size[d] == shape[d];
        *start += offset[d] * step;
        step *= shape[d];
    }
    return true;
}

bool ws_piece_as_range(const struct ws_piece *p, const struct ws_tensor *t, uint64_t *start, uint64_t *count)
{
    *start = p->start;
    *count = ws_piece_elements(p, t->n_dims);
    return p->range || ws_piece_box_is_contiguous(t->shape, t->n_dims, p->offset, p->size, start) ||
           *count == 0;
}

void ws_piece_make_dense(struct ws_tensor *t, struct ws_piece *p)
{
    if (p->range) {
        t->n_dims = 1;
        t->shape[0] = p->count;
        p->start = 0;
        return;
    }
    for (unsigned d = 0; d < t->n_dims; d++) {
        t->shape[d] = p->size[d];
        p->offset[d] = 0;
    }
}

/* By what ws_piece_equal compares. */
static int by_piece(const void *x, const void *y, void *arg)
{
    const struct ws_piece_holder *a = *(struct ws_piece_holder *const *)x,
                                 *b = *(struct ws_piece_holder *const *)y;
    const struct ws_piece *p = &a->piece, *q = &b->piece;
    const unsigned n_dims = *(const unsigned *)arg;
    int c = (int)p->range - (int)q->range;
    if (c == 0 && p->range)
        c = p->start != q->start ? (p->start < q->start ? -1 : 1)
                                 : (p->count > q->count) - (p->count < q->count);
    for (unsigned d = 0; c == 0 && !p->range && d < n_dims; d++)
        c = p->offset[d] != q->offset[d] ? (p->offset[d] < q->offset[d] ? -1 : 1)
                                         : (p->size[d] > q->size[d]) - (p->size[d] < q->size[d]);
    return c ? c : (a > b) - (a < b);
}

int ws_piece_assign_writers(const struct ws_tensor *t, struct ws_piece_holder *holders, size_t n,
                            uint64_t *load, struct ws_error *err)
{
    const struct ws_piece_holder **writers = calloc(n ? n : 1, sizeof(*writers));
    struct ws_piece_holder **sorted =
        calloc(n ? n : 1, sizeof(*sorted)); /* equal pieces together, in order */
    size_t *first =
        calloc(n ? n : 1, sizeof(*first)); /* by claim: where its piece begins there, if it is the first */
    uint64_t covered = 0, bytes_each = ws_dtype_bits(t->dtype);
    size_t n_writers = 0;
    unsigned n_dims = t->n_dims;
    int rc =
        writers && sorted && first ? 0 : ws_error_set(err, ENOMEM, "no memory for the pieces of %s", t->name);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        holders[i].writes = false;
        sorted[i] = &holders[i];
    }
    if (rc == 0)
        qsort_r(sorted, n, sizeof(sorted[0]), by_piece, &n_dims);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (i == 0 || !ws_piece_equal(&sorted[i]->piece, &sorted[i - 1]->piece, t->n_dims))
            first[sorted[i] - holders] = i + 1;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (first[i] == 0)
            continue;
        struct ws_piece_holder *best = &holders[i];
        for (size_t j = first[i]; j < n && ws_piece_equal(&sorted[j]->piece, &holders[i].piece, t->n_dims);
             j++)
            if (load[sorted[j]->rank] < load[best->rank])
                best = sorted[j];
        uint64_t elements = ws_piece_elements(&best->piece, t->n_dims);
        best->writes = true;
        writers[n_writers++] = best;
        load[best->rank] += elements * bytes_each / 8;
        covered += elements;
    }
    if (rc == 0)
        rc = ws_overlap_check(t, writers, n_writers, err);
    if (rc == 0 && covered != elements_of(t))
        rc =
            ws_error_set(err, ENODATA, "%s is not whole: of its %" PRIu64 " elements the ranks hold %" PRIu64,
                         t->name, elements_of(t), covered);
    free(first);
    free(sorted);
    free(writers);
    return rc;
}
