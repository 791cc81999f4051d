#include "backends/trainer/astraflow/flat_view.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a receiver of theirs can write to its file. */
static const bool writable[WS_DTYPE_COUNT] = {
    [WS_BOOL] = true, [WS_U8] = true,  [WS_I8] = true,   [WS_I16] = true, [WS_I32] = true,
    [WS_I64] = true,  [WS_F16] = true, [WS_BF16] = true, [WS_F32] = true, [WS_F64] = true,
};

static int by_offset(const void *a, const void *b)
{
    const struct ws_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) /* empty ones lie before the one that begins there */
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static void add_tensor(struct ws_flat_view *b, const struct ws_tensor *t, json_t *meta, uint64_t *layout)
{
    char text[WS_MAX_TENSOR_NAME + 64 + 24 * WS_MAX_DIMS];
    const char *torch = ws_dtype_torch(t->dtype);
    const char *dtype = torch ? strchr(torch, '.') + 1 : ws_dtype_name(t->dtype);
    json_t *shape = json_array();
    int n = snprintf(text, sizeof(text), "%016" PRIx64 " %s", *layout, dtype);
    for (unsigned d = 0; d < t->n_dims; d++) {
        json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        n += snprintf(text + n, sizeof(text) - (size_t)n, " %" PRIu64, t->shape[d]);
    }
    n += snprintf(text + n, sizeof(text) - (size_t)n, " %s", t->name);
    *layout = ws_hash(text, (size_t)n);
    if (!writable[t->dtype] && !b->unsupported[0])
        snprintf(b->unsupported, sizeof(b->unsupported), "%.200s is %s", t->name, dtype);
    if (meta)
        json_array_append_new(meta, json_pack("[s,[o,s]]", t->name, shape, dtype));
    else
        json_decref(shape);
}

static int add_file(struct ws_flat_view *b, const struct ws_manifest_file *f, struct ws_region *region,
                    json_t *meta, uint64_t *layout, struct ws_error *err)
{
    struct ws_safetensors *st;
    unsigned char *data = ws_region_data(region);
    int rc = ws_safetensors_parse(data, f->header_bytes, f->size_bytes, &st, err);
    if (rc < 0)
        return rc;
    qsort(st->tensors, st->n_tensors, sizeof(*st->tensors), by_offset);
    for (size_t i = 0; i < st->n_tensors; i++)
        add_tensor(b, &st->tensors[i], meta, layout);
    if (f->size_bytes > f->header_bytes)
        b->parts[b->n_parts++] = (struct iovec){data + f->header_bytes, f->size_bytes - f->header_bytes};
    b->total_bytes += f->size_bytes - f->header_bytes;
    ws_safetensors_free(st);
    return 0;
}

int ws_flat_view_new(struct ws_flat_view **out, const struct ws_lease *lease, json_t **meta,
                     struct ws_error *err)
{
    const struct ws_manifest *m = lease->manifest;
    struct ws_flat_view *b = calloc(1, sizeof(*b));
    json_t *list = meta ? json_array() : NULL;
    uint64_t layout = 0;
    int rc = 0;
    if (!b || !(b->parts = calloc(m->n_files + 1, sizeof(*b->parts))) || (meta && !list))
        rc = ws_error_set(err, ENOMEM, "no memory for the list of tensors");
    for (size_t i = 0; rc == 0 && i < m->n_files; i++)
        if (m->files[i].header_bytes)
            rc = add_file(b, &m->files[i], lease->regions[i], list, &layout, err);
    if (rc == 0 && b->total_bytes == 0)
        rc = ws_error_set(err, EINVAL, "%s/%" PRIu64 " has no tensors", m->model, m->version);
    if (rc < 0) {
        json_decref(list);
        ws_flat_view_free(b);
        return rc;
    }
    snprintf(b->layout, sizeof(b->layout), "%016" PRIx64, layout);
    if (meta)
        *meta = list;
    *out = b;
    return 0;
}

void ws_flat_view_free(struct ws_flat_view *b)
{
    if (!b)
        return;
    free(b->parts);
    free(b);
}
