#include "fs/pull/delta_plan.h"
#include "fs/store/cache_budget.h"
#include "fs/store/content.h"
#include "fs/store/cost.h"
#include "fs/store/handover.h"
#include "fs/store/model.h"
#include "fs/store/version.h"
#include "transports/base/log.h"
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- bases --- */

static bool has_same_files(const struct ws_manifest *a, const struct ws_manifest *b)
{
    bool same = a && a->n_files == b->n_files;

    for (size_t i = 0; same && i < a->n_files; i++)
        same = a->files[i].size_bytes == b->files[i].size_bytes &&
               strcmp(a->files[i].name, b->files[i].name) == 0;
    return same;
}

/* The version that a delta begins at, if something of it is here. With store->lock. */
static struct ws_version *find_base(struct ws_version *v, const struct ws_delta_link *l)
{
    struct ws_version *w = ws_version_lookup(v->model, l->base.version, l->base.lineage);

    if (!w || w == v || w->own_bytes == 0 || strcmp(w->digest, l->base_digest) != 0 ||
        !has_same_files(atomic_load(&w->manifest), atomic_load(&v->manifest)))
        return NULL;
    return w;
}

/* May its memory go to another version? */
static bool may_be_replaced(const struct ws_version *w)
{
    return !w->pull && atomic_load(&w->n_waiters) == 0 && !ws_version_is_protected(w);
}

/* Could another process ever read it? Then it is not patched in place: pages that the process has put into a
 * pipe or a socket would change, and the kernel does not show that they are there. It is copied instead, if
 * the cache has space. */
static bool was_read(struct ws_version *w)
{
    const struct ws_manifest *m = atomic_load(&w->manifest);
    bool was = false;

    for (size_t i = 0; i < m->n_files; i++)
        was = was || (ws_content_region(w, i) && ws_region_was_shown(ws_content_region(w, i)));
    return was;
}

/* --- choosing; with store->lock --- */

struct choice {
    struct ws_version *base; /* NULL: a full pull */
    bool in_place;
    size_t n_steps;
    double price;
    double full_seconds;
    bool dearer;  /* there is a base, and a full pull is quicker */
    bool no_room; /* there is a base, and no space for a copy of it; a full pull may evict it */
};

static uint64_t bytes_to_fetch(const struct ws_delta_step *l, uint64_t total)
{
    if (l->held)
        return 0;
    if (l->entry.stats.state == WS_DELTA_GROWING && l->entry.stats.bytes < total / 100)
        return total / 100; /* not known yet */
    return l->entry.stats.bytes;
}

static void consider(struct ws_version *v, struct ws_version *w, size_t n_links, uint64_t delta_bytes,
                     const struct ws_cache_budget *budget, struct choice *best)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    bool may_go = v->own_bytes == 0 && !ws_version_has_bytes(v) && may_be_replaced(w),
         in_place = may_go && !was_read(w);
    struct ws_cost cost = {.fetch_bytes = delta_bytes + m->total_bytes - ws_content_bytes(w),
                           .patch_bytes = m->total_bytes,
                           .copies = !in_place,
                           .n_deltas = n_links};
    const struct ws_speeds *speeds = &v->store->speeds;
    const unsigned threads = v->store->options.threads;
    const double price = ws_cost_price(&cost, speeds, threads);

    if (!in_place && !ws_version_is_complete(w))
        return;
    if (!in_place && may_go && ws_version_comes_whole(v) && v->own_bytes == 0 &&
        !ws_cache_budget_fits_beside(budget, w, v, m->total_bytes)) {
        best->no_room = true;
        return;
    }
    if (ws_cost_seconds(&cost, speeds, threads) >= best->full_seconds) {
        best->dearer = true;
    } else if (price < best->price) {
        best->base = w;
        best->in_place = in_place;
        best->n_steps = n_links;
        best->price = price;
    }
}

/* Walks back from the version, step by step; each version on the way that is here is a base. steps: newest
 * first. */
static struct choice choose(struct ws_version *v, const struct ws_delta_chain *chain,
                            const struct ws_cache_budget *budget,
                            struct ws_delta_step steps[WS_MAX_DELTA_CHAIN])
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct ws_cost full = {.fetch_bytes = m->total_bytes};
    struct choice best = {
        .price = DBL_MAX,
        .full_seconds = ws_cost_seconds(&full, &v->store->speeds, v->store->options.threads),
    };
    struct ws_version_id at = ws_version_id(v);
    const char *digest = v->digest;
    uint64_t bytes = 0;

    if (!ws_version_comes_whole(v))
        best.full_seconds = DBL_MAX; /* there is no other way */
    for (size_t n = 0; n < WS_MAX_DELTA_CHAIN && ws_delta_chain_find(v->model, chain, &at, digest, &steps[n]);
         n++) {
        struct ws_version *w = find_base(v, &steps[n].entry.link);
        bytes += bytes_to_fetch(&steps[n], m->total_bytes);
        if (w)
            consider(v, w, n + 1, bytes, budget, &best);
        at = steps[n].entry.link.base;
        digest = steps[n].entry.link.base_digest;
    }
    return best;
}

/* --- claiming the base --- */

static int keep_choice(struct ws_delta_plan *p, const struct choice *c,
                       const struct ws_delta_step *newest_first)
{
    p->n_steps = c->n_steps;
    for (size_t i = 0; i < c->n_steps; i++) {
        p->steps[i] = newest_first[c->n_steps - 1 - i];
        if (p->steps[i].held)
            ws_delta_get(p->steps[i].held);
    }
    return ws_manifest_copy(atomic_load(&c->base->manifest), &p->base);
}

static void forget_choice(struct ws_delta_plan *p)
{
    for (size_t i = 0; i < p->n_steps; i++)
        ws_delta_put(p->steps[i].held);
    p->n_steps = 0;
    ws_manifest_free(p->base);
    p->base = NULL;
}

static void describe_choice(const struct choice *c, const struct ws_delta_plan *p, char why[WS_HOW_CHARS])
{
    if (c->n_steps == 1)
        snprintf(why, WS_HOW_CHARS, "delta from %lu", p->base->version);
    else
        snprintf(why, WS_HOW_CHARS, "chain of %zu from %lu", c->n_steps, p->base->version);
    if (c->in_place)
        snprintf(why + strlen(why), WS_HOW_CHARS - strlen(why), " in place");
}

/* Chooses again when a base could not be handed over in the end. */
bool ws_delta_plan_make(struct ws_delta_plan *p, struct ws_source_select *sel,
                        const struct ws_delta_chain *chain, char why[WS_HOW_CHARS])
{
    struct ws_version *v = sel->version;
    struct ws_store *s = v->store;

    for (;;) {
        struct ws_delta_step steps[WS_MAX_DELTA_CHAIN];
        struct ws_handover *handover = NULL;
        struct ws_store_events events;
        const struct ws_cache_budget budget = ws_cache_budget_now(s);
        ws_store_events_init(&events);
        pthread_mutex_lock(&s->lock);
        struct choice c = choose(v, chain, &budget, steps);
        bool claimed = c.base && keep_choice(p, &c, steps) == 0;
        if (claimed && c.in_place) {
            describe_choice(&c, p, why);
            handover = ws_handover_new(c.base, v, &events);
            claimed = handover;
        } else if (claimed) {
            describe_choice(&c, p, why);
            p->copied = ws_version_get(c.base);
            ws_version_retain(p->copied, 1);
        }
        pthread_mutex_unlock(&s->lock);
        ws_store_events_notify(&events, s);
        if (!claimed) {
            forget_choice(p);
            if (!c.base && c.dearer)
                ws_speeds_favour_patching(&s->speeds);
            snprintf(why, WS_HOW_CHARS, "%s",
                     c.dearer    ? "patching would take longer"
                     : c.no_room ? "no space for a copy of the version before"
                                 : "");
            return false;
        }
        if (!handover || ws_handover_wait(handover, &sel->stop, &p->here))
            return true;
        if (atomic_load(&sel->stop)) { /* no other base has to go for a pull that ends */
            forget_choice(p);
            return false;
        }
        ws_log(WS_LOG_INFO, "store", "version %lu of %s was or is read: its memory is not patched in place",
               p->base->version, v->model->name);
        forget_choice(p);
    }
}

void ws_delta_plan_release(struct ws_delta_plan *p)
{
    for (size_t i = 0; p->here && i < p->base->n_files; i++)
        free(p->here[i]);
    free(p->here);
    forget_choice(p);
    if (p->copied) {
        ws_version_retain(p->copied, -1);
        ws_version_put(p->copied);
    }
}
