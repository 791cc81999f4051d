/* The cache holds versions (with a name, or about to go), regions in the pool that other processes still map,
 * and regions that the pool keeps warm. The last give way at once. Versions are evicted in this order: those
 * that failed half-way, then the oldest complete one that nothing protects. An evicted version loses its
 * name. Its memory comes back when the kernel has forgotten the name and no process maps it; the pull waits a
 * moment for that. */
#include "fs/store/cache_budget.h"
#include "fs/store/keeper.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/version.h"
#include "transports/base/clock.h"
#include "transports/base/number.h"
#include "transports/memory/available.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define RELEASE_WAIT_MS 2000 /* for readers to release what was evicted */
#define STEP_MS         10
#define OUTSIDE_BYTES   (64UL << 20) /* threads, connections, deltas in flight: outside the cache */

/* Is a evicted before b? */
static bool is_evicted_before(const struct ws_version *a, const struct ws_version *b)
{
    if (ws_version_is_complete(a) != ws_version_is_complete(b))
        return !ws_version_is_complete(a);
    if (ws_model_is_hidden(a->model) != ws_model_is_hidden(b->model))
        return ws_model_is_hidden(a->model); /* the version that was assembled of it is here */
    if (a->model == b->model)
        return ws_version_is_newer(b, a);
    return a->serial < b->serial;
}

/* May it be evicted? With s->lock. */
static bool is_victim(const struct ws_version *v)
{
    return v->own_bytes > 0 && !v->pull && !ws_version_is_protected(v);
}

/* With s->lock. */
static struct ws_version *find_victim(struct ws_store *s, const struct ws_version *but)
{
    struct ws_version *victim = NULL;

    for (struct ws_model *m = s->models; m; m = m->next) {
        for (struct ws_version *v = m->versions; v; v = v->next) {
            if (v == but || !is_victim(v))
                continue;
            if (!victim || is_evicted_before(v, victim))
                victim = v;
        }
    }
    return victim;
}

static const char *why_kept(const struct ws_version *v)
{
    const struct ws_model *m = v->model;

    return v == m->current                 ? "served by the engines"
           : v == m->previous              ? "kept for rollback"
           : v->pinned                     ? "pinned"
           : v->pull                       ? "being pulled"
           : atomic_load(&v->retained) > 0 ? "open"
                                           : "among the newest";
}

/* Would it fit if the one that its model has now gave way? */
static bool holds_one(const struct ws_version *v, uint64_t bytes, uint64_t limit)
{
    bool has = false;

    for (const struct ws_version *w = v->model->versions; w; w = w->next)
        has = has || (w != v && w->own_bytes > 0);
    return has && bytes <= limit && !ws_model_is_hidden(v->model);
}

/* Names the versions that hold the memory, and what would free it. With s->lock. */
static int cache_is_full(struct ws_version *v, uint64_t bytes, uint64_t limit, struct ws_error *err)
{
    struct ws_store *s = v->store;
    char held[WS_ERROR_TEXT / 2] = "", need[WS_NUMBER_CHARS], cache[WS_NUMBER_CHARS], size[WS_NUMBER_CHARS];
    const struct ws_version *drop = NULL;
    const char *one = s->options.copies == WS_COPIES_TWO && v->own_bytes == 0 && holds_one(v, bytes, limit)
                          ? ", or with copies=1, which keeps one version in memory and patches it to the next"
                          : "";
    size_t used = 0, way_back = 0;

    for (struct ws_model *m = s->models; m; m = m->next) {
        for (struct ws_version *w = m->versions; w; w = w->next) {
            int n;
            if (w == v || w->own_bytes == 0)
                continue;
            if (w != m->current && !w->pinned && !w->pull && (!drop || is_evicted_before(w, drop)))
                drop = w;
            ws_number_size_text(w->own_bytes, size);
            n = snprintf(held + used, sizeof(held) - used, "%s%s/%lu (%s, %s)", used ? ", " : "", m->name,
                         w->number, size, why_kept(w));
            used += n > 0 && (size_t)n < sizeof(held) - used ? (size_t)n : 0;
        }
    }
    for (const struct ws_model *m = s->models; m; m = m->next)
        way_back += m->way_back_bytes;
    if (way_back) {
        ws_number_size_text(way_back, size);
        const int n =
            snprintf(held + used, sizeof(held) - used, "%s%s to go back by", used ? ", " : "", size);
        used += n > 0 && (size_t)n < sizeof(held) - used ? (size_t)n : 0;
    }
    if (s->waiting_bytes) {
        ws_number_size_text(s->waiting_bytes, size);
        snprintf(held + used, sizeof(held) - used, "%s%s dropped but still being read", used ? ", " : "",
                 size);
    }
    ws_number_size_text(bytes, need);
    ws_number_size_text(limit, cache);
    if (drop)
        return ws_error_set(err, ENOSPC,
                            "%s/%lu needs %s and the cache of %s is full: %s; make room with "
                            "echo \"drop %lu\" > /wsync/%s/ctl, or mount with a larger cache=%s",
                            v->model->name, v->number, need, cache, held, drop->number, drop->model->name,
                            one);
    return ws_error_set(err, ENOSPC, "%s/%lu needs %s and the cache has %s%s%s; mount with a larger cache=%s",
                        v->model->name, v->number, need, cache, held[0] ? ": " : "", held, one);
}

uint64_t ws_cache_budget_default(uint64_t available)
{
    const uint64_t most = available / 10 * 8;

    if (available < 2 * OUTSIDE_BYTES)
        return available / 2;
    return available - most < OUTSIDE_BYTES ? available - OUTSIDE_BYTES : most;
}

uint64_t ws_cache_budget_limit(uint64_t cache, uint64_t held, uint64_t available)
{
    uint64_t rest = held < cache ? cache - held : 0;

    return available < rest ? held + available : cache;
}

/* With s->lock. Memory goes to the pool before it is subtracted from used_bytes, so a sum of both never
 * misses any. */
static uint64_t in_use(struct ws_store *s)
{
    struct ws_pool_stats pool;

    ws_pool_stats(s->pool, &pool);
    return s->used_bytes + pool.waiting_bytes + ws_region_left_bytes();
}

struct ws_cache_budget ws_cache_budget_now(struct ws_store *s)
{
    struct ws_pool_stats pool;
    uint64_t held;

    pthread_mutex_lock(&s->lock);
    held = in_use(s);
    pthread_mutex_unlock(&s->lock);
    ws_pool_stats(s->pool, &pool);
    held += pool.free_bytes;
    return (struct ws_cache_budget){
        .limit = ws_cache_budget_limit(s->options.cache_bytes, held, ws_memory_available(NULL))};
}

bool ws_cache_budget_fits_beside(const struct ws_cache_budget *budget, struct ws_version *base,
                                 struct ws_version *v, uint64_t bytes)
{
    struct ws_store *s = v->store;
    uint64_t stays = in_use(s);

    for (const struct ws_model *m = s->models; m; m = m->next) {
        for (const struct ws_version *w = m->versions; w; w = w->next) {
            if (w != base && w != v && is_victim(w))
                stays -= w->own_bytes;
        }
    }
    return stays + bytes <= budget->limit;
}

/* What was taken for versions that are not announced yet gives way to those that are. With s->lock. */
static bool comes_back(struct ws_store *s)
{
    bool any = false;

    for (struct ws_model *m = s->models; s->puller->give_back && m; m = m->next)
        any = s->puller->give_back(m) || any;
    return any;
}

/* For a step; false: it has waited long enough. With s->lock, which it leaves meanwhile. */
static bool wait_step(struct ws_store *s, uint64_t *give_up_ns)
{
    if (*give_up_ns == 0)
        *give_up_ns = ws_clock_ns() + RELEASE_WAIT_MS * WS_MS_NS;
    if (ws_clock_ns() >= *give_up_ns)
        return false;
    (void)ws_cond_wait_until(&s->changed, &s->lock, ws_clock_ns() + STEP_MS * WS_MS_NS);
    return true;
}

#define DROPS 2

/* 0: the bytes were claimed; 1: try again; DROPS: once what a keeper has is dropped; -ENOSPC. With s->lock. */
static int try_claim(struct ws_version *v, uint64_t bytes, uint64_t *claimed,
                     const struct ws_cache_budget *budget, uint64_t *give_up_ns, bool is_ahead,
                     struct ws_store_events *ev, struct ws_error *err)
{
    struct ws_store *s = v->store;
    const uint64_t limit = budget->limit;
    bool wait_helps = s->used_bytes - s->waiting_bytes + bytes <= limit;
    struct ws_version *victim;

    if (in_use(s) + bytes <= limit) {
        s->used_bytes += bytes;
        *claimed += bytes;
        return 0;
    }
    if (s->kept_bytes > 0)
        return DROPS;
    if (bytes <= limit && !is_ahead && comes_back(s)) { /* within moments: it was told to end */
        (void)ws_cond_wait_until(&s->changed, &s->lock, ws_clock_ns() + STEP_MS * WS_MS_NS);
        return 1;
    }
    if (wait_helps && wait_step(s, give_up_ns))
        return 1;
    victim = bytes <= limit ? find_victim(s, v) : NULL;
    if (!victim)
        return cache_is_full(v, bytes, limit, err);
    ws_version_retire(victim, ev);
    *give_up_ns = 0;
    return 1;
}

static int borrow(struct ws_version *v, uint64_t bytes, uint64_t *borrowed, const atomic_bool *stop,
                  bool is_ahead, struct ws_error *err)
{
    struct ws_store *s = v->store;
    uint64_t give_up_ns = 0;
    int rc = 1;

    while (rc > 0) {
        struct ws_store_events events;
        const struct ws_cache_budget budget = ws_cache_budget_now(s);
        ws_store_events_init(&events);
        pthread_mutex_lock(&s->lock);
        if (atomic_load(stop))
            rc = ws_error_set(err, ECANCELED, "the pull of %s/%lu was stopped", v->model->name, v->number);
        else
            rc = try_claim(v, bytes, borrowed, &budget, &give_up_ns, is_ahead, &events, err);
        pthread_mutex_unlock(&s->lock);
        ws_store_events_notify(&events, s);
        if (rc == DROPS)
            (void)ws_keeper_drop(s);
    }
    return rc;
}

int ws_cache_budget_borrow(struct ws_version *v, uint64_t bytes, uint64_t *borrowed, const atomic_bool *stop,
                           struct ws_error *err)
{
    return borrow(v, bytes, borrowed, stop, false, err);
}

int ws_cache_budget_borrow_ahead(struct ws_version *v, uint64_t bytes, uint64_t *borrowed,
                                 const atomic_bool *stop, struct ws_error *err)
{
    return borrow(v, bytes, borrowed, stop, true, err);
}

int ws_cache_budget_claim(struct ws_version *v, uint64_t bytes, const atomic_bool *stop, struct ws_error *err)
{
    return ws_cache_budget_borrow(v, bytes, &v->own_bytes, stop, err);
}

void ws_cache_budget_return(struct ws_store *s, uint64_t borrowed)
{
    pthread_mutex_lock(&s->lock);
    s->used_bytes -= borrowed;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void ws_cache_budget_trim_pool(struct ws_store *s)
{
    uint64_t used;

    pthread_mutex_lock(&s->lock);
    used = in_use(s);
    pthread_mutex_unlock(&s->lock);
    ws_pool_trim(s->pool, used < s->options.cache_bytes ? s->options.cache_bytes - used : 0);
}

void ws_cache_budget_prepare_next(struct ws_store *s, const struct ws_manifest *m)
{
    uint64_t used;

    pthread_mutex_lock(&s->lock);
    used = in_use(s);
    pthread_mutex_unlock(&s->lock);
    /* Free regions of the pool do not count: they are reused or freed first. */
    if (used + m->total_bytes > s->options.cache_bytes)
        return;
    for (size_t i = 0; i < m->n_files; i++) {
        if (m->files[i].size_bytes)
            ws_pool_reserve(s->pool, m->files[i].size_bytes);
    }
}
