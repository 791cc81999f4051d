#include "fs/relay.h"
#include "fs/control/status_json.h"
#include "fs/proofs.h"
#include "fs/store/content.h"
#include "fs/store/delta_cache.h"
#include "fs/store/growing.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/offers.h"
#include "fs/store/part_description.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include "transports/protocol/api.h"
#include "transports/sign/proof_path.h"
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

struct relay_lease {
    struct ws_lease base; /* its pointers are set when what they lead to is here */
    struct ws_relay *relay;
    struct ws_version *version; /* counted */
    struct ws_region **regions;
    struct ws_part_description *description; /* of a part, counted: for blocks of it that have no place yet */
    struct ws_waiter wait;                   /* for what the server asked for last */
    void (*arrived)(void *arg);
    void *arrived_arg;
    atomic_int failed; /* what the wait ended with, negative: it stays */
    void (*revoked)(void *arg);
    void *revoked_arg;
    LIST_ENTRY(relay_lease) link; /* in relay->leases, guarded by relay->lock */
};

struct ws_relay {
    struct ws_store *store;
    struct ws_control *control;
    struct ws_tcp_server *server;
    struct ws_proofs *proofs;
    _Atomic(uint64_t) seq;
    pthread_t announcer;
    pthread_mutex_t lock; /* taken before the server's own; never while the server asks about a lease */
    pthread_cond_t changed;
    /* guarded by lock */
    LIST_HEAD(relay_leases, relay_lease) leases;
    bool dirty, stop;
};

/* --- what it lists --- */

static uint64_t relay_seq(void *self)
{
    return atomic_load(&((struct ws_relay *)self)->seq);
}

static int relay_models(void *self, const char *model, json_t **out, struct ws_error *err)
{
    struct ws_relay *r = self;

    /* The number before the look: what changes meanwhile is asked for again. */
    return ws_offers_list(r->store, model, atomic_load(&r->seq), out, err);
}

/* Compares the listing with the one before, and wakes the mounts that poll where it differs. */
static void *announce(void *arg)
{
    struct ws_relay *r = arg;
    json_t *last_listing = NULL;

    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        json_t *now = NULL;
        if (!r->dirty) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        r->dirty = false;
        pthread_mutex_unlock(&r->lock);
        if (ws_offers_list(r->store, NULL, 0, &now, NULL) == 0 && !json_equal(now, last_listing)) {
            atomic_fetch_add(&r->seq, 1);
            ws_tcp_server_wake(r->server);
        }
        json_decref(last_listing);
        last_listing = now;
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    json_decref(last_listing);
    return NULL;
}

/* The model of that name, or the parts' (MODEL@INDEX.COUNT), counted. NULL: there is none. */
static struct ws_model *find_model(const struct ws_relay *r, const char *name)
{
    struct ws_model *m = ws_store_find(r->store, name);

    return m ? m : ws_node_parts_find(r->store, name);
}

/* --- leases --- */

static void link_lease(struct relay_lease *lease)
{
    struct ws_relay *r = lease->relay;

    pthread_mutex_lock(&r->lock);
    LIST_INSERT_HEAD(&r->leases, lease, link);
    pthread_mutex_unlock(&r->lock);
}

static void relay_release(void *self, struct ws_lease *base)
{
    struct ws_relay *r = self;
    struct relay_lease *lease = (struct relay_lease *)base;

    pthread_mutex_lock(&r->lock);
    LIST_REMOVE(lease, link);
    pthread_mutex_unlock(&r->lock);
    ws_part_description_put(lease->description);
    ws_version_put(lease->version);
    free(lease->regions);
    free(lease);
}

static void on_wait(struct ws_waiter *w, int result)
{
    struct relay_lease *lease = (struct relay_lease *)((char *)w - offsetof(struct relay_lease, wait));

    atomic_store(&lease->failed, result);
    lease->arrived(lease->arrived_arg); /* lease may be gone now */
}

static int none(struct ws_model *m, const char *model, uint64_t version, struct ws_error *err)
{
    struct ws_version *latest = m ? ws_model_latest(m) : NULL;
    uint64_t newest = latest ? ws_version_number(latest) : 0;

    if (latest)
        ws_version_put(latest);
    if (!m)
        return ws_error_set(err, ENOENT, "there is no model '%s' here", model);
    if (!latest || version > newest)
        return ws_error_set(err, ENOENT, "%s/%" PRIu64 " is not known here; the newest is %" PRIu64, model,
                            version, newest);
    return ws_error_set(err, ESTALE,
                        "%s/%" PRIu64 " is neither here nor at a source any more; the newest is %" PRIu64,
                        model, version, newest);
}

static int relay_lease(void *self, const char *model, uint64_t version, const char *run, const char *holder,
                       void (*revoked)(void *), void *arg, struct ws_lease **out, struct ws_error *err)
{
    struct ws_relay *r = self;
    struct ws_model *m = find_model(r, model);
    struct ws_version *v = m ? ws_version_at(m, version, run) : NULL;
    struct relay_lease *lease = v ? calloc(1, sizeof(*lease)) : NULL;
    int rc = v ? 0 : none(m, model, version, err);

    (void)holder;
    if (m)
        ws_model_put(m);
    if (v && !lease) {
        ws_version_put(v);
        rc = ws_error_set(err, ENOMEM, "no memory for a lease");
    }
    if (rc < 0)
        return rc;
    *lease = (struct relay_lease){
        .relay = r, .version = v, .wait.done = on_wait, .revoked = revoked, .revoked_arg = arg};
    link_lease(lease);
    /* A version that lost its name before the lease was linked does not revoke it any more. */
    if (!ws_version_is_named(v)) {
        relay_release(r, &lease->base);
        return ws_error_set(err, ESTALE, "%s/%" PRIu64 " was just dropped", model, version);
    }
    *out = &lease->base;
    return 0;
}

/* Has something of it, or of what it is made of, come lately? */
static bool is_moving(struct ws_version *v)
{
    struct ws_store *s = v->store;
    bool moving;

    pthread_mutex_lock(&s->lock);
    moving = v->pull && ws_clock_ns() - s->puller->progress_ns(v->pull) < WS_ARRIVAL_MS * WS_MS_NS;
    pthread_mutex_unlock(&s->lock);
    return moving;
}

/* Why it does not come, by what the wait ended with. */
static int explain(struct relay_lease *lease, int rc, struct ws_error *err)
{
    struct ws_version *v = lease->version;
    struct ws_version_info info;

    ws_version_info(v, &info);
    if (rc == -ECANCELED)
        return ws_error_set(err, EAGAIN, "%s/%" PRIu64 " is not fetched here just now",
                            ws_model_name(ws_version_model(v)), info.number);
    if (rc == -ETIMEDOUT && is_moving(v))
        return ws_error_set(err, EAGAIN, "%s/%" PRIu64 " is on its way here: ask again",
                            ws_model_name(ws_version_model(v)), info.number);
    if (rc == -ETIMEDOUT)
        return ws_error_set(err, ETIMEDOUT,
                            "%s/%" PRIu64
                            " is on its way here, and what was asked for did not come for %d s%s%s",
                            ws_model_name(ws_version_model(v)), info.number, WS_ARRIVAL_MS / 1000,
                            info.error[0] ? ": " : "", info.error);
    return ws_error_set(err, -rc, "%s/%" PRIu64 " cannot be fetched here: %s",
                        ws_model_name(ws_version_model(v)), info.number,
                        info.error[0] ? info.error : strerror(-rc));
}

/* A part has no region: it lies in those of the whole version, or what describes it in its description. Bytes of one
 * block. */
static void read_part(struct ws_lease *base, size_t file, uint64_t at, size_t n, void *out)
{
    const struct relay_lease *lease = (struct relay_lease *)base;
    const struct ws_part_description *d = lease->description;

    if (d && ws_part_description_has(d, file, (size_t)(at / WS_BLOCK_BYTES), 1))
        memcpy(out, d->files[file].bytes + at, n);
    else
        ws_part_view_read(lease->version, file, at, n, out);
}

/* Are the blocks of a part in what describes it? Then the lease keeps that. */
static bool is_described(struct relay_lease *lease, size_t file, size_t first, size_t n)
{
    struct ws_version *v = lease->version;

    if (!ws_model_is_hidden(ws_version_model(v)))
        return false;
    pthread_mutex_lock(&v->store->lock);
    if (!lease->description && ws_part_description_shows(v, file, first, n))
        lease->description = ws_part_description_get(v);
    pthread_mutex_unlock(&v->store->lock);
    return lease->description && ws_part_description_has(lease->description, file, first, n);
}

/* Sets the pointers that the lease can have by now. */
static int point(struct relay_lease *lease, size_t file, size_t n)
{
    const struct ws_manifest *m = ws_version_files(lease->version);

    lease->base.manifest = m;
    if (ws_model_is_hidden(ws_version_model(lease->version)))
        lease->base.read = read_part;
    if (!lease->regions &&
        !(lease->regions = calloc(m->n_files ? m->n_files : 1, sizeof(struct ws_region *))))
        return -ENOMEM;
    lease->base.regions = lease->regions;
    if (n > 0 && file < m->n_files)
        lease->regions[file] = ws_version_region(lease->version, file);
    return 0;
}

/* Before a wait of the lease: 1: it may begin; 0: nobody wants to hear; else why an earlier one ended, which stays. */
static int begin_wait(struct relay_lease *lease, uint64_t some_bytes, void (*arrived)(void *), void *arg,
                      struct ws_error *err)
{
    const int failed = atomic_load(&lease->failed);

    if (failed < 0)
        return explain(lease, failed, err);
    if (!arrived)
        return 0;
    lease->arrived = arrived;
    lease->arrived_arg = arg;
    lease->wait.some_bytes = some_bytes;
    return 1;
}

static int relay_here(void *self, struct ws_lease *base, size_t file, size_t first, size_t n,
                      void (*arrived)(void *), void *arg, struct ws_error *err)
{
    struct relay_lease *lease = (struct relay_lease *)base;
    int rc;

    (void)self;
    if (n == 0 || !ws_version_has_manifest(lease->version)) { /* what is not sealed is not passed on */
        file = WS_FILE_MANIFEST;
        first = n = 0;
    }
    rc = ws_waiter_is_satisfied(lease->version, file, first, n) || is_described(lease, file, first, n);
    if (rc == 0) {
        rc = begin_wait(lease, 0, arrived, arg, err);
        if (rc != 1)
            return rc;
        /* A view has its manifest when all of it is made: who waits hears in time that it moves. */
        rc = file == WS_FILE_MANIFEST
                 ? ws_waiters_add(lease->version, file, 0, 0, WS_PRIORITY_READER,
                                  ws_clock_ns() + WS_ARRIVAL_MS * WS_MS_NS, &lease->wait)
                 : ws_version_await(lease->version, file, first, n, WS_ARRIVAL_MS, &lease->wait);
        if (rc == 1 && !ws_waiter_is_satisfied(lease->version, file, first, n))
            (void)is_described(lease, file, first, n);
    }
    if (rc == 1 && point(lease, file, n) < 0)
        return ws_error_set(err, ENOMEM, "no memory for a lease");
    return rc;
}

static int relay_some(void *self, struct ws_lease *base, size_t file, size_t block, uint64_t from,
                      struct ws_some *some, void (*arrived)(void *), void *arg, struct ws_error *err)
{
    struct relay_lease *lease = (struct relay_lease *)base;
    struct ws_version *v = lease->version;
    uint64_t attempt = 0;

    (void)self;
    some->is_here = ws_waiter_is_satisfied(v, file, block, 1);
    const uint64_t n = some->is_here ? 0 : ws_growing_bytes(v, file, block, &attempt);
    const bool is_same = some->attempt == 0 || some->attempt == attempt;
    if (some->is_here || (is_same && n > from)) {
        some->n = some->is_here ? ws_manifest_block_bytes(&ws_version_files(v)->files[file], block) : n;
        some->attempt = some->is_here ? some->attempt : attempt;
        if (point(lease, file, 0) < 0)
            return ws_error_set(err, ENOMEM, "no memory for a lease");
        lease->regions[file] = ws_content_region(v, file); /* also where no block of it is here */
        return lease->regions[file] ? 1 : ws_error_set(err, EAGAIN, "a file of it has no memory here");
    }
    const int rc =
        begin_wait(lease, is_same ? from + 1 : 0, arrived, arg, err); /* of another attempt: all of it */
    return rc == 1 ? ws_version_await(v, file, block, 1, WS_ARRIVAL_MS, &lease->wait) : rc;
}

static bool relay_forget(void *self, struct ws_lease *base)
{
    (void)self;
    return ws_waiter_cancel(&((struct relay_lease *)base)->wait);
}

/* --- deltas --- */

/* Which deltas this mount itself takes is known once its own pull has begun, which this starts. */
static int relay_deltas(void *self, const char *model, uint64_t version, const char *run, bool look,
                        json_t **out, struct ws_error *err)
{
    struct ws_relay *r = self;
    struct ws_model *m = find_model(r, model);
    struct ws_version *v = m ? ws_version_at(m, version, run) : NULL;
    int rc = 0;

    if (!look && v && !atomic_load(&v->way_chosen) && !ws_version_is_complete(v)) {
        ws_version_start(v, WS_PRIORITY_BACKGROUND);
        rc = ws_error_set(err, EAGAIN, "%s/%" PRIu64 " is on its way here", model, version);
    } else {
        *out = m ? ws_model_deltas(m, version, run) : json_array();
        if (!*out)
            rc = ws_error_set(err, ENOMEM, "no memory for a list of deltas");
    }
    if (v)
        ws_version_put(v);
    if (m)
        ws_model_put(m);
    return rc;
}

static int relay_delta(void *self, const char *model, uint64_t version, const char *run,
                       const struct ws_version_id *base, unsigned level, struct ws_delta **out,
                       struct ws_error *err)
{
    struct ws_relay *r = self;
    struct ws_model *m = find_model(r, model);
    struct ws_delta *d = m ? ws_model_delta(m, version, run, base, level) : NULL;

    if (m)
        ws_model_put(m);
    *out = d;
    return d ? 0
             : ws_error_set(err, ENOENT, "there is no delta from %" PRIu64 " to %s/%" PRIu64 " here",
                            base->version, model, version);
}

/* --- signatures --- */

/* The request as this relay would make it: names that readers spell differently are asked for once. */
static int relay_signature(struct ws_relay *r, const struct ws_api_request *q, const char *query,
                           json_t **reply, struct ws_error *err)
{
    char path[WS_API_PATH_BYTES + WS_PROOF_QUERY_CHARS + 1], own[WS_PROOF_QUERY_CHARS];
    struct ws_version_id base;
    bool has_base;

    if (ws_proof_base(query, &has_base, &base) < 0)
        return ws_error_set(err, EINVAL, "the base of a delta in this request is malformed");
    struct ws_model *m = find_model(r, q->model);
    struct ws_version *v = m ? ws_version_at(m, q->version, q->lineage[0] ? q->lineage : NULL) : NULL;
    int rc = v ? 0 : none(m, q->model, q->version, err);
    if (rc == 0) {
        if (!base.lineage[0])
            base = ws_version_id_make(base.version, ws_version_lineage(v));
        ws_api_version_path(path, WS_PROOF_VERB, q->model, q->version, NULL, NULL);
        ws_proof_query(own, ws_version_lineage(v), has_base ? &base : NULL);
        strcat(strcat(path, "?"), own);
        rc = ws_proofs_get(r->proofs, m, path, reply, err);
    }
    if (v)
        ws_version_put(v);
    if (m)
        ws_model_put(m);
    return rc;
}

/* --- the rest --- */

static const struct ws_api_route *const *relay_routes(void *self)
{
    static const struct ws_api_route table[] = {
        WS_API_ROUTE("GET", "/metrics", READ),
        WS_API_ROUTE("GET", "/v1/status", READ),
        WS_API_ROUTE("GET", "/v1/{model}/{version}/" WS_PROOF_VERB, READ),
        {0},
    };
    static const struct ws_api_route *const tables[] = {table, NULL};

    (void)self;
    return tables;
}

static int relay_no_route(void *self, const char *method, const char *path, struct ws_error *err)
{
    (void)self;
    (void)method;
    if (strncmp(path, "/v1/", 4) == 0)
        return ws_error_set(err, ENOTSUP, "this is a mount that serves, no agent: it answers no %s", path);
    return ws_error_set(err, ENOENT, "there is no %s here", path);
}

static int relay_route(void *self, const struct ws_identity *who, const char *method, const char *path,
                       const char *query, const json_t *body, json_t **reply, char **text,
                       struct ws_error *err)
{
    struct ws_relay *r = self;
    struct ws_tcp_server_stats s;
    struct ws_api_request q;
    size_t n = 0;

    (void)who;
    (void)body;
    if (strcmp(method, "GET") == 0 && ws_api_parse(path, query, &q, NULL) == 0 && q.has_version &&
        strcmp(q.verb, WS_PROOF_VERB) == 0)
        return relay_signature(r, &q, query, reply, err);
    if (strcmp(method, "GET") == 0 && strcmp(path, "/v1/status") == 0)
        return (*reply = ws_status_json(r->control)) ? 0
                                                     : ws_error_set(err, ENOMEM, "no memory for the status");
    if (strcmp(path, "/metrics") != 0) /* as .../map, which the socket of an agent has */
        return relay_no_route(self, method, path, err);
    FILE *f = open_memstream(text, &n);
    if (!f)
        return ws_error_set(err, ENOMEM, "no memory for the metrics");
    ws_tcp_server_stats(r->server, &s);
    fprintf(f,
            "# HELP wsync_relay_sent_bytes_total Bytes of bodies that were sent to other mounts.\n"
            "# TYPE wsync_relay_sent_bytes_total counter\nwsync_relay_sent_bytes_total %" PRIu64 "\n"
            "# HELP wsync_relay_requests_total Requests of other mounts.\n"
            "# TYPE wsync_relay_requests_total counter\nwsync_relay_requests_total %" PRIu64 "\n"
            "# HELP wsync_relay_connections Connections that are open.\n"
            "# TYPE wsync_relay_connections gauge\nwsync_relay_connections %u\n"
            "# HELP wsync_relay_refused_total Requests that were refused, by status.\n"
            "# TYPE wsync_relay_refused_total counter\nwsync_relay_refused_total{status=\"401\"} %" PRIu64
            "\n"
            "wsync_relay_refused_total{status=\"403\"} %" PRIu64
            "\n# HELP wsync_relay_ended_total Connections that the mount ended, by reason.\n"
            "# TYPE wsync_relay_ended_total counter\n",
            s.bytes_sent, s.requests, s.connections, s.unknown, s.forbidden);
    ws_tcp_server_print_ended(&s, "wsync_relay_ended_total", f);
    ws_tcp_server_print_certificate(&s, "wsync_relay_certificate_end_timestamp_seconds", f);
    return fclose(f) == 0 ? 0 : ws_error_set(err, ENOMEM, "no memory for the metrics");
}

static const struct ws_catalog_ops ops = {
    .seq = relay_seq,
    .models = relay_models,
    .lease = relay_lease,
    .deltas = relay_deltas,
    .delta = relay_delta,
    .release = relay_release,
    .here = relay_here,
    .some = relay_some,
    .forget = relay_forget,
    .routes = relay_routes,
    .route = relay_route,
    .no_route = relay_no_route,
};

/* Is it the version, or a part in its memory? */
static bool is_of(const struct ws_version *leased, const struct ws_version *v)
{
    return leased == v || (ws_part_view(leased) && ws_part_view(leased)->whole == v);
}

/* Of the store. */
static void on_change(void *arg, enum ws_store_event change, struct ws_model *m, struct ws_version *v)
{
    struct ws_relay *r = arg;

    (void)m;
    pthread_mutex_lock(&r->lock);
    if (change == WS_VERSION_GONE) {
        for (struct relay_lease *lease = LIST_FIRST(&r->leases); lease; lease = LIST_NEXT(lease, link)) {
            if (is_of(lease->version, v) && lease->revoked)
                lease->revoked(lease->revoked_arg);
        }
    }
    r->dirty = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

int ws_relay_new(struct ws_relay **out, struct ws_store *store, struct ws_control *control,
                 const struct ws_tcp_server_options *options, struct ws_error *err)
{
    struct ws_relay *r = calloc(1, sizeof(*r));
    int rc;

    if (!r)
        return ws_error_set(err, ENOMEM, "no memory to serve other mounts");
    r->store = store;
    r->control = control;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    atomic_init(&r->seq, ws_clock_day_ns() /
                             1000); /* a mount that polled the relay before this one is answered at once */
    rc = ws_proofs_new(&r->proofs, err);
    if (rc == 0)
        rc = ws_tcp_server_new(&r->server, &(struct ws_catalog){&ops, r}, options, err);
    if (rc == 0 && (rc = ws_thread_start(&r->announcer, announce, r)) < 0) {
        ws_error_set(err, -rc, "cannot start a thread to serve other mounts: %s", strerror(-rc));
        ws_tcp_server_free(r->server);
    }
    if (rc < 0) {
        r->server = NULL;
        ws_relay_free(r);
        return rc;
    }
    ws_store_listen(store, on_change, r);
    ws_log(WS_LOG_INFO, "mount", "other mounts are served at=%s port=%u", options->listen,
           ws_tcp_server_port(r->server));
    *out = r;
    return 0;
}

unsigned ws_relay_port(const struct ws_relay *r)
{
    return ws_tcp_server_port(r->server);
}

void ws_relay_stop(struct ws_relay *r)
{
    if (!r || !r->server)
        return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->announcer, NULL);
    ws_tcp_server_free(r->server);
    r->server = NULL;
    ws_proofs_stop(r->proofs);
}

void ws_relay_free(struct ws_relay *r)
{
    if (!r)
        return;
    ws_relay_stop(r);
    ws_proofs_free(r->proofs);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
