/* Which names a model shows. A version has a name while a source lists it in the live lineage, or while bytes
 * of it are here. The sources say which lineage is live. Where they differ, as for a moment when a trainer
 * resumes, the lineage with the younger newest version is live. */
#include "fs/store/model.h"
#include "fs/store/arrivals.h"
#include "fs/store/delta_cache.h"
#include "fs/store/derived.h"
#include "fs/store/learned.h"
#include "fs/store/node_parts.h"
#include "fs/store/one_copy.h"
#include "fs/store/poller.h"
#include "fs/store/retired.h"
#include "fs/store/version.h"
#include "fs/store/way_back.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/format/node_part.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KEEP_FAILED 2 /* failed versions shown with their reason after their source forgot them */

/* --- life --- */

/* Where the model of that name is in the list, which is sorted by name, or belongs. */
static struct ws_model **find_place(struct ws_store *s, const char *name)
{
    struct ws_model **at = &s->models;

    while (*at && strcmp((*at)->name, name) < 0)
        at = &(*at)->next;
    return at;
}

struct ws_model *ws_model_lookup(struct ws_store *s, const char *name)
{
    struct ws_model *m = *find_place(s, name);

    return m && strcmp(m->name, name) == 0 ? m : NULL;
}

/* base: of a hidden one, of which it is part `index` of `count`; else NULL. */
static struct ws_model *add(struct ws_store *s, const char *name, const char *base, unsigned index,
                            unsigned count, struct ws_store_events *ev)
{
    struct ws_model **at = find_place(s, name), *m = ws_model_lookup(s, name);

    if (m)
        return m;
    m = s->n_models < WS_MAX_MODELS ? calloc(1, sizeof(*m)) : NULL;
    if (!m || !(m->name = strdup(name)) || (base && !(m->base = strdup(base)))) {
        ws_log(WS_LOG_WARN, "store", "a model is left out: no memory, or there are %d already model=%s",
               WS_MAX_MODELS, name);
        if (m)
            free(m->name);
        free(m);
        return NULL;
    }
    m->store = s;
    atomic_fetch_add(&s->refs, 1);
    m->id = ++*s->last_id;
    if (s->options.ids.of_model)
        m->id = s->options.ids.of_model(s->options.ids.arg, name, m->id);
    atomic_init(&m->refs, 1);
    m->listed = true;
    m->part_index = index;
    m->part_count = count;
    m->derived = ws_derived_find(s, name);
    m->need = base ? NULL : ws_needs_find(s, name);
    m->learned = !base && ws_needs_learns(s, name) ? ws_learned_get(s, name) : NULL;
    m->next = *at;
    *at = m;
    s->n_models++;
    ws_store_events_add(ev, WS_MODEL_ADDED, m, NULL);
    return m;
}

struct ws_model *ws_model_add(struct ws_store *s, const char *name, struct ws_store_events *ev)
{
    char base[WS_MAX_NAME + 1];
    unsigned index = 0, count = 0;
    const bool is_part = ws_name_is_node_part(name, base, &index, &count);

    return add(s, name, is_part ? base : NULL, index, count, ev);
}

struct ws_model *ws_model_add_whole(struct ws_model *m, struct ws_store_events *ev)
{
    char name[WS_MAX_NAME + 1];
    struct ws_error err;

    if (ws_node_part_model(name, m->name, 0, 1, &err) == 0)
        return add(m->store, name, m->name, 0, 1, ev);
    ws_log(WS_LOG_WARN, "store", "%s", err.text);
    return NULL;
}

const char *ws_model_source_name(const struct ws_model *m)
{
    return m->base && m->part_count == 1 ? m->base : m->name;
}

static void put_version(struct ws_version **link)
{
    struct ws_version *v = *link;

    *link = NULL;
    if (v)
        ws_version_put_locked(v);
}

void ws_model_unlist(struct ws_model *m, struct ws_store_events *ev)
{
    struct ws_store *s = m->store;
    struct ws_model **at = &s->models;

    assert(m->listed);
    m->listed = false;
    if (s->puller->end_coming)
        s->puller->end_coming(m, NULL);
    put_version(&m->current);
    put_version(&m->previous);
    ws_way_back_clear(m);
    while (m->versions)
        ws_version_retire(m->versions, ev);
    ws_delta_set_clear(&m->shown);
    ws_model_trim_deltas(m);
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    s->n_models--;
    ws_store_events_add(ev, WS_MODEL_REMOVED, m, NULL);
    ws_model_put(m); /* the list's. Nothing holds a part any more where its versions have gone before it */
}

struct ws_model *ws_model_get(struct ws_model *m)
{
    unsigned before = atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);

    assert(before > 0);
    return m;
}

void ws_model_put(struct ws_model *m)
{
    struct ws_store *s = m->store;

    if (atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1)
        return;
    ws_delta_set_clear(&m->deltas);
    ws_delta_set_clear(&m->shown);
    ws_delta_set_clear(&m->way_back);
    ws_arrivals_free(m);
    for (unsigned i = 0; i < WS_MAX_NODE_PARTS; i++)
        free(m->nodes[i]);
    free(m->name);
    free(m->base);
    free(m);
    ws_store_put(s);
}

/* --- names --- */

bool ws_version_is_newer(const struct ws_version *a, const struct ws_version *b)
{
    if (a->live != b->live)
        return a->live;
    if (strcmp(a->lineage, b->lineage) != 0)
        return a->created_ns > b->created_ns;
    return a->number != b->number ? a->number > b->number : a->serial > b->serial;
}

bool ws_version_is_released(const struct ws_version *v)
{
    const struct ws_desired *o = &v->model->desired;
    const struct ws_version_id id = ws_version_id_make(v->number, v->lineage);

    return (o->release && ws_version_id_equal(&o->to, &id)) ||
           (o->released_by && ws_version_id_equal(&o->released, &id));
}

/* May it go, being in a slot of the trainer, who needs the slot for the next version? Besides the newest one
 * the mount keeps `current`, or one other. newer: how many announced versions are newer. */
static bool gives_way(const struct ws_version *v, unsigned newer)
{
    const struct ws_version *current = v->model->current;

    if (current && current->mapped_from && ws_version_is_newer(v, current))
        newer++;
    return newer >= 2 && !ws_version_is_released(v);
}

/* Complete versions, and those that are being pulled, count as the newest: an arriving version pushes the
 * oldest kept one out. In a slot of the trainer, announced versions count, too, and the previous version is
 * not kept for a rollback: the trainer needs the slot, whether or not this mount pulls the new version. */
bool ws_version_is_protected(const struct ws_version *v)
{
    const struct ws_model *m = v->model;
    unsigned newer = 0, announced = 0;

    if (v->pinned || atomic_load(&v->retained) > 0 || v == m->current)
        return true;
    for (const struct ws_version *w = m->versions; w; w = w->next) {
        if (w == v || !ws_version_is_newer(w, v))
            continue;
        announced += ws_version_is_offered(w);
        newer += ws_version_is_complete(w) || (w->pull && m->store->puller->wants_all(w->pull));
    }
    if (v->mapped_from && gives_way(v, announced))
        return false;
    if (ws_one_copy_is_spare(v))
        return false;
    if (v == m->previous)
        return true;
    if (!ws_version_is_complete(v))
        return v->pull != NULL;
    if (ws_model_is_hidden(m))
        return false; /* the assembled version is here; a part stays only while the cache has space */
    return newer < m->store->options.keep && !atomic_load(&v->only_for_views);
}

uint64_t ws_model_largest(const struct ws_model *m)
{
    uint64_t largest = 0;

    for (const struct ws_version *v = m->versions; v; v = v->next) {
        const struct ws_manifest *of = atomic_load(&v->manifest);
        const uint64_t bytes = of ? of->total_bytes : v->listed_bytes;
        if (bytes > largest)
            largest = bytes;
    }
    return largest;
}

void ws_model_resolve_lineage(struct ws_model *m)
{
    const struct ws_model *source = m->derived ? ws_model_lookup(m->store, m->derived->source) : NULL;
    const struct ws_model_claim *best = NULL;

    if (source && source->lineage[0]) {
        memcpy(m->lineage, source->lineage, sizeof(m->lineage));
        return;
    }

    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        const struct ws_model_claim *claim = &m->claims[i];
        if (claim->lineage[0] && (!best || claim->created_ns > best->created_ns))
            best = claim;
    }
    if (best)
        memcpy(m->lineage, best->lineage, sizeof(m->lineage));
}

static bool should_stay(struct ws_version *v, unsigned *n_lost)
{
    if (v == v->model->current)
        return true; /* the engines serve it */
    if (ws_retired_is_over(v))
        return false;
    if (v->mapped_from && !ws_version_is_protected(v))
        return false; /* it is in a slot of the trainer, not in this mount's memory */
    if (ws_version_is_complete(v) || v->pull || v->pinned || v == v->model->previous ||
        atomic_load(&v->retained) > 0 || ws_way_back_leads_to(v))
        return true;
    /* An archive shows its versions whichever lineage is live. */
    if (ws_version_is_offered(v) && (ws_version_is_live(v) || ws_version_is_archived(v)))
        return true;
    if (v->state == WS_FAILED)
        return (*n_lost)-- <= KEEP_FAILED;
    return ws_version_has_bytes(v);
}

/* The list ascends and the newest failures stay, so the failures are counted before the first is judged. */
static unsigned count_lost(const struct ws_model *m)
{
    unsigned n = 0;

    for (const struct ws_version *v = m->versions; v; v = v->next)
        n += v->state == WS_FAILED && !(ws_version_is_offered(v) && ws_version_is_live(v));
    return n;
}

void ws_model_reconcile(struct ws_model *m, struct ws_store_events *ev)
{
    struct ws_version *next;
    unsigned n_lost;

    if (!m->listed)
        return;
    ws_model_resolve_lineage(m);
    for (struct ws_version *v = m->versions; v; v = v->next) {
        if (v->live == ws_version_is_live(v))
            continue;
        v->live = !v->live;
        ws_store_events_add(ev, WS_VERSION_RENAMED, m, v);
    }
    n_lost = count_lost(m);
    for (struct ws_version *v = m->versions; v; v = next) {
        bool stays = should_stay(v, &n_lost);
        next = v->next;
        if (!stays)
            ws_version_retire(v, ev);
    }
    ws_derived_follow(m, ev);
}

void ws_model_tidy(struct ws_model *m)
{
    struct ws_store *s = m->store;
    struct ws_store_events events;

    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    ws_model_reconcile(m, &events);
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
}

/* --- models that no source lists any more --- */

static bool is_listed_by(const struct ws_model *m, unsigned index)
{
    return m->claims[index].direct || m->claims[index].lineage[0];
}

/* Are there hidden models of its parts? */
static bool has_parts(const struct ws_model *m)
{
    for (const struct ws_model *p = m->store->models; p; p = p->next)
        if (p->base && strcmp(p->base, m->name) == 0)
            return true;
    return false;
}

static bool is_gone(const struct ws_model *m)
{
    if (!m->listed || m->versions || m->current || m->previous || m->desired.released_by || has_parts(m))
        return false;
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        const struct ws_poller *p = m->store->pollers[i];
        if (p && (is_listed_by(m, i) || !p->reported || (p->model && strcmp(p->model, m->name) == 0)))
            return false;
    }
    return true;
}

void ws_model_forget_parts(struct ws_store *s, struct ws_store_events *ev)
{
    for (struct ws_model *m = s->models, *next; m; m = next) {
        next = m->next;
        if (ws_model_is_hidden(m) && is_gone(m))
            ws_model_unlist(m, ev);
    }
}

bool ws_model_is_gone(struct ws_model *m)
{
    pthread_mutex_lock(&m->store->lock);
    bool gone = is_gone(m);
    pthread_mutex_unlock(&m->store->lock);
    return gone;
}

void ws_model_forget(struct ws_model *m)
{
    struct ws_store *s = m->store;
    struct ws_store_events events;

    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    if (is_gone(m)) /* it may have come back */
        ws_model_unlist(m, &events);
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
}

/* --- the public functions --- */

const char *ws_model_name(const struct ws_model *m)
{
    return m->name;
}

uint64_t ws_model_id(const struct ws_model *m)
{
    return m->id;
}

struct ws_model *ws_store_find(struct ws_store *s, const char *name)
{
    struct ws_model *m;

    pthread_mutex_lock(&s->lock);
    m = ws_model_lookup(s, name);
    if (m && ws_model_is_hidden(m))
        m = NULL;
    if (m)
        ws_model_get(m);
    pthread_mutex_unlock(&s->lock);
    return m;
}

void ws_store_each(struct ws_store *s, void (*visit)(void *arg, struct ws_model *m), void *arg)
{
    struct ws_model *models[WS_MAX_MODELS];
    size_t n = 0;

    pthread_mutex_lock(&s->lock);
    for (struct ws_model *m = s->models; m; m = m->next)
        if (!ws_model_is_hidden(m))
            models[n++] = ws_model_get(m);
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < n; i++) {
        visit(arg, models[i]);
        ws_model_put(models[i]);
    }
}

void ws_model_each(struct ws_model *m, void (*visit)(void *arg, struct ws_version *v), void *arg)
{
    struct ws_store *s = m->store;
    struct ws_version **versions;
    size_t n = 0;

    pthread_mutex_lock(&s->lock);
    versions = calloc(m->n_versions ? m->n_versions : 1, sizeof(struct ws_version *));
    for (struct ws_version *v = m->versions; versions && v; v = v->next)
        versions[n++] = ws_version_get(v);
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < n; i++) {
        visit(arg, versions[i]);
        ws_version_put(versions[i]);
    }
    free(versions);
}

void ws_model_pulls(struct ws_model *m, struct ws_histogram *out)
{
    pthread_mutex_lock(&m->store->lock);
    *out = m->pulls;
    pthread_mutex_unlock(&m->store->lock);
}

bool ws_model_is_pulling(struct ws_model *m)
{
    bool is = false;

    pthread_mutex_lock(&m->store->lock);
    for (const struct ws_version *v = m->versions; v; v = v->next)
        is = is || (v->pull && m->store->puller->wants_all(v->pull));
    pthread_mutex_unlock(&m->store->lock);
    return is;
}

void ws_model_desired(struct ws_model *m, struct ws_desired *out)
{
    pthread_mutex_lock(&m->store->lock);
    *out = m->desired;
    pthread_mutex_unlock(&m->store->lock);
}

void ws_model_inherit_release(struct ws_model *m, uint64_t by, const struct ws_version_id *released,
                              bool quarantines)
{
    const struct ws_desired before = {.released_by = by, .released = *released, .quarantines = quarantines};

    pthread_mutex_lock(&m->store->lock);
    ws_desired_inherit(&m->desired, &before);
    pthread_mutex_unlock(&m->store->lock);
}

void ws_model_forget_inherited(struct ws_model *m)
{
    pthread_mutex_lock(&m->store->lock);
    if (m->desired.inherited) {
        m->desired.inherited = false;
        m->desired.released_by = 0;
        m->desired.released.lineage[0] = '\0';
        m->desired.quarantines = false;
    }
    pthread_mutex_unlock(&m->store->lock);
}

struct ws_version *ws_model_latest(struct ws_model *m)
{
    struct ws_version *latest = NULL;

    pthread_mutex_lock(&m->store->lock);
    for (struct ws_version *v = m->versions; v; v = v->next) {
        if (v->live)
            latest = v;
    }
    if (latest)
        ws_version_get(latest);
    pthread_mutex_unlock(&m->store->lock);
    return latest;
}

static struct ws_version *get_version(struct ws_model *m, struct ws_version *const *link)
{
    struct ws_version *v;

    pthread_mutex_lock(&m->store->lock);
    v = *link ? ws_version_get(*link) : NULL;
    pthread_mutex_unlock(&m->store->lock);
    return v;
}

struct ws_version *ws_model_current(struct ws_model *m)
{
    return get_version(m, &m->current);
}

struct ws_version *ws_model_previous(struct ws_model *m)
{
    return get_version(m, &m->previous);
}

void ws_model_set_current(struct ws_model *m, struct ws_version *v)
{
    struct ws_store *s = m->store;
    struct ws_store_events events;

    assert(v->model == m);
    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    if (m->current != v && v->named) {
        struct ws_version *old = m->current;
        put_version(&m->previous);
        m->previous = old; /* its reference moves along */
        if (old && ws_version_is_complete(old))
            ws_version_set_state(old, WS_READY, &events);
        m->current = ws_version_get(v);
        m->directed.lineage[0] = '\0';
        ws_arrivals_loaded(v);
        if (ws_version_is_complete(v))
            ws_version_set_state(v, WS_ACTIVE, &events);
        ws_model_reconcile(m, &events);
    }
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
}

struct ws_version *ws_version_below(struct ws_version *v)
{
    struct ws_version *found = NULL;

    pthread_mutex_lock(&v->store->lock);
    for (struct ws_version *w = v->model->versions; w && w->number < v->number; w = w->next) {
        bool same = strcmp(w->lineage, v->lineage) == 0;
        if (ws_version_is_complete(w) && (same || !found || strcmp(found->lineage, v->lineage) != 0))
            found = w;
    }
    if (found) {
        ws_version_get(found);
        atomic_fetch_add(&found->retained, 1);
    }
    pthread_mutex_unlock(&v->store->lock);
    return found;
}

struct ws_version *ws_version_at(struct ws_model *m, uint64_t number, const char *run)
{
    struct ws_version *found = NULL;

    pthread_mutex_lock(&m->store->lock);
    for (struct ws_version *v = m->versions; v && v->number <= number && !found; v = v->next) {
        if (v->number == number && (run ? strcmp(v->lineage, run) == 0 : v->live))
            found = ws_version_get(v);
    }
    pthread_mutex_unlock(&m->store->lock);
    return found;
}

struct ws_version *ws_version_find(struct ws_model *m, const char *name, struct ws_error *err)
{
    static const struct {
        const char *name;
        struct ws_version *(*get)(struct ws_model *m);
    } links[] = {
        {"latest", ws_model_latest},
        {"current", ws_model_current},
        {"previous", ws_model_previous},
    };
    struct ws_version *v = NULL, *found = NULL;
    char own[WS_MAX_NAME + 1], missing[WS_ERROR_TEXT / 2];
    const char *at;
    char *end;
    uint64_t number;

    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
        if (strcmp(name, links[i].name) == 0) {
            v = links[i].get(m);
            if (!v && ws_model_missing_parts(m, missing, sizeof(missing)))
                ws_error_set(err, ENOENT, "%s has no %s version that is whole: %s", m->name, name, missing);
            else if (!v)
                ws_error_set(err, ENOENT, "%s has no %s version", m->name, name);
            return v;
        }
    }
    errno = 0;
    number = strtoull(name, &end, 10);
    at = *end == '@' ? end + 1 : NULL;
    if (end == name || errno || (*end && !at) || name[0] < '0' || name[0] > '9')
        goto none;
    pthread_mutex_lock(&m->store->lock);
    for (v = m->versions; v && v->number <= number && !found; v = v->next) {
        if (v->number == number && (at ? !v->live && strcmp(v->lineage, at) == 0 : v->live))
            found = ws_version_get(v);
    }
    pthread_mutex_unlock(&m->store->lock);
    if (found) {
        /* "013" is no name of version 13: one version, one name. */
        ws_version_name(found, own);
        if (strcmp(own, name) == 0)
            return found;
        ws_version_put(found);
    }
none:
    if (ws_model_missing_parts(m, missing, sizeof(missing)))
        ws_error_set(err, ENOENT, "%s has no version %s that is whole: %s", m->name, name, missing);
    else
        ws_error_set(err, ENOENT, "%s has no version %s; ls shows those that there are", m->name, name);
    return NULL;
}
