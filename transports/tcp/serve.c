/* Serves a catalog over HTTP; bodies are sent out of the slot's own memory. */
#include "transports/base/clock.h"
#include "transports/base/cpu_features.h"
#include "transports/base/number.h"
#include "transports/http/page/page.h"
#include "transports/protocol/listing.h"
#include "transports/tcp/call.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#define IDLE_SECONDS 120
#define MOST_THREADS 8
#define SERVED       (WS_HTTP_READ | WS_HTTP_POST)

/* --- requests to the catalog --- */

static const struct ws_api_route *const *tables_of(const struct ws_catalog *c)
{
    return c->ops->routes ? c->ops->routes(c->self) : NULL;
}

static const char *lineage_or_null(const struct ws_tcp_call *q)
{
    return q->api->lineage[0] ? q->api->lineage : NULL;
}

/* Takes names out of a release's list that the client may not use. */
static void leave_names(const struct ws_identity *who, json_t *names)
{
    for (size_t i = json_array_size(names); i-- > 0;) {
        const char *name = json_string_value(json_array_get(names, i));
        if (!name || !ws_identity_may_use(who, name))
            (void)json_array_remove(names, i);
    }
}

/* Takes out of a listing what the client may not use. */
static void leave_usable(const struct ws_identity *who, json_t *models)
{
    if (ws_identity_has_all_models(who))
        return;
    for (size_t i = json_array_size(models); i-- > 0;) {
        const json_t *model = json_array_get(models, i);
        const char *name = json_string_value(json_object_get(model, "name"));
        if (name && ws_identity_may_use(who, name))
            leave_names(who, json_object_get(json_object_get(model, "release"), "models"));
        else
            (void)json_array_remove(models, i);
    }
}

static void serve_models(struct ws_tcp_call *q, struct ws_http_answer *a)
{
    const struct ws_catalog *c = &q->server->catalog;
    struct ws_error err = {0};
    int rc = c->ops->models(c->self, q->api->model[0] ? q->api->model : NULL, &a->json, &err);
    if (rc < 0)
        ws_http_refuse(a, rc, &err);
    else {
        leave_usable(&q->in->who, json_object_get(a->json, "models"));
        ws_listing_split(a->json);
    }
}

static void serve_events(struct ws_tcp_call *q, struct ws_http_answer *a)
{
    a->is_later = ws_tcp_poll_waits(q);
    if (!a->is_later)
        serve_models(q, a);
}

int ws_tcp_list_deltas(const struct ws_tcp_call *q, bool look, json_t **out, struct ws_error *err)
{
    const struct ws_catalog *c = &q->server->catalog;
    if (c->ops->deltas)
        return c->ops->deltas(c->self, q->api->model, q->api->version, lineage_or_null(q), look, out, err);
    *out = json_array();
    return *out ? 0 : ws_error_set(err, ENOMEM, "no memory for a list of deltas");
}

static void serve_deltas(struct ws_tcp_call *q, struct ws_http_answer *a)
{
    struct ws_error err = {0};
    json_t *list;
    int rc = ws_tcp_list_deltas(q, false, &list, &err);
    if (rc < 0)
        ws_http_refuse(a, rc, &err);
    else
        a->json = json_pack("{s:o}", "deltas", list);
}

static void serve_delta(struct ws_tcp_call *q, struct ws_http_answer *a)
{
    const struct ws_catalog *c = &q->server->catalog;
    struct ws_error err = {0};
    struct ws_delta_filter *filter = NULL;
    struct ws_delta *delta;
    if (q->api->only && ws_delta_filter_parse(q->api->only, q->api->only_chars, &filter) < 0) {
        ws_error_set(&err, EINVAL, "only= of a delta is not GAP.N,GAP.N,... or too long");
        ws_http_refuse(a, -EINVAL, &err);
        return;
    }
    int rc = c->ops->delta ? c->ops->delta(c->self, q->api->model, q->api->version, lineage_or_null(q),
                                           &q->api->base, q->api->level, &delta, &err)
                           : ws_error_set(&err, ENOENT, "there are no deltas here");
    if (rc < 0) {
        ws_delta_filter_free(filter);
        ws_http_refuse(a, rc, &err);
    } else {
        a->body = ws_tcp_delta_body(&q->server->deltas, q->in, delta, q->api->part, q->api->parts, filter);
    }
}

/* WS_ROUTE_HELD: the request is suspended, and comes here again. */
static int ask_route(struct ws_tcp_call *q, struct ws_http_answer *a, struct ws_error *err)
{
    const struct ws_catalog *c = &q->server->catalog;
    struct ws_http_incoming *in = q->in;
    for (;;) {
        const uint64_t wakes = atomic_load(&q->server->held_wakes);
        uint64_t hold_ms = 0;
        if (q->poll_end_ms && !ws_tcp_poll_has_time(q))
            json_object_del(in->json, "hold_ms");
        (void)ws_number_read(json_object_get(in->json, "hold_ms"), &hold_ms);
        const int rc = c->ops->route(c->self, &in->who, in->method & WS_HTTP_READ ? "GET" : "POST",
                                     in->target, in->query, in->json, &a->json, &a->text, err);
        if (rc != WS_ROUTE_HELD || ws_tcp_poll_holds(q, hold_ms, wakes))
            return rc;
        if (ws_http_is_ending(in))
            return ws_error_set(err, ECONNRESET, "the connection is ending");
    }
}

static void serve_other(struct ws_tcp_call *q, struct ws_http_answer *a)
{
    const struct ws_catalog *c = &q->server->catalog;
    struct ws_http_incoming *in = q->in;
    struct ws_error err = {0};
    int rc = 0;
    if (!ws_api_route_find(tables_of(c), in->method_name, in->target, q->api))
        rc = c->ops->no_route(c->self, in->method & WS_HTTP_READ ? "GET" : "POST", in->target, &err);
    else if (in->body.len > 0 && !ws_http_json(in))
        rc = ws_error_set(&err, EINVAL, "the body of the request is no JSON");
    if (rc == 0)
        rc = ask_route(q, a, &err);
    a->is_later = rc == WS_ROUTE_HELD;
    if (a->is_later)
        return;
    a->type = "text/plain; version=0.0.4; charset=utf-8";
    if (rc < 0)
        ws_http_refuse(a, rc, &err);
    if (rc == -EPERM)
        ws_http_log_refusal(in, a->status);
    else if (!a->json && !a->text)
        a->json = json_object();
}

/* --- which function serves a request --- */

/* By the path's kind (protocol/api.h, which ipc uses too). */
static const struct {
    unsigned methods;
    void (*serve)(struct ws_tcp_call *q, struct ws_http_answer *a);
} kinds[] = {
    [WS_API_MODELS] = {WS_HTTP_READ, serve_models},
    [WS_API_EVENTS] = {WS_HTTP_READ, serve_events},
    [WS_API_MANIFEST] = {WS_HTTP_READ, ws_tcp_serve_version},
    [WS_API_DELTAS] = {WS_HTTP_READ, serve_deltas},
    [WS_API_DELTA] = {WS_HTTP_READ, serve_delta},
    [WS_API_FILE] = {WS_HTTP_READ, ws_tcp_serve_version},
    [WS_API_MAP] = {SERVED, serve_other},
    [WS_API_UNMAP] = {SERVED, serve_other},
    [WS_API_OTHER] = {SERVED, serve_other},
};

/* NULL: there is no memory. */
static struct ws_tcp_call *begin_call(struct ws_tcp_server *s, struct ws_http_incoming *in,
                                      const struct ws_api_request *api)
{
    const struct ws_catalog *c = &s->catalog;
    struct ws_tcp_call *q = calloc(1, sizeof(*q));
    if (!q)
        return NULL;
    q->server = s;
    q->in = in;
    in->own = q;
    if (api->kind == WS_API_EVENTS && api->mount_id[0] && c->ops->seen)
        c->ops->seen(c->self, &in->who, api->mount_id, api->timeout_ms);
    return q;
}

/* A request that was suspended comes here again. */
static void serve_api(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_tcp_call *q = in->own;
    struct ws_api_request api;
    struct ws_error err = {0};
    if (!(in->method & SERVED)) {
        ws_http_refuse_method(a, in, SERVED);
        return;
    }
    const int rc = ws_api_parse(in->target, in->query, &api, &err);
    if (rc < 0) {
        ws_http_refuse(a, rc, &err);
        return;
    }
    if (!q && !(q = begin_call(self, in, &api)))
        return;
    q->api = &api;
    a->allow = kinds[api.kind].methods;
    if (a->allow & in->method)
        kinds[api.kind].serve(q, a);
    else
        ws_http_refuse(a, ws_error_set(&err, EOPNOTSUPP, "%.200s is only read", in->target), &err);
    q->api = NULL;
}

/* Of a path that is no route the role is that of reading: who may not read learns nothing of which paths there are. */
static void find_need(void *self, struct ws_http_incoming *in, struct ws_http_need *need)
{
    const struct ws_tcp_server *s = self;
    struct ws_api_request q;
    const struct ws_api_route *r =
        ws_api_parse(in->target, in->query, &q, NULL) == 0
            ? ws_api_route_find(tables_of(&s->catalog), in->method_name, in->target, &q)
            : NULL;
    *need = (struct ws_http_need){.role = WS_ROLE_READ, .max_body = WS_MAX_BODY_BYTES};
    if (r) {
        const char *model = ws_api_route_model(r, &q);
        need->role = r->role;
        need->max_body = r->max_body ? r->max_body : WS_MAX_BODY_BYTES;
        need->is_of_models = model != NULL;
        snprintf(need->model, sizeof(need->model), "%s", model ? model : "");
    }
}

static void end_call(void *self, struct ws_http_incoming *in)
{
    struct ws_tcp_call *q = in->own;
    (void)self;
    if (!q)
        return;
    ws_tcp_poll_ended(q);
    if (q->body)
        ws_tcp_body_free(q->body);
    free(q);
}

static void serve_health(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    (void)self;
    if (in->method & SERVED)
        a->json = json_pack("{s:b}", "ok", 1);
    else
        ws_http_refuse_method(a, in, SERVED);
}

static const struct ws_http_route routes[] = {
    WS_HTTP_ROUTE(WS_HTTP_POST, "/healthz", READ, serve_health),
    WS_HTTP_ROUTE(WS_HTTP_ANY, "/healthz", OPEN, serve_health),
    WS_HTTP_ROUTE(WS_HTTP_READ, "/", OPEN, ws_page_serve),
    {WS_HTTP_ANY, "*", WS_ROLE_READ, serve_api, find_need},
    {0},
};

/* --- starting --- */

static void connection_closed(void *self, int sock)
{
    struct ws_tcp_server *s = self;
    ws_tcp_bodies_closed(&s->bodies, sock);
    ws_tcp_deltas_closed(&s->deltas, sock);
}

/* At most half of the process's descriptors: the other half is for everything else. */
static unsigned most_clients(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur / 2 >= WS_MAX_CLIENTS)
        return WS_MAX_CLIENTS;
    return (unsigned)files.rlim_cur / 2;
}

static int start(struct ws_tcp_server *s, const struct ws_tcp_server_options *o, struct ws_error *err)
{
    const unsigned cores = ws_cpu_cores(MOST_THREADS);
    const struct ws_http_server_options http = {
        .listen = o->listen,
        .access = o->access,
        .tls_cert_file = o->tls_cert_file,
        .tls_key_file = o->tls_key_file,
        .tls_client_ca_file = o->tls_client_ca_file,
        .routes = routes,
        .self = s,
        .n_threads = o->n_threads ? o->n_threads
                     : cores > 1  ? cores
                                  : 2,
        .max_connections = o->max_clients ? o->max_clients : most_clients(),
        .idle_seconds = IDLE_SECONDS,
        .max_body = WS_MAX_BODY_BYTES,
        .limits_unauthenticated = true,
        .gives_hints = true,
        .ended = end_call,
        .closed = connection_closed,
    };
    int rc = ws_http_server_new(&s->http, &http, err);
    if (rc == 0 && ws_tcp_polls_start(s) < 0) {
        rc = ws_error_set(err, EAGAIN, "cannot start a thread");
        ws_http_server_free(s->http);
    }
    return rc;
}

static void free_server(struct ws_tcp_server *s)
{
    ws_tcp_bodies_destroy(&s->bodies);
    ws_tcp_deltas_destroy(&s->deltas);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
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
    pthread_mutex_init(&s->lock, NULL);
    ws_cond_init(&s->changed);
    const int rc = start(s, o, err);
    if (rc < 0)
        free_server(s);
    else
        *out = s;
    return rc;
}

unsigned ws_tcp_server_port(const struct ws_tcp_server *s)
{
    return ws_http_server_port(s->http);
}

void ws_tcp_server_stats(struct ws_tcp_server *s, struct ws_tcp_server_stats *out)
{
    *out = (struct ws_tcp_server_stats){.bytes_sent = atomic_load(&s->bytes_sent),
                                        .requests = ws_http_server_requests(s->http),
                                        .unknown = ws_http_server_refused(s->http, 401),
                                        .forbidden = ws_http_server_refused(s->http, 403),
                                        .connections = ws_http_server_connections(s->http),
                                        .certificate_end = ws_http_server_certificate_end(s->http)};
    for (unsigned i = 0; i < WS_HTTP_ENDINGS; i++)
        out->ended[i] = ws_http_server_ended(s->http, (enum ws_http_ending)i);
}

void ws_tcp_server_print_ended(const struct ws_tcp_server_stats *stats, const char *name, FILE *out)
{
    for (unsigned i = 0; i < WS_HTTP_ENDINGS; i++)
        fprintf(out, "%s{reason=\"%s\"} %" PRIu64 "\n", name, ws_http_ending_name((enum ws_http_ending)i),
                stats->ended[i]);
}

void ws_tcp_server_print_certificate(const struct ws_tcp_server_stats *stats, const char *name, FILE *out)
{
    fprintf(out,
            "# HELP %s When the certificate ends that clients are shown, in seconds since 1970.\n# TYPE %s "
            "gauge\n",
            name, name);
    if (stats->certificate_end)
        fprintf(out, "%s %" PRIu64 "\n", name, stats->certificate_end);
}

void ws_tcp_server_free(struct ws_tcp_server *s)
{
    if (!s)
        return;
    ws_tcp_polls_stop(s);
    ws_tcp_bodies_stop(&s->bodies);
    ws_tcp_deltas_stop(&s->deltas);
    ws_http_server_free(s->http);
    free_server(s);
}
