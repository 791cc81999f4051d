/* Update requests, read from JSON without a tree. The lists come in any order, and each is kept by itself. At
 * the end all must have one length, and the request is checked as if a C program had made it. */
#include "backends/trainer/skyrl/update_request.h"
#include "transports/base/json_cursor.h"
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
/* A list that grows. */
struct list {
    void *items;
    size_t n, cap;
};

struct reading {
    struct ws_json j;
    struct ws_arena arena; /* texts and handles */
    char strategy[KEY_CHARS], run[WS_LINEAGE_CHARS + 1];
    uint64_t version, alignment;
    unsigned seen;                            /* a bit for each key */
    bool packed, one_set;                     /* of PACKED; of HANDLES: an object, not a list */
    struct list names, dtypes, shapes, sizes; /* const char *, enum ws_dtype, struct dims, uint64_t */
    struct list sets;                         /* struct handle_set */
    char scratch[WS_MAX_HANDLE_CHARS + 1];    /* one string */
};
_Static_assert(WS_MAX_HANDLE_CHARS > WS_MAX_TENSOR_NAME, "a name fits as well");

static int no_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "no memory for a weight update request");
}

/* Room for one more item of `bytes`; NULL and err where there is none. */
static void *add(struct list *l, size_t bytes, size_t most, struct ws_error *err)
{
    if (l->n == most) {
        ws_error_set(err, EBADMSG, "it has more than %zu entries", most);
        return NULL;
    }
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 16;
        void *p = reallocarray(l->items, cap, bytes);
        if (!p) {
            no_memory(err);
            return NULL;
        }
        l->items = p;
        l->cap = cap;
    }
    return memset((unsigned char *)l->items + l->n++ * bytes, 0, bytes);
}

static int read_name(struct reading *r, struct ws_error *err)
{
    const char **name = add(&r->names, sizeof(*name), WS_MAX_TENSORS, err);
    if (!name)
        return -err->code;
    int rc = ws_json_string(&r->j, r->scratch, WS_MAX_TENSOR_NAME + 1, err);
    if (rc == 0 && !(*name = ws_arena_text(&r->arena, r->scratch, strlen(r->scratch))))
        rc = no_memory(err);
    return rc;
}

static int read_dtype(struct reading *r, struct ws_error *err)
{
    enum ws_dtype *dtype = add(&r->dtypes, sizeof(*dtype), WS_MAX_TENSORS, err);
    if (!dtype)
        return -err->code;
    int rc = ws_json_string(&r->j, r->scratch, KEY_CHARS, err);
    if (rc == 0 && ws_dtype_parse_torch(r->scratch, dtype) < 0)
        rc = ws_error_set(err, EBADMSG, "\"%s\" is no dtype of torch; they are as bfloat16, torch.float32",
                          r->scratch);
    return rc;
}

static int read_shape(struct reading *r, struct ws_error *err)
{
    struct dims *dims = add(&r->shapes, sizeof(*dims), WS_MAX_TENSORS, err);
    if (!dims)
        return -err->code;
    int rc = ws_json_enter(&r->j, '[', err);
    while (rc == 0 && (rc = ws_json_element(&r->j, err)) == 1)
        rc = dims->n == WS_MAX_DIMS
                 ? ws_error_set(err, EBADMSG, "a shape has more than %d dimensions", WS_MAX_DIMS)
                 : ws_json_uint(&r->j, &dims->size[dims->n++], err);
    return rc;
}

static int read_size(struct reading *r, struct ws_error *err)
{
    uint64_t *size = add(&r->sizes, sizeof(*size), WS_MAX_TENSORS, err);
    return size ? ws_json_uint(&r->j, size, err) : -err->code;
}

/* {uuid: base64}. */
static int read_set(struct reading *r, struct ws_error *err)
{
    struct handle_set *set = add(&r->sets, sizeof(*set), WS_MAX_TENSORS, err);
    struct list found = {0};
    char uuid[WS_MAX_GPU_UUID + 1];
    if (!set)
        return -err->code;
    int rc = ws_json_enter(&r->j, '{', err);
    while (rc == 0 && (rc = ws_json_member(&r->j, uuid, sizeof(uuid), err)) == 1) {
        rc = ws_json_string(&r->j, r->scratch, sizeof(r->scratch), err);
        wsync_ipc_handle *h = rc == 0 ? add(&found, sizeof(*h), WS_MAX_GPUS, err) : NULL;
        if (rc == 0 && !h)
            rc = -err->code;
        if (rc == 0 && (!(h->gpu_uuid = ws_arena_text(&r->arena, uuid, strlen(uuid))) ||
                        !(h->handle = ws_arena_text(&r->arena, r->scratch, strlen(r->scratch)))))
            rc = no_memory(err);
    }
    if (rc == 0 && found.n) {
        set->handles = ws_arena_alloc(&r->arena, found.n * sizeof(*set->handles));
        if (set->handles)
            memcpy(set->handles, found.items, found.n * sizeof(*set->handles));
        else
            rc = no_memory(err);
        set->n = found.n;
    }
    free(found.items);
    return rc;
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
    if (r->dtypes.n != r->names.n || r->shapes.n != r->names.n ||
        (r->seen & 1U << SIZES && r->sizes.n != r->names.n))
        return ws_error_set(err, EBADMSG,
                            "its lists differ in length: %zu names, %zu dtypes, %zu shapes, %zu sizes",
                            r->names.n, r->dtypes.n, r->shapes.n, r->sizes.n);
    if (r->seen & 1U << HANDLES && !r->one_set && r->sets.n != r->names.n)
        return ws_error_set(err, EBADMSG, "\"ipc_handles\" has %zu entries for %zu names", r->sets.n,
                            r->names.n);
    return 0;
}

/* How the tensors are packed, which each strategy expresses in its own members. */
static int settle_packing(const struct reading *r, const struct ws_strategy *s, int *packed,
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
    const uint64_t *sizes = r->sizes.items;
    for (size_t i = 0; r->seen & 1U << SIZES && i < q->n; i++)
        if (sizes[i] != ws_update_tensor_numel(&q->tensors[i]))
            return ws_error_set(err, EBADMSG, "\"sizes\" says %lu of %.255s, whose shape has %lu elements",
                                sizes[i], q->tensors[i].name, ws_update_tensor_numel(&q->tensors[i]));
    return 0;
}

static int settle(struct reading *r, const char *expected, struct ws_owned_request **out,
                  struct ws_error *err)
{
    const struct ws_strategy *s;
    int packed = 0, rc = ws_strategy_resolve(r->strategy, expected, &s, err);
    if (rc == 0)
        rc = check_lengths(r, err);
    if (rc == 0)
        rc = settle_packing(r, s, &packed, err);
    if (rc < 0)
        return rc;
    struct ws_owned_request *o = ws_owned_request_new(&r->arena, r->names.n);
    if (!o)
        return no_memory(err);
    *out = o;
    const struct handle_set *sets = r->sets.items;
    for (size_t i = 0; i < r->names.n; i++) {
        const struct dims *dims = (const struct dims *)r->shapes.items + i;
        wsync_update_tensor *t = &o->tensors[i];
        t->name = ((const char **)r->names.items)[i];
        t->dtype = (wsync_dtype)((enum ws_dtype *)r->dtypes.items)[i];
        t->n_dims = dims->n;
        memcpy(t->shape, dims->size, sizeof(t->shape));
        t->handles = r->sets.n && !r->one_set ? sets[i].handles : NULL;
        t->n_handles = r->sets.n && !r->one_set ? sets[i].n : 0;
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
            rc = settle(r, strategy, &o, err);
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
        free(r->names.items);
        free(r->dtypes.items);
        free(r->shapes.items);
        free(r->sizes.items);
        free(r->sets.items);
    }
    free(r);
    return rc;
}
