/* Parameters become runs of bytes and strided copies, and those a plan over the begun version. */
#include "backends/trainer/publisher_state.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A registered piece with its source becomes a run of bytes, or a strided copy. */
static int plan_piece(struct ws_plan *plan, const struct ws_registered *registered, const wsync_param *a,
                      bool alone)
{
    struct ws_registered own = *registered;
    const struct ws_registered *r = &own;
    if (alone)
        ws_piece_alone(&own.tensor, &own.piece);
    uint64_t start, count, element = ws_dtype_bits(r->tensor.dtype) / 8;
    unsigned n = r->tensor.n_dims;
    bool dense = a->piece.kind != WSYNC_BOX;
    int64_t strides[WS_MAX_DIMS] = {0}, step = 1;
    if (a->piece.kind == WSYNC_WHOLE) {
        struct ws_segment s = {.file = r->file, .begin = r->tensor.begin, .src = a->data};
        (void)ws_dtype_bytes(r->tensor.dtype, r->tensor.shape, n, &s.bytes);
        return ws_plan_add_segment(plan, &s);
    }
    if (a->piece.kind == WSYNC_BOX) {
        bool given = false;
        for (unsigned d = 0; d < n; d++)
            given = given || a->piece.strides[d] != 0;
        dense = true;
        for (unsigned d = n; d-- > 0; step *= (int64_t)r->piece.size[d]) {
            strides[d] = given ? a->piece.strides[d] : step;
            dense = dense && (strides[d] == step || r->piece.size[d] <= 1);
        }
    }
    if (dense && ws_piece_as_range(&r->piece, &r->tensor, &start, &count)) {
        struct ws_segment s = {.file = r->file,
                               .begin = r->tensor.begin + start * element,
                               .bytes = count * element,
                               .src = a->data};
        return ws_plan_add_segment(plan, &s);
    }
    struct ws_strided s = {.file = r->file,
                           .tensor_begin = r->tensor.begin,
                           .src = a->data,
                           .n_dims = n,
                           .element_bytes = element};
    memcpy(s.shape, r->tensor.shape, sizeof(s.shape));
    memcpy(s.offset, r->piece.offset, sizeof(s.offset));
    memcpy(s.size, r->piece.size, sizeof(s.size));
    memcpy(s.strides, strides, sizeof(s.strides));
    return ws_plan_add_strided(plan, &s);
}

/* What only rank 0 writes, once a slot: sidecars and frozen tensors. */
static int fill_fresh(struct wsync_publisher *p, struct ws_plan *plan, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; p->base && rc == 0 && i < ws_base_n_sidecars(p->base); i++) {
        struct ws_segment s = {.file = p->sidecar_files[i]};
        s.src = ws_base_sidecar_data(p->base, i, &s.bytes);
        rc = ws_plan_add_segment(plan, &s);
    }
    for (size_t i = 0; p->base && rc == 0 && i < ws_base_n_tensors(p->base); i++) {
        struct ws_segment s = {.file = p->base_places[i].file, .begin = p->base_places[i].tensor.begin};
        if (!p->base_places[i].writes)
            continue;
        s.src = ws_base_tensor_data(p->base, i, &s.bytes);
        rc = ws_plan_add_segment(plan, &s);
    }
    return rc < 0 ? ws_error_set(err, ENOMEM, "no memory for a plan of copies") : 0;
}

static int run_plan(struct wsync_publisher *p, struct ws_plan *plan, bool with_progress, struct ws_error *err)
{
    unsigned char **data = calloc(p->n_files + 1, sizeof(*data));
    if (!data)
        return ws_error_set(err, ENOMEM, "no memory for a plan of copies");
    for (size_t i = 0; i < p->n_files; i++)
        data[i] = p->regions[i] ? ws_region_data(p->regions[i]) : NULL;
    int rc = ws_plan_run(plan, data, p->file_sizes, p->n_files, p->workers, &p->hashes, &p->n_hashes,
                         with_progress ? p->progress : NULL, p->progress_arg, err);
    free(data);
    return rc;
}

int ws_publisher_put(struct wsync_publisher *p, const wsync_param *params, struct ws_registered *const *which,
                     size_t n, bool with_fresh, struct ws_error *err)
{
    struct ws_plan *plan;
    int rc = ws_plan_new(&plan, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        struct ws_registered *r = which ? which[i] : &p->params[i];
        if (!params[i].data && ws_piece_elements(&r->piece, r->tensor.n_dims) > 0)
            rc = ws_error_set(err, EINVAL, "the parameter %s has no data", params[i].name);
        else if (r->writes && plan_piece(plan, r, &params[i], p->in_part) < 0)
            rc = ws_error_set(err, ENOMEM, "no memory for a plan of copies");
        r->put = true;
    }
    if (rc == 0 && with_fresh && p->fresh && p->rank == 0)
        rc = fill_fresh(p, plan, err);
    if (rc == 0)
        rc = run_plan(p, plan, n > 1, err);
    ws_plan_free(plan);
    return rc;
}
