#include "transports/http/answer.h"
#include "transports/http/exchange.h"
#include "transports/http/status.h"
#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a stream, at a time. libmicrohttpd keeps a piece for as long as its reader takes, so that of many streams each
 * has a small one. */
#define PIECE_BYTES       (512UL << 10)
#define SMALL_PIECE_BYTES (4UL << 10)
#define LARGE_PIECES      16U

void ws_http_refuse(struct ws_http_answer *a, int negative_errno, const struct ws_error *err)
{
    a->status = ws_http_status(negative_errno);
    a->json = json_pack("{s:s,s:s}", "error", err->text, "errno", ws_errno_name(-negative_errno));
}

void ws_http_refuse_method(struct ws_http_answer *a, const struct ws_http_incoming *in, unsigned allow)
{
    struct ws_error err = {0};
    a->allow = allow;
    ws_http_refuse(a, ws_error_set(&err, EOPNOTSUPP, "the method %.16s is not served", in->method_name),
                   &err);
}

/* --- bodies --- */

struct MHD_Response *ws_http_body(const void *data, uint64_t size, void (*drop)(void *arg), void *arg)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer_with_free_callback_cls(size, (void *)(uintptr_t)data, drop, arg);
    if (!r)
        drop(arg);
    return r;
}

struct stream {
    ssize_t (*read)(void *arg, uint64_t at, char *out, size_t room);
    void (*drop)(void *arg);
    void *arg;
};

static atomic_uint n_streams;

static ssize_t read_stream(void *arg, uint64_t at, char *out, size_t room)
{
    const struct stream *s = arg;
    return s->read(s->arg, at, out, room);
}

static void drop_stream(void *arg)
{
    struct stream *s = arg;
    atomic_fetch_sub(&n_streams, 1);
    s->drop(s->arg);
    free(s);
}

struct MHD_Response *ws_http_stream(uint64_t size,
                                    ssize_t (*read)(void *arg, uint64_t at, char *out, size_t room),
                                    void (*drop)(void *arg), void *arg)
{
    static_assert(WS_HTTP_STREAM_ENDS == MHD_CONTENT_READER_END_OF_STREAM, "");
    static_assert(WS_HTTP_STREAM_FAILS == MHD_CONTENT_READER_END_WITH_ERROR, "");
    static_assert(WS_HTTP_SIZE_UNKNOWN == MHD_SIZE_UNKNOWN, "");
    struct stream *s = malloc(sizeof(*s));
    if (!s) {
        drop(arg);
        return NULL;
    }
    *s = (struct stream){read, drop, arg};
    const size_t piece = atomic_fetch_add(&n_streams, 1) < LARGE_PIECES ? PIECE_BYTES : SMALL_PIECE_BYTES;
    struct MHD_Response *r = MHD_create_response_from_callback(size, piece, read_stream, s, drop_stream);
    if (!r)
        drop_stream(s);
    return r;
}

void ws_http_body_header(struct MHD_Response *body, const char *name, const char *value)
{
    (void)MHD_add_response_header(body, name, value);
}

void ws_http_body_trailer(struct MHD_Response *body, const char *name, const char *value)
{
    (void)MHD_add_response_footer(body, name, value);
}

/* --- sending --- */

static void add_allow(struct MHD_Response *r, unsigned methods)
{
    char text[32];
    snprintf(text, sizeof(text), "%s%s%s", methods & WS_HTTP_GET ? ", GET" : "",
             methods & WS_HTTP_HEAD ? ", HEAD" : "", methods & WS_HTTP_POST ? ", POST" : "");
    if (text[0])
        (void)MHD_add_response_header(r, "Allow", text + 2);
}

/* Of JSON or a text; both are freed. */
static struct MHD_Response *respond(const struct ws_http_server *s, struct ws_http_answer *a)
{
    const char *type = a->json ? "application/json" : a->type ? a->type : "text/plain";
    char *text = a->json ? json_dumps(a->json, JSON_COMPACT) : a->text;
    json_decref(a->json);
    if (!text)
        return NULL;
    struct MHD_Response *r = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        free(text);
        return NULL;
    }
    (void)MHD_add_response_header(r, "Content-Type", type);
    if (!s->o.may_be_stored)
        (void)MHD_add_response_header(r, "Cache-Control", "no-store");
    if (s->o.gives_hints && a->status == MHD_HTTP_UNAUTHORIZED)
        (void)MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (s->o.gives_hints && a->status == MHD_HTTP_SERVICE_UNAVAILABLE)
        (void)MHD_add_response_header(r, "Retry-After", "1");
    if (a->status == MHD_HTTP_METHOD_NOT_ALLOWED)
        add_allow(r, a->allow);
    return r;
}

enum MHD_Result ws_http_send(const struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct MHD_Response *r = a->body ? a->body : respond(in->server, a);
    if (!r)
        return MHD_NO;
    enum MHD_Result ok = MHD_queue_response(in->connection, a->status, r);
    MHD_destroy_response(r);
    return ok;
}
