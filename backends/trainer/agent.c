#include "backends/trainer/agent.h"
#include "backends/trainer/agent_delta.h"
#include "backends/trainer/agent_features.h"
#include "backends/trainer/agent_fleet.h"
#include "backends/trainer/agent_group.h"
#include "transports/clock.h"
#include "transports/log.h"
#include "transports/workers.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_SLOTS 4
#define IDLE_MS       2000 /* for a rank's descriptors to be closed */
#define IDLE_STEP_MS  10

bool ws_agent_wait(struct ws_agent *a, uint64_t deadline_ns)
{
    if (atomic_load(&a->stop))
        return false;
    return ws_cond_wait_until(&a->changed, &a->lock, deadline_ns) != ETIMEDOUT;
}

void ws_agent_announce(struct ws_agent *a)
{
    struct ws_tcp_server *tcp = atomic_load(&a->tcp);
    struct ws_ipc_server *ipc = atomic_load(&a->ipc);
    atomic_fetch_add(&a->seq, 1);
    if (tcp)
        ws_tcp_server_wake(tcp);
    if (ipc)
        ws_ipc_server_wake(ipc);
    pthread_mutex_lock(&a->lock);
    ws_features_announced(a);
    pthread_mutex_unlock(&a->lock);
}

/* --- models --- */

struct ws_agent_model *ws_agent_find(struct ws_agent *a, const char *name)
{
    for (struct ws_agent_model *m = a->models; m; m = m->next)
        if (strcmp(m->name, name) == 0)
            return m;
    return NULL;
}

struct ws_agent_model *ws_agent_find_or_add(struct ws_agent *a, const char *name)
{
    struct ws_agent_model *m = ws_agent_find(a, name), **at = &a->models;
    unsigned n = 0;
    if (m)
        return m;
    for (const struct ws_agent_model *i = a->models; i; i = i->next)
        n++;
    m = n < WS_MAX_MODELS ? calloc(1, sizeof(*m)) : NULL;
    if (!m || !(m->name = strdup(name))) {
        free(m);
        return NULL;
    }
    m->max_slots = a->options.max_slots;
    while (*at && strcmp((*at)->name, name) < 0)
        at = &(*at)->next;
    m->next = *at;
    *at = m;
    return m;
}

/* No rank remembers the slot, which the next version may get. */
static void end_writing(struct ws_agent *a, struct ws_agent_model *m)
{
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->ranks && m->ranks[r])
            m->ranks[r]->committed = NULL;
    m->writing = NULL;
    m->n_begun = m->n_committed = m->n_left = 0;
    pthread_cond_broadcast(&a->changed);
}

void ws_agent_say_why(struct ws_agent_model *m, const char *why)
{
    char text[WS_ERROR_TEXT]; /* why may be m->why */
    if (m->writing)
        snprintf(text, sizeof(text), "version %" PRIu64 " of %s was abandoned: %s", m->writing_version,
                 m->name, why);
    else
        snprintf(text, sizeof(text), "%s", why);
    memcpy(m->why, text, sizeof(m->why));
}

void ws_agent_discard(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_slot *s = m->writing;
    m->given_up = ws_mark_of(m->writing_version, s->run);
    ws_slot_clear(s);
    s->state = WS_SLOT_RETIRED;
    m->abandoned++;
    ws_log(WS_LOG_WARN, "agent", "version abandoned model=%s version=%" PRIu64 " why=\"%s\"", m->name,
           m->writing_version, m->why);
    ws_features_discarded(a, m);
    end_writing(a, m);
}

void ws_agent_abandon(struct ws_agent *a, struct ws_agent_model *m, const char *why)
{
    struct ws_slot *s = m->writing;
    if (!s || s->state != WS_SLOT_WRITING)
        return; /* all ranks have committed: it will be published */
    ws_agent_say_why(m, why);
    for (unsigned r = 0; r < m->world_size; r++) {
        if (m->ranks && m->ranks[r] && m->ranks[r]->writing) {
            m->ranks[r]->writing = false;
            m->ranks[r]->lost = true;
        }
    }
    ws_agent_discard(a, m);
    ws_features_abandoned(a, m, why);
}

/* --- catalog --- */

static uint64_t agent_seq(void *self)
{
    return atomic_load(&((struct ws_agent *)self)->seq);
}

static json_t *slot_json(const struct ws_slot *s)
{
    return json_pack("{s:I,s:s,s:s,s:I,s:I}", "version", (json_int_t)s->version, "run", s->run, "digest",
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
        if (order[i]->version == m->newest && strcmp(order[i]->run, m->run) == 0)
            digest = order[i]->manifest->digest;
    }
    json_t *out = json_pack("{s:s,s:I,s:s,s:s,s:o}", "name", m->name, "newest", (json_int_t)m->newest, "run",
                            m->run, "digest", digest, "versions", versions);
    if (m->nodes) {
        unsigned index = 0, count = 0;
        (void)ws_name_is_part(m->name, NULL, &index, &count);
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
    if (!m->any || (a->primary && m->owner && m->owner != m))
        return false;
    if (!asked || strcmp(asked, m->name) == 0)
        return true;
    return m->nodes && ws_name_is_part(m->name, base, NULL, NULL) && strcmp(asked, base) == 0;
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
    *out = json_pack("{s:I,s:I,s:o}", "seq", (json_int_t)seq, "agent", (json_int_t)a->born, "models", models);
    return *out ? 0 : ws_error_set(err, ENOMEM, "no memory for the list of models");
}

int ws_agent_hold(void *self, const char *model, uint64_t version, const char *run, const char *holder,
                  void (*revoked)(void *), void *arg, struct ws_hold **out, struct ws_error *err)
{
    struct ws_agent *a = self;
    struct ws_slot_hold *h = NULL;
    int rc = 0;
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = ws_agent_find(a, model);
    for (unsigned i = 0; m && i < m->n_slots && !h && rc == 0; i++) {
        struct ws_slot *s = m->slots[i];
        if (s->state != WS_SLOT_SERVED || s->version != version || strcmp(s->run, run ? run : m->run) != 0)
            continue;
        h = ws_slot_take(s, holder, revoked, arg);
        if (!h)
            rc = ws_error_set(err, ENOMEM, "no memory for a lease");
    }
    if (!h && rc == 0 && m)
        rc = ws_features_want(a, m, version, run ? run : m->run, err);
    if (!m || !m->any)
        rc = ws_error_set(err, ENOENT, "there is no model '%s' here", model);
    else if (!h && rc == 0 && m->owner && m->owner != m)
        rc = ws_error_set(err, EOPNOTSUPP,
                          "the trainer of %s spans nodes, and this agent has only its node's part: read it "
                          "through a mount of all of them",
                          model);
    else if (!h && rc == 0 && run && strcmp(run, m->run) == 0 && version > m->newest)
        rc = ws_error_set(err, ENOENT, "%s/%" PRIu64 " was not published yet; the newest is %" PRIu64, model,
                          version, m->newest);
    else if (!h && rc == 0 && !run && version > m->newest)
        rc = ws_error_set(err, ENOENT, "%s has no version %" PRIu64 "; the newest is %" PRIu64, model,
                          version, m->newest);
    else if (!h && rc == 0)
        rc = ws_error_set(err, ESTALE, "%s/%" PRIu64 " is not here (any more): the newest is %" PRIu64, model,
                          version, m->newest);
    pthread_mutex_unlock(&a->lock);
    if (h)
        *out = &h->base;
    return rc;
}

void ws_agent_drop(void *self, struct ws_hold *hold)
{
    struct ws_agent *a = self;
    pthread_mutex_lock(&a->lock);
    ws_slot_drop((struct ws_slot_hold *)hold);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static const struct ws_catalog_ops catalog_ops = {
    .seq = agent_seq,
    .models = agent_models,
    .hold = ws_agent_hold,
    .drop = ws_agent_drop,
    .lend = ws_agent_lend,
    .deltas = ws_agent_deltas,
    .delta = ws_agent_delta,
    .seen = ws_agent_seen,
    .route = ws_agent_route,
};

/* --- finishing versions: hash, seal, announce --- */

static struct ws_agent_model *next_to_finish(struct ws_agent *a)
{
    for (struct ws_agent_model *m = a->models; m; m = m->next)
        if (m->writing && m->writing->state == WS_SLOT_HASHING)
            return m;
    return NULL;
}

/* Nobody but us may have it open from now on; a rank's descriptors were closed at its commit. */
static int prove_idle(struct ws_agent *a, struct ws_slot *s)
{
    const uint64_t end = ws_clock_ns() + IDLE_MS * WS_MS_NS; /* what happens elsewhere wakes us, too */
    while (ws_slot_idle(s) ==
           -EBUSY) { /* where nobody can tell, readers only get copies, which are compared */
        if (atomic_load(&a->stop) || ws_clock_ns() > end)
            return -EBUSY;
        (void)ws_agent_wait(a, ws_clock_ns() + IDLE_STEP_MS * WS_MS_NS);
    }
    return 0;
}

static void note_newest(struct ws_agent_model *m, uint64_t version, const char *run)
{
    snprintf(m->run, sizeof(m->run), "%s", run);
    m->newest = version;
    m->any = true;
    m->published++;
}

/* A model that changes between whole and in parts: what it had the other way goes. */
static void leave_others(struct ws_agent *a, const struct ws_agent_model *m)
{
    char base[WS_MAX_NAME + 1];
    for (struct ws_agent_model *o = a->models; o; o = o->next) {
        if (o == m->owner ||
            (o != m && !(ws_name_is_part(o->name, base, NULL, NULL) && !strcmp(base, m->name))))
            continue;
        ws_agent_give_up_slots(a, o);
        o->any = o->any && o == m;
    }
}

void ws_agent_publish(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_slot *s = m->writing;
    struct ws_agent_model *owner = m->owner;
    s->fresh = false;
    s->has = ws_mark_of(s->version, s->run);
    s->state = WS_SLOT_SERVED;
    if (!ws_features_written(a, m, s)) {
        ws_features_published(a, m, s);
        note_newest(owner, s->version, s->run);
        if (owner != m)
            note_newest(m, s->version, s->run);
        leave_others(a, m);
    }
    ws_rank_records_free(s->records); /* no delta is made of them any more */
    s->records = NULL;
    ws_log(WS_LOG_INFO, "agent", "published model=%s version=%" PRIu64 " run=%s bytes=%" PRIu64 " digest=%s",
           owner->name, s->version, s->run, s->manifest->total_bytes, s->manifest->digest);
    end_writing(a, m);
}

void ws_agent_publish_unmade(struct ws_agent *a, struct ws_agent_model *m, uint64_t version, const char *run)
{
    note_newest(m, version, run);
    leave_others(a, m);
    ws_log(WS_LOG_INFO, "agent", "published model=%s version=%" PRIu64 " run=%s on-demand", m->name, version,
           run);
}

/* Under lock. A version that was hashed, or could not be. */
static bool settle(struct ws_agent *a, struct ws_agent_model *m, int rc, const struct ws_error *err)
{
    bool tell = false;
    if (rc < 0)
        snprintf(m->why, sizeof(m->why), "version %" PRIu64 " of %s was refused: %s", m->writing_version,
                 m->name, err->text);
    m->writing->state = WS_SLOT_SEALED;
    if (ws_group_sealed(a, m, rc < 0 ? err->text : NULL, &tell)) {
        if (rc < 0)
            ws_agent_discard(a, m);
        else
            ws_agent_publish(a, m);
        tell = true;
    }
    return tell;
}

static void finish(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_slot *s = m->writing;
    struct ws_error err = {0};
    int rc = prove_idle(a, s);
    s->manifest->created_ns = ws_clock_day_ns();
    pthread_mutex_unlock(&a->lock);
    if (rc == 0)
        rc = ws_slot_seal(s, a->workers, &err);
    else
        ws_error_set(&err, EBUSY, "a process still has it open after its commit");
    pthread_mutex_lock(&a->lock);
    bool tell = settle(a, m, rc, &err);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (tell)
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

static void free_model(const struct ws_agent *a, struct ws_agent_model *m)
{
    for (unsigned i = 0; i < m->n_slots; i++)
        ws_slot_free(m->slots[i]);
    ws_features_free(a, m);
    ws_placement_free(m->placement);
    ws_placement_free(m->share);
    free(m->nodes);
    free(m->ranks);
    free(m->name);
    free(m);
}

void ws_agent_free(struct ws_agent *a)
{
    if (!a)
        return;
    atomic_store(&a->stop, true);
    pthread_mutex_lock(&a->lock);
    pthread_cond_broadcast(&a->changed);
    pthread_cond_broadcast(&a->group_changed);
    pthread_mutex_unlock(&a->lock);
    if (a->workers) { /* it wakes the servers */
        pthread_join(a->finisher, NULL);
        ws_workers_free(a->workers);
    }
    ws_features_stop(a);                      /* responses wait for what they make; they wake the servers */
    ws_ipc_server_free(atomic_load(&a->ipc)); /* its threads wake the other */
    ws_tcp_server_free(atomic_load(&a->tcp));
    ws_features_end(a);
    for (struct ws_agent_model *m = a->models, *next; m; m = next) {
        next = m->next;
        free_model(a, m);
    }
    pthread_cond_destroy(&a->group_changed);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

int ws_agent_new(struct ws_agent **out, const struct ws_agent_options *options, struct ws_error *err)
{
    struct ws_agent *a = calloc(1, sizeof(*a));
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (!a)
        return ws_error_set(err, ENOMEM, "no memory for an agent");
    a->options = *options;
    a->features = features;
    a->catalog = (struct ws_catalog){&catalog_ops, a};
    if (a->options.max_slots == 0)
        a->options.max_slots = DEFAULT_SLOTS;
    if (a->options.max_slots < 2 || a->options.max_slots > WS_MAX_SLOTS) {
        free(a);
        return ws_error_set(err, EINVAL, "a model has 2 to %d slots, not %u", WS_MAX_SLOTS,
                            options->max_slots);
    }
    if (a->options.n_threads == 0)
        a->options.n_threads = cores > 0 ? (unsigned)cores : 1;
    pthread_mutex_init(&a->lock, NULL);
    ws_cond_init(&a->changed);
    ws_cond_init(&a->group_changed);
    a->born = ws_clock_day_ns() / 1000; /* so that who polled an agent before this one is answered at once */
    atomic_store(&a->seq, a->born);
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
        rc = ws_tcp_server_new(&tcp, &a->catalog, &options->tcp, err);
    atomic_store(&a->tcp, tcp);
    if (rc == 0)
        rc = ws_features_serve(a, err);
    if (rc == 0 && options->socket)
        rc = ws_ipc_server_new(&ipc, options->socket, options->socket_gid, &a->catalog, &ws_agent_local, a,
                               err);
    atomic_store(&a->ipc, ipc);
    ws_agent_announce(a); /* who came in between is told again */
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
