/* The HTTP carrier of a catalog: libmicrohttpd with a thread pool; bodies go out of the slot's own memory. */
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/state_file.h"
#include "transports/base/text.h"
#include "transports/base/workers.h"
#include "transports/http/door.h"
#include "transports/http/server.h"
#include "transports/protocol/api.h"
#include "transports/tcp/body.h"
#include "transports/tcp/delta_body.h"
#include "transports/tcp/strangers.h"
#include "transports/tcp/tcp.h"
#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define IDLE_SECONDS 120

/* A request in work. */
struct request {
    struct request *next, *prev; /* in the list of long polls */
    struct ws_tcp_server *server;
    struct MHD_Connection *connection;
    char *url; /* path and query as sent, percent-encoded */
    struct ws_api_request api;
    struct ws_tcp_body *body; /* while it cannot be answered yet */
    bool parsed, polling, suspended;
    int64_t poll_end_ms;
    char *post;
    size_t post_bytes;
    bool too_large;
};

struct ws_tcp_server {
    struct ws_catalog catalog;
    struct ws_tcp_bodies bodies;
    struct ws_tcp_deltas deltas;
    struct ws_tcp_strangers strangers;
    struct ws_http_door *door;
    char *token, *cert, *key, *client_ca;
    unsigned port;
    pthread_t clock; /* ends long polls */
    atomic_bool stop;
    _Atomic uint64_t bytes_sent, requests;
    atomic_uint connections;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* guarded by lock */
    struct request *polls;
};

static int64_t now_ms(void)
{
    return (int64_t)ws_clock_ms();
}

/* --- replies --- */

static enum MHD_Result reply_text(struct MHD_Connection *c, unsigned status, char *text, const char *type)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        free(text);
        return MHD_NO;
    }
    (void)MHD_add_response_header(r, "Content-Type", type);
    (void)MHD_add_response_header(r, "Cache-Control", "no-store");
    if (status == 401)
        (void)MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (status == 503)
        (void)MHD_add_response_header(r, "Retry-After", "1");
    enum MHD_Result ok = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result reply_json(struct MHD_Connection *c, unsigned status, json_t *body) /* steals body */
{
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    return text ? reply_text(c, status, text, "application/json") : MHD_NO;
}

static enum MHD_Result reply_error(struct MHD_Connection *c, int negative_errno, const struct ws_error *err)
{
    return reply_json(c, ws_http_status(negative_errno),
                      json_pack("{s:s,s:s}", "error", err->text, "errno", ws_errno_name(-negative_errno)));
}

/* --- files --- */

static enum MHD_Result reply_with(struct MHD_Connection *c, unsigned status, struct MHD_Response *r)
{
    enum MHD_Result ok = r ? MHD_queue_response(c, status, r) : MHD_NO;
    if (r)
        MHD_destroy_response(r);
    return ok;
}

static const char *header_of(const struct request *q, const char *name)
{
    return MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, name);
}

static struct ws_tcp_body *take_body(struct request *q)
{
    struct ws_tcp_body *b = q->body;
    q->body = NULL;
    return b;
}

/* The range that is asked for; all where If-Range names other bytes than these. */
static int range_of(const struct request *q, const struct ws_bundle_file *f, uint64_t *begin, uint64_t *end)
{
    const char *only_of = header_of(q, "If-Range");
    char tag[WS_TCP_TAG_BYTES];
    ws_tcp_body_tag(q->body, false, tag);
    return ws_http_range(only_of && strcmp(only_of, tag) != 0 ? NULL : header_of(q, "Range"), f->size_bytes,
                         begin, end);
}

static enum MHD_Result reply_range(struct request *q, const struct ws_bundle_file *f, uint64_t begin,
                                   uint64_t end, bool partial)
{
    char range[96];
    snprintf(range, sizeof(range), "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, begin, end - 1, f->size_bytes);
    struct MHD_Response *r = ws_tcp_body_range(take_body(q), f, begin, end);
    if (r && partial)
        (void)MHD_add_response_header(r, "Content-Range", range);
    if (r)
        atomic_fetch_add(&q->server->bytes_sent, end - begin);
    return reply_with(q->connection, partial ? 206 : 200, r);
}

static int list_deltas(struct request *q, bool look, json_t **out, struct ws_error *err)
{
    const struct ws_catalog *c = &q->server->catalog;
    const char *run = q->api.run[0] ? q->api.run : NULL;
    if (c->ops->deltas)
        return c->ops->deltas(c->self, q->api.model, q->api.version, run, look, out, err);
    *out = json_array();
    return *out ? 0 : ws_error_set(err, ENOMEM, "no memory for a list of deltas");
}

static enum MHD_Result serve_deltas(struct request *q)
{
    struct ws_error err = {0};
    json_t *list;
    int rc = list_deltas(q, false, &list, &err);
    return rc < 0 ? reply_error(q->connection, rc, &err)
                  : reply_json(q->connection, 200, json_pack("{s:o}", "deltas", list));
}

static enum MHD_Result serve_delta(struct request *q)
{
    const struct ws_catalog *c = &q->server->catalog;
    const char *run = q->api.run[0] ? q->api.run : NULL;
    struct ws_error err = {0};
    struct ws_delta *delta;
    int rc = c->ops->delta ? c->ops->delta(c->self, q->api.model, q->api.version, run, &q->api.base,
                                           q->api.level, &delta, &err)
                           : ws_error_set(&err, ENOENT, "there are no deltas here");
    if (rc < 0)
        return reply_error(q->connection, rc, &err);
    return reply_with(
        q->connection, 200,
        ws_tcp_delta_response(&q->server->deltas, q->connection, delta, q->api.part, q->api.parts));
}

/* 1: *result is the reply; 0: it comes later; else the error to reply with. */
static int try_file(struct request *q, enum MHD_Result *result, struct ws_error *err)
{
    const struct ws_manifest *m = ws_tcp_body_hold(q->body)->manifest;
    const struct ws_bundle_file *f = ws_manifest_find(m, q->api.file);
    uint64_t begin = 0, end = 0;
    if (!f)
        return ws_error_set(err, ENOENT, "%s/%" PRIu64 " has no file '%s'", m->model, m->version,
                            q->api.file);
    int partial = range_of(q, f, &begin, &end);
    if (partial < 0)
        return ws_error_set(err, ERANGE, "%s has %" PRIu64 " bytes, the range is outside", f->name,
                            f->size_bytes);
    /* With the first block the reply can begin; what fails before it has a status of its own. */
    int rc = end > begin
                 ? ws_tcp_body_here(q->body, (size_t)(f - m->files), (size_t)(begin / WS_BLOCK_BYTES), 1, err)
                 : 1;
    if (rc == 1)
        *result = reply_range(q, f, begin, end, partial);
    return rc;
}

static enum MHD_Result reply_manifest(struct request *q)
{
    json_t *deltas;
    if (list_deltas(q, true, &deltas, NULL) < 0)
        deltas = NULL;
    return reply_with(q->connection, 200, ws_tcp_body_manifest(take_body(q), deltas));
}

static int try_version(struct request *q, enum MHD_Result *result, struct ws_error *err)
{
    bool of_manifest = q->api.kind == WS_API_MANIFEST;
    char tag[WS_TCP_TAG_BYTES];
    int rc = q->body ? 0 : ws_tcp_body_new(&q->body, &q->server->bodies, q->connection, &q->api, err);
    if (rc == 0)
        rc = ws_tcp_body_here(q->body, 0, 0, 0, err);
    if (rc <= 0)
        return rc;
    ws_tcp_body_tag(q->body, of_manifest, tag);
    if (ws_http_names_tag(header_of(q, "If-None-Match"), tag) &&
        (of_manifest || ws_manifest_find(ws_tcp_body_hold(q->body)->manifest, q->api.file)))
        *result = reply_with(q->connection, 304, ws_tcp_body_unchanged(take_body(q), of_manifest));
    else if (of_manifest)
        *result = reply_manifest(q);
    else
        return try_file(q, result, err);
    return 1;
}

/* --- long polls --- */

/* Out of the list of polls. Caller holds lock. */
static void unlink_poll(struct request *q)
{
    if (q->prev)
        q->prev->next = q->next;
    else
        q->server->polls = q->next;
    if (q->next)
        q->next->prev = q->prev;
    q->suspended = false;
}

/* Suspends the connection until wake or the end of its time; false: answer now. */
static bool keep_waiting(struct request *q)
{
    struct ws_tcp_server *s = q->server;
    if (q->poll_end_ms == 0)
        q->poll_end_ms = now_ms() + q->api.timeout_ms;
    pthread_mutex_lock(&s->lock);
    bool wait = !atomic_load(&s->stop) && s->catalog.ops->seq(s->catalog.self) <= q->api.since &&
                now_ms() < q->poll_end_ms;
    if (wait) {
        q->suspended = true;
        q->prev = NULL;
        q->next = s->polls;
        if (s->polls)
            s->polls->prev = q;
        s->polls = q;
        MHD_suspend_connection(q->connection);
        pthread_cond_signal(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return wait;
}

static bool has_time(const struct request *q)
{
    return !atomic_load(&q->server->stop) && now_ms() < q->poll_end_ms;
}

/* Also called again for a request that waited for bytes, or for what is being made because of it. */
static enum MHD_Result serve_version(struct request *q)
{
    struct ws_error err = {0};
    enum MHD_Result result = MHD_YES;
    int rc;
    q->api.timeout_ms = WS_MADE_MS;
    do {
        q->api.since = q->server->catalog.ops->seq(q->server->catalog.self); /* before looking */
        rc = try_version(q, &result, &err);
        if (rc >= 0 || (rc == -EINPROGRESS && keep_waiting(q)))
            return result;
    } while (rc == -EINPROGRESS && has_time(q)); /* something has changed meanwhile */
    if (rc == -EINPROGRESS)
        rc = -ETIMEDOUT;
    if (q->body)
        ws_tcp_body_free(take_body(q));
    return reply_error(q->connection, rc, &err);
}

static void resume_polls(struct ws_tcp_server *s, int64_t ended_before_ms)
{
    pthread_mutex_lock(&s->lock);
    for (struct request *q = s->polls, *next; q; q = next) {
        next = q->next;
        if (q->poll_end_ms > ended_before_ms)
            continue;
        unlink_poll(q);
        MHD_resume_connection(q->connection);
    }
    pthread_mutex_unlock(&s->lock);
}

static void *end_polls(void *arg)
{
    struct ws_tcp_server *s = arg;
    while (!atomic_load(&s->stop)) {
        resume_polls(s, now_ms());
        pthread_mutex_lock(&s->lock);
        if (!s->polls && !atomic_load(&s->stop))
            pthread_cond_wait(&s->changed, &s->lock);
        else
            (void)ws_cond_wait_until(&s->changed, &s->lock, ws_clock_ns() + 50 * WS_MS_NS);
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

void ws_tcp_server_wake(struct ws_tcp_server *s)
{
    resume_polls(s, INT64_MAX);
}

/* --- requests --- */

static bool is_allowed(const struct request *q)
{
    if (!q->server->token)
        return true;
    const char *header = MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, "Authorization");
    return ws_http_bearer(header, q->server->token);
}

static enum MHD_Result serve_models(struct request *q)
{
    struct ws_tcp_server *s = q->server;
    struct ws_error err = {0};
    json_t *models;
    int rc = s->catalog.ops->models(s->catalog.self, q->api.model[0] ? q->api.model : NULL, &models, &err);
    return rc < 0 ? reply_error(q->connection, rc, &err) : reply_json(q->connection, 200, models);
}

static enum MHD_Result serve_other(struct request *q, const char *method, const char *path, const char *query)
{
    struct ws_tcp_server *s = q->server;
    struct ws_error err = {0};
    json_t *body = NULL, *reply = NULL;
    char *text = NULL;
    int rc = 0;
    if (strcmp(path, "/healthz") == 0)
        return reply_json(q->connection, 200, json_pack("{s:b}", "ok", 1));
    if (q->post_bytes > 0) {
        body = json_loadb(q->post, q->post_bytes, JSON_REJECT_DUPLICATES, NULL);
        if (!body)
            rc = ws_error_set(&err, EINVAL, "the body of the request is no JSON");
    }
    if (rc == 0)
        rc = s->catalog.ops->route(s->catalog.self, method, path, query, body, &reply, &text, &err);
    json_decref(body);
    if (rc < 0)
        return reply_error(q->connection, rc, &err);
    if (text)
        return reply_text(q->connection, 200, text, "text/plain; version=0.0.4; charset=utf-8");
    return reply_json(q->connection, 200, reply ? reply : json_object());
}

static enum MHD_Result refuse_stranger(struct request *q)
{
    struct ws_error err = {0};
    return reply_error(q->connection,
                       ws_error_set(&err, EACCES, "a token is asked for: Authorization: Bearer TOKEN"), &err);
}

static enum MHD_Result refuse_length(struct request *q)
{
    struct ws_error err = {0};
    return reply_error(q->connection,
                       ws_error_set(&err, E2BIG, "the body is over %lu bytes", WS_MAX_REPLY_BYTES), &err);
}

/* The head of a request is here, and nothing of its body. What is refused for its head is refused now: the
 * rest is not read, and the connection ends with the reply. */
static enum MHD_Result welcome(struct request *q, const char *method)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(q->connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    const char *length = header_of(q, "Content-Length");
    uint64_t bytes = 0;
    if (is_allowed(q))
        ws_tcp_stranger_is_known(&q->server->strangers, info ? info->socket_context : NULL);
    else if (strcmp(method, "POST") == 0)
        return refuse_stranger(q);
    if (length && (ws_text_u64(length, &bytes) < 0 || bytes > WS_MAX_REPLY_BYTES))
        return refuse_length(q);
    return MHD_YES;
}

static enum MHD_Result take_upload(struct request *q, const char *data, size_t *size)
{
    if (q->post_bytes + *size > WS_MAX_REPLY_BYTES) {
        q->too_large = true; /* read to the end and answered then */
    } else {
        char *more = realloc(q->post, q->post_bytes + *size);
        if (!more)
            return MHD_NO;
        memcpy(more + q->post_bytes, data, *size);
        q->post = more;
        q->post_bytes += *size;
    }
    *size = 0;
    return MHD_YES;
}

static enum MHD_Result answer(struct request *q, const char *method)
{
    struct ws_error err = {0};
    char *query = strchr(q->url, '?');
    if (query)
        *query++ = 0;
    if (!q->parsed) /* one that waited comes here again */
        atomic_fetch_add(&q->server->requests, 1);
    if (strcmp(q->url, "/healthz") != 0 && !is_allowed(q))
        return refuse_stranger(q);
    if (q->too_large)
        return refuse_length(q);
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (!get && strcmp(method, "POST") != 0)
        return reply_error(q->connection,
                           ws_error_set(&err, EOPNOTSUPP, "the method %.16s is not served", method), &err);
    if (!q->parsed) {
        int rc = ws_api_parse(q->url, query, &q->api, &err);
        if (rc < 0)
            return reply_error(q->connection, rc, &err);
        q->parsed = true;
        q->polling = q->api.kind == WS_API_EVENTS;
        if (q->polling && q->api.who[0] && q->server->catalog.ops->seen)
            q->server->catalog.ops->seen(q->server->catalog.self, q->api.who, q->api.timeout_ms);
    }
    if (query)
        query[-1] = '?'; /* one that was suspended comes here again */
    bool read = q->api.kind <= WS_API_FILE;
    if (!get && read)
        return reply_error(q->connection, ws_error_set(&err, EOPNOTSUPP, "%.200s is only read", q->url),
                           &err);
    if (q->polling && keep_waiting(q))
        return MHD_YES;
    if (q->api.kind == WS_API_MODELS || q->api.kind == WS_API_EVENTS)
        return serve_models(q);
    if (q->api.kind == WS_API_DELTAS)
        return serve_deltas(q);
    if (q->api.kind == WS_API_DELTA)
        return serve_delta(q);
    if (read)
        return serve_version(q);
    if (query)
        query[-1] = 0;
    return serve_other(q, get ? "GET" : method, q->url, query);
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *data, size_t *size, void **state)
{
    struct request *q = *state;
    (void)cls;
    (void)url;
    (void)version;
    if (!q)
        return MHD_NO;    /* no memory */
    if (!q->connection) { /* first call: headers are here */
        q->connection = c;
        return welcome(q, method);
    }
    if (*size > 0)
        return take_upload(q, data, size);
    return answer(q, method);
}

/* Called by libmicrohttpd with the request's target as sent. */
static void *begin_request(void *cls, const char *uri, struct MHD_Connection *c)
{
    struct request *q = calloc(1, sizeof(*q));
    (void)ws_http_door_target(NULL, uri, c);
    if (q && !(q->url = strdup(uri))) {
        free(q);
        return NULL;
    }
    if (q)
        q->server = cls;
    return q;
}

static void end_request(void *cls, struct MHD_Connection *c, void **state,
                        enum MHD_RequestTerminationCode code)
{
    struct ws_tcp_server *s = cls;
    struct request *q = *state;
    (void)c;
    (void)code;
    if (!q)
        return;
    pthread_mutex_lock(&s->lock);
    if (q->suspended)
        unlink_poll(q);
    pthread_mutex_unlock(&s->lock);
    if (q->body)
        ws_tcp_body_free(q->body);
    free(q->post);
    free(q->url);
    free(q);
    *state = NULL;
}

static void connection_event(void *cls, struct MHD_Connection *c, void **state,
                             enum MHD_ConnectionNotificationCode code)
{
    struct ws_tcp_server *s = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        int sock = ws_http_connection_socket(c), on = 1;
        atomic_fetch_add(&s->connections, 1);
        *state = ws_tcp_stranger_came(&s->strangers, sock);
        (void)setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        (void)setsockopt(sock, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
        return;
    }
    ws_tcp_bodies_closed(&s->bodies, c);
    ws_tcp_stranger_left(&s->strangers, *state);
    atomic_fetch_sub(&s->connections, 1);
    ws_http_door_event(s->door, c, state, code);
}

/* --- starting --- */

/* All of it, or none: a part of a list of authorities is another list. */
static int read_file(const char *path, char **out, struct ws_error *err)
{
    size_t n = 0;
    *out = NULL;
    int rc = path ? ws_keep_read(path, out, &n, err) : 0;
    if (rc == 0 && path && !*out)
        rc = ws_error_set(err, ENOENT, "%s: %s", path, strerror(ENOENT));
    else if (rc == 0 && path && n == 0)
        rc = ws_error_set(err, EINVAL, "%s is empty", path);
    return rc < 0 ? ws_error_prefix(err, "cannot read the TLS file") : 0;
}

/* No more connections than there are descriptors for, with as many left for everything else. */
static unsigned most_clients(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur / 2 >= WS_MAX_CLIENTS)
        return WS_MAX_CLIENTS;
    return (unsigned)files.rlim_cur / 2;
}

static struct MHD_Daemon *start_daemon(struct ws_tcp_server *s, unsigned n_threads)
{
    bool tls = s->cert && s->key;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | WS_HTTP_DOOR_FLAGS |
                     (tls ? MHD_USE_TLS : 0);
    struct MHD_OptionItem tls_options[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, s->cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, s->key},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t) "NORMAL:-VERS-ALL:+VERS-TLS1.3"},
        {s->client_ca ? MHD_OPTION_HTTPS_MEM_TRUST : MHD_OPTION_END, 0, s->client_ca},
        {MHD_OPTION_END, 0, NULL},
    };
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    return MHD_start_daemon(flags, 0, NULL, NULL, handle, s, MHD_OPTION_ARRAY, tls ? tls_options : none,
                            MHD_OPTION_THREAD_POOL_SIZE, n_threads, MHD_OPTION_URI_LOG_CALLBACK,
                            begin_request, s, MHD_OPTION_NOTIFY_COMPLETED, end_request, s,
                            MHD_OPTION_NOTIFY_CONNECTION, connection_event, s, MHD_OPTION_CONNECTION_TIMEOUT,
                            (unsigned)IDLE_SECONDS, WS_HTTP_DOOR_LIMIT, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                            (size_t)(32 << 10), MHD_OPTION_END);
}

static void free_server(struct ws_tcp_server *s)
{
    ws_tcp_bodies_destroy(&s->bodies);
    ws_tcp_deltas_destroy(&s->deltas);
    ws_tcp_strangers_destroy(&s->strangers);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s->token);
    free(s->cert);
    free(s->key);
    free(s->client_ca);
    free(s);
}

int ws_tcp_server_new(struct ws_tcp_server **out, const struct ws_catalog *catalog,
                      const struct ws_tcp_server_options *o, struct ws_error *err)
{
    struct ws_tcp_server *s = calloc(1, sizeof(*s));
    if (!s)
        return ws_error_set(err, ENOMEM, "no memory for a server");
    s->catalog = *catalog;
    ws_tcp_bodies_init(&s->bodies, &s->catalog);
    ws_tcp_deltas_init(&s->deltas, &s->bytes_sent);
    const unsigned clients = o->max_clients ? o->max_clients : most_clients();
    ws_tcp_strangers_init(&s->strangers, clients / 2);
    pthread_mutex_init(&s->lock, NULL);
    ws_cond_init(&s->changed);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned n = o->n_threads ? o->n_threads : cores > 8 ? 8 : cores > 1 ? (unsigned)cores : 2;
    int rc = read_file(o->tls_cert_file, &s->cert, err);
    if (rc == 0)
        rc = read_file(o->tls_key_file, &s->key, err);
    if (rc == 0)
        rc = read_file(o->tls_client_ca_file, &s->client_ca, err);
    if (rc == 0 && (!s->cert != !s->key || (s->client_ca && !s->cert)))
        rc = ws_error_set(err, EINVAL, "TLS needs both a certificate and a key");
    if (rc == 0 && o->token && !(s->token = strdup(o->token)))
        rc = ws_error_set(err, ENOMEM, "no memory for a server");
    if (rc == 0)
        rc = ws_http_door_new(&s->door, o->listen, o->token || o->insecure, clients, &s->port, err);
    struct MHD_Daemon *daemon = rc == 0 ? start_daemon(s, n) : NULL;
    if (rc == 0 && !daemon)
        rc = ws_error_set(err, EIO, "the HTTP server on %s did not start%s", o->listen,
                          s->cert ? "; are certificate and key right?" : "");
    if (rc == 0)
        rc = ws_http_door_open(s->door, daemon, err);
    if (rc == 0 && ws_thread_start(&s->clock, end_polls, s) < 0)
        rc = ws_error_set(err, EAGAIN, "cannot start a thread");
    if (rc < 0) {
        ws_http_door_free(s->door);
        free_server(s);
        return rc;
    }
    *out = s;
    return 0;
}

unsigned ws_tcp_server_port(const struct ws_tcp_server *s)
{
    return s->port;
}

void ws_tcp_server_stats(struct ws_tcp_server *s, struct ws_tcp_server_stats *out)
{
    *out = (struct ws_tcp_server_stats){.bytes_sent = atomic_load(&s->bytes_sent),
                                        .requests = atomic_load(&s->requests),
                                        .connections = atomic_load(&s->connections)};
}

void ws_tcp_server_free(struct ws_tcp_server *s)
{
    if (!s)
        return;
    atomic_store(&s->stop, true);
    pthread_mutex_lock(&s->lock);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->clock, NULL);
    resume_polls(s, INT64_MAX); /* a suspended connection would hold the daemon up */
    ws_tcp_bodies_stop(&s->bodies);
    ws_tcp_deltas_stop(&s->deltas);
    ws_http_door_free(s->door);
    free_server(s);
}
