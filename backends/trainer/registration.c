/* Registrations as they arrive: JSON of a rank to checked entries. */
#include "backends/trainer/registration.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static int get_u64(const json_t *o, uint64_t *out)
{
    if (!json_is_integer(o) || json_integer_value(o) < 0)
        return -EINVAL;
    *out = (uint64_t)json_integer_value(o);
    return 0;
}

static int get_numbers(const json_t *array, unsigned n, uint64_t *out)
{
    if (json_array_size(array) != n)
        return -EINVAL;
    for (unsigned i = 0; i < n; i++)
        if (get_u64(json_array_get(array, i), &out[i]))
            return -EINVAL;
    return 0;
}

static int tensor_of(const json_t *o, struct ws_tensor *t, struct ws_error *err)
{
    const char *name = json_string_value(json_object_get(o, "name"));
    const char *dtype = json_string_value(json_object_get(o, "dtype"));
    const json_t *shape = json_object_get(o, "shape");
    uint64_t bytes;
    if (!name || !*name || strlen(name) > WS_MAX_TENSOR_NAME)
        return ws_error_set(err, EINVAL, "a parameter has no name, or one of over %d bytes",
                            WS_MAX_TENSOR_NAME);
    if (!dtype || ws_dtype_parse(dtype, &t->dtype))
        return ws_error_set(err, EINVAL, "the parameter %s has an unknown dtype", name);
    t->n_dims = (unsigned)json_array_size(shape);
    if (json_array_size(shape) > WS_MAX_DIMS || get_numbers(shape, t->n_dims, t->shape))
        return ws_error_set(err, EINVAL, "the parameter %s has no shape of at most %d dimensions", name,
                            WS_MAX_DIMS);
    if (ws_dtype_bytes(t->dtype, t->shape, t->n_dims, &bytes))
        return ws_error_set(err, EINVAL, "the shape of the parameter %s is too large or ends within a byte",
                            name);
    t->name = strdup(name);
    return t->name ? 0 : ws_error_set(err, ENOMEM, "no memory for a registration");
}

static int piece_of(const json_t *o, struct ws_entry *e, struct ws_error *err)
{
    const char *kind = json_string_value(json_object_get(o, "kind"));
    wsync_piece p = {.kind = WSYNC_WHOLE};
    int rc = 0;
    if (kind && strcmp(kind, "box") == 0) {
        p.kind = WSYNC_BOX;
        rc = get_numbers(json_object_get(o, "offset"), e->tensor.n_dims, p.offset);
        if (rc == 0)
            rc = get_numbers(json_object_get(o, "size"), e->tensor.n_dims, p.size);
    } else if (kind && strcmp(kind, "range") == 0) {
        p.kind = WSYNC_RANGE;
        rc = get_u64(json_object_get(o, "start"), &p.start);
        if (rc == 0)
            rc = get_u64(json_object_get(o, "count"), &p.count);
    } else if (kind && strcmp(kind, "whole") != 0) {
        rc = -EINVAL;
    }
    if (rc)
        return ws_error_set(err, EINVAL, "the piece of %s is malformed", e->tensor.name);
    if (p.kind != WSYNC_WHOLE && ws_dtype_bits(e->tensor.dtype) % 8)
        return ws_error_set(err, EINVAL, "%s has packed elements: only whole tensors of %s can be published",
                            e->tensor.name, ws_dtype_name(e->tensor.dtype));
    return ws_piece_of(&p, &e->tensor, &e->piece, err);
}

static int entries_of(const json_t *array, unsigned rank, struct ws_entry **out, size_t *n,
                      struct ws_error *err)
{
    size_t size = json_array_size(array);
    if (size > WS_MAX_TENSORS)
        return ws_error_set(err, E2BIG, "a rank registers %zu pieces; at most %d", size, WS_MAX_TENSORS);
    *out = calloc(size ? size : 1, sizeof(**out));
    if (!*out)
        return ws_error_set(err, ENOMEM, "no memory for a registration");
    for (size_t i = 0; i < size; i++) {
        const json_t *o = json_array_get(array, i);
        const char *file = json_string_value(json_object_get(o, "file"));
        struct ws_entry *e = &(*out)[i];
        int rc = tensor_of(o, &e->tensor, err);
        (*n)++;
        if (rc == 0)
            rc = piece_of(o, e, err);
        if (rc == 0 && file) {
            size_t k = strlen(file);
            if (!ws_name_is_file(file) || k <= 12 || strcmp(file + k - 12, ".safetensors") != 0)
                rc = ws_error_set(err, EINVAL, "'%.200s' is no name of a safetensors file", file);
            else if (!(e->asked = strdup(file)))
                rc = ws_error_set(err, ENOMEM, "no memory for a registration");
        }
        if (rc < 0)
            return rc;
        e->rank = rank;
    }
    return 0;
}

static int sidecars_of(const json_t *array, struct ws_registration *r, struct ws_error *err)
{
    size_t size = json_array_size(array);
    if (size > WS_MAX_FILES)
        return ws_error_set(err, E2BIG, "%zu sidecar files; at most %d", size, WS_MAX_FILES);
    r->sidecars = calloc(size ? size : 1, sizeof(*r->sidecars));
    if (!r->sidecars)
        return ws_error_set(err, ENOMEM, "no memory for a registration");
    for (size_t i = 0; i < size; i++) {
        const json_t *o = json_array_get(array, i);
        const char *name = json_string_value(json_object_get(o, "name"));
        struct ws_sidecar *s = &r->sidecars[i];
        if (!name || !ws_name_is_file(name) || get_u64(json_object_get(o, "bytes"), &s->size_bytes) ||
            s->size_bytes > WS_MAX_SIDECAR_BYTES)
            return ws_error_set(err, EINVAL, "a sidecar file has a bad name or over %lu bytes",
                                WS_MAX_SIDECAR_BYTES);
        s->hash = (uint64_t)json_integer_value(json_object_get(o, "hash"));
        s->name = strdup(name);
        if (!s->name)
            return ws_error_set(err, ENOMEM, "no memory for a registration");
        r->n_sidecars++;
    }
    return 0;
}

static int base_id_of(const json_t *o, struct ws_registration *r, struct ws_error *err)
{
    const char *id = json_string_value(o);
    if (!o)
        return 0;
    if (!id || strlen(id) != WS_BASE_ID_CHARS || !ws_name_is_file(id))
        return ws_error_set(err, EINVAL, "the base_id of a registration is malformed");
    memcpy(r->base_id, id, sizeof(r->base_id));
    return 0;
}

int ws_registration_of(const json_t *body, unsigned rank, struct ws_registration **out, struct ws_error *err)
{
    struct ws_registration *r = calloc(1, sizeof(*r));
    *out = NULL;
    if (!r)
        return ws_error_set(err, ENOMEM, "no memory for a registration");
    const json_t *audit = json_object_get(body, "audit");
    r->rank = rank;
    r->audits = json_is_integer(audit) && json_integer_value(audit) >= WSYNC_NO_AUDIT &&
                json_integer_value(audit) <= INT_MAX;
    r->audit = r->audits ? (int)json_integer_value(audit) : WSYNC_NO_AUDIT;
    r->audit_warns = json_is_true(json_object_get(body, "audit_warns"));
    int rc = entries_of(json_object_get(body, "params"), rank, &r->entries, &r->n_entries, err);
    if (rc == 0)
        rc = entries_of(json_object_get(body, "base"), rank, &r->base, &r->n_base, err);
    if (rc == 0)
        rc = sidecars_of(json_object_get(body, "sidecars"), r, err);
    if (rc == 0 && r->n_base > 0)
        rc = base_id_of(json_object_get(body, "base_id"), r, err);
    if (rc < 0) {
        ws_registration_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

/* --- to JSON --- */

static json_t *numbers(const uint64_t *v, unsigned n)
{
    json_t *a = json_array();
    for (unsigned i = 0; i < n; i++)
        json_array_append_new(a, json_integer((json_int_t)v[i]));
    return a;
}

static json_t *entry_json(const struct ws_entry *e)
{
    const struct ws_tensor *t = &e->tensor;
    json_t *o = json_pack("{s:s,s:s,s:o}", "name", t->name, "dtype", ws_dtype_name(t->dtype), "shape",
                          numbers(t->shape, t->n_dims));
    if (e->asked)
        json_object_set_new(o, "file", json_string(e->asked));
    if (e->piece.range) {
        json_object_set_new(o, "kind", json_string("range"));
        json_object_set_new(o, "start", json_integer((json_int_t)e->piece.start));
        json_object_set_new(o, "count", json_integer((json_int_t)e->piece.count));
    } else if (ws_dtype_bits(t->dtype) % 8 == 0) {
        json_object_set_new(o, "kind", json_string("box"));
        json_object_set_new(o, "offset", numbers(e->piece.offset, t->n_dims));
        json_object_set_new(o, "size", numbers(e->piece.size, t->n_dims));
    }
    return o;
}

static json_t *entries_json(const struct ws_entry *e, size_t n)
{
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(all, entry_json(&e[i]));
    return all;
}

json_t *ws_registration_to_json(const struct ws_registration *r)
{
    json_t *sidecars = json_array();
    for (size_t i = 0; i < r->n_sidecars; i++)
        json_array_append_new(sidecars, json_pack("{s:s,s:I,s:I}", "name", r->sidecars[i].name, "bytes",
                                                  (json_int_t)r->sidecars[i].size_bytes, "hash",
                                                  (json_int_t)r->sidecars[i].hash));
    json_t *o = json_pack("{s:o,s:o,s:o}", "params", entries_json(r->entries, r->n_entries), "base",
                          entries_json(r->base, r->n_base), "sidecars", sidecars);
    if (o && r->audits) {
        json_object_set_new(o, "audit", json_integer(r->audit));
        json_object_set_new(o, "audit_warns", json_boolean(r->audit_warns));
    }
    if (o && r->base_id[0])
        json_object_set_new(o, "base_id", json_string(r->base_id));
    return o;
}

static void free_entries(struct ws_entry *e, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free((char *)(uintptr_t)e[i].tensor.name);
        free(e[i].asked);
        free(e[i].file);
    }
    free(e);
}

void ws_registration_free(struct ws_registration *r)
{
    if (!r)
        return;
    free_entries(r->entries, r->n_entries);
    free_entries(r->base, r->n_base);
    for (size_t i = 0; i < r->n_sidecars; i++)
        free(r->sidecars[i].name);
    free(r->sidecars);
    free(r);
}
