#include "backends/trainer/agent/gpu/share.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "transports/base/log.h"
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEPT 2 /* packed versions that are offered at once: as many as ranks have buffers */

/* The agent's / a model's. Under lock. */
struct leases {
    uint64_t last_id;
};
struct versions {
    struct ws_gpu_version *newest; /* newer first */
};

static uint64_t *last_lease_id(const struct ws_agent *a)
{
    return &((struct leases *)a->feature_state[WS_FEATURE_gpu])->last_id;
}

struct ws_gpu_version **ws_gpu_versions(const struct ws_agent_model *m)
{
    return &((struct versions *)m->feature_state[WS_FEATURE_gpu])->newest;
}

const char *ws_gpu_version_strategy(const struct ws_gpu_version *v)
{
    return v->packed ? "packed_cuda_ipc" : "cuda_ipc";
}

/* --- shares --- */

static void close_fds(struct ws_gpu_share *s)
{
    for (size_t i = 0; s->fds && i < s->listing->n_segments; i++) {
        for (size_t k = 0; s->fds[i] && k < s->listing->segments[i].n_parts; k++)
            if (s->fds[i][k] >= 0)
                close(s->fds[i][k]);
        free(s->fds[i]);
    }
    free(s->fds);
    s->fds = NULL;
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    s->lock_fd = -1;
}

static void free_share(struct ws_gpu_share *s)
{
    close_fds(s);
    ws_gpu_listing_free(s->listing);
    free(s);
}

static int make_fds(struct ws_gpu_share *s, struct ws_error *err)
{
    const struct ws_gpu_listing *l = s->listing;
    s->fds = calloc(l->n_segments + 1, sizeof(*s->fds));
    for (size_t i = 0; s->fds && i < l->n_segments; i++) {
        const size_t n = l->segments[i].n_parts;
        s->fds[i] = n ? malloc(n * sizeof(int)) : NULL;
        if (n && !s->fds[i])
            return ws_error_set(err, ENOMEM, "no memory for %zu descriptors", n);
        for (size_t k = 0; k < n; k++)
            s->fds[i][k] = -1;
        s->n_missing += n;
    }
    return s->fds ? 0 : ws_error_set(err, ENOMEM, "no memory for %zu segments", l->n_segments);
}

/* --- versions --- */

static void free_version(struct ws_gpu_version *v)
{
    for (struct ws_gpu_share *s = v->shares, *next; s; s = next) {
        next = s->next;
        free_share(s);
    }
    for (struct ws_gpu_lease *l = v->leases, *next; l; l = next) {
        next = l->next;
        free(l);
    }
    free(v);
}

bool ws_gpu_version_is_writing(const struct ws_agent_model *m, const struct ws_gpu_version *v)
{
    return m->writing && m->writing_version == v->version && strcmp(m->writing->lineage, v->lineage) == 0;
}

void ws_gpu_versions_sweep(struct ws_agent_model *m)
{
    for (struct ws_gpu_version **at = ws_gpu_versions(m), *v; (v = *at);) {
        bool filling = v->on_demand && !v->in_slot && ws_gpu_version_is_writing(m, v);
        if (v->state == WS_GPU_OVER && !v->leases && v->n_readers == 0 && !filling) {
            *at = v->next;
            free_version(v);
        } else {
            at = &v->next;
        }
    }
}

void ws_gpu_version_end(struct ws_agent_model *m, struct ws_gpu_version *v, const char *why, bool *announce)
{
    if (v->state == WS_GPU_OVER)
        return;
    *announce = *announce || v->state == WS_GPU_OFFERED;
    v->state = WS_GPU_OVER;
    snprintf(v->why, sizeof(v->why), "%s", why);
    for (struct ws_gpu_share *s = v->shares; s; s = s->next)
        close_fds(s);
    ws_log(WS_LOG_DEBUG, "agent", "no more on GPUs model=%s version=%" PRIu64 " why=\"%s\" leases=%u",
           m->name, v->version, why, v->n_leases);
}

bool ws_gpu_version_has_rank(const struct ws_gpu_version *v, const struct ws_session *c)
{
    for (const struct ws_gpu_share *s = v->shares; s; s = s->next)
        if (s->owner == c)
            return true;
    return false;
}

struct ws_gpu_version *ws_gpu_version_gathering(const struct ws_agent_model *m)
{
    struct ws_gpu_version *v = *ws_gpu_versions(m);
    while (v && v->state != WS_GPU_GATHERING)
        v = v->next;
    return v;
}

struct ws_gpu_share *ws_gpu_share_gathering(const struct ws_session *c, uint64_t version)
{
    const struct ws_gpu_version *v = c->model ? ws_gpu_version_gathering(c->model) : NULL;
    struct ws_gpu_share *s = v && v->version == version ? v->shares : NULL;
    while (s && s->owner != c)
        s = s->next;
    return s;
}

static struct ws_gpu_version *begin_version(struct ws_agent_model *m, const struct ws_gpu_version *like,
                                            struct ws_error *err)
{
    struct ws_gpu_version *v = calloc(1, sizeof(*v));
    if (!v) {
        ws_error_set(err, ENOMEM, "no memory for a version");
        return NULL;
    }
    v->version = like->version;
    memcpy(v->lineage, like->lineage, sizeof(v->lineage));
    v->packed = like->packed;
    v->on_demand = like->on_demand;
    v->next = *ws_gpu_versions(m);
    *ws_gpu_versions(m) = v;
    return v;
}

static void insert(struct ws_gpu_version *v, struct ws_gpu_share *s)
{
    struct ws_gpu_share **at = &v->shares;
    while (*at && (*at)->rank < s->rank)
        at = &(*at)->next;
    s->next = *at;
    *at = s;
}

int ws_gpu_share_add(struct ws_session *c, const struct ws_gpu_version *like, struct ws_gpu_listing *listing,
                     int lock_fd, struct ws_gpu_share **out, struct ws_error *err)
{
    struct ws_agent_model *m = c->model;
    struct ws_gpu_version *v = ws_gpu_version_gathering(m);
    struct ws_gpu_share *s = calloc(1, sizeof(*s));
    int rc = s ? 0 : ws_error_set(err, ENOMEM, "no memory for what is on GPUs");
    if (!s) {
        ws_gpu_listing_free(listing);
        close(lock_fd);
        return rc;
    }
    *s = (struct ws_gpu_share){
        .owner = c, .rank = c->rank, .pid = c->pid, .listing = listing, .lock_fd = lock_fd};
    rc = make_fds(s, err);
    if (rc == 0 && v && (v->packed != like->packed || v->on_demand != like->on_demand))
        rc =
            ws_error_set(err, EPROTO, "rank %u of %s shares by %s%s, others by %s%s: give all the same",
                         c->rank, m->name, ws_gpu_version_strategy(like), like->on_demand ? " on demand" : "",
                         ws_gpu_version_strategy(v), v->on_demand ? " on demand" : "");
    if (rc == 0 && v && ws_gpu_version_has_rank(v, c))
        rc = ws_error_set(err, EEXIST,
                          "rank %u of %s has shared version %" PRIu64 " already; offload the next one",
                          c->rank, m->name, like->version);
    if (rc == 0 && !v && !(v = begin_version(m, like, err)))
        rc = -ENOMEM;
    if (rc < 0) {
        free_share(s);
        return rc;
    }
    insert(v, s);
    *out = s;
    return 0;
}

/* --- what becomes of versions --- */

static bool is_whole(const struct ws_gpu_version *v)
{
    for (const struct ws_gpu_share *s = v->shares; s; s = s->next)
        if (s->n_missing > 0 || !s->owner)
            return false;
    return true;
}

void ws_gpu_version_published(struct ws_agent_model *m, uint64_t version, const char *lineage)
{
    unsigned kept = 0;
    bool announce = false;
    for (struct ws_gpu_version *v = *ws_gpu_versions(m); v; v = v->next) {
        if (v->state == WS_GPU_GATHERING && v->version == version && strcmp(v->lineage, lineage) == 0) {
            if (is_whole(v))
                v->state = WS_GPU_OFFERED;
            else
                ws_gpu_version_end(m, v, "a rank ended, or did not send all of it", &announce);
        } else if (v->state == WS_GPU_GATHERING) {
            ws_gpu_version_end(m, v, "its version was not published", &announce);
        }
        bool live = strcmp(v->lineage, lineage) == 0;
        if (v->state == WS_GPU_OFFERED && (!live || ++kept > KEPT))
            ws_gpu_version_end(m, v, live ? "newer ones have taken its place" : "a new lineage has begun",
                               &announce);
    }
    ws_gpu_versions_sweep(m);
}

static void published(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s)
{
    (void)a;
    ws_gpu_version_published(m, s->version, s->lineage);
}

static void discarded(struct ws_agent_model *m)
{
    struct ws_gpu_version *v = ws_gpu_version_gathering(m);
    bool announce = false;
    ws_gpu_on_demand_failed(m);
    if (v && !v->on_demand)
        ws_gpu_version_end(m, v, "its version was abandoned", &announce);
    ws_gpu_versions_sweep(m);
}

/* Under lock. What a peer shared is over; what it had open is closed. */
static bool end_session(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *c)
{
    bool announce = false;
    for (struct ws_gpu_version *v = *ws_gpu_versions(m); v; v = v->next) {
        for (struct ws_gpu_lease *l = v->leases, *next; l; l = next) {
            next = l->next;
            if (l->by == c)
                ws_gpu_lease_end(a, v, l);
        }
        for (struct ws_gpu_share *s = v->shares; s; s = s->next) {
            char why[96];
            if (s->owner != c)
                continue;
            s->owner = NULL;
            snprintf(why, sizeof(why), "rank %u (process %d) has ended", s->rank, (int)s->pid);
            ws_gpu_version_end(m, v, why, &announce);
        }
    }
    ws_gpu_versions_sweep(m);
    return announce;
}

static void gone(struct ws_agent *a, const struct ws_session *c)
{
    bool announce = false;
    pthread_mutex_lock(&a->lock);
    for (struct ws_agent_model *m = a->models; m; m = m->next)
        announce = end_session(a, m, c) || announce;
    pthread_mutex_unlock(&a->lock);
    if (announce)
        ws_agent_announce(a);
}

static bool is_dead(pid_t pid)
{
    return pid > 0 && kill(pid, 0) < 0 && errno == ESRCH;
}

/* A rank that has ended, and whose connection a child of it keeps. */
static void end_if_rank_died(struct ws_agent_model *m, struct ws_gpu_version *v, bool *announce)
{
    for (const struct ws_gpu_share *s = v->shares; s && v->state == WS_GPU_OFFERED; s = s->next)
        if (is_dead(s->pid))
            ws_gpu_version_end(m, v, "a rank has ended", announce);
}

struct ws_gpu_version *ws_gpu_version_find(struct ws_agent *a, const char *model, uint64_t version,
                                           const char *lineage, struct ws_agent_model **out, bool *announce,
                                           struct ws_error *err)
{
    struct ws_agent_model *m = ws_agent_model_find(a, model);
    const char *why = "";
    if (!m || !m->has_published) {
        ws_error_set(err, ENOENT, "there is no model '%.100s' here", model);
        return NULL;
    }
    for (struct ws_gpu_version *v = *ws_gpu_versions(m); v; v = v->next)
        end_if_rank_died(m, v, announce);
    ws_gpu_versions_sweep(m);
    for (struct ws_gpu_version *v = *ws_gpu_versions(m); v; v = v->next) {
        if ((version != 0 && v->version != version) ||
            strcmp(v->lineage, lineage && *lineage ? lineage : m->lineage) != 0)
            continue;
        if (v->state == WS_GPU_OFFERED) {
            *out = m;
            return v;
        }
        why = v->state == WS_GPU_OVER ? v->why : "not all ranks have committed it";
    }
    if (lineage && *lineage && strcmp(lineage, m->lineage) != 0)
        ws_error_set(err, ESTALE, "the run %s of %s has been superseded by %s", lineage, m->name, m->lineage);
    else if (version)
        ws_error_set(err, ENOENT, "version %" PRIu64 " of %s is not shared on GPUs%s%s", version, m->name,
                     *why ? ": " : " (any more)", why);
    else
        ws_error_set(err, ENOENT, "no version of %s is shared on GPUs", m->name);
    return NULL;
}

/* --- leases --- */

struct ws_gpu_lease *ws_gpu_lease_find(struct ws_agent *a, const struct ws_session *c, uint64_t id,
                                       struct ws_gpu_version **v, struct ws_agent_model **m)
{
    for (*m = a->models; *m; *m = (*m)->next)
        for (*v = *ws_gpu_versions(*m); *v; *v = (*v)->next)
            for (struct ws_gpu_lease *l = (*v)->leases; l; l = l->next)
                if (l->by == c && l->id == id)
                    return l;
    return NULL;
}

int ws_gpu_lease_new(struct ws_agent *a, struct ws_gpu_version *v, const struct ws_session *c, uint64_t *id,
                     struct ws_error *err)
{
    struct ws_gpu_lease *l = calloc(1, sizeof(*l));
    if (!l)
        return ws_error_set(err, ENOMEM, "no memory for a lease");
    *l = (struct ws_gpu_lease){.next = v->leases, .id = ++*last_lease_id(a), .by = c, .pid = c->pid};
    v->leases = l;
    v->n_leases++;
    *id = l->id;
    return 0;
}

void ws_gpu_lease_end(struct ws_agent *a, struct ws_gpu_version *v, const struct ws_gpu_lease *lease)
{
    struct ws_gpu_lease **at = &v->leases;
    while (*at != lease)
        at = &(*at)->next;
    *at = lease->next;
    v->n_leases--;
    free((struct ws_gpu_lease *)(uintptr_t)lease);
    pthread_cond_broadcast(&a->changed);
}

void ws_gpu_version_prune_leases(struct ws_agent *a, struct ws_gpu_version *v)
{
    for (struct ws_gpu_lease *l = v->leases, *next; l; l = next) {
        next = l->next;
        if (is_dead(l->pid))
            ws_gpu_lease_end(a, v, l);
    }
}

void ws_gpu_version_holders(const struct ws_gpu_version *v, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = 0;
    for (const struct ws_gpu_lease *l = v->leases; l && n < cap; l = l->next) {
        if (l->pid > 0)
            n += (size_t)snprintf(out + n, cap - n, "%spid %d", n ? ", " : "", (int)l->pid);
        else
            n += (size_t)snprintf(out + n, cap - n, "%sa process of another PID namespace", n ? ", " : "");
    }
}

/* --- what is shown --- */

/* How a version is shared, "cuda_ipc"; NULL: it is not. */
static const char *offered_strategy(const struct ws_agent_model *m, uint64_t version, const char *lineage)
{
    for (const struct ws_gpu_version *v = *ws_gpu_versions(m); v; v = v->next)
        if (v->state == WS_GPU_OFFERED && v->version == version && strcmp(v->lineage, lineage) == 0)
            return ws_gpu_version_strategy(v);
    return NULL;
}

static void list(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out)
{
    json_t *versions = json_object_get(out, "versions"), *v;
    size_t i;
    (void)a;
    json_array_foreach(versions, i, v)
    {
        const char *way = offered_strategy(m, (uint64_t)json_integer_value(json_object_get(v, "version")),
                                           json_string_value(json_object_get(v, "run")));
        if (way)
            json_object_set_new(v, "gpu", json_string(way));
    }
    ws_gpu_on_demand_list(m, versions);
}

static uint64_t version_bytes(const struct ws_gpu_version *v)
{
    uint64_t n = 0;
    for (const struct ws_gpu_share *s = v->shares; s; s = s->next)
        for (size_t i = 0; i < s->listing->n_pieces; i++)
            n += ws_gpu_piece_data_bytes(&s->listing->pieces[i]);
    return n;
}

static void put_status(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out)
{
    static const char *const names[] = {"gathering", "offered", "over"};
    json_t *all = json_array();
    (void)a;
    for (const struct ws_gpu_version *v = *ws_gpu_versions(m); v; v = v->next) {
        char holders[512];
        json_t *ranks = json_array();
        ws_gpu_version_holders(v, holders, sizeof(holders));
        for (const struct ws_gpu_share *s = v->shares; s; s = s->next)
            json_array_append_new(ranks,
                                  json_pack("{s:I,s:I,s:s,s:s,s:s}", "rank", (json_int_t)s->rank, "pid",
                                            (json_int_t)s->pid, "pid_namespace", s->pid_namespace,
                                            "ipc_namespace", s->ipc_namespace, "no_marks", s->no_marks));
        json_array_append_new(all, json_pack("{s:I,s:s,s:s,s:s,s:I,s:b,s:b,s:b,s:I,s:s,s:s,s:s,s:o}",
                                             "version", (json_int_t)v->version, "run", v->lineage, "strategy",
                                             ws_gpu_version_strategy(v), "state", names[v->state], "bytes",
                                             (json_int_t)version_bytes(v), "on_demand", (int)v->on_demand,
                                             "made", (int)v->in_slot, "wanted", (int)v->requested, "leases",
                                             (json_int_t)v->n_leases, "holders", holders, "why", v->why,
                                             "refused", v->last_refusal, "ranks", ranks));
    }
    if (*ws_gpu_versions(m))
        json_object_set(out, "gpu", all);
    json_decref(all);
}

static void free_versions(struct ws_agent_model *m)
{
    while (*ws_gpu_versions(m)) {
        struct ws_gpu_version *v = *ws_gpu_versions(m);
        *ws_gpu_versions(m) = v->next;
        free_version(v);
    }
}

const struct ws_agent_feature ws_feature_gpu = {
    .agent_bytes = sizeof(struct leases),
    .model_bytes = sizeof(struct versions),
    .free = free_versions,
    .written = ws_gpu_on_demand_written,
    .published = published,
    .discarded = discarded,
    .want = ws_gpu_on_demand_want,
    .gone = gone,
    .list = list,
    .model_status = put_status,
    .rank_routes = ws_gpu_rank_routes,
};
