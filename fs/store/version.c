/* A version's life: it is made when a source lists it, has its name while it is in its model's list, is
 * retired when it is dropped, evicted or forgotten, and is reaped after the last reference.
 *
 *     KNOWN -> PULLING -> VERIFYING -> READY <-> ACTIVE
 *       |         \______________\_______________ FAILED -> PULLING (requested again)
 *       \____ any state but ACTIVE -> DROPPING (no name any more)
 */
#include "fs/store/version.h"
#include "fs/store/comparison.h"
#include "fs/store/content.h"
#include "fs/store/growing.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/offers.h"
#include "fs/store/part_view.h"
#include "fs/store/poller.h"
#include "fs/store/reaper.h"
#include "fs/store/retired.h"
#include "fs/store/wants.h"
#include "fs/store/way_back.h"
#include "transports/base/clock.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ws_version_state_name(enum ws_version_state s)
{
    static const char *const names[] = {
        [WS_KNOWN] = "known",   [WS_PULLING] = "pulling", [WS_VERIFYING] = "verifying",
        [WS_READY] = "ready",   [WS_ACTIVE] = "active",   [WS_DROPPING] = "dropping",
        [WS_FAILED] = "failed",
    };

    return names[s];
}

/* --- creation and end --- */

struct ws_version *ws_version_new(struct ws_model *m, uint64_t number, const char *run)
{
    struct ws_store *s = m->store;
    struct ws_version *v, **at;

    if (m->n_versions >= WS_MAX_VERSIONS)
        return NULL;
    v = calloc(1, sizeof(*v));
    if (!v)
        return NULL;
    v->store = s;
    v->model = ws_model_get(m);
    v->serial = v->origin = ++*s->last_id;
    v->number = number;
    snprintf(v->lineage, sizeof(v->lineage), "%s", run);
    if (s->options.ids.of_version) {
        const struct ws_version_id id = ws_version_id_make(number, run);
        s->options.ids.of_version(s->options.ids.arg, v->serial, m->id, &id);
    }
    atomic_init(&v->refs, 1);
    v->strategy = WS_NO_WAY;
    v->first_seconds = -1;
    pthread_mutex_init(&v->header_lock, NULL);
    pthread_mutex_init(&v->tensor_diff_lock, NULL);
    v->named = true;
    v->retired = ws_retired_has(m, number, run);
    v->live = ws_version_is_live(v);
    for (at = &m->versions; *at && (*at)->number <= number; at = &(*at)->next)
        ;
    v->next = *at;
    *at = v;
    m->n_versions++;
    v->next_id = s->ids[v->serial % WS_ID_BUCKETS];
    s->ids[v->serial % WS_ID_BUCKETS] = v;
    return v;
}

void ws_version_delete(struct ws_version *v)
{
    assert(atomic_load(&v->refs) <= 1 && !v->named && !v->pull && !v->waiters && !v->mapped_from);
    ws_content_free(v);
    ws_growing_free(v);
    ws_offers_free(v);
    pthread_mutex_destroy(&v->header_lock);
    pthread_mutex_destroy(&v->tensor_diff_lock);
    free(v->tensor_diff);
    ws_model_put(v->model);
    free(v->error);
    free(v->why_not);
    free(v);
}

struct ws_version *ws_version_lookup(struct ws_model *m, uint64_t number, const char *run)
{
    for (struct ws_version *v = m->versions; v && v->number <= number; v = v->next) {
        if (v->number == number && strcmp(v->lineage, run) == 0)
            return v;
    }
    return NULL;
}

void ws_version_set_state(struct ws_version *v, enum ws_version_state state, struct ws_store_events *ev)
{
    if (v->state == state)
        return;
    v->state = state;
    if (v->named)
        ws_store_events_add(ev, WS_VERSION_STATE, v->model, v);
}

/* Out of its model's list. */
static void take_out(struct ws_version *v)
{
    struct ws_version **at = &v->model->versions;

    while (*at != v)
        at = &(*at)->next;
    *at = v->next;
    v->next = NULL;
    v->named = false;
    v->model->n_versions--;
}

static void remove_name(struct ws_version *v, struct ws_store_events *ev)
{
    struct ws_model *m = v->model;

    take_out(v);
    ws_comparisons_stop(v->store, v);
    v->store->waiting_bytes += v->own_bytes;
    v->state = WS_DROPPING;
    ws_store_events_add(ev, WS_VERSION_GONE, m, v);
}

/* What sources list of a version goes on to the one that has its name next. */
static void hand_on_listing(struct ws_version *v, struct ws_version *again)
{
    again->listed_bytes = v->listed_bytes;
    again->retired = v->retired;
    again->created_ns = v->created_ns;
    again->sources = v->sources;
    again->in_parts = v->in_parts;
    again->offers = v->offers;
    again->disputed = v->disputed;
    v->offers = NULL;
    again->partial = v->partial;
    again->on_gpus = v->on_gpus;
}

static void replace(struct ws_version **link, struct ws_version *v, struct ws_version *by)
{
    if (*link != v)
        return;
    *link = ws_version_get(by);
    ws_version_put_locked(v); /* the name has another */
}

struct ws_version *ws_version_go_on(struct ws_version *v, struct ws_manifest *manifest,
                                    struct ws_safetensors **headers, struct ws_store_events *ev)
{
    struct ws_model *m = v->model;
    struct ws_version *again = ws_version_new(m, v->number, v->lineage);

    assert(v->named && !v->pull && v->own_bytes == 0);
    if (!again)
        return NULL;
    if (manifest && ws_content_set_manifest(again, manifest, NULL) < 0) {
        take_out(again);
        ws_version_put_locked(again);
        return NULL;
    }
    for (size_t i = 0; manifest && headers && i < manifest->n_files; i++)
        atomic_store(&again->files[i].header, headers[i]);
    atomic_store(&again->tree, atomic_exchange(&v->tree, NULL));
    again->origin = v->origin;
    hand_on_listing(v, again);
    if (!manifest)
        snprintf(again->digest, sizeof(again->digest), "%s", ws_offers_digest(again));
    atomic_store(&v->complete, false);
    replace(&m->current, v, again);
    replace(&m->previous, v, again);
    remove_name(v, ev);
    ws_store_events_add(ev, WS_VERSION_KNOWN, m, again);
    ws_version_put_locked(v);
    return again;
}

void ws_version_retire(struct ws_version *v, struct ws_store_events *ev)
{
    struct ws_model *m = v->model;
    struct ws_version *again;

    assert(v->named && m->current != v);
    if (v->own_bytes || ws_part_view(v))
        ws_way_back_clear(m); /* all ways begin there */
    if (m->previous == v) {
        m->previous = NULL;
        ws_version_put_locked(v);
    }
    if (v->pull)
        v->store->puller->stop(v->pull);
    remove_name(v, ev);
    ws_node_parts_retire(v, ev);
    if (m->listed && ws_version_is_offered(v) && ws_version_is_live(v)) {
        again = ws_version_new(m, v->number, v->lineage);
        if (again) {
            snprintf(again->digest, sizeof(again->digest), "%s", ws_offers_digest(v));
            hand_on_listing(v, again);
            ws_store_events_add(ev, WS_VERSION_KNOWN, m, again);
        }
    }
    ws_version_put_locked(v);
}

/* --- references --- */

struct ws_version *ws_version_get(struct ws_version *v)
{
    unsigned before = atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);

    assert(before > 0);
    return v;
}

void ws_version_put(struct ws_version *v)
{
    if (atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) == 1)
        ws_reaper_add(v);
}

void ws_version_put_locked(struct ws_version *v)
{
    if (atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) == 1)
        ws_reaper_add_locked(v);
}

void ws_version_use(struct ws_version *v, int delta)
{
    if (delta > 0) {
        atomic_fetch_add_explicit(&v->refs, (unsigned)delta, memory_order_relaxed);
    } else if (delta < 0) {
        unsigned n = (unsigned)-delta;
        unsigned before = atomic_fetch_sub_explicit(&v->refs, n, memory_order_acq_rel);
        assert(before >= n);
        if (before == n)
            ws_reaper_add(v);
    }
}

void ws_version_retain(struct ws_version *v, int delta)
{
    int before = atomic_fetch_add(&v->retained, delta);

    assert(before + delta >= 0);
    if (before > 0 && before + delta == 0)
        ws_model_tidy(v->model);
}

struct ws_version *ws_version_by_serial(struct ws_store *s, uint64_t serial)
{
    struct ws_version *v;

    pthread_mutex_lock(&s->lock);
    for (v = s->ids[serial % WS_ID_BUCKETS]; v && v->serial != serial; v = v->next_id)
        ;
    if (v && v->dying)
        v = NULL;
    if (v) {
        unsigned n = atomic_load(&v->refs);
        while (n > 0 && !atomic_compare_exchange_weak(&v->refs, &n, n + 1))
            ;
        if (n == 0)
            v = NULL; /* the reaper gets it */
    }
    pthread_mutex_unlock(&s->lock);
    return v;
}

/* --- names and figures --- */

bool ws_version_is_live(const struct ws_version *v)
{
    return v->model->lineage[0] == '\0' || strcmp(v->lineage, v->model->lineage) == 0;
}

bool ws_version_is_complete(const struct ws_version *v)
{
    return atomic_load(&v->complete);
}

bool ws_version_has_bytes(const struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    if (ws_part_view(v))
        return true;
    for (size_t i = 0; m && i < m->n_files; i++) {
        if (atomic_load(&v->files[i].region))
            return true;
    }
    return false;
}

bool ws_version_comes_whole(const struct ws_version *v, uint64_t refused)
{
    const uint64_t sources = v->sources & ~refused;
    bool whole = false, partial = false;

    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        const struct ws_poller *p = v->store->pollers[i];
        if (!p || !p->up || !(sources & ws_bit(i)))
            continue;
        *(v->partial & ws_bit(i) ? &partial : &whole) = true;
    }
    /* where no source has it any more, the transfer reports that */
    return whole || (!partial && (!sources || (sources & ~v->partial)));
}

bool ws_version_is_archived(const struct ws_version *v)
{
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        const struct ws_poller *p = v->store->pollers[i];
        if (p && p->is_static && (v->sources & ws_bit(i)))
            return true;
    }
    return false;
}

struct ws_version_id ws_version_id(const struct ws_version *v)
{
    return ws_version_id_make(v->number, v->lineage);
}

uint64_t ws_version_serial(const struct ws_version *v)
{
    return v->serial;
}

uint64_t ws_version_origin(const struct ws_version *v)
{
    return v->origin;
}

bool ws_version_is_leaving(const struct ws_version *v)
{
    return atomic_load(&v->leaving) > 0;
}

struct ws_model *ws_version_model(const struct ws_version *v)
{
    return v->model;
}

uint64_t ws_version_number(const struct ws_version *v)
{
    return v->number;
}

const char *ws_version_lineage(const struct ws_version *v)
{
    return v->lineage;
}

void ws_version_name(struct ws_version *v, char out[WS_MAX_NAME + 1])
{
    bool live;

    pthread_mutex_lock(&v->store->lock);
    live = v->live;
    pthread_mutex_unlock(&v->store->lock);
    snprintf(out, WS_MAX_NAME + 1, live ? "%lu" : "%lu@%s", v->number, v->lineage);
}

bool ws_version_is_shown(struct ws_version *v)
{
    pthread_mutex_lock(&v->store->lock);
    const bool hidden = ws_retired_hides(v);
    pthread_mutex_unlock(&v->store->lock);
    return !hidden;
}

struct ws_version *ws_version_if_shown(struct ws_version *v)
{
    if (!v || ws_version_is_shown(v))
        return v;
    ws_version_put(v);
    return NULL;
}

bool ws_version_is_named(struct ws_version *v)
{
    pthread_mutex_lock(&v->store->lock);
    const bool named = v->named;
    pthread_mutex_unlock(&v->store->lock);
    return named;
}

enum ws_version_state ws_version_state(struct ws_version *v)
{
    enum ws_version_state state;

    pthread_mutex_lock(&v->store->lock);
    state = v->state;
    pthread_mutex_unlock(&v->store->lock);
    return state;
}

void ws_version_moved(struct ws_version *v, uint64_t n)
{
    atomic_fetch_add(&v->moved_bytes, n);
    atomic_fetch_add(&v->store->moved_bytes, n);
}

void ws_version_info(struct ws_version *v, struct ws_version_info *out)
{
    const struct ws_manifest *m = ws_version_files(v);

    memset(out, 0, sizeof(*out));
    out->number = v->number;
    snprintf(out->lineage, sizeof(out->lineage), "%s", v->lineage);
    out->has_manifest = ws_version_has_manifest(v);
    out->have_bytes = ws_content_bytes(v);
    out->moved_bytes = atomic_load(&v->moved_bytes);
    out->bad_blocks = atomic_load(&v->bad_blocks);
    out->needed_bytes = m && atomic_load(&v->wanted) ? ws_version_wanted_bytes(v) : 0;
    pthread_mutex_lock(&v->store->lock);
    out->first_seconds = v->first_seconds;
    out->stalls = v->stalls;
    out->stalled_seconds = v->stalled_seconds;
    memcpy(out->digest, v->digest, sizeof(out->digest));
    out->total_bytes = m ? m->total_bytes : v->listed_bytes;
    out->state = v->state;
    memcpy(out->how, v->how, sizeof(out->how));
    out->strategy = v->strategy;
    snprintf(out->why_not, sizeof(out->why_not), "%s", v->why_not ? v->why_not : "");
    out->created_ns = v->created_ns;
    out->pull_seconds = v->pull_seconds;
    if (v->state == WS_PULLING || v->state == WS_VERIFYING)
        out->pull_seconds = (double)(ws_clock_ns() - v->pull_began_ns) / 1e9;
    out->pinned = v->pinned;
    out->retired = v->retired;
    out->at_source = ws_version_is_offered(v);
    out->n_sources = (unsigned)__builtin_popcountll(v->sources);
    if (v->error) {
        out->error_code = v->error_code;
        snprintf(out->error, sizeof(out->error), "%s", v->error);
    }
    pthread_mutex_unlock(&v->store->lock);
}
