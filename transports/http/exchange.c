/* A request from its first line to its end. */
#include "transports/http/exchange.h"
#include "transports/base/audit_log.h"
#include "transports/base/clock.h"
#include "transports/base/limits.h"
#include "transports/base/log.h"
#include "transports/base/secret.h"
#include "transports/base/text.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ARGUMENTS    64
#define MOST_TARGET_BYTES (16U << 10)

/* --- its route, and which clients it serves --- */

static unsigned method_of(const char *name)
{
    return strcmp(name, "GET") == 0    ? WS_HTTP_GET
           : strcmp(name, "HEAD") == 0 ? WS_HTTP_HEAD
           : strcmp(name, "POST") == 0 ? WS_HTTP_POST
                                       : WS_HTTP_OTHER;
}

static bool fits(const char *pattern, const char *path)
{
    const size_t n = strlen(pattern);
    return n > 0 && pattern[n - 1] == '*' ? strncmp(pattern, path, n - 1) == 0 : strcmp(pattern, path) == 0;
}

static void find_route(struct ws_http_incoming *in)
{
    for (const struct ws_http_route *r = in->server->o.routes; r->path && !in->route; r++) {
        if (!fits(r->path, in->path))
            continue;
        in->allowed |= r->methods;
        if (r->methods & in->method)
            in->route = r;
    }
}

static struct ws_http_connection *context_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static struct ws_http_connection *connection_of(const struct ws_http_incoming *in)
{
    return context_of(in->connection);
}

static struct ws_http_link *link_of(struct MHD_Connection *c)
{
    const struct ws_http_connection *own = context_of(c);
    return own ? own->link : NULL;
}

bool ws_http_is_ending(const struct ws_http_incoming *in)
{
    return ws_http_link_is_ending(link_of(in->connection));
}

/* Once a request, until it is right: a client may send requests to be refused faster than chains are verified. */
static void check_certificate(struct ws_http_incoming *in)
{
    struct ws_http_connection *c = connection_of(in);
    if (!ws_http_tls_has_client_ca(in->server->tls) || (c && c->is_verified))
        return;
    if (c && !c->certificate)
        c->certificate = calloc(1, sizeof(*c->certificate));
    in->lacks = c && c->certificate
                    ? ws_http_tls_lacks(in->connection, &c->certificate->names, c->certificate->text)
                    : "there is no memory to verify it";
    if (c)
        c->is_verified = !in->lacks;
}

/* Who it is, and what the request asks for. Where a certificate is asked for, nothing else stands in for it. */
static void identify(struct ws_http_incoming *in)
{
    const struct ws_http_connection *c = connection_of(in);
    check_certificate(in);
    const struct ws_http_names *names = c && c->is_verified ? &c->certificate->names : NULL;
    if (!in->lacks)
        ws_access_identify(in->server->access, ws_http_header(in, "Authorization"), names ? names->ptr : NULL,
                           names ? names->n : 0, &in->who);
    ws_http_peer(in, in->who.from);
    in->need = (struct ws_http_need){.role = in->route ? in->route->role : WS_ROLE_READ,
                                     .max_body = in->server->o.max_body};
    if (in->route && in->route->need)
        in->route->need(in->server->o.self, in, &in->need);
}

/* --- refusals --- */

/* What a client has to show, and has not. */
static void refuse_unknown(const struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_error err = {0};
    ws_http_refuse(a,
                   in->lacks
                       ? ws_error_set(&err, EACCES, "a client certificate is asked for: %s", in->lacks)
                       : ws_error_set(&err, EACCES, "a token is asked for: Authorization: Bearer TOKEN%s",
                                      ws_access_hint(in->server->access)),
                   &err);
}

/* What the client of this request may not. */
static int check_role(const struct ws_http_incoming *in, struct ws_error *err)
{
    char what[200];
    snprintf(what, sizeof(what), "%.16s %.180s", in->method_name, in->target);
    ws_text_clean(what);
    return ws_identity_check(&in->who, in->need.role, in->need.is_of_models ? in->need.model : NULL, what,
                             err);
}

/* Refusals are logged, but not as fast as a client can cause them. */
void ws_http_log_refusal(const struct ws_http_incoming *in, unsigned status)
{
    struct ws_http_server *s = in->server;
    const uint64_t now = ws_clock_ns();
    uint64_t last = atomic_load(&s->logged_ns);
    char target[120], to[150], why[60];
    atomic_fetch_add(status == MHD_HTTP_FORBIDDEN ? &s->forbidden : &s->unknown, 1);
    if (now - last < WS_SECOND_NS || !atomic_compare_exchange_strong(&s->logged_ns, &last, now)) {
        atomic_fetch_add(&s->unlogged, 1);
        return;
    }
    const unsigned more = atomic_exchange(&s->unlogged, 0);
    snprintf(target, sizeof(target), "%s", in->target);
    ws_text_clean(target);
    ws_log(WS_LOG_WARN, "http", "refused status=%u from=%s who=%s method=%.16s path=%s more=%u", status,
           in->who.from, in->who.name[0] ? in->who.name : "unknown", in->method_name, target, more);
    snprintf(to, sizeof(to), "%.16s %s", in->method_name, target);
    snprintf(why, sizeof(why), "status %u; %u more since the entry before", status, more);
    ws_audit_log_write(&(struct ws_audit_entry){.what = "refused",
                                                .who = in->who.name,
                                                .from = in->who.from,
                                                .to = to,
                                                .outcome = WS_AUDIT_REFUSED,
                                                .error = why,
                                                .is_logged = true});
}

static void refuse(const struct ws_http_incoming *in, unsigned status, struct ws_http_answer *a)
{
    const struct ws_http_server_options *o = &in->server->o;
    struct ws_error err = {0};
    a->status = status;
    a->allow = in->allowed;
    if (status == MHD_HTTP_UNAUTHORIZED || status == MHD_HTTP_FORBIDDEN)
        ws_http_log_refusal(in, status);
    if (o->refuse)
        o->refuse(o->self, in, a);
    else if (status == MHD_HTTP_UNAUTHORIZED)
        refuse_unknown(in, a);
    else if (status == MHD_HTTP_FORBIDDEN)
        ws_http_refuse(a, check_role(in, &err), &err);
    else if (status == MHD_HTTP_CONTENT_TOO_LARGE)
        ws_http_refuse(a, ws_error_set(&err, E2BIG, "the body is over %zu bytes", in->need.max_body), &err);
    else if (status == MHD_HTTP_SERVICE_UNAVAILABLE)
        ws_http_refuse(
            a, ws_error_set(&err, EAGAIN, "too many large bodies are sent here just now: ask again"), &err);
    else if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        ws_http_refuse_method(a, in, in->allowed);
    else
        ws_http_refuse(a, ws_error_set(&err, ENOENT, "there is no %.200s here", in->path), &err);
}

/* The one place that decides which clients a route serves; 0: this one. */
static unsigned refusal_of_client(const struct ws_http_incoming *in)
{
    const int rc = check_role(in, NULL);
    return rc == -EACCES ? MHD_HTTP_UNAUTHORIZED : rc < 0 ? MHD_HTTP_FORBIDDEN : 0;
}

/* 0: it is served. */
static unsigned status_of(const struct ws_http_incoming *in)
{
    const unsigned refusal = in->route ? refusal_of_client(in) : 0;
    return !in->route && in->allowed ? MHD_HTTP_METHOD_NOT_ALLOWED
           : !in->route              ? MHD_HTTP_NOT_FOUND
           : refusal                 ? refusal
           : in->is_too_large        ? MHD_HTTP_CONTENT_TOO_LARGE
           : in->lacks_room          ? MHD_HTTP_SERVICE_UNAVAILABLE
                                     : 0;
}

/* --- its parts, as they come --- */

void *ws_http_begin(void *cls, const char *uri, struct MHD_Connection *c)
{
    struct ws_http_incoming *in = calloc(1, sizeof(*in));
    struct ws_http_server *s = cls;
    unsigned n = 0;
    size_t i;
    ws_http_link_sends_head(&s->links, link_of(c));
    for (i = 0; uri[i]; i++)
        n += uri[i] == '&';
    /* A target with more, or longer, arguments than any served one is cut to "//", which no route is for.
     * libmicrohttpd, where its memory does not hold the arguments, never answers, and crashes if the client has
     * gone. */
    if (n >= MOST_ARGUMENTS || i > MOST_TARGET_BYTES) {
        char *line = (char *)(uintptr_t)uri; /* of the connection's own buffer */
        memset(line, 0, i);
        line[0] = line[1] = '/';
    }
    if (in && !(in->target = strdup(uri))) {
        free(in);
        return NULL;
    }
    if (!in)
        return NULL;
    in->server = s;
    in->query = strchr(in->target, '?');
    if (in->query)
        *in->query++ = 0;
    return in;
}

/* The status with which its head alone is refused; 0: it is not. Of a refused request the rest is not read, and the
 * connection ends. */
static unsigned refusal_of_head(const struct ws_http_incoming *in)
{
    const char *length = ws_http_header(in, "Content-Length");
    const bool limits = in->server->o.limits_unauthenticated;
    const unsigned refusal = limits ? refusal_of_client(in) : 0;
    const uint64_t most = in->need.max_body + (limits ? 0 : WS_MAX_DRAIN_BYTES);
    uint64_t bytes = 0;
    if (refusal && in->method == WS_HTTP_POST)
        return refusal;
    if (length && (ws_text_u64(length, &bytes) < 0 || bytes > most))
        return MHD_HTTP_CONTENT_TOO_LARGE;
    return 0;
}

/* libmicrohttpd keeps the head that it received, with the token that the client has shown. */
static void hide_token(const struct ws_http_incoming *in)
{
    const char *shown = ws_http_header(in, "Authorization");
    if (shown)
        ws_secret_hide(shown, strlen(shown));
}

/* "anonymous" is no identity where each connection costs a thread. */
static bool is_known(const struct ws_http_incoming *in)
{
    const struct ws_http_server_options *o = &in->server->o;
    return in->who.name[0] && (o->n_threads > 0 || !o->access.insecure);
}

static bool has_body(const struct ws_http_incoming *in)
{
    return ws_http_header(in, "Content-Length") || ws_http_header(in, "Transfer-Encoding");
}

static enum MHD_Result count_length(void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
    (void)kind;
    (void)value;
    *(unsigned *)cls += strcasecmp(name, "Content-Length") == 0 || strcasecmp(name, "Transfer-Encoding") == 0;
    return MHD_YES;
}

/* A proxy in front may take another one of two lengths for the right one, and what follows for another client's
 * request (RFC 9112, 6.3). */
static bool has_two_lengths(const struct ws_http_incoming *in)
{
    unsigned n = 0;
    (void)MHD_get_connection_values(in->connection, MHD_HEADER_KIND, count_length, &n);
    return n > 1;
}

static enum MHD_Result receive_head(struct ws_http_incoming *in)
{
    struct ws_http_server *s = in->server;
    struct ws_http_link *link = link_of(in->connection);
    struct ws_http_answer a = {0};
    hide_token(in);
    if (has_two_lengths(in))
        return MHD_NO;
    find_route(in);
    identify(in);
    ws_http_link_is_known(&s->links, link, is_known(in), ws_identity_owner(&in->who));
    in->is_unauthenticated = s->o.limits_unauthenticated && !in->who.name[0];
    const unsigned status = refusal_of_head(in);
    if (status == 0 && has_body(in))
        ws_http_link_sends_body(&s->links, link);
    else
        ws_http_link_is_served(&s->links, link);
    if (status == 0)
        return MHD_YES;
    refuse(in, status, &a);
    return ws_http_send(in, &a);
}

/* Large bodies share a limit: a client may send many, and each slowly. */
static bool has_room_for(struct ws_http_incoming *in, size_t more)
{
    const size_t n = in->body.len + more, large = n > WS_MAX_BODY_BYTES ? n - WS_MAX_BODY_BYTES : 0;
    const size_t grows = large - in->large;
    in->large = large;
    return atomic_fetch_add(&in->server->large, grows) + grows <= WS_MAX_LARGE_BODY_BYTES;
}

static void drop_body(struct ws_http_incoming *in)
{
    ws_bytes_reset(&in->body);
    atomic_fetch_sub(&in->server->large, in->large);
    in->large = 0;
}

/* What the sender of a body over the limit may still send, to be answered at its end. */
static uint64_t most_dropped(const struct ws_http_incoming *in)
{
    return in->is_unauthenticated ? 0 : WS_MAX_DRAIN_BYTES;
}

static enum MHD_Result receive_body(struct ws_http_incoming *in, const char *data, size_t *size)
{
    const size_t n = *size, max = in->need.max_body;
    struct ws_http_link *link = link_of(in->connection);
    *size = 0;
    in->received += n;
    ws_http_link_sent(link, n);
    if (in->received > max + most_dropped(in)) {
        ws_http_link_end(&in->server->links, link, WS_HTTP_ENDS_BODY);
        return MHD_NO;
    }
    if (max == 0 || in->is_unauthenticated || in->is_too_large || in->lacks_room)
        return MHD_YES;
    in->is_too_large = n > max - in->body.len;
    in->lacks_room = !in->is_too_large && !has_room_for(in, n);
    if (in->is_too_large || in->lacks_room) {
        drop_body(in);
        return MHD_YES;
    }
    return ws_bytes_append_all(&in->body, data, n) == 0 ? MHD_YES : MHD_NO;
}

/* All of it is here, or it was suspended and is resumed. */
static enum MHD_Result answer(struct ws_http_incoming *in)
{
    const struct ws_http_server_options *o = &in->server->o;
    struct ws_http_answer a = {.status = MHD_HTTP_OK};
    const bool blocks = o->n_threads == 0;
    if (in->is_counted) /* it has waited: its token may have been taken away meanwhile */
        identify(in);
    else
        atomic_fetch_add(&in->server->requests, 1);
    in->is_counted = true;
    ws_http_link_is_served(&in->server->links, link_of(in->connection));
    const unsigned status = status_of(in);
    if (status)
        refuse(in, status, &a);
    if (blocks) /* no timeout while a handler runs: only idle connections are closed by the clock */
        (void)MHD_set_connection_option(in->connection, MHD_CONNECTION_OPTION_TIMEOUT, 0U);
    if (!status && (!o->before || o->before(o->self, in, &a)))
        in->route->serve(o->self, in, &a);
    const enum MHD_Result result = a.is_later ? MHD_YES : ws_http_send(in, &a);
    if (blocks)
        (void)MHD_set_connection_option(in->connection, MHD_CONNECTION_OPTION_TIMEOUT, o->idle_seconds);
    return result;
}

enum MHD_Result ws_http_handle(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                               const char *version, const char *data, size_t *size, void **state)
{
    struct ws_http_incoming *in = *state;
    (void)cls;
    (void)version;
    if (!in)
        return MHD_NO; /* no memory */
    if (!in->connection) {
        in->connection = c;
        in->path = url;
        in->method_name = method;
        in->method = method_of(method);
        return receive_head(in);
    }
    return *size > 0 ? receive_body(in, data, size) : answer(in);
}

void ws_http_end(void *cls, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode code)
{
    struct ws_http_server *s = cls;
    struct ws_http_incoming *in = *state;
    (void)code;
    ws_http_link_is_idle(&s->links, link_of(c));
    if (!in)
        return;
    if (s->o.ended)
        s->o.ended(s->o.self, in);
    json_decref(in->json);
    drop_body(in);
    free(in->target);
    free(in);
    *state = NULL;
}
