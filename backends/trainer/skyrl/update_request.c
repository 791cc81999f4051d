/* Update requests: the description of an update for a receiver; checked, made from a chunk, written as JSON.
 * Reading is in update_request_read.c. Written as a stream: a model of 100,000 tensors is 10 MB of text. */
#include "backends/trainer/skyrl/update_request.h"
#include "backends/trainer/api/last_error.h"
#include "backends/trainer/api/struct_abi.h"
#include "backends/trainer/skyrl/chunk.h"
#include "backends/trainer/tensor/piece.h"
#include "transports/base/json_cursor.h"
#include "transports/format/manifest.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int no_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "no memory for a weight update request");
}

/* --- checking --- */

static int by_text(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

/* Sorts the texts. Returns one that occurs twice, or NULL. */
static const char *twice(const char **texts, size_t n)
{
    qsort(texts, n, sizeof(texts[0]), by_text);
    for (size_t i = 1; i < n; i++)
        if (strcmp(texts[i - 1], texts[i]) == 0)
            return texts[i];
    return NULL;
}

static bool is_base64(const char *text)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = strnlen(text, WS_MAX_HANDLE_CHARS + 1), used = strspn(text, digits);
    return n > 0 && n <= WS_MAX_HANDLE_CHARS && n % 4 == 0 && n - used <= 2 &&
           strspn(text + used, "=") == n - used;
}

static bool is_uuid(const char *text)
{
    size_t n = strnlen(text, WS_MAX_GPU_UUID + 1);
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    return n > 0 && n <= WS_MAX_GPU_UUID;
}

static int check_handles(const wsync_ipc_handle *h, size_t n, const char *of, struct ws_error *err)
{
    if (n == 0 || n > WS_MAX_GPUS || !h)
        return ws_error_set(err, EINVAL, "\"ipc_handles\" has %zu handles of %s, and not 1 to %d", n, of,
                            WS_MAX_GPUS);
    for (size_t i = 0; i < n; i++) {
        if (!h[i].gpu_uuid || !is_uuid(h[i].gpu_uuid))
            return ws_error_set(err, EINVAL, "\"ipc_handles\" names a GPU '%.100s' for %s: no uuid",
                                h[i].gpu_uuid ? h[i].gpu_uuid : "", of);
        if (!h[i].handle || !is_base64(h[i].handle))
            return ws_error_set(err, EINVAL, "the handle of %s for %s is no base64 of 4 to %d characters", of,
                                h[i].gpu_uuid, WS_MAX_HANDLE_CHARS);
    }
    if (n == 1)
        return 0;
    const char **uuids = calloc(n, sizeof(*uuids)), *again;
    if (!uuids)
        return no_memory(err);
    for (size_t i = 0; i < n; i++)
        uuids[i] = h[i].gpu_uuid;
    again = twice(uuids, n);
    free(uuids);
    return again ? ws_error_set(err, EINVAL, "\"ipc_handles\" has %s twice for %s", again, of) : 0;
}

static int check_tensor(const wsync_update_tensor *t, struct ws_error *err)
{
    struct ws_tensor plain;
    wsync_param a = {.name = t->name, .dtype = t->dtype, .n_dims = t->n_dims};
    memcpy(a.shape, t->shape, sizeof(a.shape));
    int rc = ws_tensor_from_param(&a, &plain, err);
    if (rc == 0 && !ws_dtype_torch(plain.dtype))
        rc = ws_error_set(err, EINVAL, "%s is %s, and torch has no such dtype", t->name,
                          ws_dtype_name(plain.dtype));
    return rc;
}

static int check_names(const wsync_update_request *r, struct ws_error *err)
{
    const char **names = calloc(r->n + 1, sizeof(*names)), *again;
    if (!names)
        return no_memory(err);
    for (size_t i = 0; i < r->n; i++)
        names[i] = r->tensors[i].name;
    again = twice(names, r->n);
    free(names);
    return again ? ws_error_set(err, EINVAL, "\"names\" has %.255s twice", again) : 0;
}

static int check_packing(const wsync_update_request *r, const struct ws_strategy *s, struct ws_error *err)
{
    if (r->packed && !s->may_pack)
        return ws_error_set(err, EINVAL, "an update by %s is not packed", s->way->name);
    if (!r->packed && s->must_pack)
        return ws_error_set(err, EINVAL, "an update by %s is packed", s->way->name);
    if (r->alignment && (!r->packed || !ws_pack_alignment_fits(r->alignment)))
        return ws_error_set(err, EINVAL,
                            "\"alignment\" is %lu; it is a power of two of at most %lu, of what is packed",
                            (unsigned long)r->alignment, WS_MAX_PACK_ALIGNMENT);
    for (size_t i = 1; r->packed && s->way->handles && !r->alignment && i < r->n; i++)
        if (r->tensors[i].dtype != r->tensors[0].dtype)
            return ws_error_set(err, EINVAL,
                                "%.255s and %.255s are packed together without an alignment, and differ in "
                                "dtype",
                                r->tensors[0].name, r->tensors[i].name);
    return 0;
}

static int check_memory(const wsync_update_request *r, const struct ws_strategy *s, struct ws_error *err)
{
    bool whole = s->way->handles && r->packed, each = s->way->handles && !r->packed;
    int rc = 0;
    if (whole)
        rc = check_handles(r->handles, r->n_handles, "the packed buffer", err);
    else if (r->n_handles)
        rc = ws_error_set(err, EINVAL, "an update by %s that is not packed has no handle of a buffer",
                          s->way->name);
    for (size_t i = 0; rc == 0 && i < r->n; i++)
        if (each)
            rc = check_handles(r->tensors[i].handles, r->tensors[i].n_handles, r->tensors[i].name, err);
        else if (r->tensors[i].n_handles)
            rc = ws_error_set(err, EINVAL, "%.255s has a handle of its own, and the update is by %s%s",
                              r->tensors[i].name, s->way->name, r->packed ? ", packed" : "");
    return rc;
}

int ws_update_request_check(const wsync_update_request *r, struct ws_error *err)
{
    const struct ws_strategy *s = ws_strategy_by_id(r->strategy);
    int rc = 0;
    if (!s)
        return ws_error_set(err, EINVAL, "there is no strategy %d", (int)r->strategy);
    if (r->version > INT64_MAX || (r->run && !ws_lineage_is_safe(r->run)))
        return ws_error_set(err, EINVAL, "it is for no version that can be: %lu of run '%.50s'",
                            (unsigned long)r->version, r->run ? r->run : "");
    if (r->n > WS_MAX_TENSORS || (r->n && !r->tensors) || (r->n == 0 && s->info != WS_INFO_SOURCE))
        return ws_error_set(err, EINVAL, "it names %zu tensors; an update by %s has 1 to %d", r->n,
                            s->way->name, WS_MAX_TENSORS);
    for (size_t i = 0; rc == 0 && i < r->n; i++)
        rc = check_tensor(&r->tensors[i], err);
    if (rc == 0)
        rc = check_names(r, err);
    if (rc == 0)
        rc = check_packing(r, s, err);
    return rc == 0 ? check_memory(r, s, err) : rc;
}

static int copy_checked(wsync_update_request *out, const wsync_update_request *given, struct ws_error *err)
{
    int rc = ws_struct_abi_copy(out, sizeof(*out), given, "wsync_update_request", err);
    if (rc == 0 && (rc = ws_update_request_check(out, err)) < 0)
        ws_error_prefix(err, "the weight update request cannot be used");
    return rc;
}

uint64_t ws_update_tensor_numel(const wsync_update_tensor *t)
{
    uint64_t n = 1;
    for (unsigned d = 0; d < t->n_dims; d++)
        n *= t->shape[d]; /* checked against overflow before */
    return n;
}

/* --- writing --- */

static int put_handles(FILE *f, const wsync_ipc_handle *h, size_t n)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        fputs(i ? "," : "{", f);
        rc = ws_json_put_string(f, h[i].gpu_uuid);
        fprintf(f, ":\"%s\"", h[i].handle); /* base64 needs no escapes */
    }
    fputc('}', f);
    return rc;
}

static void put_shapes(FILE *f, const wsync_update_request *r)
{
    fputs(",\"shapes\":[", f);
    for (size_t i = 0; i < r->n; i++) {
        fputs(i ? ",[" : "[", f);
        for (unsigned d = 0; d < r->tensors[i].n_dims; d++)
            fprintf(f, d ? ",%lu" : "%lu", r->tensors[i].shape[d]);
        fputc(']', f);
    }
    fputc(']', f);
}

static void put_sizes(FILE *f, const wsync_update_request *r, const struct ws_strategy *s)
{
    if (s->info == WS_INFO_BROADCAST)
        fprintf(f, ",\"packed\":%s,\"sizes\":%s", r->packed ? "true" : "false", r->packed ? "" : "null");
    else if (s->way->handles)
        fputs(",\"sizes\":", f);
    for (size_t i = 0; (r->packed || s->way->handles) && i < r->n; i++)
        fprintf(f, i ? ",%lu" : "[%lu", ws_update_tensor_numel(&r->tensors[i]));
    if (r->packed || s->way->handles)
        fputc(']', f);
    if (r->alignment)
        fprintf(f, ",\"alignment\":%lu", r->alignment);
}

static int put_request(FILE *f, const wsync_update_request *r)
{
    const struct ws_strategy *s = ws_strategy_by_id(r->strategy);
    int rc = 0;
    fprintf(f, "{\"strategy\":\"%s\"", s->way->name);
    if (r->version)
        fprintf(f, ",\"version\":%lu", r->version);
    if (r->run)
        fprintf(f, ",\"run\":\"%s\"", r->run);
    fputs(",\"names\":[", f);
    for (size_t i = 0; rc == 0 && i < r->n; i++) {
        fputs(i ? "," : "", f);
        rc = ws_json_put_string(f, r->tensors[i].name);
    }
    fputs("],\"dtypes\":[", f);
    for (size_t i = 0; i < r->n; i++)
        fprintf(f, i ? ",\"%s\"" : "\"%s\"", wsync_dtype_name(r->tensors[i].dtype));
    fputc(']', f);
    put_shapes(f, r);
    put_sizes(f, r, s);
    if (s->way->handles)
        fputs(r->packed ? ",\"ipc_handles\":" : ",\"ipc_handles\":[", f);
    if (s->way->handles && r->packed && rc == 0)
        rc = put_handles(f, r->handles, r->n_handles);
    for (size_t i = 0; s->way->handles && !r->packed && rc == 0 && i < r->n; i++) {
        fputs(i ? "," : "", f);
        rc = put_handles(f, r->tensors[i].handles, r->tensors[i].n_handles);
    }
    fputs(s->way->handles && !r->packed ? "]}" : "}", f);
    return rc;
}

int ws_update_request_encode(const wsync_update_request *given, char **json, struct ws_error *err)
{
    wsync_update_request r;
    char *text = NULL;
    size_t length = 0;
    *json = NULL;
    int rc = copy_checked(&r, given, err);
    if (rc < 0)
        return rc;
    FILE *f = open_memstream(&text, &length);
    if (!f)
        return no_memory(err);
    rc = put_request(f, &r);
    if (rc == -EINVAL)
        ws_error_set(err, EINVAL, "a tensor's name is no UTF-8 and cannot be in a weight update request");
    else if (rc < 0)
        rc = no_memory(err);
    if ((fclose(f) != 0 || !text) && rc == 0)
        rc = no_memory(err);
    if (rc == 0 && length > WS_MAX_REQUEST_BYTES)
        rc = ws_error_set(err, E2BIG,
                          "the weight update request would have %zu bytes, more than the limit of %lu: send "
                          "smaller chunks",
                          length, WS_MAX_REQUEST_BYTES);
    if (rc < 0)
        free(text);
    else
        *json = text;
    return rc;
}

/* --- from a chunk --- */

struct ws_owned_request *ws_owned_request_new(struct ws_arena *texts, size_t n)
{
    struct ws_owned_request *o = calloc(1, sizeof(*o));
    wsync_update_tensor *tensors = o ? ws_arena_alloc(texts, (n + 1) * sizeof(*tensors)) : NULL;
    if (!tensors) {
        free(o);
        return NULL;
    }
    o->arena = *texts;
    texts->blocks = NULL;
    o->request.struct_size = sizeof(o->request);
    o->request.n = n;
    o->request.tensors = o->tensors = tensors;
    return o;
}

static int tensor_of_entry(const wsync_chunk_entry *e, wsync_update_tensor *t, struct ws_arena *arena,
                           struct ws_error *err)
{
    const wsync_param *a = e->param;
    if (a->piece.kind != WSYNC_WHOLE &&
        (e->n_dims != a->n_dims || memcmp(e->shape, a->shape, e->n_dims * sizeof(e->shape[0])) != 0))
        return ws_error_set(err, EINVAL, "%s is a piece, and a weight update request names whole tensors",
                            a->name);
    *t = (wsync_update_tensor){.dtype = a->dtype, .n_dims = a->n_dims};
    memcpy(t->shape, a->shape, a->n_dims * sizeof(t->shape[0]));
    t->name = ws_arena_text(arena, a->name, strlen(a->name));
    return t->name ? check_tensor(t, err) : no_memory(err);
}

int wsync_update_request_of(const wsync_chunk *c, wsync_strategy_id id, wsync_update_request **out)
{
    struct ws_error *err = ws_last_error();
    const struct ws_strategy *s = ws_strategy_by_id(id);
    struct ws_arena none = {0};
    int rc = 0;
    *out = NULL;
    if (!s)
        return ws_error_set(err, EINVAL, "there is no strategy %d", (int)id);
    struct ws_owned_request *o = ws_owned_request_new(&none, c->n);
    if (!o)
        return no_memory(err);
    o->request.strategy = id;
    o->request.packed = s->must_pack;
    o->request.alignment = s->must_pack ? c->alignment : 0;
    for (size_t i = 0; rc == 0 && i < c->n; i++)
        rc = tensor_of_entry(&c->entries[i], &o->tensors[i], &o->arena, err);
    if (rc == 0)
        rc = check_packing(&o->request, s, err);
    if (rc < 0)
        wsync_update_request_free(&o->request);
    else
        *out = &o->request;
    return rc;
}

/* --- public --- */

int wsync_update_request_encode(const wsync_update_request *request, char **json)
{
    return ws_update_request_encode(request, json, ws_last_error());
}

int wsync_update_request_decode(const char *json, size_t len, const char *strategy,
                                wsync_update_request **out)
{
    return ws_update_request_decode(json, len, strategy, out, ws_last_error());
}

void wsync_update_request_free(wsync_update_request *request)
{
    struct ws_owned_request *o = (struct ws_owned_request *)request;
    if (!o)
        return;
    ws_arena_free(&o->arena);
    free(o);
}
