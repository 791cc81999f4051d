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

/* --- which ways there are --- */

static bool has_same_files(const struct ws_manifest *a, const struct ws_manifest *b)
{
    bool same = a && a->n_files == b->n_files;

    for (size_t i = 0; same && i < a->n_files; i++)
        same = a->files[i].size_bytes == b->files[i].size_bytes &&
               strcmp(a->files[i].name, b->files[i].name) == 0;
    return same;
}

/* The version that a link begins at, if something of it is here. With store->lock. */
static struct ws_version *find_base(struct ws_version *v, const struct ws_delta_link *l)
{
    struct ws_version *w = ws_version_named(v->model, l->base.version, l->base.run);

    if (!w || w == v || w->own_bytes == 0 || strcmp(w->digest, l->base_digest) != 0 ||
        !has_same_files(atomic_load(&w->manifest), atomic_load(&v->manifest)))
        return NULL;
    return w;
}

/* May it go? */
static bool may_be_replaced(const struct ws_version *w)
{
    return !w->pull && atomic_load(&w->n_waits) == 0 && !ws_version_is_protected(w);
}

/* Could anybody outside ever read it? Then its memory is not patched in place: what he put into a pipe or a
 * socket would change, and nobody sees that it is there. It is copied, where there is room. */
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
    size_t n_links;
    double price;
    double full_seconds;
    bool dearer;  /* there was a base, and a full pull is quicker */
    bool no_room; /* or there is none for a copy of it, and a full pull may evict it */
};

static uint64_t bytes_of(const struct ws_link *l, uint64_t total)
{
    if (l->held)
        return 0;
    if (l->offer.figures.state == WS_DELTA_GROWING && l->offer.figures.bytes < total / 100)
        return total / 100; /* not known yet */
    return l->offer.figures.bytes;
}

static void weigh(struct ws_version *v, struct ws_version *w, size_t n_links, uint64_t delta_bytes,
                  const struct ws_room *room, struct choice *best)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    bool may_go = v->own_bytes == 0 && !ws_version_has_bytes(v) && may_be_replaced(w),
         in_place = may_go && !was_read(w);
    struct ws_cost cost = {.fetch_bytes = delta_bytes + m->total_bytes - ws_content_bytes(w),
                           .patch_bytes = m->total_bytes,
                           .copies = !in_place,
                           .n_links = n_links};
    const struct ws_speeds *speeds = &v->store->speeds;
    const unsigned threads = v->store->options.threads;
    const double price = ws_cost_price(&cost, speeds, threads);

    if (!in_place && !ws_version_is_complete(w))
        return;
    if (!in_place && may_go && ws_version_comes_whole(v) && v->own_bytes == 0 &&
        !ws_room_has_beside(room, w, v, m->total_bytes)) {
        best->no_room = true;
        return;
    }
    if (ws_cost_seconds(&cost, speeds, threads) >= best->full_seconds) {
        best->dearer = true;
    } else if (price < best->price) {
        best->base = w;
        best->in_place = in_place;
        best->n_links = n_links;
        best->price = price;
    }
}

/* Walks back from the version, link by link; each version that is here on the way is a base. links: newest
 * first. */
static struct choice choose(struct ws_version *v, const struct ws_links *k, const struct ws_room *room,
                            struct ws_link links[WS_MAX_CHAIN])
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct ws_cost full = {.fetch_bytes = m->total_bytes};
    struct choice best = {
        .price = DBL_MAX,
        .full_seconds = ws_cost_seconds(&full, &v->store->speeds, v->store->options.threads),
    };
    struct ws_mark at = ws_version_mark(v);
    const char *digest = v->digest;
    uint64_t bytes = 0;

    if (!ws_version_comes_whole(v))
        best.full_seconds = DBL_MAX; /* there is no other way */
    for (size_t n = 0; n < WS_MAX_CHAIN && ws_links_find(v->model, k, &at, digest, &links[n]); n++) {
        struct ws_version *w = find_base(v, &links[n].offer.link);
        bytes += bytes_of(&links[n], m->total_bytes);
        if (w)
            weigh(v, w, n + 1, bytes, room, &best);
        at = links[n].offer.link.base;
        digest = links[n].offer.link.base_digest;
    }
    return best;
}

/* --- taking the base --- */

static int keep_choice(struct ws_delta_plan *p, const struct choice *c, const struct ws_link *newest_first)
{
    p->n_links = c->n_links;
    for (size_t i = 0; i < c->n_links; i++) {
        p->links[i] = newest_first[c->n_links - 1 - i];
        if (p->links[i].held)
            ws_delta_get(p->links[i].held);
    }
    return ws_manifest_copy(atomic_load(&c->base->manifest), &p->base);
}

static void forget_choice(struct ws_delta_plan *p)
{
    for (size_t i = 0; i < p->n_links; i++)
        ws_delta_put(p->links[i].held);
    p->n_links = 0;
    ws_manifest_free(p->base);
    p->base = NULL;
}

static void say_why(const struct choice *c, const struct ws_delta_plan *p, char why[WS_HOW_CHARS])
{
    if (c->n_links == 1)
        snprintf(why, WS_HOW_CHARS, "delta from %lu", p->base->version);
    else
        snprintf(why, WS_HOW_CHARS, "chain of %zu from %lu", c->n_links, p->base->version);
    if (c->in_place)
        snprintf(why + strlen(why), WS_HOW_CHARS - strlen(why), " in place");
}

/* Again when a base could not be had in the end. */
bool ws_delta_plan_make(struct ws_delta_plan *p, struct ws_route *r, const struct ws_links *k,
                        char why[WS_HOW_CHARS])
{
    struct ws_version *v = r->version;
    struct ws_store *s = v->store;

    for (;;) {
        struct ws_link links[WS_MAX_CHAIN];
        struct ws_bequest *bequest = NULL;
        struct ws_changes changes;
        const struct ws_room room = ws_room_now(s);
        ws_changes_init(&changes);
        pthread_mutex_lock(&s->lock);
        struct choice c = choose(v, k, &room, links);
        bool taken = c.base && keep_choice(p, &c, links) == 0;
        if (taken && c.in_place) {
            say_why(&c, p, why);
            bequest = ws_bequest_new(c.base, v, &changes);
            taken = bequest;
        } else if (taken) {
            say_why(&c, p, why);
            p->copied = ws_version_get(c.base);
            ws_version_keep(p->copied, 1);
        }
        pthread_mutex_unlock(&s->lock);
        ws_changes_tell(&changes, s);
        if (!taken) {
            forget_choice(p);
            if (!c.base && c.dearer)
                ws_speeds_doubt(&s->speeds);
            snprintf(why, WS_HOW_CHARS, "%s",
                     c.dearer    ? "patching would take longer"
                     : c.no_room ? "no room for a copy of the version before"
                                 : "");
            return false;
        }
        if (!bequest || ws_bequest_take(bequest, &r->stop, &p->here))
            return true;
        if (atomic_load(&r->stop)) { /* no other base is to go for a pull that ends */
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
        ws_version_keep(p->copied, -1);
        ws_version_put(p->copied);
    }
}
