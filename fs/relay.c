#include "fs/relay.h"
#include "fs/store/model.h"
#include "fs/store/offers.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct relay_hold {
    struct ws_hold base; /* its pointers are set when what they lead to is here */
    struct ws_relay *relay;
    struct ws_version *version; /* counted */
    struct ws_region **regions;
    struct ws_wait wait; /* for what was asked last */
    void (*arrived)(void *arg);
    void *arrived_arg;
    atomic_int failed; /* what the wait ended with, negative: it stays */
    void (*revoked)(void *arg);
    void *revoked_arg;
    struct relay_hold *next, *prev; /* guarded by relay->lock */
};

struct ws_relay {
    struct ws_store *store;
    struct ws_tcp_server *server;
    _Atomic(uint64_t) seq;
    pthread_t announcer;
    pthread_mutex_t lock; /* taken before the server's own; never while a hold is asked about */
    pthread_cond_t changed;
    /* guarded by lock */
    struct relay_hold *holds;
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

/* Compares what would be listed with what was, and wakes those who poll where it differs. */
static void *announce(void *arg)
{
    struct ws_relay *r = arg;
    json_t *told = NULL;

    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        json_t *now = NULL;
        if (!r->dirty) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        r->dirty = false;
        pthread_mutex_unlock(&r->lock);
        if (ws_offers_list(r->store, NULL, 0, &now, NULL) == 0 && !json_equal(now, told)) {
            atomic_fetch_add(&r->seq, 1);
            ws_tcp_server_wake(r->server);
        }
        json_decref(told);
        told = now;
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    json_decref(told);
    return NULL;
}

/* --- holds --- */

static void link_hold(struct relay_hold *h)
{
    struct ws_relay *r = h->relay;

    pthread_mutex_lock(&r->lock);
    h->next = r->holds;
    if (r->holds)
        r->holds->prev = h;
    r->holds = h;
    pthread_mutex_unlock(&r->lock);
}

static void relay_drop(void *self, struct ws_hold *hold)
{
    struct ws_relay *r = self;
    struct relay_hold *h = (struct relay_hold *)hold;

    pthread_mutex_lock(&r->lock);
    *(h->prev ? &h->prev->next : &r->holds) = h->next;
    if (h->next)
        h->next->prev = h->prev;
    pthread_mutex_unlock(&r->lock);
    ws_version_put(h->version);
    free(h->regions);
    free(h);
}

static void on_wait(struct ws_wait *w, int result)
{
    struct relay_hold *h = (struct relay_hold *)((char *)w - offsetof(struct relay_hold, wait));

    atomic_store(&h->failed, result);
    h->arrived(h->arrived_arg); /* h may be gone now */
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

static int relay_hold(void *self, const char *model, uint64_t version, const char *run, const char *holder,
                      void (*revoked)(void *), void *arg, struct ws_hold **out, struct ws_error *err)
{
    struct ws_relay *r = self;
    struct ws_model *m = ws_store_find(r->store, model);
    struct ws_version *v = m ? ws_version_at(m, version, run) : NULL;
    struct relay_hold *h = v ? calloc(1, sizeof(*h)) : NULL;
    int rc = v ? 0 : none(m, model, version, err);

    (void)holder;
    if (m)
        ws_model_put(m);
    if (v && !h) {
        ws_version_put(v);
        rc = ws_error_set(err, ENOMEM, "no memory for a lease");
    }
    if (rc < 0)
        return rc;
    *h = (struct relay_hold){
        .relay = r, .version = v, .wait.done = on_wait, .revoked = revoked, .revoked_arg = arg};
    link_hold(h);
    /* One that lost its name before it was linked is not revoked any more. */
    if (!ws_version_is_named(v)) {
        relay_drop(r, &h->base);
        return ws_error_set(err, ESTALE, "%s/%" PRIu64 " was just dropped", model, version);
    }
    *out = &h->base;
    return 0;
}

/* Why it does not come, by what the wait ended with. */
static int why_not(struct relay_hold *h, int rc, struct ws_error *err)
{
    struct ws_version *v = h->version;
    struct ws_version_info info;

    ws_version_info(v, &info);
    if (rc == -ECANCELED)
        return ws_error_set(err, EAGAIN, "%s/%" PRIu64 " is not fetched here just now",
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

/* The pointers that the hold can have by now. */
static int point(struct relay_hold *h, size_t file, size_t n)
{
    const struct ws_manifest *m = ws_version_manifest(h->version, NULL);

    h->base.manifest = m;
    if (!h->regions && !(h->regions = calloc(m->n_files ? m->n_files : 1, sizeof(struct ws_region *))))
        return -ENOMEM;
    h->base.regions = h->regions;
    if (n > 0 && file < m->n_files)
        h->regions[file] = ws_version_region(h->version, file);
    return 0;
}

static int relay_here(void *self, struct ws_hold *hold, size_t file, size_t first, size_t n,
                      void (*arrived)(void *), void *arg, struct ws_error *err)
{
    struct relay_hold *h = (struct relay_hold *)hold;
    int rc = (int)ws_wait_is_over(h->version, file, first, n);

    (void)self;
    if (rc == 0) {
        int failed = atomic_load(&h->failed);
        if (failed < 0)
            return why_not(h, failed, err);
        if (!arrived)
            return 0;
        h->arrived = arrived;
        h->arrived_arg = arg;
        rc = ws_version_wait(h->version, file, first, n, WS_ARRIVAL_MS, &h->wait);
    }
    if (rc == 1 && point(h, file, n) < 0)
        return ws_error_set(err, ENOMEM, "no memory for a lease");
    return rc;
}

static bool relay_forget(void *self, struct ws_hold *hold)
{
    (void)self;
    return ws_wait_cancel(&((struct relay_hold *)hold)->wait);
}

/* --- deltas --- */

/* What it takes itself is known once its own pull has begun, which this starts. */
static int relay_deltas(void *self, const char *model, uint64_t version, const char *run, bool look,
                        json_t **out, struct ws_error *err)
{
    struct ws_relay *r = self;
    struct ws_model *m = ws_store_find(r->store, model);
    struct ws_version *v = m ? ws_version_at(m, version, run) : NULL;
    int rc = 0;

    if (!look && v && !atomic_load(&v->decided) && !ws_version_is_complete(v)) {
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
                       const struct ws_mark *base, unsigned level, struct ws_delta **out,
                       struct ws_error *err)
{
    struct ws_relay *r = self;
    struct ws_model *m = ws_store_find(r->store, model);
    struct ws_delta *d = m ? ws_model_delta(m, version, run, base) : NULL;

    (void)level; /* they are passed on as they came */
    if (m)
        ws_model_put(m);
    *out = d;
    return d ? 0
             : ws_error_set(err, ENOENT, "there is no delta from %" PRIu64 " to %s/%" PRIu64 " here",
                            base->version, model, version);
}

/* --- the rest --- */

static int relay_route(void *self, const char *method, const char *path, const char *query,
                       const json_t *body, json_t **reply, char **text, struct ws_error *err)
{
    struct ws_relay *r = self;
    struct ws_tcp_server_stats s;

    (void)query;
    (void)body;
    (void)reply;
    if (strncmp(path, "/v1/", 4) == 0)
        return ws_error_set(err, ENOTSUP, "this is a mount that serves, no agent: it answers no %s", path);
    if (strcmp(method, "GET") != 0 || strcmp(path, "/metrics") != 0)
        return ws_error_set(err, ENOENT, "there is no %s here", path);
    ws_tcp_server_stats(r->server, &s);
    if (asprintf(text,
                 "# TYPE wsync_relay_sent_bytes_total counter\nwsync_relay_sent_bytes_total %" PRIu64 "\n"
                 "# TYPE wsync_relay_requests_total counter\nwsync_relay_requests_total %" PRIu64 "\n"
                 "# TYPE wsync_relay_connections gauge\nwsync_relay_connections %u\n",
                 s.bytes_sent, s.requests, s.connections) < 0)
        return ws_error_set(err, ENOMEM, "no memory for the metrics");
    return 0;
}

static const struct ws_catalog_ops ops = {
    .seq = relay_seq,
    .models = relay_models,
    .hold = relay_hold,
    .deltas = relay_deltas,
    .delta = relay_delta,
    .drop = relay_drop,
    .here = relay_here,
    .forget = relay_forget,
    .route = relay_route,
};

/* Of the store. */
static void on_change(void *arg, enum ws_change change, struct ws_model *m, struct ws_version *v)
{
    struct ws_relay *r = arg;

    (void)m;
    pthread_mutex_lock(&r->lock);
    if (change == WS_VERSION_GONE) {
        for (struct relay_hold *h = r->holds; h; h = h->next) {
            if (h->version == v && h->revoked)
                h->revoked(h->revoked_arg);
        }
    }
    r->dirty = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

int ws_relay_new(struct ws_relay **out, struct ws_store *store, const struct ws_tcp_server_options *options,
                 struct ws_error *err)
{
    struct ws_relay *r = calloc(1, sizeof(*r));
    int rc;

    if (!r)
        return ws_error_set(err, ENOMEM, "no memory to serve other mounts");
    r->store = store;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    atomic_init(&r->seq, ws_clock_day_ns() / 1000); /* who polled the one before is answered at once */
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
}

void ws_relay_free(struct ws_relay *r)
{
    if (!r)
        return;
    ws_relay_stop(r);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
