/* Publisher: one rank's side of a publish. Registers metadata, gets the slot's memory for one version, copies
 * and hashes into it, and lets go of it at commit, so that nobody can write a version that is announced. */
#include "backends/trainer/base.h"
#include "backends/trainer/piece.h"
#include "backends/trainer/plan.h"
#include "backends/trainer/wsync.h"
#include "transports/ipc.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_AGENT      "unix:/run/wsync/agent.sock"
#define DEFAULT_TIMEOUT_MS 60000
#define MAX_THREADS        8

static _Thread_local struct ws_error last_error;

/* One registered piece: what was told to the agent, and what it answered. */
struct registered {
    struct ws_tensor tensor; /* name is owned; begin: in the file */
    struct ws_piece piece;
    char *file_name;
    size_t file;
    bool writes, put;
};

struct wsync_publisher {
    int sock;
    char *model, *run_asked;
    char run[WS_RUN_CHARS + 1];
    bool new_run; /* until something was published in it */
    unsigned rank, world_size, max_slots, timeout_ms;
    uint64_t shard_bytes;
    struct ws_workers *workers;
    struct ws_base *base;
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_arg;
    /* the registration */
    struct registered *params; /* in the caller's order */
    size_t n_params;
    size_t *by_name;                /* indices into params, by name */
    struct registered *base_places; /* writes and file of base tensors */
    size_t *sidecar_files;
    uint64_t *file_sizes;
    size_t n_files;
    /* the version that is begun */
    bool begun, fresh;
    uint64_t version;
    struct ws_region **regions;
    struct ws_block_hash *hashes;
    size_t n_hashes;
};

const char *wsync_error(void)
{
    return last_error.text[0] ? last_error.text : "no error";
}

const char *wsync_version(void)
{
    return WS_VERSION;
}

const char *wsync_run(const wsync_publisher *pub)
{
    return pub->run;
}

/* --- opening --- */

static int check_config(const wsync_config *c, struct ws_error *err)
{
    if (!c || c->struct_size != sizeof(*c))
        return ws_error_set(err, EINVAL,
                            "wsync_config.struct_size is not sizeof(wsync_config): header and library "
                            "are of different releases");
    if (!c->model || !ws_name_is_model(c->model))
        return ws_error_set(err, EINVAL, "wsync_config.model cannot be '%.100s': %s",
                            c->model ? c->model : "", WS_MODEL_NAME_RULE);
    if (c->rank >= (c->world_size ? c->world_size : 1))
        return ws_error_set(err, EINVAL, "rank %u of world_size %u makes no sense", c->rank, c->world_size);
    return 0;
}

int wsync_open(const wsync_config *c, wsync_publisher **out)
{
    struct ws_error *err = &last_error;
    const char *agent;
    *out = NULL;
    int rc = check_config(c, err);
    if (rc < 0)
        return rc;
    agent = c->agent ? c->agent : getenv("WSYNC_AGENT");
    struct wsync_publisher *p = calloc(1, sizeof(*p));
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned n = c->n_threads          ? c->n_threads
                 : cores > MAX_THREADS ? MAX_THREADS
                 : cores > 0           ? (unsigned)cores
                                       : 1;
    if (!p)
        return ws_error_set(err, ENOMEM, "no memory for a publisher");
    p->sock = -1;
    p->model = strdup(c->model);
    p->run_asked = c->run ? strdup(c->run) : NULL;
    p->new_run = c->new_run;
    p->rank = c->rank;
    p->world_size = c->world_size ? c->world_size : 1;
    p->max_slots = c->max_slots;
    p->shard_bytes = c->shard_bytes;
    p->timeout_ms = c->timeout_ms ? c->timeout_ms : DEFAULT_TIMEOUT_MS;
    p->progress = c->progress;
    p->progress_arg = c->progress_arg;
    p->workers = ws_workers_new(n, 0);
    if (!p->model || !p->workers || (c->run && !p->run_asked))
        rc = ws_error_set(err, ENOMEM, "no memory for a publisher");
    if (rc == 0)
        rc = ws_ipc_connect(agent && *agent ? agent : DEFAULT_AGENT, &p->sock, err);
    if (rc == 0 && p->rank == 0)
        rc = ws_base_open(&p->base, c->base, c->sidecars, err);
    if (rc < 0) {
        wsync_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

static int call(struct wsync_publisher *p, const char *verb, json_t *body, json_t **reply, int *fds,
                size_t max, size_t *n, struct ws_error *err) /* steals body */
{
    char path[64];
    snprintf(path, sizeof(path), "/v1/local/%s", verb);
    if (!body)
        return ws_error_set(err, ENOMEM, "no memory for a request");
    int rc = ws_ipc_call(p->sock, "POST", path, body, NULL, 0, reply, fds, max, n, err);
    json_decref(body);
    return rc;
}

/* --- registering --- */

static void forget(struct wsync_publisher *p)
{
    for (size_t i = 0; i < p->n_params; i++) {
        free((char *)(uintptr_t)p->params[i].tensor.name);
        free(p->params[i].file_name);
    }
    free(p->params);
    free(p->by_name);
    free(p->base_places);
    free(p->sidecar_files);
    free(p->file_sizes);
    p->params = p->base_places = NULL;
    p->by_name = p->sidecar_files = NULL;
    p->file_sizes = NULL;
    p->n_params = p->n_files = 0;
}

#define SAME(name) ((int)WSYNC_##name == (int)WS_##name)
_Static_assert(SAME(BOOL) && SAME(U8) && SAME(I8) && SAME(F8_E5M2) && SAME(F8_E4M3) && SAME(F8_E8M0) &&
                   SAME(F8_E4M3FNUZ) && SAME(F8_E5M2FNUZ) && SAME(F4) && SAME(F6_E2M3) && SAME(F6_E3M2) &&
                   SAME(I16) && SAME(U16) && SAME(F16) && SAME(BF16) && SAME(I32) && SAME(U32) && SAME(F32) &&
                   SAME(F64) && SAME(I64) && SAME(U64) && SAME(C64),
               "the public types are the safetensors' ones");

static int tensor_of(const wsync_param *a, struct ws_tensor *t, struct ws_error *err)
{
    uint64_t bytes;
    if (!a->name || !*a->name || strlen(a->name) > WS_MAX_TENSOR_NAME)
        return ws_error_set(err, EINVAL, "a parameter has no name or one of over %d bytes",
                            WS_MAX_TENSOR_NAME);
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

static int remember(struct registered *r, const wsync_param *a, struct ws_error *err)
{
    int rc = tensor_of(a, &r->tensor, err);
    if (rc < 0) {
        r->tensor.name = NULL;
        return rc;
    }
    rc = ws_piece_of(&a->piece, &r->tensor, &r->piece, err);
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

static json_t *param_json(const struct registered *r)
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

static int take_places(const json_t *places, struct registered *r, size_t n, size_t n_files)
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

static int take_placement(struct wsync_publisher *p, const json_t *reply, struct ws_error *err)
{
    const json_t *files = json_object_get(reply, "files"), *sidecars = json_object_get(reply, "sidecars");
    const char *run = json_string_value(json_object_get(reply, "run"));
    size_t n_base = p->base ? ws_base_n_tensors(p->base) : 0,
           n_side = p->base ? ws_base_n_sidecars(p->base) : 0;
    p->n_files = json_array_size(files);
    p->file_sizes = calloc(p->n_files + 1, sizeof(*p->file_sizes));
    p->base_places = calloc(n_base + 1, sizeof(*p->base_places));
    p->sidecar_files = calloc(n_side + 1, sizeof(*p->sidecar_files));
    if (!p->file_sizes || !p->base_places || !p->sidecar_files)
        return ws_error_set(err, ENOMEM, "no memory for a placement");
    for (size_t i = 0; i < p->n_files; i++)
        p->file_sizes[i] = (uint64_t)json_integer_value(json_object_get(json_array_get(files, i), "bytes"));
    int rc = take_places(json_object_get(reply, "places"), p->params, p->n_params, p->n_files);
    if (rc == 0)
        rc = take_places(json_object_get(reply, "base"), p->base_places, n_base, p->n_files);
    if (rc == 0 && json_array_size(sidecars) != n_side)
        rc = -EPROTO;
    for (size_t i = 0; rc == 0 && i < n_side; i++) {
        p->sidecar_files[i] = (size_t)json_integer_value(json_array_get(sidecars, i));
        if (p->sidecar_files[i] >= p->n_files)
            rc = -EPROTO;
    }
    if (rc == 0 && !run)
        rc = -EPROTO;
    if (rc < 0)
        return ws_error_set(err, EPROTO,
                            "the agent's placement is not understood: is it of another release?");
    snprintf(p->run, sizeof(p->run), "%s", run);
    return 0;
}

static json_t *registration_json(const struct wsync_publisher *p)
{
    json_t *params = json_array();
    for (size_t i = 0; i < p->n_params; i++)
        json_array_append_new(params, param_json(&p->params[i]));
    json_t *o = json_pack("{s:s,s:I,s:I,s:I,s:I,s:I,s:b,s:o,s:o,s:o}", "model", p->model, "rank",
                          (json_int_t)p->rank, "world_size", (json_int_t)p->world_size, "shard_bytes",
                          (json_int_t)p->shard_bytes, "max_slots", (json_int_t)p->max_slots, "timeout_ms",
                          (json_int_t)p->timeout_ms, "new_run", (int)p->new_run, "params", params, "base",
                          p->base ? ws_base_tensors_json(p->base) : json_array(), "sidecars",
                          p->base ? ws_base_sidecars_json(p->base) : json_array());
    const char *run = p->run_asked ? p->run_asked : p->run[0] ? p->run : NULL;
    if (o && run)
        json_object_set_new(o, "run", json_string(run));
    return o;
}

static int register_params(struct wsync_publisher *p, const wsync_param *params, size_t n,
                           struct ws_error *err)
{
    json_t *reply = NULL;
    if (p->begun)
        return ws_error_set(err, EALREADY,
                            "version %" PRIu64 " is begun: commit or abandon it before registering",
                            p->version);
    if (n > WS_MAX_TENSORS)
        return ws_error_set(err, E2BIG, "%zu pieces; at most %d", n, WS_MAX_TENSORS);
    forget(p);
    p->params = calloc(n + 1, sizeof(*p->params));
    if (!p->params)
        return ws_error_set(err, ENOMEM, "no memory for %zu parameters", n);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        p->n_params++;
        rc = remember(&p->params[i], &params[i], err);
    }
    if (rc == 0)
        rc = index_names(p, err);
    if (rc == 0)
        rc = call(p, "register", registration_json(p), &reply, NULL, 0, NULL, err);
    if (rc == 0)
        rc = take_placement(p, reply, err);
    json_decref(reply);
    if (rc < 0)
        forget(p);
    return rc;
}

int wsync_register(wsync_publisher *p, const wsync_param *params, size_t n)
{
    return register_params(p, params, n, &last_error);
}

/* Is this the very list that is registered? */
static bool is_registered(const struct wsync_publisher *p, const wsync_param *params, size_t n)
{
    if (!p->params || n != p->n_params)
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct registered *r = &p->params[i];
        struct ws_piece piece;
        if (!params[i].name || strcmp(params[i].name, r->tensor.name) != 0 ||
            (enum ws_dtype)params[i].dtype != r->tensor.dtype || params[i].n_dims != r->tensor.n_dims ||
            memcmp(params[i].shape, r->tensor.shape, r->tensor.n_dims * sizeof(r->tensor.shape[0])) != 0 ||
            !params[i].file != !r->file_name || (r->file_name && strcmp(params[i].file, r->file_name) != 0) ||
            ws_piece_of(&params[i].piece, &r->tensor, &piece, NULL) ||
            !ws_piece_equal(&piece, &r->piece, r->tensor.n_dims))
            return false;
    }
    return true;
}

/* --- begin --- */

static void let_go(struct wsync_publisher *p)
{
    for (size_t i = 0; p->regions && i < p->n_files; i++)
        ws_region_free(p->regions[i]);
    free(p->regions);
    p->regions = NULL;
    free(p->hashes);
    p->hashes = NULL;
    p->n_hashes = 0;
    p->begun = false;
}

static int map_slot(struct wsync_publisher *p, int *fds, size_t n_fds, struct ws_error *err)
{
    size_t used = 0;
    int rc = 0;
    p->regions = calloc(p->n_files + 1, sizeof(struct ws_region *));
    if (!p->regions)
        rc = ws_error_set(err, ENOMEM, "no memory for a slot");
    for (size_t i = 0; rc == 0 && i < p->n_files; i++) {
        if (p->file_sizes[i] == 0)
            continue;
        rc = used < n_fds ? ws_region_import(&p->regions[i], fds[used++], p->file_sizes[i], true, err)
                          : ws_error_set(err, EPROTO, "the agent sent %zu descriptors, too few", n_fds);
    }
    while (used < n_fds)
        close(fds[used++]);
    return rc;
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

static int begin(struct wsync_publisher *p, uint64_t version, struct ws_error *err)
{
    int fds[WS_MAX_FDS_PER_FRAME];
    size_t n = 0;
    json_t *reply = NULL;
    if (!p->params)
        return ws_error_set(err, EINVAL, "register the parameters before begin");
    if (p->begun)
        return ws_error_set(err, EALREADY, "version %" PRIu64 " is begun and neither committed nor abandoned",
                            p->version);
    int rc = call(p, "begin",
                  json_pack("{s:I,s:s,s:I}", "version", (json_int_t)version, "run", p->run, "timeout_ms",
                            (json_int_t)p->timeout_ms),
                  &reply, fds, WS_MAX_FDS_PER_FRAME, &n, err);
    if (rc < 0)
        return rc;
    p->begun = true;
    p->version = version;
    p->fresh = json_is_true(json_object_get(reply, "fresh"));
    json_decref(reply);
    for (size_t i = 0; i < p->n_params; i++)
        p->params[i].put = false;
    rc = map_slot(p, fds, n, err);
    if (rc < 0) {
        struct ws_error ignored;
        (void)call(p, "abandon", json_object(), NULL, NULL, 0, NULL, &ignored);
        let_go(p);
    }
    return rc;
}

int wsync_begin(wsync_publisher *p, uint64_t version)
{
    return begin(p, version, &last_error);
}

/* --- put --- */

static struct registered *find_registered(struct wsync_publisher *p, const wsync_param *a,
                                          struct ws_error *err)
{
    struct ws_tensor t;
    struct ws_piece piece;
    size_t low = 0, high = p->n_params;
    if (tensor_of(a, &t, err) < 0 || ws_piece_of(&a->piece, &t, &piece, err) < 0)
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
        struct registered *r = &p->params[p->by_name[low]];
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

/* A registered piece with its source becomes a run of bytes, or a strided copy. */
static int plan_piece(struct ws_plan *plan, const struct registered *r, const wsync_param *a)
{
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

static int put_all(struct wsync_publisher *p, const wsync_param *params, struct registered *const *which,
                   size_t n, bool with_fresh, struct ws_error *err)
{
    struct ws_plan *plan;
    int rc = ws_plan_new(&plan, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        struct registered *r = which ? which[i] : &p->params[i];
        if (!params[i].data && ws_piece_elements(&r->piece, r->tensor.n_dims) > 0)
            rc = ws_error_set(err, EINVAL, "the parameter %s has no data", params[i].name);
        else if (r->writes && plan_piece(plan, r, &params[i]) < 0)
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

int wsync_put(wsync_publisher *p, const wsync_param *param)
{
    struct ws_error *err = &last_error;
    if (!p->begun)
        return ws_error_set(err, EINVAL, "begin a version before put");
    struct registered *r = find_registered(p, param, err);
    if (!r)
        return -err->code;
    if (r->put)
        return ws_error_set(err, EEXIST, "%s was put already into version %" PRIu64, param->name, p->version);
    return put_all(p, param, &r, 1, false, err);
}

/* --- commit --- */

static json_t *hashes_json(const struct wsync_publisher *p)
{
    json_t *all = json_array();
    for (size_t i = 0; i < p->n_hashes; i++) {
        char hex[17];
        snprintf(hex, sizeof(hex), "%016" PRIx64, p->hashes[i].hash);
        json_array_append_new(
            all, json_pack("[I,I,s]", (json_int_t)p->hashes[i].file, (json_int_t)p->hashes[i].block, hex));
    }
    return json_pack("{s:o}", "hashes", all);
}

static int commit(struct wsync_publisher *p, struct ws_error *err)
{
    if (!p->begun)
        return ws_error_set(err, EINVAL, "nothing is begun");
    for (size_t i = 0; i < p->n_params; i++)
        if (p->params[i].writes && !p->params[i].put)
            return ws_error_set(err, ENODATA, "version %" PRIu64 " is not whole: %s was not put", p->version,
                                p->params[i].tensor.name);
    json_t *body = hashes_json(p);
    let_go(p); /* before the agent looks whether anybody could still write */
    int rc = call(p, "commit", body, NULL, NULL, 0, NULL, err);
    if (rc == 0) { /* the lineage is opened */
        p->new_run = false;
        free(p->run_asked);
        p->run_asked = NULL;
    }
    return rc;
}

int wsync_commit(wsync_publisher *p)
{
    struct ws_error *err = &last_error;
    if (p->begun && p->fresh && p->rank == 0 && p->base) {
        struct ws_plan *plan;
        int rc = ws_plan_new(&plan, err);
        if (rc == 0)
            rc = fill_fresh(p, plan, err);
        if (rc == 0)
            rc = run_plan(p, plan, false, err);
        ws_plan_free(plan);
        if (rc < 0)
            return rc;
    }
    return commit(p, err);
}

static int abandon(struct wsync_publisher *p, struct ws_error *err)
{
    if (!p->begun)
        return ws_error_set(err, EINVAL, "nothing is begun");
    let_go(p);
    return call(p, "abandon", json_object(), NULL, NULL, 0, NULL, err);
}

int wsync_abandon(wsync_publisher *p)
{
    return abandon(p, &last_error);
}

int wsync_offload(wsync_publisher *p, const wsync_param *params, size_t n, uint64_t version)
{
    struct ws_error *err = &last_error, ignored;
    int rc = is_registered(p, params, n) ? 0 : register_params(p, params, n, err);
    if (rc == 0)
        rc = begin(p, version, err);
    if (rc == -ESTALE) { /* another rank came back with a new connection: all register anew */
        rc = register_params(p, params, n, err);
        if (rc == 0)
            rc = begin(p, version, err);
    }
    if (rc < 0)
        return rc;
    rc = put_all(p, params, NULL, n, true, err);
    if (rc == 0)
        rc = commit(p, err);
    if (rc < 0 && p->begun)
        (void)abandon(p, &ignored);
    return rc;
}

static int wait_for(struct wsync_publisher *p, const char *what, uint64_t version, int timeout_ms)
{
    json_t *body = json_pack("{s:I,s:s,s:s}", "version", (json_int_t)version, "what", what, "run", p->run);
    if (body && timeout_ms >= 0)
        json_object_set_new(body, "timeout_ms", json_integer(timeout_ms));
    return call(p, "wait", body, NULL, NULL, 0, NULL, &last_error);
}

int wsync_wait_published(wsync_publisher *p, uint64_t version, int timeout_ms)
{
    return wait_for(p, "published", version, timeout_ms);
}

int wsync_wait_loaded(wsync_publisher *p, uint64_t version, int timeout_ms)
{
    return wait_for(p, "loaded", version, timeout_ms);
}

void wsync_close(wsync_publisher *p)
{
    if (!p)
        return;
    let_go(p);
    if (p->sock >= 0)
        close(p->sock); /* the agent abandons what is begun */
    forget(p);
    ws_base_free(p->base);
    ws_workers_free(p->workers);
    free(p->model);
    free(p->run_asked);
    free(p);
}
