#include "backends/trainer/astraflow/listener.h"
#include "backends/trainer/astraflow/blob_builder.h"
#include "backends/trainer/astraflow/flat_view.h"
#include "backends/trainer/astraflow/latest.h"
#include "backends/trainer/astraflow/lora_config.h"
#include "backends/trainer/astraflow/receivers.h"
#include "backends/trainer/astraflow/zmq_notify.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include "transports/http/server.h"
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#define FAILED         500U
#define NOT_YET        503U
#define DELTA_WAIT_MS  3000 /* a receiver waits for capabilities for 5 s */
#define MAX_BODY       (64UL << 10)
#define IDLE_SECONDS   30U
#define HANDSHAKE_PORT 21000 /* a field of the protocol; no socket listens there */

struct ws_astraflow {
    struct ws_latest_scope topic;
    char *listen;
    unsigned stall_ms;
    void *zmq;
    struct ws_receivers *receivers;
    struct ws_blob_builder *ahead;
    struct ws_http_server *http;
};

/* --- routes that only read --- */

static json_int_t newest_version(const struct ws_astraflow *f)
{
    struct ws_latest n;
    return ws_latest_find(&f->topic, &n, NULL) == 0 ? (json_int_t)n.version.version : 0;
}

/* The list of tensors is read in a moment: a writer that wants the slot waits for it. */
static void ignore_revocation(void *arg)
{
    (void)arg;
}

/* meta and lora: of ws_flat_view_new and ws_lora_config_read; both NULL: not wanted. */
static int view_latest(const struct ws_astraflow *f, struct ws_flat_view **out, json_t **meta, json_t **lora,
                       struct ws_error *err)
{
    struct ws_latest what;
    struct ws_lease *lease = NULL;
    int rc = ws_latest_acquire(&f->topic, "astraflow: the list of tensors", ignore_revocation, NULL, &what,
                               &lease, err);
    if (rc == 0 && lora)
        rc = ws_lora_config_read(lease, lora, err);
    if (rc == 0 && (rc = ws_flat_view_new(out, lease, meta, err)) < 0 && lora)
        json_decref(*lora);
    ws_latest_release(&f->topic, &lease);
    return rc;
}

static json_t *error_json(const struct ws_error *err)
{
    return json_pack("{s:s}", "error", err->text);
}

static const json_t *body_object(struct ws_http_incoming *in)
{
    const json_t *body = ws_http_json(in);
    return json_is_object(body) ? body : NULL;
}

static void get_version(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    (void)in;
    a->json = json_pack("{s:I}", "version", newest_version(self));
}

static void get_buffer_info(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_error err = {0};
    struct ws_flat_view *b;
    json_t *meta, *lora;
    (void)in;
    if (view_latest(self, &b, &meta, &lora, &err) != 0) {
        a->json = error_json(&err);
        a->status = NOT_YET;
        return;
    }
    a->json = json_pack("{s:I,s:o,s:o*}", "single_buffer_length", (json_int_t)b->total_bytes, "tensors_meta",
                        meta, "lora_config", lora);
    ws_flat_view_free(b);
}

static double sparsity(const struct ws_blob *b)
{
    return 1 - (double)b->count / (double)b->buffer_bytes * b->element_bytes;
}

/* "delta" is among the strategies only while there is one that can be asked for at once. */
static void get_capabilities(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_astraflow *f = self;
    struct ws_latest n = {0};
    struct ws_blob *b = NULL;
    (void)in;
    if (ws_latest_find(&f->topic, &n, NULL) == 0)
        b = ws_blob_builder_get_to(f->ahead, &n.version, DELTA_WAIT_MS);
    a->json = json_pack("{s:[s],s:I}", "strategies", "full", "version", (json_int_t)n.version.version);
    if (b && a->json) {
        json_array_append_new(json_object_get(a->json, "strategies"), json_string("delta"));
        json_t *delta = json_pack("{s:b,s:I,s:I,s:f,s:I,s:I}", "delta_ready", 1, "delta_base_version",
                                  (json_int_t)b->base.version, "delta_version", (json_int_t)b->target.version,
                                  "delta_sparsity", sparsity(b), "delta_num_nonzero", (json_int_t)b->count,
                                  "delta_size_bytes", (json_int_t)b->n_bytes);
        json_object_update(a->json, delta);
        json_decref(delta);
    }
    ws_blob_put(b);
}

/* --- registration --- */

/* A host to an IPv4 address: the protocol separates by colons, so it has no others. May ask DNS. */
static int resolve(const char *host, struct in_addr *out, struct ws_error *err)
{
    const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    struct addrinfo *a;
    int rc = getaddrinfo(host, NULL, &hints, &a);
    if (rc)
        return ws_error_set(err, EINVAL, "'%.200s' is no IPv4 address: %s", host, gai_strerror(rc));
    *out = ((const struct sockaddr_in *)(const void *)a->ai_addr)->sin_addr;
    freeaddrinfo(a);
    return 0;
}

/* "HOST:PORT[:PORT...]" */
static int parse_session(const char *text, struct ws_push_target *out, struct ws_error *err)
{
    char host[256];
    const char *colon = strchr(text, ':');
    if (!colon || colon == text || (size_t)(colon - text) >= sizeof(host))
        return ws_error_set(err, EINVAL, "session_ids: '%.200s' is not HOST:PORT", text);
    snprintf(host, sizeof(host), "%.*s", (int)(colon - text), text);
    for (const char *at = colon; *at;) {
        uint64_t port;
        if (*at++ != ':' || ws_text_digits(&at, &port) || port == 0 || port > UINT16_MAX ||
            out->n_ports == WS_MAX_STREAMS)
            return ws_error_set(err, EINVAL, "session_ids: '%.200s' is not HOST:PORT, with at most %d ports",
                                text, WS_MAX_STREAMS);
        out->ports[out->n_ports++] = (uint16_t)port;
    }
    return resolve(host, &out->address, err);
}

static int require(const json_t *body, const char *key, json_type type, const json_t **out,
                   struct ws_error *err)
{
    static const char *const names[] = {"an object", "a list", "a text", "a whole number"};
    *out = json_object_get(body, key);
    if (*out && json_typeof(*out) == type)
        return 0;
    return ws_error_set(err, EINVAL, "a registration needs %s, %s", key, names[type]);
}

static int parse_registration(const json_t *body, struct ws_receiver *r, struct ws_error *err)
{
    const json_t *host, *port, *sessions, *pointer, *length, *zmq_host, *zmq_port, *handshakes;
    char address[INET_ADDRSTRLEN] = "";
    struct in_addr zmq = {0};
    int rc;
    *r = (struct ws_receiver){0};
    if ((rc = require(body, "sglang_http_host", JSON_STRING, &host, err)) < 0 ||
        (rc = require(body, "sglang_http_port", JSON_INTEGER, &port, err)) < 0 ||
        (rc = require(body, "session_ids", JSON_ARRAY, &sessions, err)) < 0 ||
        (rc = require(body, "buffer_ptr", JSON_INTEGER, &pointer, err)) < 0 ||
        (rc = require(body, "buffer_length", JSON_INTEGER, &length, err)) < 0 ||
        (rc = require(body, "zmq_endpoint", JSON_STRING, &zmq_host, err)) < 0 ||
        (rc = require(body, "zmq_port", JSON_INTEGER, &zmq_port, err)) < 0 ||
        (rc = require(body, "handshake_ports", JSON_ARRAY, &handshakes, err)) < 0)
        return rc;
    const char *session = json_string_value(json_array_get(sessions, 0));
    if (json_array_size(sessions) != 1 || !session)
        return ws_error_set(err, EINVAL, "session_ids has to be a list of one text");
    if (json_string_length(host) == 0 || json_string_length(host) > WS_MAX_NAME)
        return ws_error_set(err, EINVAL, "sglang_http_host has to be a host's name");
    if (json_integer_value(zmq_port) <= 0 || json_integer_value(zmq_port) > UINT16_MAX)
        return ws_error_set(err, EINVAL, "zmq_port has to be a port");
    snprintf(r->instance, sizeof(r->instance), "%s:%" JSON_INTEGER_FORMAT, json_string_value(host),
             json_integer_value(port));
    r->buffer_bytes = (uint64_t)json_integer_value(length);
    if ((rc = parse_session(session, &r->data, err)) < 0 ||
        (rc = resolve(json_string_value(zmq_host), &zmq, err)) < 0)
        return rc;
    (void)inet_ntop(AF_INET, &zmq, address, sizeof(address));
    snprintf(r->zmq, sizeof(r->zmq), "tcp://%s:%u", address, (unsigned)json_integer_value(zmq_port));
    return 0;
}

static int check_buffer(const struct ws_astraflow *f, struct ws_receiver *r, struct ws_error *err)
{
    struct ws_flat_view *b;
    int rc = view_latest(f, &b, NULL, NULL, err);
    if (rc != 0)
        return rc;
    if (b->unsupported[0])
        rc = ws_error_set(err, EOPNOTSUPP,
                          "AstraFlow's receivers cannot write this model: %s; serve it by wsync mount",
                          b->unsupported);
    else if (r->buffer_bytes != b->total_bytes)
        rc = ws_error_set(err, EINVAL, "buffer_length is %" PRIu64 ", the tensors have %" PRIu64 " bytes",
                          r->buffer_bytes, b->total_bytes);
    memcpy(r->layout, b->layout, sizeof(r->layout));
    ws_flat_view_free(b);
    return rc;
}

static void register_instance(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_astraflow *f = self;
    struct ws_receiver r;
    struct ws_error err = {0};
    char host[256] = "localhost", session[300];
    const json_t *body = body_object(in);
    int rc = body ? parse_registration(body, &r, &err)
                  : ws_error_set(&err, EINVAL, "the body of the request is no JSON object");
    if (rc == 0)
        rc = check_buffer(f, &r, &err);
    if (rc == 0)
        rc = ws_receivers_put(f->receivers, &r, &err);
    if (rc < 0) {
        ws_log(WS_LOG_WARN, "astraflow", "registration refused: %s", err.text);
        a->json = error_json(&err);
        a->status = FAILED;
        return;
    }
    ws_log(WS_LOG_INFO, "astraflow", "registered instance=%s zmq=%s bytes=%" PRIu64, r.instance, r.zmq,
           r.buffer_bytes);
    (void)gethostname(host, sizeof(host) - 1);
    snprintf(session, sizeof(session), "%s:%d", host, HANDSHAKE_PORT);
    a->json = json_pack("{s:i,s:i,s:[[s]],s:i,s:I,s:s,s:i}", "trainer_global_rank", WS_ASTRAFLOW_RANK,
                        "trainer_world_size", 1, "trainer_session_ids", session, "trainer_buffer_ptr", 0,
                        "trainer_buffer_length", 2 * (json_int_t)r.buffer_bytes, "trainer_hostname", host,
                        "trainer_rpc_port", HANDSHAKE_PORT);
}

/* --- transfers --- */

struct transfer {
    struct ws_astraflow *f;
    struct ws_receiver_transfer errand;
    struct ws_push *push;
    struct ws_blob *delta;     /* NULL: the whole version */
    struct ws_version_id what; /* what the receiver has then */
};

static void revoked(void *arg)
{
    ws_push_cut(arg, ESTALE);
}

static int check_layout(const struct transfer *t, uint64_t bytes, const char *layout, struct ws_error *err)
{
    const struct ws_receiver *to = &t->errand.receiver;
    if (bytes == to->buffer_bytes && strcmp(layout, to->layout) == 0)
        return 0;
    return ws_error_set(
        err, EPROTO, "the tensors of version %" PRIu64 " are not those that %s has made room for; restart it",
        t->what.version, to->instance);
}

/* The lease lasts until the last byte is in the kernel's hands. The slot's bytes do not change while it
 * lasts, also when it was revoked, so what was sent is one version, whole. */
static int send_full(struct transfer *t, struct ws_error *err)
{
    struct ws_flat_view *b = NULL;
    struct ws_lease *lease = NULL;
    struct ws_latest what;
    char holder[96];
    snprintf(holder, sizeof(holder), "astraflow %.80s", t->errand.receiver.instance);
    int rc = ws_latest_acquire(&t->f->topic, holder, revoked, t->push, &what, &lease, err);
    t->what = what.version;
    if (rc == 0)
        rc = ws_flat_view_new(&b, lease, NULL, err);
    if (rc == 0)
        rc = check_layout(t, b->total_bytes, b->layout, err);
    if (rc == 0)
        rc = ws_push_send(t->push, &t->errand.receiver.data, b->parts, b->n_parts, err);
    ws_latest_release(&t->f->topic, &lease);
    ws_flat_view_free(b);
    return rc;
}

/* Sent out of the blob's own memory: no trainer waits for it. */
static int send_delta(struct transfer *t, struct ws_error *err)
{
    struct iovec part = {t->delta->bytes, t->delta->n_bytes};
    t->what = t->delta->target;
    int rc = check_layout(t, t->delta->buffer_bytes, t->delta->layout, err);
    return rc < 0 ? rc : ws_push_send(t->push, &t->errand.receiver.data, &part, 1, err);
}

static int send_all(struct transfer *t, struct ws_error *err)
{
    struct ws_zmq_notify *done;
    int rc = ws_zmq_notify_new(&done, t->f->zmq, t->errand.receiver.zmq, err); /* connects meanwhile */
    if (rc < 0)
        return rc;
    rc = t->delta ? send_delta(t, err) : send_full(t, err);
    if (rc == 0)
        rc = ws_push_wait(t->push, err);
    if (rc == 0)
        rc = ws_zmq_notify_send(done, err);
    ws_zmq_notify_free(done);
    return rc;
}

static json_t *refused(const struct ws_astraflow *f, const struct ws_error *err)
{
    return json_pack("{s:b,s:I,s:s}", "ok", 0, "version", newest_version(f), "error", err->text);
}

static json_t *not_ready(const struct ws_astraflow *f)
{
    return json_pack("{s:b,s:I,s:s,s:s}", "ok", 0, "version", newest_version(f), "fallback", "full", "reason",
                     "delta_not_ready");
}

static json_t *succeeded(const struct transfer *t)
{
    json_t *out = json_pack("{s:b,s:I,s:s}", "ok", 1, "version", (json_int_t)t->what.version, "mode",
                            t->delta ? "delta" : "full");
    if (t->delta && out) {
        const struct ws_blob *b = t->delta;
        json_t *delta = json_pack("{s:I,s:I,s:f,s:I,s:f}", "delta_base_version", (json_int_t)b->base.version,
                                  "delta_size", (json_int_t)b->n_bytes, "sparsity", sparsity(b),
                                  "num_nonzero", (json_int_t)b->count, "compute_time", b->seconds);
        json_object_update(out, delta);
        json_decref(delta);
    }
    return out;
}

/* The protocol does not say what a receiver has: a delta is sent only if its base was the last transfer. */
static json_t *run_transfer(struct ws_astraflow *f, const char *instance, bool delta)
{
    struct transfer t = {.f = f, .push = ws_push_new(f->stall_ms)};
    struct ws_error err = {0};
    json_t *reply;
    if (!t.push) {
        (void)ws_error_set(&err, ENOMEM, "no memory for a transfer");
        return refused(f, &err);
    }
    int rc = ws_receivers_begin(f->receivers, instance, t.push, &t.errand, &err);
    if (rc < 0) {
        ws_log(WS_LOG_WARN, "astraflow", "transfer refused instance=%.200s: %s", instance, err.text);
        ws_push_free(t.push);
        return refused(f, &err);
    }
    if (delta && !(t.delta = ws_blob_builder_get_from(f->ahead, &t.errand.last_received))) {
        ws_receivers_end(f->receivers, &t.errand, t.push, NULL, NULL);
        return not_ready(f);
    }
    rc = send_all(&t, &err);
    ws_receivers_end(f->receivers, &t.errand, t.push, rc == 0 ? &t.what : NULL, rc == 0 ? NULL : err.text);
    if (rc < 0) {
        ws_log(WS_LOG_WARN, "astraflow", "transfer failed instance=%s: %s", instance, err.text);
        reply = refused(f, &err);
    } else {
        ws_log(WS_LOG_INFO, "astraflow", "transferred instance=%s version=%" PRIu64 " mode=%s", instance,
               t.what.version, delta ? "delta" : "full");
        reply = succeeded(&t);
    }
    ws_blob_put(t.delta);
    return reply;
}

static void request_transfer(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_astraflow *f = self;
    const json_t *body = body_object(in);
    const char *instance = json_string_value(json_object_get(body, "instance_id"));
    const json_t *wanted = json_object_get(body, "mode");
    const char *mode = wanted ? json_string_value(wanted) : "full";
    if (!instance || !mode || (strcmp(mode, "full") != 0 && strcmp(mode, "delta") != 0)) {
        a->json = json_pack("{s:b,s:i,s:s}", "ok", 0, "version", 0, "error",
                            "a transfer needs instance_id, a text, and mode full or delta");
        a->status = FAILED;
        return;
    }
    if (strncmp(instance, "http://", 7) == 0)
        instance += 7;
    a->json = run_transfer(f, instance, strcmp(mode, "delta") == 0);
}

/* --- start and stop --- */

static const struct ws_http_route routes[] = {
    WS_HTTP_ROUTE(WS_HTTP_GET, "/get_version", OPEN, get_version),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/get_buffer_info", OPEN, get_buffer_info),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/get_capabilities", OPEN, get_capabilities),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/register_sglang_instance", OPEN, register_instance),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/request_transfer", OPEN, request_transfer),
    {0},
};

/* AstraFlow's own sender refuses with these statuses only. */
static void refuse(void *self, const struct ws_http_incoming *in, struct ws_http_answer *a)
{
    (void)self;
    (void)in;
    if (a->status != 413)
        a->status = 404;
    a->json = json_pack("{s:s}", "error", a->status == 413 ? "the body is too large" : "not found");
}

/* A transfer's reply may take minutes: each connection has a thread. */
static int serve(struct ws_astraflow *f, const char *listen, struct ws_error *err)
{
    return ws_http_server_new(&f->http,
                              &(struct ws_http_server_options){.listen = listen,
                                                               .access = {.insecure = true},
                                                               .routes = routes,
                                                               .self = f,
                                                               .max_connections = WS_MAX_CLIENTS,
                                                               .idle_seconds = IDLE_SECONDS,
                                                               .max_body = MAX_BODY,
                                                               .refuse = refuse},
                              err);
}

static bool is_wanted(void *arg, const struct ws_version_id *base)
{
    return ws_receivers_have(((struct ws_astraflow *)arg)->receivers, base);
}

int ws_astraflow_new(struct ws_astraflow **out, const struct ws_catalog *catalog,
                     const struct ws_astraflow_options *o, struct ws_error *err)
{
    struct ws_astraflow *f = calloc(1, sizeof(*f));
    int rc = 0;
    if (!f || !(f->listen = strdup(o->listen)) || (o->model && !(f->topic.model = strdup(o->model))))
        rc = ws_error_set(err, ENOMEM, "no memory for AstraFlow's endpoints");
    if (rc == 0) {
        f->topic.catalog = *catalog;
        f->stall_ms = o->stall_ms ? o->stall_ms : WS_REPLY_TIMEOUT_MS;
        rc = ws_receivers_new(&f->receivers, o->state, err);
    }
    if (rc == 0 && (!(f->zmq = zmq_ctx_new()) || zmq_ctx_set(f->zmq, ZMQ_MAX_SOCKETS, WS_MAX_CLIENTS) != 0))
        rc = ws_error_set(err, EIO, "ZMQ does not start: %s", zmq_strerror(zmq_errno()));
    if (rc == 0)
        rc = ws_blob_builder_new(&f->ahead, &f->topic, is_wanted, f, err);
    if (rc == 0)
        rc = serve(f, o->listen, err);
    if (rc < 0) {
        ws_astraflow_free(f);
        return rc;
    }
    ws_log(WS_LOG_INFO, "astraflow", "serving http=%s port=%u model=%s state=%s", o->listen,
           ws_http_server_port(f->http), o->model ? o->model : "the only one", o->state ? o->state : "none");
    *out = f;
    return 0;
}

void ws_astraflow_wake(struct ws_astraflow *f)
{
    ws_blob_builder_wake(f->ahead);
}

json_t *ws_astraflow_status(struct ws_astraflow *f)
{
    return json_pack("{s:s,s:s?,s:o}", "listen", f->listen, "model", f->topic.model, "receivers",
                     ws_receivers_json(f->receivers));
}

void ws_astraflow_free(struct ws_astraflow *f)
{
    if (!f)
        return;
    if (f->receivers)
        ws_receivers_stop(f->receivers);
    if (f->ahead)
        ws_blob_builder_stop(f->ahead); /* requests that wait for it are answered */
    ws_http_server_free(f->http);
    ws_blob_builder_free(f->ahead);
    ws_receivers_free(f->receivers);
    if (f->zmq)
        (void)zmq_ctx_term(f->zmq); /* messages on their way have some seconds to arrive */
    free(f->listen);
    free(f->topic.model);
    free(f);
}
