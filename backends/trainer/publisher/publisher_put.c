/* Puts: parameters become boxes of a copy plan over the begun version's files, and the plan runs. */
#include "backends/trainer/publisher/publisher_state.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int conversion_of(const wsync_param *a, const struct ws_registered_piece *r, enum ws_conversion *out,
                         struct ws_error *err)
{
    *out = WS_SAME_TYPE;
    if (!a->converts)
        return 0;
    if ((unsigned)a->data_dtype >= WS_DTYPE_COUNT)
        return ws_error_set(err, EINVAL, "the data of the parameter %s has no known dtype (%d)", a->name,
                            (int)a->data_dtype);
    const char *from = ws_dtype_name((enum ws_dtype)a->data_dtype), *to = ws_dtype_name(r->tensor.dtype);
    const bool plus_1 = a->converts == WSYNC_PLUS_1;
    if ((plus_1 ? ws_conversion_find_plus_1 : ws_conversion_find)((enum ws_dtype)a->data_dtype,
                                                                  r->tensor.dtype, out) < 0)
        return ws_error_set(
            err, EINVAL,
            "the parameter %s cannot become %s out of %s%s in the copy, only F32, BF16 and F16 "
            "become each other: convert it before, or publish it as %s",
            a->name, to, from, plus_1 ? " plus 1" : "", from);
    return 0;
}

int ws_publisher_layout(const wsync_param *a, const struct ws_registered_piece *r,
                        struct ws_source_layout *out, struct ws_error *err)
{
    static const int64_t contiguous[WSYNC_MAX_DIMS];
    bool box = a->piece.kind == WSYNC_BOX;
    *out = (struct ws_source_layout){0};
    int rc = conversion_of(a, r, &out->conversion, err);
    if (rc < 0 || r->piece.range)
        return rc;
    ws_piece_strides(box ? a->piece.strides : contiguous, box && a->piece.strided, r->piece.size,
                     r->tensor.n_dims, out->strides);
    return 0;
}

int ws_publisher_plan(struct ws_copy_plan *plan, const struct wsync_publisher *p,
                      const struct ws_registered_piece *registered, const struct ws_source_layout *l,
                      const struct ws_copy_target *goal, struct ws_error *err)
{
    struct ws_registered_piece own = *registered;
    const struct ws_registered_piece *r = &own;
    const struct ws_tensor *t = &own.tensor;
    size_t source = (size_t)(registered - p->params);
    if (goal->alone)
        ws_piece_make_dense(&own.tensor, &own.piece);
    const int64_t one = 1;
    uint64_t elements = 1, bytes;
    (void)ws_dtype_bytes(t->dtype, t->shape, t->n_dims, &bytes);
    if (ws_dtype_bits(t->dtype) % 8) /* packed elements: whole tensors only */
        return ws_copy_plan_add_bytes(plan, goal->file, goal->begin, bytes, source, err);
    struct ws_box box = {.n_dims = t->n_dims,
                         .shape = t->shape,
                         .offset = r->piece.offset,
                         .size = r->piece.size,
                         .src_strides = l->strides,
                         .element_bytes = ws_dtype_bits(t->dtype) / 8,
                         .conversion = l->conversion};
    if (r->piece.range) {
        for (unsigned d = 0; d < t->n_dims; d++)
            elements *= t->shape[d];
        box.n_dims = 1;
        box.shape = &elements;
        box.offset = &r->piece.start;
        box.size = &r->piece.count;
        box.src_strides = &one;
    }
    return ws_copy_plan_add(plan, goal->file, goal->begin, &box, source, err);
}

static int add_param(struct ws_copy_plan *plan, const struct wsync_publisher *p,
                     const struct ws_registered_piece *r, const struct ws_source_layout *l,
                     struct ws_error *err)
{
    const struct ws_copy_target goal = {r->file, r->tensor.begin, p->is_node_part};
    return ws_publisher_plan(plan, p, r, l, &goal, err);
}

/* What only rank 0 writes, once a slot: sidecars and frozen tensors. */
static int add_fresh(struct ws_copy_plan *plan, struct wsync_publisher *p, struct ws_error *err)
{
    size_t source = p->n_params;
    uint64_t bytes;
    int rc = 0;
    for (size_t i = 0; p->base && rc == 0 && i < ws_base_checkpoint_n_sidecars(p->base); i++, source++) {
        p->sources[source] = ws_base_checkpoint_sidecar_data(p->base, i, &bytes);
        rc = ws_copy_plan_add_bytes(plan, p->sidecar_files[i], 0, bytes, source, err);
    }
    for (size_t i = 0; p->base && rc == 0 && i < ws_base_checkpoint_n_tensors(p->base); i++, source++) {
        const struct ws_registered_piece *r = &p->base_places[i];
        p->sources[source] = ws_base_checkpoint_tensor_data(p->base, i, &bytes);
        if (r->writes)
            rc = ws_copy_plan_add_bytes(plan, r->file, r->tensor.begin, bytes, source, err);
    }
    return rc;
}

static bool is_fresh(const struct wsync_publisher *p)
{
    return p->fresh && p->rank == 0 && p->base;
}

/* --- GPUs --- */

static bool is_on_device(const struct wsync_publisher *p, size_t i)
{
    return p->devices[i] >= 0 && p->params[i].writes;
}

/* How far the piece's elements extend from the first one, in elements: the lowest (at most 0) and the one
 * behind the highest. -EOVERFLOW. */
static int reach(const struct ws_registered_piece *r, const struct ws_source_layout *l, int64_t *low,
                 int64_t *high)
{
    *low = 0;
    *high = 1;
    if (r->piece.range) {
        *high = (int64_t)r->piece.count;
        return 0;
    }
    for (unsigned d = 0; d < r->tensor.n_dims; d++) {
        int64_t far, *end = l->strides[d] < 0 ? low : high;
        if (__builtin_mul_overflow(l->strides[d], (int64_t)r->piece.size[d] - 1, &far) ||
            __builtin_add_overflow(*end, far, end))
            return -EOVERFLOW;
    }
    return 0;
}

/* The allocation that was looked up last. Mostly the next parameter lies in it too, and asking the driver
 * anew for each of ten thousand takes as long as copying them. */
struct allocation {
    int device;
    const unsigned char *base; /* NULL: none */
    uint64_t bytes;
};

static bool lies_in(const struct allocation *x, const void *p)
{
    const unsigned char *at = p;
    return x->base && at >= x->base && (uint64_t)(at - x->base) < x->bytes;
}

/* A kernel that reads beyond an allocation ends the trainer's whole context. */
static int check_reach(const struct wsync_publisher *p, const wsync_param *a, size_t i,
                       const struct allocation *x, struct ws_error *err)
{
    const struct ws_registered_piece *r = &p->params[i];
    const unsigned char *at = a->data;
    const int64_t width = ws_dtype_bits(a->converts ? (enum ws_dtype)a->data_dtype : r->tensor.dtype) / 8;
    struct ws_source_layout l;
    int64_t low = 0, high = 0;
    if (width == 0 || ws_piece_elements(&r->piece, r->tensor.n_dims) == 0)
        return 0;
    int rc = ws_publisher_layout(a, r, &l, err);
    if (rc < 0)
        return rc;
    if (reach(r, &l, &low, &high) == 0 && !__builtin_mul_overflow(low, width, &low) &&
        !__builtin_mul_overflow(high, width, &high) && -low <= at - x->base &&
        high <= (int64_t)x->bytes - (at - x->base))
        return 0;
    return ws_error_set(err, EINVAL,
                        "the parameter %s at %p reaches out of its allocation on device %d, %" PRIu64
                        " bytes at %p: look at its sizes and strides",
                        a->name, a->data, p->devices[i], x->bytes, (const void *)x->base);
}

static int check_allocation(const struct wsync_publisher *p, const wsync_param *a, size_t i,
                            struct allocation *x, struct ws_error *err)
{
    int rc = 0;
    if (!lies_in(x, a->data)) {
        x->device = p->devices[i];
        rc = ws_device_by_kind(WS_CUDA)->range(x->device, a->data, &x->base, &x->bytes, err);
    }
    if (rc < 0) {
        x->base = NULL;
        (void)ws_error_prefix(err, "the parameter %s", a->name);
        return rc;
    }
    return check_reach(p, a, i, x, err);
}

int ws_publisher_check_audited(struct wsync_publisher *p, const wsync_param *params, size_t first, size_t n,
                               struct ws_error *err)
{
    struct allocation seen = {0};
    int rc = 0;
    for (size_t k = 0; rc == 0 && k < n; k++) /* what is written was checked */
        if (p->devices[first + k] >= 0 && !p->params[first + k].writes && ws_publisher_audits(p, first + k))
            rc = check_allocation(p, &params[k], first + k, &seen, err);
    return rc;
}

static int locate(struct wsync_publisher *p, const wsync_param *a, size_t i, struct allocation *x,
                  struct ws_error *err)
{
    const bool was = p->devices[i] >= 0 && p->sources[i] == a->data;
    int device = -1;
    if (a->data && lies_in(x, a->data))
        p->devices[i] = x->device;
    else
        p->devices[i] = a->data && ws_device_by_address(a->data, &device) != WS_HOST ? device : -1;
    if (was && p->devices[i] < 0)
        return ws_error_set(
            err, EINVAL,
            "the parameter %s at %p was in a GPU's memory, and is no memory that the driver knows any "
            "more: it was freed",
            a->name, a->data);
    if (!is_on_device(p, i))
        return 0;
    if (p->device < 0)
        p->device = p->devices[i];
    return check_allocation(p, a, i, x, err);
}

int ws_publisher_locate(struct wsync_publisher *p, const wsync_param *params, struct ws_error *err)
{
    struct allocation seen = {0};
    int rc = 0;
    p->device = -1;
    p->gpu_report[0] = 0;
    if (!ws_device_by_kind(WS_CUDA)->is_open())
        return 0;
    for (size_t i = 0; rc == 0 && i < p->n_params; i++)
        rc = locate(p, &params[i], i, &seen, err);
    return rc;
}

/* Copies wait for the streams that write what they copy; mostly that is one. */
static int follow(struct wsync_publisher *p, const wsync_param *a, size_t i, int *device, void **stream,
                  struct ws_error *err)
{
    if (!is_on_device(p, i) || (p->devices[i] == *device && a->stream == *stream))
        return 0;
    *device = p->devices[i];
    *stream = a->stream;
    return ws_d2h_follow_stream(p->d2h, *device, *stream, err);
}

static int begin_d2h(struct wsync_publisher *p, const wsync_param *params, size_t first, size_t n,
                     struct ws_error *err)
{
    int device = -1, rc = p->d2h ? 0 : ws_d2h_new(&p->d2h, err);
    void *stream = NULL;
    if (rc == 0)
        rc = ws_d2h_begin(p->d2h, p->n_params, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = follow(p, &params[i], first + i, &device, &stream, err);
    return rc;
}

static void report(struct wsync_publisher *p, uint64_t began_ns)
{
    char ways[WS_ERROR_TEXT / 2];
    const char *why = p->pinned ? ws_pinned_slots_why_not(p->pinned) : "";
    ws_d2h_describe(p->d2h, ways, sizeof(ways));
    const int n = snprintf(p->gpu_report, sizeof(p->gpu_report), "%.1f ms: %s%s%s",
                           (double)(ws_clock_ns() - began_ns) / 1e6, ways,
                           why[0] ? "; the slot is not pinned: " : "", why);
    if (n >= 0 && (size_t)n < sizeof(p->gpu_report))
        ws_publisher_delta_describe(p, p->gpu_report + n, sizeof(p->gpu_report) - (size_t)n);
}

static void give(void *arg)
{
    ws_publisher_compare_give(arg);
}

/* params: the caller's parameters in the plan, from the first-th on; all: they are all of the version's. */
static int run_plan(struct wsync_publisher *p, struct ws_copy_plan *plan, const wsync_param *params,
                    size_t first, size_t n, bool all, struct ws_error *err)
{
    const uint64_t began = ws_clock_ns();
    bool on_device = false;
    for (size_t i = 0; i < p->n_files; i++) {
        p->data[i] = p->regions[i] ? ws_region_data(p->regions[i]) : NULL;
        p->file_is_pinned[i] =
            p->uses_pinned && p->regions[i] && ws_pinned_slots_has(p->pinned, p->regions[i]);
    }
    for (size_t i = first; p->device >= 0 && i < first + n; i++)
        on_device = on_device || is_on_device(p, i);
    int rc = on_device ? begin_d2h(p, params, first, n, err) : 0;
    struct ws_copy_plan_delta *delta = NULL;
    if (rc == 0 && on_device && all)
        rc = ws_publisher_delta_run(p, &delta, err);
    struct ws_copy_plan_compare *compare = rc == 0 && !on_device && all ? ws_publisher_compare_run(p) : NULL;
    struct ws_copy_plan_run run = {.data = p->data,
                                   .sources = p->sources,
                                   .d2h = on_device ? p->d2h : NULL,
                                   .devices = p->devices,
                                   .pinned = p->file_is_pinned,
                                   .delta = delta,
                                   .compare = compare,
                                   .overflows = p->overflows,
                                   .hashes = &p->hashes,
                                   .some_done = compare && ws_publisher_compare_gives(p) ? give : NULL,
                                   .some_done_arg = p,
                                   .progress = all ? p->progress : NULL,
                                   .progress_arg = p->progress_arg};
    if (rc == 0)
        rc = ws_copy_plan_run(plan, &run, p->workers, err);
    if (rc == 0 && !on_device && all)
        ws_publisher_compare_ran(p, ws_clock_ns() - began);
    if (rc == 0 && run.some_done)
        rc = ws_publisher_compare_gave(p, err);
    if (rc == 0 && on_device) {
        rc = ws_d2h_end(p->d2h, p->overflows, p->n_params, err);
        report(p, began);
    }
    return rc;
}

/* --- all at once --- */

static bool same_layout(const struct ws_source_layout *a, const struct ws_source_layout *b)
{
    return a->conversion == b->conversion && memcmp(a->strides, b->strides, sizeof(a->strides)) == 0;
}

/* Records the sources and their layouts; *changed: the plan was compiled for other layouts. */
static int record_sources(struct wsync_publisher *p, const wsync_param *params, bool *changed,
                          struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < p->n_params; i++) {
        const struct ws_registered_piece *r = &p->params[i];
        struct ws_source_layout l;
        rc = ws_publisher_layout(&params[i], r, &l, err);
        if (rc == 0 && !params[i].data && ws_piece_elements(&r->piece, r->tensor.n_dims) > 0)
            rc = ws_error_set(err, EINVAL, "the parameter %s has no data", params[i].name);
        *changed = *changed || !same_layout(&l, &p->layouts[i]);
        p->layouts[i] = l;
        p->sources[i] = params[i].data;
    }
    return rc;
}

static int make_plan(struct wsync_publisher *p, bool with_fresh, struct ws_copy_plan **out,
                     struct ws_error *err)
{
    struct ws_copy_plan *plan;
    int rc = ws_copy_plan_new(&plan, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < p->n_params; i++)
        if (p->params[i].writes)
            rc = add_param(plan, p, &p->params[i], &p->layouts[i], err);
    if (rc == 0 && with_fresh)
        rc = add_fresh(plan, p, err);
    if (rc == 0)
        rc = ws_copy_plan_compile(plan, p->file_sizes, p->n_files, err);
    if (rc < 0)
        ws_copy_plan_free(plan);
    else
        *out = plan;
    return rc;
}

int ws_publisher_put_all(struct wsync_publisher *p, const wsync_param *params, struct ws_error *err)
{
    bool changed = false;
    struct ws_copy_plan *once = NULL; /* with what goes into a slot once */
    if (!p->layouts)
        p->layouts = calloc(p->n_params + 1, sizeof(*p->layouts));
    if (!p->layouts)
        return ws_error_set(err, ENOMEM, "no memory for a plan of copies");
    int rc = record_sources(p, params, &changed, err);
    if (changed || rc < 0) {
        ws_copy_plan_free(p->plan);
        p->plan = NULL;
    }
    if (rc == 0 && is_fresh(p))
        rc = make_plan(p, true, &once, err);
    else if (rc == 0 && !p->plan)
        rc = make_plan(p, false, &p->plan, err);
    if (rc == 0)
        rc = run_plan(p, once ? once : p->plan, params, 0, p->n_params, true, err);
    ws_copy_plan_free(once);
    if (rc == 0)
        rc = ws_publisher_audit_hash(p, params, 0, p->n_params, err);
    for (size_t i = 0; rc == 0 && i < p->n_params; i++)
        p->put[i] = true;
    return rc;
}

/* --- one by one --- */

int ws_publisher_put(struct wsync_publisher *p, const wsync_param *a, const struct ws_registered_piece *r,
                     struct ws_error *err)
{
    struct ws_source_layout l;
    struct ws_copy_plan *plan = NULL;
    int rc = ws_publisher_layout(a, r, &l, err);
    if (rc == 0 && !a->data && ws_piece_elements(&r->piece, r->tensor.n_dims) > 0)
        rc = ws_error_set(err, EINVAL, "the parameter %s has no data", a->name);
    if (rc == 0)
        rc = ws_copy_plan_new(&plan, err);
    if (rc < 0)
        return rc;
    const size_t index = (size_t)(r - p->params);
    if (ws_device_by_kind(WS_CUDA)->is_open())
        rc = locate(p, a, index, &(struct allocation){0}, err);
    if (rc < 0) {
        ws_copy_plan_free(plan);
        return rc;
    }
    p->sources[index] = a->data;
    if (r->writes)
        rc = add_param(plan, p, r, &l, err);
    if (rc == 0)
        rc = ws_copy_plan_compile(plan, p->file_sizes, p->n_files, err);
    if (rc == 0)
        rc = run_plan(p, plan, a, index, 1, false, err);
    if (rc == 0)
        rc = ws_publisher_audit_hash(p, a, index, 1, err);
    ws_copy_plan_free(plan);
    p->put[index] = rc == 0;
    return rc;
}

int ws_publisher_put_fresh(struct wsync_publisher *p, struct ws_error *err)
{
    struct ws_copy_plan *plan;
    if (!is_fresh(p))
        return 0;
    int rc = ws_copy_plan_new(&plan, err);
    if (rc < 0)
        return rc;
    rc = add_fresh(plan, p, err);
    if (rc == 0)
        rc = ws_copy_plan_compile(plan, p->file_sizes, p->n_files, err);
    if (rc == 0)
        rc = run_plan(p, plan, NULL, 0, 0, false, err);
    ws_copy_plan_free(plan);
    return rc;
}
