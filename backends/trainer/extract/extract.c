#include "backends/trainer/extract/extract.h"
#include "backends/trainer/api/last_error.h"
#include "backends/trainer/api/struct_abi.h"
#include "backends/trainer/tensor/piece.h"
#include "backends/trainer/tensor/sharding.h"
#include "transports/base/limits.h"
#include "transports/base/vector.h"
#include "transports/format/folder.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct ws_extractor_ops *const extractors[] = {&ws_extract_fsdp, &ws_extract_deepspeed,
                                                            &ws_extract_megatron};
#define N_EXTRACTORS (sizeof(extractors) / sizeof(extractors[0]))

/* The place of a parameter's first element. */
struct source {
    size_t held;
    int64_t offset_bytes;
};
struct wsync_extraction {
    size_t n;
    wsync_param *params; /* names are owned */
    struct source *sources;
};

struct extractor {
    const struct ws_extractor_ops *ops;
    wsync_extract_options options;
    struct ws_hf_config config;
    struct ws_folder *base;
    bool has_dtype;
    enum ws_dtype dtype;   /* of floating-point tensors in the file */
    uint64_t mtp_layers;   /* that tensors are in, as bits */
    wsync_fusion *fusions; /* the options', of this release's size */
    wsync_extraction *out;
    struct ws_error *err;
};

static int no_memory(struct extractor *x, const char *name)
{
    return ws_error_set(x->err, ENOMEM, "no memory for the pieces of %s", name);
}

/* --- a tensor as the file has it --- */

static bool converts(enum ws_dtype d)
{
    return d == WS_F32 || d == WS_F16 || d == WS_BF16;
}

static const struct ws_tensor *in_base(const struct extractor *x, const char *name)
{
    const struct ws_tensor *t = NULL;
    for (size_t i = 0; x->base && !t && i < x->base->n_files; i++)
        if (x->base->files[i].st)
            t = ws_safetensors_find(x->base->files[i].st, name);
    return t;
}

static void shape_text(char *out, size_t cap, const uint64_t *shape, unsigned n)
{
    size_t at = 0;
    out[0] = '\0';
    for (unsigned d = 0; d < n && at < cap; d++)
        at += (size_t)snprintf(out + at, cap - at, "%s%" PRIu64, d ? ", " : "", shape[d]);
}

/* Of some models the hub's file has all experts of a layer in two tensors, and the file that transformers saves has each by
 * itself. A version with both would leave to the engine which of them it reads. */
static int refuse_stacked(struct extractor *x, const char *name, const wsync_held *h)
{
    static const char *const stacked[] = {"gate_up_proj", "down_proj"};
    static const char before[] = ".experts.";
    const char *at = strstr(name, before);
    if (!x->base || !at || !isdigit((unsigned char)at[strlen(before)]))
        return 0;
    for (size_t i = 0; i < sizeof(stacked) / sizeof(stacked[0]); i++) {
        char all[WS_MAX_TENSOR_NAME + 32];
        snprintf(all, sizeof(all), "%.*s%s%s", (int)(at - name), name, before, stacked[i]);
        if (in_base(x, all))
            return ws_error_set(x->err, EOPNOTSUPP,
                                "%s (held as %s) is one expert's, and the base checkpoint %s has the experts "
                                "of that layer in one "
                                "tensor, %s, so a version would have them twice: leave base= out, or give "
                                "one that transformers' "
                                "save_pretrained has written",
                                name, h->name, x->options.base, all);
    }
    return 0;
}

static int set_dtype(struct extractor *x, wsync_param *p, const wsync_held *h, const struct ws_extracted *e)
{
    const struct ws_tensor *t = in_base(x, p->name);
    p->dtype = h->dtype;
    if (t && (t->n_dims != p->n_dims || memcmp(t->shape, p->shape, p->n_dims * sizeof(p->shape[0])) != 0)) {
        char here[200], there[200];
        shape_text(here, sizeof(here), p->shape, p->n_dims);
        shape_text(there, sizeof(there), t->shape, t->n_dims);
        return ws_error_set(
            x->err, EINVAL,
            "%s (held as %s) has the shape [%s], and [%s] in the base checkpoint %s: is it of "
            "another model?",
            p->name, h->name, here, there, x->options.base);
    }
    if (e->plus_1 && !converts((enum ws_dtype)h->dtype))
        return ws_error_set(x->err, EOPNOTSUPP,
                            "%s is stored less one, and to %s none can be added in the copy", h->name,
                            ws_dtype_name((enum ws_dtype)h->dtype));
    if (converts((enum ws_dtype)h->dtype)) {
        if (e->f32)
            p->dtype = t ? (wsync_dtype)t->dtype : WSYNC_F32;
        else if (x->options.dtype || (!t && x->has_dtype))
            p->dtype = (wsync_dtype)x->dtype;
        else if (t)
            p->dtype = (wsync_dtype)t->dtype;
    }
    p->converts = e->plus_1 ? WSYNC_PLUS_1 : p->dtype != h->dtype;
    p->data_dtype = h->dtype;
    return 0;
}

/* --- pieces --- */

static wsync_param *add(struct extractor *x, const wsync_held *h, size_t held,
                        const struct ws_fused_part *part, int64_t offset_elements)
{
    wsync_extraction *e = x->out;
    wsync_param *params = ws_vector_room(e->params, e->n, sizeof(*params));
    if (!params)
        return NULL;
    e->params = params;
    struct source *sources = ws_vector_room(e->sources, e->n, sizeof(*sources));
    if (!sources)
        return NULL;
    e->sources = sources;
    char *name = strdup(part->name);
    if (!name)
        return NULL;
    wsync_param *p = &params[e->n];
    const int64_t offset = offset_elements * (int64_t)(ws_dtype_bits((enum ws_dtype)h->dtype) / 8);
    *p = (wsync_param){
        .name = name, .n_dims = part->n_dims, .data = h->data ? (const char *)h->data + offset : NULL};
    memcpy(p->shape, part->shape, sizeof(p->shape));
    sources[e->n] = (struct source){held, offset};
    e->n++;
    return p;
}

/* A box of the held tensor whose first element is at `at_elements` of the source. */
static int add_box(struct extractor *x, const wsync_held *h, size_t held, const struct ws_fused *f,
                   const int64_t *strides, const uint64_t *offset, const uint64_t *size, int64_t at_elements)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct ws_fused_part *part = &f->parts[i];
        wsync_piece piece = {.kind = WSYNC_BOX, .strided = 1};
        uint64_t at[WSYNC_MAX_DIMS];
        int64_t begin = at_elements;
        if (!ws_fused_box(f, part, offset, size, piece.offset, piece.size, at))
            continue;
        for (unsigned d = 0; d < f->n_dims; d++)
            begin += (int64_t)(at[d] - offset[d]) * strides[d];
        memcpy(piece.strides, strides + part->drops, part->n_dims * sizeof(strides[0]));
        wsync_param *p = add(x, h, held, part, begin);
        if (!p)
            return no_memory(x, h->name);
        p->piece = piece;
    }
    return 0;
}

static int add_range(struct extractor *x, const wsync_held *h, size_t held, const struct ws_fused *f,
                     uint64_t start, uint64_t count, uint64_t at_elements)
{
    for (size_t i = 0; i < f->n; i++) {
        wsync_piece piece = {.kind = WSYNC_RANGE};
        uint64_t at;
        if (ws_fused_range(f, &f->parts[i], start, count, &piece.start, &piece.count, &at))
            return ws_error_set(
                x->err, EOPNOTSUPP,
                "%s is held as a flat range, and %s is no single run of it: this layout is not "
                "known",
                h->name, f->parts[i].name);
        if (piece.count == 0)
            continue;
        wsync_param *p = add(x, h, held, &f->parts[i], (int64_t)(at_elements + (at - start)));
        if (!p)
            return no_memory(x, h->name);
        p->piece = piece;
    }
    return 0;
}

static uint64_t elements(const uint64_t *shape, unsigned n_dims)
{
    uint64_t n = 1;
    for (unsigned d = 0; d < n_dims; d++)
        n *= shape[d];
    return n;
}

/* A tensor without elements is in the file, too; every rank that holds it registers it. */
static int extract_empty(struct extractor *x, const wsync_held *h, size_t held, const struct ws_fused *f)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < f->n; i++) {
        if (!add(x, h, held, &f->parts[i], 0))
            rc = no_memory(x, h->name);
    }
    return rc;
}

static struct ws_sections sections_of(const struct ws_extracted *e)
{
    return (struct ws_sections){e->sections, e->n_sections};
}

static int extract_flat(struct extractor *x, const wsync_held *h, size_t held, const struct ws_extracted *e)
{
    uint64_t n = elements(e->fused.shape, e->fused.n_dims);
    struct ws_sharding s;
    if (e->n_placements == 0) {
        if (h->start > n || h->count > n - h->start)
            return ws_error_set(x->err, EINVAL,
                                "%s has %" PRIu64 " elements, and the range held begins at %" PRIu64
                                " and has %" PRIu64,
                                h->name, n, h->start, h->count);
        return add_range(x, h, held, &e->fused, h->start, h->count, 0);
    }
    int rc = ws_sharding_make(h->name, &n, 1, e->placements, e->n_placements, sections_of(e), &s, x->err);
    if (rc == 0 && h->count && ws_element_ranges_count(&s.dims[0]) > h->count) /* 0: not given */
        rc = ws_error_set(x->err, EINVAL,
                          "%s: this rank holds %" PRIu64 " elements, and its placement says %" PRIu64,
                          h->name, h->count, ws_element_ranges_count(&s.dims[0]));
    for (size_t i = 0; rc == 0 && i < s.dims[0].len; i++) {
        const struct ws_element_range *r = &s.dims[0].ptr[i];
        rc = add_range(x, h, held, &e->fused, r->start, r->count, r->local);
    }
    ws_sharding_release(&s);
    return rc;
}

/* A box of the rank's part, in its own indices, of which memory begins at the element `origin`. */
struct own_box {
    uint64_t from[WSYNC_MAX_DIMS], size[WSYNC_MAX_DIMS];
    int64_t origin;
};

/* Every combination of the dimensions' runs within the box is a box of the whole tensor. */
static int extract_boxes(struct extractor *x, const wsync_held *h, size_t held, const struct ws_fused *f,
                         const struct ws_sharding *s, const int64_t *strides, const struct own_box *own)
{
    size_t at[WSYNC_MAX_DIMS] = {0};
    for (;;) {
        uint64_t offset[WSYNC_MAX_DIMS], size[WSYNC_MAX_DIMS];
        int64_t begin = -own->origin;
        bool none = false;
        for (unsigned d = 0; d < f->n_dims; d++) {
            const struct ws_element_range *r = &s->dims[d].ptr[at[d]];
            const uint64_t a = r->local > own->from[d] ? r->local : own->from[d],
                           end = own->from[d] + own->size[d],
                           b = r->local + r->count < end ? r->local + r->count : end;
            none = none || a >= b;
            offset[d] = r->start + (a - r->local);
            size[d] = b - a;
            begin += (int64_t)a * strides[d];
        }
        int rc = none ? 0 : add_box(x, h, held, f, strides, offset, size, begin);
        unsigned d = f->n_dims;
        while (d > 0 && ++at[d - 1] == s->dims[d - 1].len)
            at[--d] = 0;
        if (rc < 0 || d == 0)
            return rc;
    }
}

/* A range of the rank's flattened part: rows that it begins and ends within, and whole ones between them. */
static int extract_own_range(struct extractor *x, const wsync_held *h, size_t held,
                             const struct ws_extracted *e, const struct ws_sharding *s)
{
    const unsigned n_dims = e->fused.n_dims;
    uint64_t local[WSYNC_MAX_DIMS] = {0}, at = h->start, left = h->count;
    int64_t strides[WSYNC_MAX_DIMS] = {0};
    int rc = 0;
    for (unsigned d = 0; d < n_dims; d++)
        local[d] = ws_element_ranges_count(&s->dims[d]);
    const uint64_t n = elements(local, n_dims);
    if (at > n || left > n - at)
        return ws_error_set(x->err, EINVAL,
                            "%s: this rank's part has %" PRIu64
                            " elements, and the range held begins at %" PRIu64 " and has %" PRIu64,
                            h->name, n, h->start, h->count);
    ws_piece_strides(strides, false, local, n_dims, strides);
    while (rc == 0 && left > 0) {
        struct own_box own = {.origin = (int64_t)h->start};
        uint64_t within = n, step = 1;
        unsigned d = 0;
        for (; d < n_dims; d++) { /* the outermost dimension of which it has whole indices here */
            step = within / local[d];
            own.from[d] = at % within / step;
            own.size[d] = 1;
            if (at % step == 0 && left >= step)
                break;
            within = step;
        }
        if (d < n_dims) {
            own.size[d] = left / step < local[d] - own.from[d] ? left / step : local[d] - own.from[d];
            step *= own.size[d];
            memcpy(&own.size[d + 1], &local[d + 1], (n_dims - d - 1) * sizeof(local[0]));
        }
        rc = extract_boxes(x, h, held, &e->fused, s, strides, &own);
        at += step;
        left -= step;
    }
    return rc;
}

static int extract_local(struct extractor *x, const wsync_held *h, size_t held, const struct ws_extracted *e)
{
    const struct ws_fused *f = &e->fused;
    struct ws_sharding s;
    struct own_box own = {0};
    int64_t strides[WSYNC_MAX_DIMS] = {0};
    bool empty = false;
    int rc = ws_sharding_make(h->name, f->shape, f->n_dims, e->placements, e->n_placements, sections_of(e),
                              &s, x->err);
    if (rc == 0 && h->flat) {
        rc = extract_own_range(x, h, held, e, &s);
        ws_sharding_release(&s);
        return rc;
    }
    for (unsigned d = 0; rc == 0 && d < f->n_dims; d++) {
        uint64_t n = ws_element_ranges_count(&s.dims[d]);
        empty = empty || n == 0;
        if (n != h->local[d])
            rc = ws_error_set(x->err, EINVAL,
                              "%s: this rank holds %" PRIu64 " of the %" PRIu64
                              " indices of dimension %u, and its placement says %" PRIu64,
                              h->name, h->local[d], f->shape[d], d, n);
    }
    memcpy(own.size, h->local, sizeof(own.size));
    ws_piece_strides(h->strides, h->strided, h->local, f->n_dims, strides);
    if (rc == 0 && !empty)
        rc = extract_boxes(x, h, held, f, &s, strides, &own);
    ws_sharding_release(&s);
    return rc;
}

static int check_held(struct extractor *x, const wsync_held *h)
{
    uint64_t bytes;
    if (!h->name || !*h->name)
        return ws_error_set(x->err, EINVAL, "a held tensor has no name");
    if ((unsigned)h->dtype >= WS_DTYPE_COUNT || h->n_dims > WSYNC_MAX_DIMS ||
        h->n_placements > WSYNC_MAX_DIMS ||
        ws_dtype_bytes((enum ws_dtype)h->dtype, h->shape, h->n_dims, &bytes))
        return ws_error_set(
            x->err, EINVAL,
            "%s has no known dtype (%d), over %d dimensions (%u), or a shape that is too large", h->name,
            (int)h->dtype, WSYNC_MAX_DIMS, h->n_dims);
    if (h->n_sections > WSYNC_MAX_SECTIONS || (h->n_sections && !h->sections))
        return ws_error_set(x->err, EINVAL, "%s has %u sections; at most %d, and their sizes", h->name,
                            h->n_sections, WSYNC_MAX_SECTIONS);
    if (h->reserved)
        return ws_error_set(x->err, EINVAL,
                            "%s: wsync_held.reserved is %u, and 0 is all that this release knows", h->name,
                            h->reserved);
    if (ws_dtype_bits((enum ws_dtype)h->dtype) % 8)
        return ws_error_set(x->err, EOPNOTSUPP,
                            "%s is of %s, packed within bytes: pass it as a parameter of its own", h->name,
                            ws_dtype_name((enum ws_dtype)h->dtype));
    return 0;
}

static int extract_one(struct extractor *x, const wsync_held *h, size_t held)
{
    struct ws_extracted e = {0};
    const size_t first = x->out->n;
    int rc = check_held(x, h);
    if (rc == 0)
        rc = x->ops->describe(&x->options, &x->config, h, &e, x->err);
    if (rc == -ENOMEM)
        (void)no_memory(x, h->name);
    if (rc == 0 && e.mtp_layer && e.mtp_layer < 64)
        x->mtp_layers |= UINT64_C(1) << e.mtp_layer;
    if (rc == 0 && !e.skip && elements(e.fused.shape, e.fused.n_dims) == 0)
        rc = extract_empty(x, h, held, &e.fused);
    else if (rc == 0 && !e.skip)
        rc = h->flat && !e.own_range ? extract_flat(x, h, held, &e) : extract_local(x, h, held, &e);
    for (size_t i = first; rc == 0 && i < x->out->n; i++) {
        x->out->params[i].file = e.file;
        rc = refuse_stacked(x, x->out->params[i].name, h);
        if (rc == 0)
            rc = set_dtype(x, &x->out->params[i], h, &e);
    }
    ws_fused_release(&e.fused);
    return rc;
}

/* --- options --- */

static int pick(struct extractor *x)
{
    const char *kind = x->options.kind;
    x->ops = kind ? NULL : &ws_extract_plain;
    for (size_t i = 0; kind && i < N_EXTRACTORS; i++)
        if (strcmp(extractors[i]->name, kind) == 0)
            x->ops = extractors[i];
    return x->ops ? 0
                  : ws_error_set(x->err, EINVAL, "there is no extractor '%.100s': fsdp, deepspeed, megatron",
                                 kind);
}

#define MAX_ELEMENT_BYTES 8192
/* The structs that come in arrays, as large as releases had them. */
#define HELD_0_1          offsetof(wsync_held, sections)
#define FUSION_0_1        offsetof(wsync_fusion, sizes)
#define HELD_0_2          sizeof(wsync_held)
#define FUSION_0_2        sizeof(wsync_fusion)

static int take_sizes(struct extractor *x)
{
    wsync_extract_options *o = &x->options;
    const bool is_0_1 = o->struct_size <= offsetof(wsync_extract_options, held_size);
    if (o->held_size == 0)
        o->held_size = is_0_1 ? HELD_0_1 : HELD_0_2;
    if (o->fusion_size == 0)
        o->fusion_size = is_0_1 ? FUSION_0_1 : FUSION_0_2;
    if (o->held_size < HELD_0_1 || o->held_size > MAX_ELEMENT_BYTES || o->fusion_size < FUSION_0_1 ||
        o->fusion_size > MAX_ELEMENT_BYTES)
        return ws_error_set(x->err, EINVAL,
                            "wsync_extract_options.held_size is %zu and fusion_size %zu; set them to "
                            "sizeof(wsync_held) and sizeof(wsync_fusion)",
                            o->held_size, o->fusion_size);
    return 0;
}

static int take_fusions(struct extractor *x)
{
    wsync_extract_options *o = &x->options;
    const char *given = (const char *)o->fusions;
    int rc = 0;
    if (o->n_fusions == 0)
        return 0;
    x->fusions = calloc(o->n_fusions, sizeof(*x->fusions));
    if (!x->fusions)
        return ws_error_set(x->err, ENOMEM, "no memory for %zu fusions", o->n_fusions);
    for (size_t i = 0; rc == 0 && i < o->n_fusions; i++)
        rc = ws_struct_abi_element(&x->fusions[i], sizeof(*x->fusions), given + i * o->fusion_size,
                                   o->fusion_size, "wsync_fusion", x->err);
    o->fusions = x->fusions;
    return rc;
}

/* The i-th held tensor of an array whose elements may be of another release's size. */
static int take_held(struct extractor *x, const wsync_held *held, size_t i, wsync_held *out)
{
    return ws_struct_abi_element(out, sizeof(*out), (const char *)held + i * x->options.held_size,
                                 x->options.held_size, "wsync_held", x->err);
}

static int take_options(struct extractor *x, const wsync_extract_options *o)
{
    int rc = ws_struct_abi_copy(&x->options, sizeof(x->options), o, "wsync_extract_options", x->err);
    if (rc == 0)
        rc = take_sizes(x);
    if (rc == 0)
        rc = take_fusions(x);
    if (rc == 0)
        rc = pick(x);
    if (rc == 0 && x->options.adapter && !x->ops->adapters)
        rc =
            ws_error_set(x->err, EINVAL,
                         "wsync_extract_options.adapter: of %s an adapter cannot be extracted", x->ops->name);
    if (rc == 0 && x->options.hf_config)
        rc = ws_hf_config_read(x->options.hf_config, &x->config, x->err);
    if (rc == 0 && x->options.tied)
        x->config.tied = true;
    if (rc == 0 && x->options.base)
        rc = ws_folder_open(x->options.base, &x->base, x->err);
    x->has_dtype = x->config.has_dtype;
    x->dtype = x->config.dtype;
    if (rc == 0 && x->options.dtype) {
        x->has_dtype = true;
        if (ws_dtype_parse(x->options.dtype, &x->dtype) || !converts(x->dtype))
            rc = ws_error_set(x->err, EINVAL, "tensors cannot be published as '%.100s': F32, F16 or BF16",
                              x->options.dtype);
    }
    if (rc == 0 && x->ops->check)
        rc = x->ops->check(&x->options, &x->config, x->err);
    return rc;
}

int wsync_extract(const wsync_extract_options *options, const wsync_held *held, size_t n,
                  wsync_extraction **out)
{
    struct extractor x = {.err = ws_last_error(), .out = calloc(1, sizeof(**out))};
    *out = NULL;
    int rc = x.out ? take_options(&x, options) : ws_error_set(x.err, ENOMEM, "no memory for %zu tensors", n);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        wsync_held h;
        rc = take_held(&x, held, i, &h);
        if (rc == 0)
            rc = extract_one(&x, &h, i);
    }
    if (rc == 0 && x.ops->check_layers)
        rc = x.ops->check_layers(&x.options, &x.config, x.mtp_layers, x.err);
    ws_folder_free(x.base);
    free(x.fusions);
    if (rc < 0) {
        wsync_extraction_free(x.out);
        return rc;
    }
    *out = x.out;
    return 0;
}

const wsync_param *wsync_extraction_params(const wsync_extraction *e, size_t *n)
{
    *n = e->n;
    return e->params;
}

void wsync_extraction_move(wsync_extraction *e, const void *const *data)
{
    for (size_t i = 0; i < e->n; i++) {
        const char *first = data[e->sources[i].held];
        e->params[i].data = first ? first + e->sources[i].offset_bytes : NULL;
    }
}

void wsync_extraction_follow(wsync_extraction *e, void *const *streams)
{
    for (size_t i = 0; i < e->n; i++)
        e->params[i].stream = streams[e->sources[i].held];
}

void wsync_extraction_free(wsync_extraction *e)
{
    if (!e)
        return;
    for (size_t i = 0; i < e->n; i++)
        free((char *)(uintptr_t)e->params[i].name);
    free(e->params);
    free(e->sources);
    free(e);
}
