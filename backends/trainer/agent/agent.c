/* The agent: what it serves, the thread that hashes and announces what ranks have committed, and its life
 * from start to stop. The features are listed in core/features.h. */
#include "backends/trainer/agent/agent.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/leases.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/slots.h"
#include "backends/trainer/agent/delta/encoder.h"
#include "backends/trainer/agent/group/group.h"
#include "backends/trainer/agent/mounts/routes.h"
#include "backends/trainer/agent/ranks/routes.h"
#include "backends/trainer/agent/status.h"
#include "transports/base/clock.h"
#include "transports/base/cpu_features.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_SLOTS 4
#define IDLE_MS       2000 /* for a rank's descriptors to be closed */
#define IDLE_STEP_MS  10

/* --- catalog --- */

static uint64_t agent_seq(void *self)
{
    return atomic_load(&((struct ws_agent *)self)->seq);
}

static json_t *slot_json(const struct ws_slot *s)
{
    return json_pack("{s:I,s:s,s:s,s:I,s:I}", "version", (json_int_t)s->version, "run", s->lineage, "digest",
                     s->manifest->digest, "bytes", (json_int_t)s->manifest->total_bytes, "created_ns",
                     (json_int_t)s->manifest->created_ns);
}

static json_t *model_json(const struct ws_agent *a, const struct ws_agent_model *m)
{
    const struct ws_slot *order[WS_MAX_SLOTS];
    unsigned n = 0;
    const char *digest = "";
    json_t *versions = json_array();
    for (unsigned i = 0; i < m->n_slots; i++) { /* oldest first */
        unsigned at = n;
        if (m->slots[i]->state != WS_SLOT_SERVED)
            continue;
        while (at > 0 && order[at - 1]->manifest->created_ns > m->slots[i]->manifest->created_ns)
            at--;
        memmove(&order[at + 1], &order[at], (n - at) * sizeof(order[0]));
        order[at] = m->slots[i];
        n++;
    }
    for (unsigned i = 0; i < n; i++) {
        json_array_append_new(versions, slot_json(order[i]));
        if (order[i]->version == m->newest && strcmp(order[i]->lineage, m->lineage) == 0)
            digest = order[i]->manifest->digest;
    }
    json_t *out = json_pack("{s:s,s:I,s:s,s:s,s:o}", "name", m->name, "newest", (json_int_t)m->newest, "run",
                            m->lineage, "digest", digest, "versions", versions);
    if (m->nodes) {
        unsigned index = 0, count = 0;
        (void)ws_name_is_node_part(m->name, NULL, &index, &count);
        json_object_set_new(out, "part",
                            json_pack("{s:i,s:i,s:o?}", "index", (int)index, "count", (int)count, "nodes",
                                      json_loads(m->nodes, 0, NULL)));
    }
    ws_features_list(a, m, out);
    return out;
}

/* Of a model in parts the versions are the parts'; the primary alone lists the model itself, with its orders.
 */
static bool is_listed(const struct ws_agent *a, const struct ws_agent_model *m, const char *asked)
{
    char base[WS_MAX_NAME + 1];
    if (!m->has_published || (a->primary && !m->nodes && m->slot_owner != m))
        return false;
    if (!asked || strcmp(asked, m->name) == 0)
        return true;
    return m->nodes && ws_name_is_node_part(m->name, base, NULL, NULL) && strcmp(asked, base) == 0;
}

static int agent_models(void *self, const char *model, json_t **out, struct ws_error *err)
{
    struct ws_agent *a = self;
    json_t *models = json_array();
    uint64_t seq = atomic_load(&a->seq); /* before looking: what changes meanwhile is asked for again */
    pthread_mutex_lock(&a->lock);
    bool found = !model;
    for (struct ws_agent_model *m = a->models; m; m = m->next) {
        if (!is_listed(a, m, model))
            continue;
        found = true;
        json_array_append_new(models, model_json(a, m));
    }
    pthread_mutex_unlock(&a->lock);
    if (!found) {
        json_decref(models);
        return ws_error_set(err, ENOENT, "there is no model '%s' here", model);
    }
    *out = json_pack("{s:I,s:I,s:o}", "seq", (json_int_t)seq, "agent", (json_int_t)a->instance, "models",
                     models);
    return *out ? 0 : ws_error_set(err, ENOMEM, "no memory for the list of models");
}

static const struct ws_api_route *const *agent_routes(void *self)
{
    return ((struct ws_agent *)self)->routes;
}

static const struct ws_catalog_ops catalog_ops = {
    .seq = agent_seq,
    .models = agent_models,
    .lease = ws_agent_lease_acquire,
    .release = ws_agent_lease_release,
    .lend = ws_agent_lease_lend,
    .deltas = ws_encoder_deltas,
    .delta = ws_encoder_delta,
    .seen = ws_mounts_seen,
    .routes = agent_routes,
    .route = ws_status_route,
    .no_route = ws_status_no_route,
};

/* --- finishing versions: hash, seal, announce --- */

static struct ws_agent_model *next_to_finish(struct ws_agent *a)
{
    for (struct ws_agent_model *m = a->models; m; m = m->next)
        if (m->writing && m->writing->state == WS_SLOT_HASHING)
            return m;
    return NULL;
}

/* Waits until this process alone has the slot's files open; a rank closed its descriptors at its commit. */
static int wait_until_idle(struct ws_agent *a, struct ws_slot *s)
{
    const uint64_t end = ws_clock_ns() + IDLE_MS * WS_MS_NS; /* other events wake the thread, too */
    /* where that cannot be known, readers get copies only, which are compared */
    while (ws_slot_idle(s) == -EBUSY) {
        if (atomic_load(&a->stop) || ws_clock_ns() > end)
            return -EBUSY;
        (void)ws_agent_wait(a, ws_clock_ns() + IDLE_STEP_MS * WS_MS_NS);
    }
    return 0;
}

/* Under lock. A version that was hashed, or could not be. */
static bool conclude(struct ws_agent *a, struct ws_agent_model *m, int rc, const struct ws_error *err)
{
    bool announced = false;
    if (rc < 0)
        snprintf(m->why, sizeof(m->why), "version %" PRIu64 " of %s was refused: %s", m->writing_version,
                 m->name, err->text);
    m->writing->state = WS_SLOT_SEALED;
    if (ws_group_sealed(a, m, rc < 0 ? err->text : NULL, &announced)) {
        if (rc < 0)
            ws_agent_model_discard(a, m);
        else
            ws_agent_model_publish(a, m);
        announced = true;
    }
    return announced;
}

static void finish(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_slot *s = m->writing;
    struct ws_error err = {0};
    int rc = wait_until_idle(a, s);
    s->manifest->created_ns = ws_clock_day_ns();
    pthread_mutex_unlock(&a->lock);
    if (rc == 0)
        rc = ws_slot_seal(s, a->workers, a->options.sign_key, &err);
    else
        ws_error_set(&err, EBUSY, "a process still has it open after its commit");
    if (rc == 0)
        ws_features_sealed(a);
    pthread_mutex_lock(&a->lock);
    bool announced = conclude(a, m, rc, &err);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (announced)
        ws_agent_announce(a);
    pthread_mutex_lock(&a->lock);
}

static void *finisher(void *arg)
{
    struct ws_agent *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->stop)) {
        struct ws_agent_model *m = next_to_finish(a);
        if (m)
            finish(a, m);
        else
            pthread_cond_wait(&a->changed, &a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* --- start and stop --- */

#define FEATURE(name) &ws_feature_##name,
static const struct ws_agent_feature *const features[] = {WS_AGENT_FEATURES(FEATURE) NULL};
#undef FEATURE

static void collect_routes(const struct ws_api_route *out[WS_N_FEATURES + 2])
{
    size_t n = 0;
    out[n++] = ws_status_routes;
    for (const struct ws_agent_feature *const *f = features; *f; f++)
        if ((*f)->routes)
            out[n++] = (*f)->routes;
    out[n] = NULL;
}

/* A line a route: which carrier has it, its role, method and path. */
static void print_route(FILE *f, const char *carrier, unsigned role, const char *method, const char *prefix,
                        const char *path)
{
    fprintf(f, "%-8s %-8s %-5s %s%s\n", carrier, ws_role_name(role), method, prefix, path);
}

/* Bytes travel by HTTP only, descriptors by the socket. */
static const char *carrier_of(const char *pattern)
{
    const char *verb = strrchr(pattern, '/') + 1;
    if (strcmp(verb, "map") == 0 || strcmp(verb, "unmap") == 0)
        return "unix";
    return strcmp(verb, "delta") == 0 || strcmp(verb, "{file}") == 0 ? "http" : "both";
}

void ws_agent_print_routes(FILE *f)
{
    const struct ws_api_route *tables[WS_N_FEATURES + 2];
    collect_routes(tables);
    fprintf(f, "%-8s %-8s %-5s %s\n", "carrier", "role", "", "path");
    print_route(f, "http", WS_ROLE_OPEN, "GET", "", "/");
    print_route(f, "http", WS_ROLE_OPEN, "GET", "", "/healthz");
    print_route(f, "http", WS_ROLE_READ, "POST", "", "/healthz");
    for (const struct ws_api_route *r = ws_api_routes; r->method; r++)
        print_route(f, carrier_of(r->pattern), r->role, r->method, "", r->pattern);
    for (size_t i = 0; tables[i]; i++)
        for (const struct ws_api_route *r = tables[i]; r->method; r++)
            print_route(f, "both", r->role, r->method, "", r->pattern);
    for (const struct ws_rank_route *r = ws_rank_routes; r->verb; r++)
        print_route(f, "unix", r->role, "POST", "/v1/local/", r->verb);
    for (const struct ws_agent_feature *const *i = features; *i; i++)
        for (const struct ws_rank_route *r = (*i)->rank_routes; r && r->verb; r++)
            print_route(f, "unix", r->role, "POST", "/v1/local/", r->verb);
}

void ws_agent_free(struct ws_agent *a)
{
    if (!a)
        return;
    atomic_store(&a->stop, true);
    pthread_mutex_lock(&a->lock);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (a->workers) { /* it wakes the servers */
        pthread_join(a->finisher, NULL);
        ws_workers_free(a->workers);
    }
    ws_features_stop(a); /* responses wait for what they make; they wake the servers */
    pthread_mutex_lock(&a->lock);
    struct ws_ipc_server *ipc = atomic_exchange(&a->ipc, NULL); /* no thread wakes it any more */
    pthread_mutex_unlock(&a->lock);
    ws_ipc_server_free(ipc); /* its threads wake the other */
    ws_tcp_server_free(atomic_load(&a->tcp));
    ws_features_end(a);
    ws_agent_models_free(a);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

int ws_agent_new(struct ws_agent **out, const struct ws_agent_options *options, struct ws_error *err)
{
    struct ws_agent *a = calloc(1, sizeof(*a));
    if (!a)
        return ws_error_set(err, ENOMEM, "no memory for an agent");
    a->options = *options;
    a->options.tcp.access.socket = options->socket;
    a->features = features;
    collect_routes(a->routes);
    a->catalog = (struct ws_catalog){&catalog_ops, a};
    if (a->options.max_slots == 0)
        a->options.max_slots = DEFAULT_SLOTS;
    if (a->options.max_slots < 2 || a->options.max_slots > WS_MAX_SLOTS) {
        free(a);
        return ws_error_set(err, EINVAL, "a model has 2 to %d slots, not %u", WS_MAX_SLOTS,
                            options->max_slots);
    }
    if (ws_features_init(a) < 0) {
        free(a);
        return ws_error_set(err, ENOMEM, "no memory for an agent");
    }
    if (a->options.n_threads == 0)
        a->options.n_threads = ws_cpu_cores(0);
    pthread_mutex_init(&a->lock, NULL);
    ws_cond_init(&a->changed);
    a->instance =
        ws_clock_day_ns() / 1000; /* a client that polled the agent before this one is answered at once */
    atomic_store(&a->seq, a->instance);
    int rc = 0;
    a->workers = ws_workers_new(a->options.n_threads, a->options.nice);
    if (!a->workers || ws_thread_start(&a->finisher, finisher, a) < 0) {
        ws_workers_free(a->workers);
        a->workers = NULL;
        rc = ws_error_set(err, EAGAIN, "cannot start the agent's threads");
    }
    if (rc == 0)
        rc = ws_features_start(a, err);
    /* TCP first: publishers can come as soon as the socket is there, and announce to both. */
    struct ws_tcp_server *tcp = NULL;
    struct ws_ipc_server *ipc = NULL;
    if (rc == 0 && options->tcp.listen)
        rc = ws_tcp_server_new(&tcp, &a->catalog, &a->options.tcp, err);
    atomic_store(&a->tcp, tcp);
    if (rc == 0)
        rc = ws_features_serve(a, err);
    if (rc == 0 && options->socket)
        rc = ws_ipc_server_new(&ipc, options->socket, options->socket_gid, &a->catalog, &ws_rank_handler, a,
                               err);
    atomic_store(&a->ipc, ipc);
    ws_agent_announce(a); /* clients that connected meanwhile are notified again */
    if (rc < 0) {
        ws_agent_free(a);
        return rc;
    }
    *out = a;
    return 0;
}

unsigned ws_agent_port(const struct ws_agent *a)
{
    struct ws_tcp_server *tcp = atomic_load(&a->tcp);
    return tcp ? ws_tcp_server_port(tcp) : 0;
}
