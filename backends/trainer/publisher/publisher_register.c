/* Registration: sends what a rank holds to the agent, and keeps the reply: places, files, and which pieces
 * this rank writes. */
#include "backends/trainer/publisher/publisher_state.h"
#include "transports/format/node_part.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void ws_publisher_forget(struct wsync_publisher *p)
{
    for (size_t i = 0; i < p->n_params; i++) {
        free((char *)(uintptr_t)p->params[i].tensor.name);
        free(p->params[i].file_name);
    }
    ws_publisher_delta_free(p->delta);
    p->delta = NULL;
    ws_publisher_compare_free(p->compare);
    p->compare = NULL;
    free(p->params);
    free(p->by_name);
    free(p->base_places);
    free(p->sidecar_files);
    free(p->file_sizes);
    ws_copy_plan_free(p->plan);
    free(p->layouts);
    free(p->sources);
    free(p->data);
    free(p->devices);
    free(p->file_is_pinned);
    free(p->put);
    free((void *)p->overflows);
    p->plan = NULL;
    p->layouts = NULL;
    p->sources = NULL;
    p->data = NULL;
    p->devices = NULL;
    p->file_is_pinned = NULL;
    p->put = NULL;
    p->overflows = NULL;
    p->params = p->base_places = NULL;
    p->by_name = p->sidecar_files = NULL;
    p->file_sizes = NULL;
    p->n_params = p->n_files = 0;
}

static int remember(struct ws_registered_piece *r, const wsync_param *a, struct ws_error *err)
{
    int rc = ws_tensor_from_param(a, &r->tensor, err);
    if (rc < 0) {
        r->tensor.name = NULL;
        return rc;
    }
    struct ws_source_layout layout;
    rc = ws_piece_from_public(&a->piece, &r->tensor, &r->piece, err);
    if (rc == 0)
        rc = ws_publisher_layout(a, r, &layout, err);
    r->tensor.name = strdup(a->name);
    r->file_name = a->file ? strdup(a->file) : NULL;
    if (rc == 0 && (!r->tensor.name || (a->file && !r->file_name)))
        rc = ws_error_set(err, ENOMEM, "no memory for the parameter %s", a->name);
    return rc;
}

static json_t *numbers(const uint64_t *v, unsigned n)
{
    json_t *a = json_array();
    for (unsigned i = 0; i < n; i++)
        json_array_append_new(a, json_integer((json_int_t)v[i]));
    return a;
}

static json_t *param_json(const struct ws_registered_piece *r)
{
    const struct ws_tensor *t = &r->tensor;
    json_t *o = json_pack("{s:s,s:s,s:o}", "name", t->name, "dtype", ws_dtype_name(t->dtype), "shape",
                          numbers(t->shape, t->n_dims));
    if (r->file_name)
        json_object_set_new(o, "file", json_string(r->file_name));
    if (r->piece.range) {
        json_object_set_new(o, "kind", json_string("range"));
        json_object_set_new(o, "start", json_integer((json_int_t)r->piece.start));
        json_object_set_new(o, "count", json_integer((json_int_t)r->piece.count));
    } else if (ws_dtype_bits(t->dtype) % 8 == 0) {
        json_object_set_new(o, "kind", json_string("box"));
        json_object_set_new(o, "offset", numbers(r->piece.offset, t->n_dims));
        json_object_set_new(o, "size", numbers(r->piece.size, t->n_dims));
    }
    return o;
}

/* qsort has no context: names are compared through the table being sorted. */
struct name_index {
    const char *name;
    size_t index;
};

static int by_name(const void *x, const void *y)
{
    const struct name_index *a = x, *b = y;
    int c = strcmp(a->name, b->name);
    return c ? c : a->index < b->index ? -1 : a->index > b->index;
}

static int index_names(struct wsync_publisher *p, struct ws_error *err)
{
    struct name_index *all = calloc(p->n_params + 1, sizeof(*all));
    p->by_name = calloc(p->n_params + 1, sizeof(*p->by_name));
    if (!all || !p->by_name) {
        free(all);
        return ws_error_set(err, ENOMEM, "no memory for %zu parameters", p->n_params);
    }
    for (size_t i = 0; i < p->n_params; i++)
        all[i] = (struct name_index){p->params[i].tensor.name, i};
    qsort(all, p->n_params, sizeof(all[0]), by_name);
    for (size_t i = 0; i < p->n_params; i++)
        p->by_name[i] = all[i].index;
    free(all);
    return 0;
}

static int read_places(const json_t *places, struct ws_registered_piece *r, size_t n, size_t n_files)
{
    if (json_array_size(places) != n)
        return -EPROTO;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(places, i);
        r[i].file = (size_t)json_integer_value(json_array_get(one, 0));
        r[i].tensor.begin = (uint64_t)json_integer_value(json_array_get(one, 1));
        r[i].writes = json_is_true(json_array_get(one, 2));
        if (r[i].writes && r[i].file >= n_files)
            return -EPROTO;
    }
    return 0;
}

/* Is it one of the whole version's files? A node's part has its header only, under another name. */
static bool has_file(const json_t *files, const char *wanted)
{
    const size_t n = strlen(wanted);

    for (size_t i = 0; i < json_array_size(files); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(files, i), "name"));
        if (name && strncmp(name, wanted, n) == 0 && (!name[n] || strcmp(name + n, WS_NODE_PART_HEADER) == 0))
            return true;
    }
    return false;
}

static int check_expected(const struct wsync_publisher *p, const json_t *files, struct ws_error *err)
{
    for (size_t i = 0; i < p->n_expected; i++)
        if (!has_file(files, p->expected[i]))
            return ws_error_set(
                err, EINVAL,
                "no rank has anything of %.200s, which the version must have: let its writer finish",
                p->expected[i]);
    return 0;
}

static int read_placement(struct wsync_publisher *p, const json_t *reply, struct ws_error *err)
{
    const json_t *files = json_object_get(reply, "files"), *sidecars = json_object_get(reply, "sidecars");
    const char *run = json_string_value(json_object_get(reply, "run"));
    const json_int_t api = json_integer_value(json_object_get(reply, "api"));
    size_t n_base = p->base ? ws_base_checkpoint_n_tensors(p->base) : 0,
           n_side = p->base ? ws_base_checkpoint_n_sidecars(p->base) : 0;
    p->n_files = json_array_size(files);
    p->is_node_part = json_is_true(json_object_get(reply, "part"));
    p->file_sizes = calloc(p->n_files + 1, sizeof(*p->file_sizes));
    p->base_places = calloc(n_base + 1, sizeof(*p->base_places));
    p->sidecar_files = calloc(n_side + 1, sizeof(*p->sidecar_files));
    p->sources = calloc(p->n_params + n_side + n_base + 1, sizeof(*p->sources));
    p->data = calloc(p->n_files + 1, sizeof(*p->data));
    p->devices = malloc((p->n_params + n_side + n_base + 1) * sizeof(*p->devices));
    p->file_is_pinned = calloc(p->n_files + 1, sizeof(*p->file_is_pinned));
    if (!p->file_sizes || !p->base_places || !p->sidecar_files || !p->sources || !p->data || !p->devices ||
        !p->file_is_pinned)
        return ws_error_set(err, ENOMEM, "no memory for a placement");
    for (size_t i = 0; i < p->n_params + n_side + n_base; i++)
        p->devices[i] = -1;
    for (size_t i = 0; i < p->n_files; i++)
        p->file_sizes[i] = (uint64_t)json_integer_value(json_object_get(json_array_get(files, i), "bytes"));
    int rc = read_places(json_object_get(reply, "places"), p->params, p->n_params, p->n_files);
    if (rc == 0)
        rc = read_places(json_object_get(reply, "base"), p->base_places, n_base, p->n_files);
    if (rc == 0 && json_array_size(sidecars) != n_side)
        rc = -EPROTO;
    for (size_t i = 0; rc == 0 && i < n_side; i++) {
        p->sidecar_files[i] = (size_t)json_integer_value(json_array_get(sidecars, i));
        if (p->sidecar_files[i] >= p->n_files)
            rc = -EPROTO;
    }
    if (rc == 0 && (!run || api != WS_LOCAL_API))
        rc = -EPROTO;
    if (rc < 0)
        return ws_error_set(
            err, EPROTO,
            "the answer of the agent at %s is not understood: it is of another release than this "
            "libwsync, %s; use agent and libwsync of one release",
            p->agent, WS_VERSION);
    if (strcmp(p->lineage, run) != 0)
        p->last_begun = 0;
    snprintf(p->lineage, sizeof(p->lineage), "%s", run);
    return check_expected(p, files, err);
}

/* A tensor that a rank held before and no rank holds now would silently come from the base. */
static int refuse_fallback(const struct wsync_publisher *p, struct ws_error *err)
{
    const size_t n = p->base ? ws_base_checkpoint_n_tensors(p->base) : 0;
    for (size_t i = 0; i < n; i++)
        if (p->base_was_held[i] && p->base_places[i].writes)
            return ws_error_set(
                err, EINVAL,
                "no rank holds %s any more, and one did in the last version: its values would "
                "be the base's from now on; let a rank give it, or open another publisher "
                "where that is meant",
                ws_base_checkpoint_tensor_name(p->base, i));
    return 0;
}

void ws_publisher_record_held(struct wsync_publisher *p)
{
    const size_t n = p->base && p->base_places ? ws_base_checkpoint_n_tensors(p->base) : 0;
    for (size_t i = 0; i < n; i++)
        p->base_was_held[i] = !p->base_places[i].writes;
}

static json_t *registration_json(const struct wsync_publisher *p)
{
    json_t *params = json_array();
    for (size_t i = 0; i < p->n_params; i++)
        json_array_append_new(params, param_json(&p->params[i]));
    json_t *o = json_pack(
        "{s:i,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:b,s:o,s:o,s:o}", "api", WS_LOCAL_API, "release", WS_VERSION,
        "model", p->model, "rank", (json_int_t)p->rank, "world_size", (json_int_t)p->world_size,
        "shard_bytes", (json_int_t)(p->shard_bytes < INT64_MAX ? p->shard_bytes : INT64_MAX), "max_slots",
        (json_int_t)p->max_slots, "timeout_ms", (json_int_t)p->timeout_ms, "new_run", (int)p->new_run,
        "params", params, "base", p->base ? ws_base_checkpoint_tensors_json(p->base) : json_array(),
        "sidecars", p->base ? ws_base_checkpoint_sidecars_json(p->base) : json_array());
    const char *run = p->lineage_requested ? p->lineage_requested : p->lineage[0] ? p->lineage : NULL;
    const bool comes_back = p->lineage[0] && strcmp(run, p->lineage) == 0;
    if (o && p->base)
        json_object_set_new(o, "base_id", json_string(ws_base_checkpoint_id(p->base)));
    if (o && run)
        json_object_set_new(o, "run", json_string(run));
    if (o && comes_back)
        json_object_set_new(o, "begun", json_integer((json_int_t)p->last_begun));
    if (o && comes_back && p->begins)
        json_object_set_new(o, "begins", json_integer((json_int_t)p->begins));
    if (o) {
        json_object_set_new(o, "audit", json_integer(p->audit_every));
        json_object_set_new(o, "audit_warns", json_boolean(p->audit_warns));
    }
    return o;
}

int ws_publisher_register(struct wsync_publisher *p, const wsync_param *params, size_t n,
                          struct ws_error *err)
{
    json_t *reply = NULL;
    if (p->begun)
        return ws_error_set(err, EALREADY,
                            "version %" PRIu64 " is begun: commit or abandon it before registering",
                            p->version);
    if (n > WS_MAX_TENSORS)
        return ws_error_set(err, E2BIG, "%zu pieces; at most %d", n, WS_MAX_TENSORS);
    ws_publisher_forget(p);
    p->n_registrations++;
    p->params = calloc(n + 1, sizeof(*p->params));
    p->put = calloc(n + 1, sizeof(*p->put));
    p->overflows = calloc(n + 1, sizeof(*p->overflows));
    if (!p->params || !p->put || !p->overflows)
        return ws_error_set(err, ENOMEM, "no memory for %zu parameters", n);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        p->n_params++;
        rc = remember(&p->params[i], &params[i], err);
    }
    if (rc == 0)
        rc = index_names(p, err);
    if (rc == 0 && p->sock < 0) {
        rc = ws_ipc_connect(p->agent, &p->sock, err);
        p->n_connections++;
    }
    if (rc == 0)
        rc = ws_publisher_call(p, "register", registration_json(p), &reply, NULL, 0, NULL, err);
    if (rc == 0)
        rc = read_placement(p, reply, err);
    if (rc == 0)
        rc = refuse_fallback(p, err);
    if (rc == 0)
        rc = ws_publisher_locate(p, params, err);
    json_decref(reply);
    if (rc < 0)
        ws_publisher_forget(p);
    return rc;
}

bool ws_publisher_is_registered(const struct wsync_publisher *p, const wsync_param *params, size_t n)
{
    if (!p->params || n != p->n_params)
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct ws_registered_piece *r = &p->params[i];
        struct ws_piece piece;
        if (!params[i].name || strcmp(params[i].name, r->tensor.name) != 0 ||
            (enum ws_dtype)params[i].dtype != r->tensor.dtype || params[i].n_dims != r->tensor.n_dims ||
            memcmp(params[i].shape, r->tensor.shape, r->tensor.n_dims * sizeof(r->tensor.shape[0])) != 0 ||
            !params[i].file != !r->file_name || (r->file_name && strcmp(params[i].file, r->file_name) != 0) ||
            ws_piece_from_public(&params[i].piece, &r->tensor, &piece, NULL) ||
            !ws_piece_equal(&piece, &r->piece, r->tensor.n_dims))
            return false;
    }
    return true;
}

struct ws_registered_piece *ws_publisher_find(struct wsync_publisher *p, const wsync_param *a,
                                              struct ws_error *err)
{
    struct ws_tensor t;
    struct ws_piece piece;
    size_t low = 0, high = p->n_params;
    if (ws_tensor_from_param(a, &t, err) < 0 || ws_piece_from_public(&a->piece, &t, &piece, err) < 0)
        return NULL;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (strcmp(p->params[p->by_name[mid]].tensor.name, a->name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    bool named = false;
    for (; low < p->n_params && strcmp(p->params[p->by_name[low]].tensor.name, a->name) == 0; low++) {
        struct ws_registered_piece *r = &p->params[p->by_name[low]];
        named = true;
        if (r->tensor.dtype != t.dtype || r->tensor.n_dims != t.n_dims ||
            memcmp(r->tensor.shape, t.shape, t.n_dims * sizeof(t.shape[0])) != 0) {
            ws_error_set(err, EINVAL, "%s is registered with another dtype or shape (%s)", a->name,
                         ws_dtype_name(r->tensor.dtype));
            return NULL;
        }
        if (ws_piece_equal(&piece, &r->piece, t.n_dims))
            return r;
    }
    ws_error_set(err, EINVAL, named ? "this piece of %s is not registered" : "%s is not registered", a->name);
    return NULL;
}
