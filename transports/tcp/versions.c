/* Serves manifests and files of versions, also of those that are still arriving, or are made for a request. */
#include "transports/http/fields.h"
#include "transports/tcp/call.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The body, whose owner is the caller from here on. */
static struct ws_tcp_body *move_body(struct ws_tcp_call *q)
{
    struct ws_tcp_body *b = q->body;
    q->body = NULL;
    return b;
}

/* The requested range; the whole file where If-Range names other bytes than these. */
static int range_of(const struct ws_tcp_call *q, const struct ws_manifest_file *f, uint64_t *begin,
                    uint64_t *end)
{
    const char *only_of = ws_http_header(q->in, "If-Range");
    char tag[WS_TCP_TAG_BYTES];
    ws_tcp_body_tag(q->body, false, tag);
    return ws_http_range(only_of && strcmp(only_of, tag) != 0 ? NULL : ws_http_header(q->in, "Range"),
                         f->size_bytes, begin, end);
}

static void answer_range(struct ws_tcp_call *q, const struct ws_manifest_file *f, uint64_t begin,
                         uint64_t end, bool partial, struct ws_http_answer *a)
{
    char range[96];
    snprintf(range, sizeof(range), "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, begin, end - 1, f->size_bytes);
    a->status = partial ? 206 : 200;
    a->body = ws_tcp_body_range(move_body(q), f, begin, end);
    if (a->body && partial)
        ws_http_body_header(a->body, "Content-Range", range);
    if (a->body)
        atomic_fetch_add(&q->server->bytes_sent, end - begin);
}

/* 1: the request is answered; 0: it is suspended; else the error to answer with. */
static int try_file(struct ws_tcp_call *q, struct ws_http_answer *a, struct ws_error *err)
{
    const struct ws_manifest *m = ws_tcp_body_lease(q->body)->manifest;
    const struct ws_manifest_file *f = ws_manifest_find(m, q->api->file);
    uint64_t begin = 0, end = 0;
    if (!f)
        return ws_error_set(err, ENOENT, "%s/%" PRIu64 " has no file '%s'", m->model, m->version,
                            q->api->file);
    int partial = range_of(q, f, &begin, &end);
    if (partial < 0)
        return ws_error_set(err, ERANGE, "%s has %" PRIu64 " bytes, the range is outside", f->name,
                            f->size_bytes);
    /* The reply begins with its first byte; a failure before that has a status of its own. */
    int rc = end > begin ? ws_tcp_body_begins(q->body, (size_t)(f - m->files), begin, end, err) : 1;
    if (rc == 1)
        answer_range(q, f, begin, end, partial, a);
    return rc;
}

static void answer_manifest(struct ws_tcp_call *q, struct ws_http_answer *a)
{
    json_t *deltas;
    if (ws_tcp_list_deltas(q, true, &deltas, NULL) < 0)
        deltas = NULL;
    a->body = ws_tcp_body_manifest(move_body(q), deltas);
}

static void answer_unchanged(struct ws_tcp_call *q, bool of_manifest, struct ws_http_answer *a)
{
    a->status = 304;
    a->body = ws_tcp_body_unchanged(move_body(q), of_manifest);
}

/* As try_file. */
static int try_version(struct ws_tcp_call *q, struct ws_http_answer *a, struct ws_error *err)
{
    bool of_manifest = q->api->kind == WS_API_MANIFEST;
    char tag[WS_TCP_TAG_BYTES];
    int rc = q->body ? 0 : ws_tcp_body_new(&q->body, &q->server->bodies, q->in, q->api, err);
    if (rc == 0)
        rc = ws_tcp_body_here(q->body, 0, 0, 0, err);
    if (rc <= 0)
        return rc;
    ws_tcp_body_tag(q->body, of_manifest, tag);
    if (ws_http_names_tag(ws_http_header(q->in, "If-None-Match"), tag) &&
        (of_manifest || ws_manifest_find(ws_tcp_body_lease(q->body)->manifest, q->api->file)))
        answer_unchanged(q, of_manifest, a);
    else if (of_manifest)
        answer_manifest(q, a);
    else
        return try_file(q, a, err);
    return 1;
}

/* Also called again for a request that waited for bytes, or for a version that is made for it. */
void ws_tcp_serve_version(struct ws_tcp_call *q, struct ws_http_answer *a)
{
    struct ws_error err = {0};
    int rc;
    q->api->timeout_ms = WS_MADE_MS;
    do {
        q->api->since = q->server->catalog.ops->seq(q->server->catalog.self); /* before looking */
        rc = try_version(q, a, &err);
        a->is_later = rc == 0 || (rc == -EINPROGRESS && ws_tcp_poll_waits(q));
        if (rc == 1 || a->is_later)
            return;
    } while (rc == -EINPROGRESS && ws_tcp_poll_has_time(q)); /* something has changed meanwhile */
    if (rc == -EINPROGRESS)
        rc = -ETIMEDOUT;
    if (q->body)
        ws_tcp_body_free(move_body(q));
    ws_http_refuse(a, rc, &err);
}
