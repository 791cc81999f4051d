/* Update requests, read from JSON without a tree. The lists come in any order, and each is kept by itself. At
 * the end all must have one length, and the request is checked as if a C program had made it. */
#include "backends/trainer/skyrl/update_request.h"
#include "transports/base/json_cursor.h"
#include "transports/base/vector.h"
#include "transports/format/manifest.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KEY_CHARS 64

enum { STRATEGY, VERSION, RUN, NAMES, DTYPES, SHAPES, SIZES, PACKED, ALIGNMENT, HANDLES, N_KEYS };
static const char *const keys[N_KEYS] = {"strategy", "version", "run",    "names",     "dtypes",
                                         "shapes",   "sizes",   "packed", "alignment", "ipc_handles"};

struct dims {
    unsigned n;
    uint64_t size[WS_MAX_DIMS];
};
struct handle_set {
    wsync_ipc_handle *handles;
    size_t n;
};
WS_VECTOR(names, const char *);
WS_VECTOR(dtypes, enum ws_dtype);
WS_VECTOR(shapes, struct dims);
WS_VECTOR(sizes, uint64_t);
WS_VECTOR(handles, wsync_ipc_handle);
WS_VECTOR(handle_sets, struct handle_set);

struct reading {
    struct ws_json j;
    struct ws_arena arena; /* texts and handles */
    char strategy[KEY_CHARS], run[WS_LINEAGE_CHARS + 1];
    uint64_t version, alignment;
    unsigned seen;        /* a bit for each key */
    bool packed, one_set; /* of PACKED; of HANDLES: an object, not a list */
    struct names names;
    struct dtypes dtypes;
    struct shapes shapes;
    struct sizes sizes;
    struct handle_sets sets;
    char scratch[WS_MAX_HANDLE_CHARS + 1]; /* one string */
};
_Static_assert(WS_MAX_HANDLE_CHARS > WS_MAX_TENSOR_NAME, "a name fits as well");

static int no_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "no memory for a weight update request");
}

/* What append_most returned. */
static int check_append(int rc, size_t most, struct ws_error *err)
{
    if (rc == -E2BIG)
        return ws_error_set(err, EBADMSG, "it has more than %zu entries", most);
    return rc == 0 ? 0 : no_memory(err);
}

static int read_name(struct reading *r, struct ws_error *err)
{
    int rc = ws_json_string(&r->j, r->scratch, WS_MAX_TENSOR_NAME + 1, err);
    if (rc < 0)
        return rc;
    const char *name = ws_arena_text(&r->arena, r->scratch, strlen(r->scratch));
    if (!name)
        return no_memory(err);
    return check_append(names_append_most(&r->names, name, WS_MAX_TENSORS), WS_MAX_TENSORS, err);
}

static int read_dtype(struct reading *r, struct ws_error *err)
{
    enum ws_dtype dtype;
    int rc = ws_json_string(&r->j, r->scratch, KEY_CHARS, err);
    if (rc < 0)
        return rc;
    if (ws_dtype_parse_torch(r->scratch, &dtype) < 0)
        return ws_error_set(err, EBADMSG, "\"%s\" is no dtype of torch; they are as bfloat16, torch.float32",
                            r->scratch);
    return check_append(dtypes_append_most(&r->dtypes, dtype, WS_MAX_TENSORS), WS_MAX_TENSORS, err);
}

static int read_shape(struct reading *r, struct ws_error *err)
{
    struct dims dims = {0};
    int rc = ws_json_enter(&r->j, '[', err);
    while (rc == 0 && (rc = ws_json_element(&r->j, err)) == 1)
        rc = dims.n == WS_MAX_DIMS
                 ? ws_error_set(err, EBADMSG, "a shape has more than %d dimensions", WS_MAX_DIMS)
                 : ws_json_uint(&r->j, &dims.size[dims.n++], err);
    if (rc < 0)
        return rc;
    return check_append(shapes_append_most(&r->shapes, dims, WS_MAX_TENSORS), WS_MAX_TENSORS, err);
}

static int read_size(struct reading *r, struct ws_error *err)
{
    uint64_t size;
    int rc = ws_json_uint(&r->j, &size, err);
    if (rc < 0)
        return rc;
    return check_append(sizes_append_most(&r->sizes, size, WS_MAX_TENSORS), WS_MAX_TENSORS, err);
}

/* {uuid: base64}. */
static int read_handles_of_set(struct reading *r, struct handles *out, struct ws_error *err)
{
    char uuid[WS_MAX_GPU_UUID + 1];
    int rc = ws_json_enter(&r->j, '{', err);
    while (rc == 0 && (rc = ws_json_member(&r->j, uuid, sizeof(uuid), err)) == 1) {
        rc = ws_json_string(&r->j, r->scratch, sizeof(r->scratch), err);
        if (rc < 0)
            return rc;
        const wsync_ipc_handle h = {.gpu_uuid = ws_arena_text(&r->arena, uuid, strlen(uuid)),
                                    .handle = ws_arena_text(&r->arena, r->scratch, strlen(r->scratch))};
        if (!h.gpu_uuid || !h.handle)
            return no_memory(err);
        rc = check_append(handles_append_most(out, h, WS_MAX_GPUS), WS_MAX_GPUS, err);
    }
    return rc;
}

static int read_set(struct reading *r, struct ws_error *err)
{
    struct handles found = {0};
    struct handle_set set = {0};
    int rc = read_handles_of_set(r, &found, err);
    if (rc == 0 && found.len > 0) {
        set.n = found.len;
        set.handles = ws_arena_alloc(&r->arena, found.len * sizeof(*set.handles));
        if (set.handles)
            memcpy(set.handles, found.ptr, found.len * sizeof(*set.handles));
        else
            rc = no_memory(err);
    }
    handles_reset(&found);
    if (rc < 0)
        return rc;
    return check_append(handle_sets_append_most(&r->sets, set, WS_MAX_TENSORS), WS_MAX_TENSORS, err);
}

static int read_list(struct reading *r, int (*one)(struct reading *r, struct ws_error *err),
                     struct ws_error *err)
{
    int rc = ws_json_enter(&r->j, '[', err);
    while (rc == 0 && (rc = ws_json_element(&r->j, err)) == 1)
        rc = one(r, err);
    return rc;
}

static char next_char(const struct ws_json *j)
{
    size_t at = j->at;
    while (at < j->len && strchr(" \t\n\r", j->text[at]) && j->text[at])
        at++;
    return at < j->len ? j->text[at] : 0;
}

static int read_handles(struct reading *r, struct ws_error *err)
{
    char c = next_char(&r->j);
    if (c == '"')
        return ws_error_set(err, EBADMSG,
                            "it is a text, as SkyRL's pickle is, and pickles are not opened here: "
                            "send {GPU's uuid: base64}");
    r->one_set = c == '{';
    return r->one_set ? read_set(r, err) : read_list(r, read_set, err);
}

static int read_value(struct reading *r, int key, struct ws_error *err)
{
    switch (key) {
    case STRATEGY:
        return ws_json_string(&r->j, r->strategy, sizeof(r->strategy), err);
    case VERSION:
        return ws_json_uint(&r->j, &r->version, err);
    case RUN:
        return ws_json_string(&r->j, r->run, sizeof(r->run), err);
    case NAMES:
        return read_list(r, read_name, err);
    case DTYPES:
        return read_list(r, read_dtype, err);
    case SHAPES:
        return read_list(r, read_shape, err);
    case SIZES:
        return read_list(r, read_size, err);
    case PACKED:
        return ws_json_flag(&r->j, &r->packed, err);
    case ALIGNMENT:
        return ws_json_uint(&r->j, &r->alignment, err);
    default:
        return read_handles(r, err);
    }
}

static int read_member(struct reading *r, const char *name, struct ws_error *err)
{
    int key = 0;
    if (strcmp(name, "dtype_names") == 0) /* vLLM's */
        name = keys[DTYPES];
    while (key < N_KEYS && strcmp(keys[key], name) != 0)
        key++;
    /* null counts as missing; the check at the end names missing members */
    if (key == N_KEYS || next_char(&r->j) == 'n')
        return ws_json_skip(&r->j, err);
    if (r->seen & 1U << key)
        return ws_error_set(err, EBADMSG, "\"%s\" is there twice", keys[key]);
    r->seen |= 1U << key;
    int rc = read_value(r, key, err);
    if (rc < 0)
        ws_error_prefix(err, "\"%s\"", name);
    return rc;
}

/* --- the lists become tensors --- */

static int check_lengths(const struct reading *r, struct ws_error *err)
{
    for (int key = NAMES; key <= SHAPES; key++)
        if (!(r->seen & 1U << key))
            return ws_error_set(err, EBADMSG, "it has no \"%s\"", keys[key]);
    if (r->dtypes.len != r->names.len || r->shapes.len != r->names.len ||
        (r->seen & 1U << SIZES && r->sizes.len != r->names.len))
        return ws_error_set(err, EBADMSG,
                            "its lists differ in length: %zu names, %zu dtypes, %zu shapes, %zu sizes",
                            r->names.len, r->dtypes.len, r->shapes.len, r->sizes.len);
    if (r->seen & 1U << HANDLES && !r->one_set && r->sets.len != r->names.len)
        return ws_error_set(err, EBADMSG, "\"ipc_handles\" has %zu entries for %zu names", r->sets.len,
                            r->names.len);
    return 0;
}

/* How the tensors are packed, which each strategy expresses in its own members. */
static int resolve_packing(const struct reading *r, const struct ws_strategy *s, int *packed,
                           struct ws_error *err)
{
    bool said = r->seen & 1U << PACKED, sizes = r->seen & 1U << SIZES;
    *packed = s->way->handles ? r->one_set : s->may_pack ? sizes || r->packed : said && r->packed;
    if (s->way->handles && !(r->seen & 1U << HANDLES))
        return ws_error_set(err, EBADMSG, "it has no \"ipc_handles\"");
    if (s->way->handles && *packed && !sizes)
        return ws_error_set(err, EBADMSG, "it is packed, and has no \"sizes\"");
    if (said && r->packed != (bool)*packed)
        return ws_error_set(err, EBADMSG, "\"packed\" is %s, and the rest says otherwise",
                            r->packed ? "true" : "false");
    return 0;
}

static int check_sizes(const struct reading *r, const wsync_update_request *q, struct ws_error *err)
{
    const uint64_t *sizes = r->sizes.ptr;
    for (size_t i = 0; r->seen & 1U << SIZES && i < q->n; i++)
        if (sizes[i] != ws_update_tensor_numel(&q->tensors[i]))
            return ws_error_set(err, EBADMSG, "\"sizes\" says %lu of %.255s, whose shape has %lu elements",
                                sizes[i], q->tensors[i].name, ws_update_tensor_numel(&q->tensors[i]));
    return 0;
}

static int build_request(struct reading *r, const char *expected, struct ws_owned_request **out,
                         struct ws_error *err)
{
    const struct ws_strategy *s;
    int packed = 0, rc = ws_strategy_resolve(r->strategy, expected, &s, err);
    if (rc == 0)
        rc = check_lengths(r, err);
    if (rc == 0)
        rc = resolve_packing(r, s, &packed, err);
    if (rc < 0)
        return rc;
    struct ws_owned_request *o = ws_owned_request_new(&r->arena, r->names.len);
    if (!o)
        return no_memory(err);
    *out = o;
    const struct handle_set *sets = r->sets.ptr;
    for (size_t i = 0; i < r->names.len; i++) {
        const struct dims *dims = &r->shapes.ptr[i];
        wsync_update_tensor *t = &o->tensors[i];
        t->name = r->names.ptr[i];
        t->dtype = (wsync_dtype)r->dtypes.ptr[i];
        t->n_dims = dims->n;
        memcpy(t->shape, dims->size, sizeof(t->shape));
        t->handles = r->sets.len && !r->one_set ? sets[i].handles : NULL;
        t->n_handles = r->sets.len && !r->one_set ? sets[i].n : 0;
    }
    o->request.strategy = (wsync_strategy_id)s->way->id;
    o->request.version = r->version;
    o->request.packed = packed;
    o->request.alignment = r->alignment;
    o->request.handles = r->one_set ? sets[0].handles : NULL;
    o->request.n_handles = r->one_set ? sets[0].n : 0;
    if (r->seen & 1U << RUN && !(o->request.run = ws_arena_text(&o->arena, r->run, strlen(r->run))))
        return no_memory(err);
    rc = ws_update_request_check(&o->request, err);
    return rc == 0 ? check_sizes(r, &o->request, err) : rc;
}

int ws_update_request_decode(const char *json, size_t len, const char *strategy, wsync_update_request **out,
                             struct ws_error *err)
{
    struct ws_error spare = {0};
    struct ws_owned_request *o = NULL;
    char key[KEY_CHARS];
    *out = NULL;
    err = err ? err : &spare;
    struct reading *r = calloc(1, sizeof(*r));
    int rc = r ? ws_strategy_expect(strategy, len, err) : no_memory(err);
    if (rc == 0) {
        ws_json_start(&r->j, json, len);
        rc = ws_json_enter(&r->j, '{', err);
        while (rc == 0 && (rc = ws_json_member(&r->j, key, sizeof(key), err)) == 1)
            rc = read_member(r, key, err);
        if (rc == 0)
            rc = ws_json_finish(&r->j, err);
        if (rc == 0)
            rc = build_request(r, strategy, &o, err);
        if (rc == -EINVAL) { /* the caller's text is wrong, not an argument */
            rc = -EBADMSG;
            err->code = EBADMSG;
        }
    }
    if (rc < 0) {
        ws_error_prefix(err, "the weight update request cannot be used");
        wsync_update_request_free(o ? &o->request : NULL);
    } else {
        *out = &o->request;
    }
    if (r) {
        ws_arena_free(&r->arena);
        names_reset(&r->names);
        dtypes_reset(&r->dtypes);
        shapes_reset(&r->shapes);
        sizes_reset(&r->sizes);
        handle_sets_reset(&r->sets);
    }
    free(r);
    return rc;
}
