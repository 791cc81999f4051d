/* Registrations as they arrive: JSON of a rank to checked entries. */
#include "backends/trainer/tensor/registration.h"
#include "backends/trainer/tensor/keys.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* Inlined, so that the hash's state can live on the stack: nothing here can fail. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#define REGISTRATION "the registration"

static int needed(const json_t *o, const char *key, const char *of, uint64_t most, uint64_t *out,
                  struct ws_error *err)
{
    return json_object_get(o, key) ? ws_key_number(o, key, of, 0, most, out, err)
                                   : ws_key_refuse(NULL, key, of, "a whole number", err);
}

static int tensor_from_json(const json_t *o, struct ws_tensor *t, char *of, size_t cap, struct ws_error *err)
{
    const char *name = NULL, *dtype = NULL;
    const json_t *shape = NULL;
    uint64_t bytes;
    int rc = ws_key_text(o, "name", "a parameter", &name, err);
    if (rc < 0)
        return rc;
    if (!name || !*name || strlen(name) > WS_MAX_TENSOR_NAME)
        return ws_error_set(err, EINVAL, "a parameter has no name, or one of over %d bytes",
                            WS_MAX_TENSOR_NAME);
    snprintf(of, cap, "the parameter %s", name);
    rc = ws_key_text(o, "dtype", of, &dtype, err);
    if (rc == 0 && (!dtype || ws_dtype_parse(dtype, &t->dtype)))
        return ws_key_refuse(json_object_get(o, "dtype"), "dtype", of, "one of safetensors' dtypes", err);
    if (rc == 0)
        rc = ws_key_list(o, "shape", of, &shape, err);
    if (rc < 0)
        return rc;
    if (json_array_size(shape) > WS_MAX_DIMS)
        return ws_error_set(err, EINVAL, "the parameter %s has no shape of at most %d dimensions", name,
                            WS_MAX_DIMS);
    t->n_dims = (unsigned)json_array_size(shape);
    if (shape && (rc = ws_key_numbers(o, "shape", of, t->n_dims, t->shape, err)) < 0)
        return rc;
    if (ws_dtype_bytes(t->dtype, t->shape, t->n_dims, &bytes))
        return ws_error_set(err, EINVAL, "the shape of the parameter %s is too large or ends within a byte",
                            name);
    t->name = strdup(name);
    return t->name ? 0 : ws_error_set(err, ENOMEM, "no memory for a registration");
}

static int piece_from_json(const json_t *o, struct ws_entry *e, const char *of, struct ws_error *err)
{
    const char *kind = "whole";
    wsync_piece p = {.kind = WSYNC_WHOLE};
    int rc = ws_key_text(o, "kind", of, &kind, err);
    if (rc == 0 && strcmp(kind, "box") == 0) {
        p.kind = WSYNC_BOX;
        rc = ws_key_numbers(o, "offset", of, e->tensor.n_dims, p.offset, err);
        if (rc == 0)
            rc = ws_key_numbers(o, "size", of, e->tensor.n_dims, p.size, err);
    } else if (rc == 0 && strcmp(kind, "range") == 0) {
        p.kind = WSYNC_RANGE;
        rc = needed(o, "start", of, INT64_MAX, &p.start, err);
        if (rc == 0)
            rc = needed(o, "count", of, INT64_MAX, &p.count, err);
    } else if (rc == 0 && strcmp(kind, "whole") != 0) {
        rc = ws_key_refuse(json_object_get(o, "kind"), "kind", of, "\"whole\", \"box\" or \"range\"", err);
    }
    if (rc < 0)
        return rc;
    if (p.kind != WSYNC_WHOLE && ws_dtype_bits(e->tensor.dtype) % 8)
        return ws_error_set(err, EINVAL, "%s has packed elements: only whole tensors of %s can be published",
                            e->tensor.name, ws_dtype_name(e->tensor.dtype));
    return ws_piece_from_public(&p, &e->tensor, &e->piece, err);
}

static int entries_from_json(const json_t *array, unsigned rank, struct ws_entry **out, size_t *n,
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
        const char *file = NULL;
        char of[WS_MAX_TENSOR_NAME + 32];
        struct ws_entry *e = &(*out)[i];
        int rc = tensor_from_json(o, &e->tensor, of, sizeof(of), err);
        (*n)++;
        if (rc == 0)
            rc = piece_from_json(o, e, of, err);
        if (rc == 0)
            rc = ws_key_text(o, "file", of, &file, err);
        if (rc == 0 && file) {
            size_t k = strlen(file);
            if (!ws_name_is_file(file) || k <= 12 || strcmp(file + k - 12, ".safetensors") != 0)
                rc = ws_error_set(err, EINVAL, "'%.200s' is no name of a safetensors file", file);
            else if (!(e->requested_file = strdup(file)))
                rc = ws_error_set(err, ENOMEM, "no memory for a registration");
        }
        if (rc < 0)
            return rc;
        e->rank = rank;
    }
    return 0;
}

static int sidecars_from_json(const json_t *array, struct ws_registration *r, struct ws_error *err)
{
    size_t size = json_array_size(array);
    if (size > WS_MAX_FILES)
        return ws_error_set(err, E2BIG, "%zu sidecar files; at most %d", size, WS_MAX_FILES);
    r->sidecars = calloc(size ? size : 1, sizeof(*r->sidecars));
    if (!r->sidecars)
        return ws_error_set(err, ENOMEM, "no memory for a registration");
    for (size_t i = 0; i < size; i++) {
        const json_t *o = json_array_get(array, i);
        const json_t *hash = json_object_get(o, "hash");
        const char *name = NULL;
        struct ws_sidecar *s = &r->sidecars[i];
        int rc = ws_key_text(o, "name", "a sidecar file", &name, err);
        if (rc < 0)
            return rc;
        if (!name || !ws_name_is_file(name))
            return ws_key_refuse(json_object_get(o, "name"), "name", "a sidecar file", "the name of a file",
                                 err);
        rc = needed(o, "bytes", name, WS_MAX_SIDECAR_BYTES, &s->size_bytes, err);
        if (rc == 0 && hash && !json_is_integer(hash)) /* all 64 bits: it may look negative */
            rc = ws_key_refuse(hash, "hash", name, "a whole number", err);
        if (rc < 0)
            return rc;
        s->hash = (uint64_t)json_integer_value(hash);
        s->name = strdup(name);
        if (!s->name)
            return ws_error_set(err, ENOMEM, "no memory for a registration");
        r->n_sidecars++;
    }
    return 0;
}

static int base_id_from_json(const json_t *o, struct ws_registration *r, struct ws_error *err)
{
    const char *id = json_string_value(o);
    if (!o)
        return 0;
    if (!id || strlen(id) != WS_BASE_ID_CHARS || !ws_name_is_file(id))
        return ws_key_refuse(o, "base_id", REGISTRATION, "a string of 32 hex digits", err);
    if (r->n_base > 0)
        memcpy(r->base_id, id, sizeof(r->base_id));
    return 0;
}

static int audit_from_json(const json_t *body, struct ws_registration *r, struct ws_error *err)
{
    char wanted[64];
    const json_t *audit = json_object_get(body, "audit");
    r->audits = audit != NULL;
    r->audit = WSYNC_NO_AUDIT;
    if (audit && (!json_is_integer(audit) || json_integer_value(audit) < WSYNC_NO_AUDIT ||
                  json_integer_value(audit) > INT_MAX)) {
        snprintf(wanted, sizeof(wanted), "a whole number from %d to %d", WSYNC_NO_AUDIT, INT_MAX);
        return ws_key_refuse(audit, "audit", REGISTRATION, wanted, err);
    }
    if (audit)
        r->audit = (int)json_integer_value(audit);
    return ws_key_flag(body, "audit_warns", REGISTRATION, &r->audit_warns, err);
}

/* --- which registration it is --- */

static void hash_text(XXH3_state_t *state, const char *text)
{
    const uint64_t n = text ? strlen(text) + 1 : 0;
    XXH3_128bits_update(state, &n, sizeof(n));
    if (n > 0)
        XXH3_128bits_update(state, text, n);
}

static void hash_entries(XXH3_state_t *state, const struct ws_entry *e, size_t n)
{
    for (size_t i = 0; i < n; i++, e++) {
        const uint64_t numbers[] = {(uint64_t)e->tensor.dtype, e->tensor.n_dims, e->piece.range,
                                    e->piece.start, e->piece.count};
        const size_t dims = e->tensor.n_dims * sizeof(uint64_t);
        hash_text(state, e->tensor.name);
        hash_text(state, e->requested_file);
        XXH3_128bits_update(state, numbers, sizeof(numbers));
        XXH3_128bits_update(state, e->tensor.shape, dims);
        XXH3_128bits_update(state, e->piece.offset, dims);
        XXH3_128bits_update(state, e->piece.size, dims);
    }
}

static void set_id(struct ws_registration *r)
{
    const uint64_t numbers[] = {
        r->audits, (uint64_t)(int64_t)r->audit, r->audit_warns, r->n_entries, r->n_base, r->n_sidecars};
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, numbers, sizeof(numbers));
    hash_text(&state, r->base_id);
    hash_entries(&state, r->entries, r->n_entries);
    hash_entries(&state, r->base, r->n_base);
    for (size_t i = 0; i < r->n_sidecars; i++) {
        const uint64_t of_sidecar[] = {r->sidecars[i].size_bytes, r->sidecars[i].hash};
        hash_text(&state, r->sidecars[i].name);
        XXH3_128bits_update(&state, of_sidecar, sizeof(of_sidecar));
    }
    const XXH128_hash_t hash = XXH3_128bits_digest(&state);
    r->id[0] = hash.low64;
    r->id[1] = hash.high64;
}

bool ws_registration_repeats(const struct ws_registration *a, const struct ws_registration *b)
{
    return a->id[0] == b->id[0] && a->id[1] == b->id[1];
}

int ws_registration_from_json(const json_t *body, unsigned rank, struct ws_registration **out,
                              struct ws_error *err)
{
    struct ws_registration *r = calloc(1, sizeof(*r));
    *out = NULL;
    if (!r)
        return ws_error_set(err, ENOMEM, "no memory for a registration");
    const json_t *params = NULL, *base = NULL, *sidecars = NULL;
    r->rank = rank;
    int rc = audit_from_json(body, r, err);
    if (rc == 0)
        rc = ws_key_list(body, "params", REGISTRATION, &params, err);
    if (rc == 0)
        rc = ws_key_list(body, "base", REGISTRATION, &base, err);
    if (rc == 0)
        rc = ws_key_list(body, "sidecars", REGISTRATION, &sidecars, err);
    if (rc == 0)
        rc = entries_from_json(params, rank, &r->entries, &r->n_entries, err);
    if (rc == 0)
        rc = entries_from_json(base, rank, &r->base, &r->n_base, err);
    if (rc == 0)
        rc = sidecars_from_json(sidecars, r, err);
    if (rc == 0)
        rc = base_id_from_json(json_object_get(body, "base_id"), r, err);
    if (rc < 0) {
        ws_registration_free(r);
        return rc;
    }
    set_id(r);
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
    if (e->requested_file)
        json_object_set_new(o, "file", json_string(e->requested_file));
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
        free(e[i].requested_file);
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
