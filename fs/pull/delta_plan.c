#include "fs/pull/delta_plan.h"
#include "fs/pull/undo.h"
#include "fs/store/cache_budget.h"
#include "fs/store/content.h"
#include "fs/store/cost.h"
#include "fs/store/handover.h"
#include "fs/store/model.h"
#include "fs/store/one_copy.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "fs/store/wants.h"
#include "fs/store/way_back.h"
#include "transports/base/log.h"
#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- bases --- */

/* Is something of w here, of which v could be made? With store->lock. */
static bool is_base(const struct ws_version *v, const struct ws_version *w)
{
    return w != v && (w->own_bytes > 0 || ws_part_view(w));
}

/* The version that a delta begins at, if something of it is here. With store->lock. */
static struct ws_version *find_base(struct ws_version *v, const struct ws_delta_link *l)
{
    struct ws_version *w = ws_version_lookup(v->model, l->base.version, l->base.lineage);

    if (!w || !is_base(v, w) || strcmp(w->digest, l->base_digest) != 0 ||
        !ws_manifest_has_same_files(atomic_load(&w->manifest), atomic_load(&v->manifest)))
        return NULL;
    return w;
}

bool ws_delta_plan_may_have_base(struct ws_version *v)
{
    bool has = ws_part_base(v) || ws_one_copy_untouched(v);

    for (const struct ws_version *w = v->model->versions; w && !has; w = w->next)
        has = is_base(v, w);
    return has;
}

/* --- choosing; with store->lock --- */

struct choice {
    struct ws_version *base; /* NULL: a full pull */
    bool one_copy;
    bool in_place;
    size_t n_steps;
    double price;
    double full_seconds;
    bool dearer;  /* there is a base, and a full pull is quicker */
    bool no_room; /* there is a base, and no space for a copy of it; a full pull may evict it */
};

/* Was the delta before it given up, after it had become large? Where each step changes most of a model, as of an adapter, each
 * delta is, and who waits for it has lost that time. */
static bool follows_large(const struct ws_delta_chain *chain, const struct ws_delta_step *l, uint64_t total)
{
    bool does = false;

    for (size_t i = 0; i < chain->n && !does; i++) {
        const struct ws_delta_entry *e = &chain->entries[i];
        does = e->stats.state == WS_DELTA_GIVEN_UP && e->stats.bytes > total / 2 &&
               ws_version_id_equal(&e->link.target, &l->entry.link.base);
    }
    return does;
}

static bool is_being_made(const struct ws_delta_step *l)
{
    return !l->held && l->entry.stats.state == WS_DELTA_GROWING;
}

/* Of records of blocks that come. chain: that lists the step; NULL: it is not at hand. */
static uint64_t bytes_to_fetch(const struct ws_delta_step *l, const struct ws_version *v,
                               const struct ws_delta_chain *chain)
{
    const uint64_t total = ((struct ws_manifest *)atomic_load(&v->manifest))->total_bytes;
    const double share = (double)ws_version_wanted_bytes(v) / (double)(total ? total : 1);

    if (l->held)
        return 0;
    if (l->entry.stats.state == WS_DELTA_GROWING && chain && follows_large(chain, l, total))
        return (uint64_t)(share * (double)total);
    if (l->entry.stats.state == WS_DELTA_GROWING && l->entry.stats.bytes < total / 100)
        return (uint64_t)(share * (double)total / 100); /* not known yet */
    return (uint64_t)(share * (double)l->entry.stats.bytes);
}

/* What the deltas from a base on cost. */
struct links {
    size_t n;
    uint64_t bytes;
    bool is_made; /* one of them is being made */
};

/* whole: there is another way. */
static void consider(struct ws_version *v, struct ws_version *w, const struct links *links,
                     const struct ws_cache_budget *budget, bool whole, struct choice *best)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    bool may_go = v->own_bytes == 0 && !ws_version_has_bytes(v) && ws_handover_may_go(w),
         in_place = may_go && !ws_handover_was_read(w) && /* else it is copied, if the cache has space */
                    !ws_version_wants_less(v, w);         /* whose memory would stay */
    /* A part counts blocks that do not come as here. */
    const uint64_t has = ws_content_bytes(w),
                   all = atomic_load(&v->wanted) ? ws_version_wanted_bytes(v) : m->total_bytes;
    struct ws_cost cost = {.fetch_bytes = links->bytes + (has < all ? all - has : 0),
                           .patch_bytes = ws_version_wanted_bytes(v),
                           .copies = !in_place,
                           .is_made = links->is_made,
                           .n_deltas = links->n};
    const struct ws_speeds *speeds = &v->store->speeds;
    const unsigned threads = v->store->options.threads;
    const double price = ws_cost_price(&cost, speeds, threads);

    if (!in_place && !ws_version_is_complete(w))
        return;
    if (!in_place && may_go && whole && v->own_bytes == 0 &&
        !ws_cache_budget_fits_beside(budget, w, v, ws_version_wanted_bytes(v))) {
        best->no_room = true;
        return;
    }
    if (ws_cost_seconds(&cost, speeds, threads) >= best->full_seconds) {
        best->dearer = true;
    } else if (price < best->price) {
        best->base = w;
        best->in_place = in_place;
        best->n_steps = links->n;
        best->price = price;
    }
}

/* Walks back from the version, step by step; each version on the way that is here is a base. steps: newest
 * first. */
static struct choice choose(struct ws_source_select *sel, const struct ws_delta_chain *chain,
                            const struct ws_cache_budget *budget,
                            struct ws_delta_step steps[WS_MAX_DELTA_CHAIN])
{
    struct ws_version *v = sel->version;
    const bool whole = ws_source_select_comes_whole(sel);
    struct ws_cost full = {.fetch_bytes = ws_version_wanted_bytes(v)};
    struct choice best = {
        .price = DBL_MAX,
        .full_seconds = ws_cost_seconds(&full, &v->store->speeds, v->store->options.threads),
    };
    struct ws_version_id at = ws_version_id(v);
    const char *digest = v->digest;
    struct links links = {0};

    if (!whole)
        best.full_seconds = DBL_MAX; /* there is no other way */
    for (size_t n = 0; n < WS_MAX_DELTA_CHAIN && ws_delta_chain_find(v->model, chain, &at, digest, &steps[n]);
         n++) {
        struct ws_version *w = find_base(v, &steps[n].entry.link);
        links.n = n + 1;
        links.bytes += bytes_to_fetch(&steps[n], v, chain);
        links.is_made = links.is_made || is_being_made(&steps[n]);
        if (w)
            consider(v, w, &links, budget, whole, &best);
        at = steps[n].entry.link.base;
        digest = steps[n].entry.link.base_digest;
    }
    return best;
}

bool ws_delta_plan_pays(struct ws_version *v, size_t n, const struct ws_delta_step *steps)
{
    const uint64_t total = ws_version_wanted_bytes(v);
    const struct ws_cost full = {.fetch_bytes = total};
    struct ws_cost patched = {.patch_bytes = total, .n_deltas = n};
    const struct ws_speeds *speeds = &v->store->speeds;
    const unsigned threads = v->store->options.threads;

    for (size_t i = 0; i < n; i++) {
        patched.fetch_bytes += bytes_to_fetch(&steps[i], v, NULL);
        patched.is_made = patched.is_made || is_being_made(&steps[i]);
    }
    return ws_cost_seconds(&patched, speeds, threads) < ws_cost_seconds(&full, speeds, threads);
}

size_t ws_delta_plan_find(struct ws_version *v, const struct ws_manifest *from,
                          const struct ws_delta_chain *chain, struct ws_delta_step steps[WS_MAX_DELTA_CHAIN])
{
    const struct ws_version_id begin = ws_version_id_make(from->version, from->lineage);
    struct ws_delta *back[WS_MAX_DELTA_ENTRIES];
    struct ws_version_id at = ws_version_id(v);
    const char *digest = v->digest;

    if (!ws_manifest_has_same_files(from, atomic_load(&v->manifest)))
        return 0;
    const size_t n_back = ws_way_back_find(from, v, back);
    for (size_t i = 0; i < n_back && n_back <= WS_MAX_DELTA_CHAIN; i++)
        steps[i] = (struct ws_delta_step){
            .entry = {.link = *ws_delta_link(back[i])}, .held = back[i], .is_way_back = true};
    if (n_back > 0 && n_back <= WS_MAX_DELTA_CHAIN)
        return n_back;
    for (size_t n = 0; n < WS_MAX_DELTA_CHAIN && ws_delta_chain_find(v->model, chain, &at, digest, &steps[n]);
         n++) {
        at = steps[n].entry.link.base;
        digest = steps[n].entry.link.base_digest;
        if (ws_version_id_equal(&at, &begin))
            return strcmp(digest, from->digest) == 0 ? n + 1 : 0;
    }
    return 0;
}

/* The one copy of a model: what it is made of is not a matter of cost, as a full pull leaves no way back. One in parts goes
 * on to versions in parts alone (assemble_in_place.h). */
static struct choice choose_way(struct ws_version *v, const struct ws_delta_chain *chain,
                                struct ws_delta_step steps[WS_MAX_DELTA_CHAIN])
{
    struct ws_version *from = v->own_bytes > 0 ? ws_one_copy_untouched(v) : ws_one_copy_holder(v);
    const struct ws_manifest *m = from && !from->parts ? atomic_load(&from->manifest) : NULL;
    struct choice c = {.one_copy = true, .in_place = true};

    c.n_steps = m ? ws_delta_plan_find(v, m, chain, steps) : 0;
    c.base = c.n_steps > 0 ? from : NULL;
    return c;
}

/* --- claiming the base --- */

static int keep_choice(struct ws_delta_plan *p, size_t n_steps, const struct ws_manifest *base,
                       const struct ws_delta_step *newest_first)
{
    p->n_steps = n_steps;
    for (size_t i = 0; i < n_steps; i++) {
        p->steps[i] = newest_first[n_steps - 1 - i];
        if (p->steps[i].held)
            ws_delta_get(p->steps[i].held);
    }
    return ws_manifest_copy(base, &p->base);
}

static void forget_choice(struct ws_delta_plan *p)
{
    for (size_t i = 0; i < p->n_steps; i++)
        ws_delta_put(p->steps[i].held);
    p->n_steps = 0;
    ws_manifest_free(p->base);
    p->base = NULL;
}

static void describe_choice(const struct ws_delta_plan *p, bool in_place, char why[WS_HOW_CHARS])
{
    if (p->n_steps == 1)
        snprintf(why, WS_HOW_CHARS, "delta from %lu", p->base->version);
    else
        snprintf(why, WS_HOW_CHARS, "chain of %zu from %lu", p->n_steps, p->base->version);
    if (in_place)
        snprintf(why + strlen(why), WS_HOW_CHARS - strlen(why), " in place");
}

static bool has_all(const struct ws_delta_plan *p)
{
    bool all = true;

    for (size_t i = 0; i < p->base->n_files; i++)
        for (size_t b = 0; b < p->base->files[i].n_blocks; b++)
            all = all && atomic_load(&p->here[i][b / 64]) & 1UL << (b % 64);
    return all;
}

/* The version has the memory already, and blocks that are not its yet are the base's. */
static int go_on_from_untouched(struct ws_delta_plan *p, struct ws_version *v)
{
    const struct ws_manifest *m = p->base;

    p->here = calloc(m->n_files + 1, sizeof(*p->here));
    for (size_t i = 0; p->here && i < m->n_files; i++) {
        const size_t words = (m->files[i].n_blocks + 63) / 64;
        p->here[i] = calloc(words + 1, sizeof(*p->here[i]));
        if (!p->here[i])
            return -ENOMEM;
        for (size_t w = 0; w < words; w++)
            atomic_store(&p->here[i][w], ~atomic_load(&v->files[i].here[w]));
    }
    p->one_copy = true;
    return p->here ? 1 : -ENOMEM;
}

/* The memory of the holder goes on to the version. 1, 0: the holder is another by now; or why it cannot be had. */
static int take_one_copy(struct ws_delta_plan *p, struct ws_source_select *sel, struct ws_version *holder,
                         struct ws_error *err)
{
    if (sel->version->own_bytes > 0) {
        ws_version_put(holder);
        if (go_on_from_untouched(p, sel->version) > 0)
            return 1;
        return ws_error_set(err, ENOMEM, "out of memory for %s/%lu", sel->version->model->name,
                            sel->version->number);
    }
    const int rc = ws_one_copy_move(holder, sel->version, &sel->stop, &p->here, NULL, err);

    ws_version_put(holder);
    p->one_copy = rc == 0;
    p->base_was_whole = rc == 0 && has_all(p);
    if (rc < 0)
        forget_choice(p);
    return rc == -ENOENT ? 0 : rc < 0 ? rc : 1;
}

/* What lies in the part's place, where the memory of another version has gone on, or what a pull before left of it. 1; 0: it
 * is not what the part can be made of. */
static int take_part(struct ws_delta_plan *p, struct ws_version *part, const struct ws_delta_chain *chain,
                     char why[WS_HOW_CHARS])
{
    struct ws_store *s = part->store;
    struct ws_delta_step steps[WS_MAX_DELTA_CHAIN];

    pthread_mutex_lock(&s->lock);
    struct ws_part_base *base = ws_part_base(part);
    const struct ws_version *untouched = base ? NULL : ws_one_copy_untouched(part);
    const struct ws_manifest *from = base        ? base->manifest
                                     : untouched ? atomic_load(&untouched->manifest)
                                                 : NULL;
    const size_t n = from ? ws_delta_plan_find(part, from, chain, steps) : 0;
    bool kept = n > 0 && keep_choice(p, n, from, steps) == 0;
    if (kept && base) {
        p->here = base->here;
        base->here = NULL;
        p->one_copy = base->is_wanted;
        p->base_was_whole = p->one_copy && has_all(p);
        const struct ws_version_id id = ws_version_id_make(p->base->version, p->base->lineage);
        if (p->one_copy && !p->base_was_whole)
            ws_way_back_go(part, &id, p->base->digest);
    } else if (kept) {
        kept = go_on_from_untouched(p, part) > 0;
    }
    if (kept)
        describe_choice(p, true, why);
    pthread_mutex_unlock(&s->lock);
    if (!kept)
        ws_delta_plan_release(p);
    return kept;
}

/* Chooses again when a base could not be handed over in the end. */
int ws_delta_plan_make(struct ws_delta_plan *p, struct ws_source_select *sel,
                       const struct ws_delta_chain *chain, char why[WS_HOW_CHARS], struct ws_error *err)
{
    struct ws_version *v = sel->version;
    struct ws_store *s = v->store;

    if (ws_part_has_base(v) || (ws_part_view(v) && ws_undo_is_needed(v)))
        return take_part(p, v, chain, why);
    for (;;) {
        struct ws_version *holder = NULL;
        struct ws_delta_step steps[WS_MAX_DELTA_CHAIN];
        struct ws_handover *handover = NULL;
        struct ws_store_events events;
        const struct ws_cache_budget budget = ws_cache_budget_now(s);
        ws_store_events_init(&events);
        pthread_mutex_lock(&s->lock);
        struct choice c =
            ws_one_copy_applies(v) ? choose_way(v, chain, steps) : choose(sel, chain, &budget, steps);
        bool claimed = c.base && keep_choice(p, c.n_steps, atomic_load(&c.base->manifest), steps) == 0;
        if (claimed && c.one_copy) {
            describe_choice(p, c.in_place, why);
            holder = ws_version_get(c.base);
        } else if (claimed && c.in_place) {
            describe_choice(p, c.in_place, why);
            handover = ws_handover_new(c.base, v, false, &events);
            claimed = handover;
        } else if (claimed) {
            describe_choice(p, c.in_place, why);
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
            return 0;
        }
        if (holder) {
            const int rc = take_one_copy(p, sel, holder, err);
            if (rc != 0)
                return rc;
            continue;
        }
        if (!handover || ws_handover_wait(handover, &sel->stop, &p->here))
            return 1;
        if (atomic_load(&sel->stop)) { /* no other base has to go for a pull that ends */
            forget_choice(p);
            return 0;
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
