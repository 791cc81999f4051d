/* Parameters become boxes of a plan over the begun version. */
#include "backends/trainer/publisher_state.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int conversion_of(const wsync_param *a, const struct ws_registered *r, enum ws_conversion *out,
                         struct ws_error *err)
{
    *out = WS_KEEP;
    if (!a->converts)
        return 0;
    if ((unsigned)a->data_dtype >= WS_DTYPE_COUNT)
        return ws_error_set(err, EINVAL, "the data of the parameter %s has no known dtype (%d)", a->name,
                            (int)a->data_dtype);
    const char *from = ws_dtype_name((enum ws_dtype)a->data_dtype), *to = ws_dtype_name(r->tensor.dtype);
    if (ws_conversion_of((enum ws_dtype)a->data_dtype, r->tensor.dtype, out) < 0)
        return ws_error_set(err, EINVAL,
                            "the parameter %s cannot become %s out of %s in the copy, only F32, BF16 and F16 "
                            "become each other: convert it before, or publish it as %s",
                            a->name, to, from, from);
    return 0;
}

int ws_publisher_layout(const wsync_param *a, const struct ws_registered *r, struct ws_layout *out,
                        struct ws_error *err)
{
    static const int64_t contiguous[WSYNC_MAX_DIMS];
    bool box = a->piece.kind == WSYNC_BOX;
    *out = (struct ws_layout){0};
    int rc = conversion_of(a, r, &out->conversion, err);
    if (rc < 0 || r->piece.range)
        return rc;
    ws_strides_meant(box ? a->piece.strides : contiguous, box && a->piece.strided, r->piece.size,
                     r->tensor.n_dims, out->strides);
    return 0;
}

static int add_param(struct ws_plan *plan, const struct wsync_publisher *p,
                     const struct ws_registered *registered, const struct ws_layout *l, struct ws_error *err)
{
    struct ws_registered own = *registered;
    const struct ws_registered *r = &own;
    const struct ws_tensor *t = &own.tensor;
    size_t source = (size_t)(registered - p->params);
    if (p->in_part)
        ws_piece_alone(&own.tensor, &own.piece);
    const int64_t one = 1;
    uint64_t elements = 1, bytes;
    (void)ws_dtype_bytes(t->dtype, t->shape, t->n_dims, &bytes);
    if (ws_dtype_bits(t->dtype) % 8) /* packed elements: whole tensors only */
        return ws_plan_add_bytes(plan, r->file, t->begin, bytes, source, err);
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
    return ws_plan_add(plan, r->file, t->begin, &box, source, err);
}

/* What only rank 0 writes, once a slot: sidecars and frozen tensors. */
static int add_fresh(struct ws_plan *plan, struct wsync_publisher *p, struct ws_error *err)
{
    size_t source = p->n_params;
    uint64_t bytes;
    int rc = 0;
    for (size_t i = 0; p->base && rc == 0 && i < ws_base_n_sidecars(p->base); i++, source++) {
        p->sources[source] = ws_base_sidecar_data(p->base, i, &bytes);
        rc = ws_plan_add_bytes(plan, p->sidecar_files[i], 0, bytes, source, err);
    }
    for (size_t i = 0; p->base && rc == 0 && i < ws_base_n_tensors(p->base); i++, source++) {
        const struct ws_registered *r = &p->base_places[i];
        p->sources[source] = ws_base_tensor_data(p->base, i, &bytes);
        if (r->writes)
            rc = ws_plan_add_bytes(plan, r->file, r->tensor.begin, bytes, source, err);
    }
    return rc;
}

static bool is_fresh(const struct wsync_publisher *p)
{
    return p->fresh && p->rank == 0 && p->base;
}

static int run_plan(struct wsync_publisher *p, struct ws_plan *plan, bool with_progress, struct ws_error *err)
{
    for (size_t i = 0; i < p->n_files; i++)
        p->data[i] = p->regions[i] ? ws_region_data(p->regions[i]) : NULL;
    struct ws_plan_run run = {.data = p->data,
                              .sources = p->sources,
                              .overflows = p->overflows,
                              .hashes = &p->hashes,
                              .n_hashes = &p->n_hashes,
                              .progress = with_progress ? p->progress : NULL,
                              .progress_arg = p->progress_arg};
    return ws_plan_run(plan, &run, p->workers, err);
}

/* --- all at once --- */

static bool same_layout(const struct ws_layout *a, const struct ws_layout *b)
{
    return a->conversion == b->conversion && memcmp(a->strides, b->strides, sizeof(a->strides)) == 0;
}

/* Notes the sources and their layouts; *changed: the plan is of others. */
static int take_sources(struct wsync_publisher *p, const wsync_param *params, bool *changed,
                        struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < p->n_params; i++) {
        const struct ws_registered *r = &p->params[i];
        struct ws_layout l;
        rc = ws_publisher_layout(&params[i], r, &l, err);
        if (rc == 0 && !params[i].data && ws_piece_elements(&r->piece, r->tensor.n_dims) > 0)
            rc = ws_error_set(err, EINVAL, "the parameter %s has no data", params[i].name);
        *changed = *changed || !same_layout(&l, &p->layouts[i]);
        p->layouts[i] = l;
        p->sources[i] = params[i].data;
    }
    return rc;
}

static int make_plan(struct wsync_publisher *p, bool with_fresh, struct ws_plan **out, struct ws_error *err)
{
    struct ws_plan *plan;
    int rc = ws_plan_new(&plan, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < p->n_params; i++)
        if (p->params[i].writes)
            rc = add_param(plan, p, &p->params[i], &p->layouts[i], err);
    if (rc == 0 && with_fresh)
        rc = add_fresh(plan, p, err);
    if (rc == 0)
        rc = ws_plan_compile(plan, p->file_sizes, p->n_files, err);
    if (rc < 0)
        ws_plan_free(plan);
    else
        *out = plan;
    return rc;
}

int ws_publisher_put_all(struct wsync_publisher *p, const wsync_param *params, struct ws_error *err)
{
    bool changed = false;
    struct ws_plan *once = NULL; /* with what goes into a slot once */
    if (!p->layouts)
        p->layouts = calloc(p->n_params + 1, sizeof(*p->layouts));
    if (!p->layouts)
        return ws_error_set(err, ENOMEM, "no memory for a plan of copies");
    int rc = take_sources(p, params, &changed, err);
    if (changed || rc < 0) {
        ws_plan_free(p->plan);
        p->plan = NULL;
    }
    if (rc == 0 && is_fresh(p))
        rc = make_plan(p, true, &once, err);
    else if (rc == 0 && !p->plan)
        rc = make_plan(p, false, &p->plan, err);
    if (rc == 0)
        rc = run_plan(p, once ? once : p->plan, true, err);
    ws_plan_free(once);
    for (size_t i = 0; rc == 0 && i < p->n_params; i++)
        p->put[i] = true;
    return rc;
}

/* --- one by one --- */

int ws_publisher_put(struct wsync_publisher *p, const wsync_param *a, const struct ws_registered *r,
                     struct ws_error *err)
{
    struct ws_layout l;
    struct ws_plan *plan = NULL;
    int rc = ws_publisher_layout(a, r, &l, err);
    if (rc == 0 && !a->data && ws_piece_elements(&r->piece, r->tensor.n_dims) > 0)
        rc = ws_error_set(err, EINVAL, "the parameter %s has no data", a->name);
    if (rc == 0)
        rc = ws_plan_new(&plan, err);
    if (rc < 0)
        return rc;
    p->sources[r - p->params] = a->data;
    if (r->writes)
        rc = add_param(plan, p, r, &l, err);
    if (rc == 0)
        rc = ws_plan_compile(plan, p->file_sizes, p->n_files, err);
    if (rc == 0)
        rc = run_plan(p, plan, false, err);
    ws_plan_free(plan);
    p->put[r - p->params] = rc == 0;
    return rc;
}

int ws_publisher_put_fresh(struct wsync_publisher *p, struct ws_error *err)
{
    struct ws_plan *plan;
    if (!is_fresh(p))
        return 0;
    int rc = ws_plan_new(&plan, err);
    if (rc < 0)
        return rc;
    rc = add_fresh(plan, p, err);
    if (rc == 0)
        rc = ws_plan_compile(plan, p->file_sizes, p->n_files, err);
    if (rc == 0)
        rc = run_plan(p, plan, false, err);
    ws_plan_free(plan);
    return rc;
}
