#include "fs/pull/spare.h"
#include "fs/store/cache_budget.h"
#include "fs/store/comparison.h"
#include "fs/store/content.h"
#include "fs/store/delta_cache.h"
#include "fs/store/model.h"
#include "fs/store/one_copy.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "fs/store/wants.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include "transports/delta/encode.h"
#include "transports/delta/patcher.h"
#include "transports/memory/pool.h"
#include "transports/ways.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KEPT_NS      (10 * WS_SECOND_NS) /* for a pull, once nothing more comes */
#define SILENT_NS    WS_SECOND_NS        /* a pull waits no longer for the next record */
#define WAIT_NS      (10 * WS_SECOND_NS) /* ... nor for all of them together */
#define END_NS       WS_SECOND_NS        /* and no longer for the thread to end */
#define LOOK_NS      (20 * WS_MS_NS)
/* What is wrong or lacking comes whole: as many bytes as came, and these. Beyond that, the version comes as ever. */
#define MOST_MISSING (8 * WS_BLOCK_BYTES)

struct ws_spare {
    struct ws_model *model;
    struct ws_version *base;   /* counted and retained; whole */
    struct ws_poller *poller;  /* counted */
    struct ws_delta_link link; /* without the target's digest */
    uint64_t n_blocks, most_bytes, came;
    struct ws_region **regions; /* by file of the base's manifest */
    uint64_t borrowed;          /* of the cache */
    uint64_t **hashes;          /* by file and block, of what is in the regions, where has */
    unsigned char **has;
    struct ws_delta *kept; /* what came; NULL: no memory */
    struct ws_patcher *patcher;
    atomic_bool stop;
    struct ws_pace pace;
    /* guarded by store->lock */
    bool ended; /* the thread changes nothing any more */
    bool taken; /* a pull uses it */
    bool over;  /* ... and has ended with it */
};

static const struct ws_manifest *manifest_of(const struct ws_spare *p)
{
    return atomic_load(&p->base->manifest);
}

/* --- the thread --- */

static int admit(void *arg, uint64_t bytes, struct ws_error *err)
{
    struct ws_spare *p = arg;
    p->came += bytes;
    return p->came > p->most_bytes ? ws_error_set(err, E2BIG, "it is larger than the room for deltas") : 0;
}

static int record(void *arg, struct ws_delta_record *r)
{
    struct ws_spare *p = arg;
    const struct ws_manifest *m = manifest_of(p);
    const size_t file = r->file, block = r->block;

    ws_pace_note(&p->pace, ws_clock_ns());
    atomic_fetch_add(&p->base->store->moved_bytes, r->bytes);
    if (file >= m->n_files || block >= m->files[file].n_blocks || p->has[file][block] ||
        ws_delta_add(p->kept, r) < 0) {
        if (file >= m->n_files || block >= m->files[file].n_blocks || p->has[file][block])
            free(r);
        return 1;
    }
    const struct ws_delta_record *chain[1] = {ws_delta_at(p->kept, file, block)};
    const uint64_t at = block * WS_BLOCK_BYTES;
    p->has[file][block] = ws_patcher_block(p->patcher, ws_region_data(p->regions[file]) + at,
                                           ws_region_data(ws_content_region(p->base, file)) + at,
                                           ws_manifest_block_bytes(&m->files[file], block), chain, 1,
                                           &p->hashes[file][block], NULL) == 0;
    return 0;
}

static int get_memory(struct ws_spare *p, struct ws_error *err)
{
    const struct ws_manifest *m = manifest_of(p);
    struct ws_store *s = p->base->store;
    const struct ws_cache_budget budget = ws_cache_budget_now(s);

    pthread_mutex_lock(&s->lock);
    const bool fits = ws_cache_budget_fits_beside(&budget, p->base, p->base, m->total_bytes);
    pthread_mutex_unlock(&s->lock);
    if (!fits)
        return ws_error_set(err, ENOSPC, "the cache has no room for a copy of the version before");
    p->patcher = ws_patcher_new();
    p->regions = calloc(m->n_files + 1, sizeof(struct ws_region *));
    p->hashes = calloc(m->n_files + 1, sizeof(*p->hashes));
    p->has = calloc(m->n_files + 1, sizeof(*p->has));
    int rc =
        p->patcher && p->regions && p->hashes && p->has ? ws_delta_new(&p->kept, &p->link, m, err) : -ENOMEM;
    if (rc == 0 && ws_delta_blocks(p->kept) != p->n_blocks)
        rc = ws_error_set(err, EPROTO, "it has other files than the version before");
    if (rc == 0)
        rc = ws_cache_budget_borrow_ahead(p->base, m->total_bytes, &p->borrowed, &p->stop, err);
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        p->hashes[i] = calloc(m->files[i].n_blocks + 1, sizeof(*p->hashes[i]));
        p->has[i] = calloc(m->files[i].n_blocks + 1, 1);
        rc = !p->hashes[i] || !p->has[i] ? -ENOMEM
             : m->files[i].size_bytes    ? ws_pool_get(s->pool, m->files[i].size_bytes, &p->regions[i], err)
                                         : 0;
    }
    if (rc == 0)
        ws_cache_budget_trim_pool(s);
    return rc;
}

static int fetch(struct ws_spare *p, struct ws_error *err)
{
    struct ws_lane *lane;
    const struct ws_delta_fetch f = {.model = ws_model_source_name(p->model),
                                     .link = p->link,
                                     .n_blocks = p->n_blocks,
                                     .parts = 1,
                                     .sink = {.admit = admit, .record = record, .arg = p},
                                     .pace = &p->pace,
                                     .cancel = &p->stop};
    int rc = ws_lane_open(p->poller->source, &lane, err);
    if (rc < 0)
        return rc;
    rc = ws_lane_delta(lane, &f, err);
    ws_lane_close(lane);
    return rc;
}

/* By whoever has it: its thread, or the pull that took it and could not use it. */
static void give_back(struct ws_spare *p)
{
    struct ws_store *s = p->base->store;
    const struct ws_manifest *m = manifest_of(p);

    for (size_t i = 0; p->regions && i < m->n_files; i++) {
        ws_pool_put(s->pool, p->regions[i]);
        p->regions[i] = NULL;
    }
    pthread_mutex_lock(&s->lock);
    const uint64_t borrowed = p->borrowed;
    p->borrowed = 0;
    pthread_mutex_unlock(&s->lock);
    if (borrowed)
        ws_cache_budget_return(s, borrowed);
}

static void free_spare(struct ws_spare *p)
{
    const struct ws_manifest *m = manifest_of(p);

    for (size_t i = 0; i < m->n_files; i++) {
        if (p->hashes)
            free(p->hashes[i]);
        if (p->has)
            free(p->has[i]);
    }
    free(p->regions);
    free(p->hashes);
    free(p->has);
    ws_delta_put(p->kept);
    ws_patcher_free(p->patcher);
    ws_poller_put(p->poller);
    ws_version_retain(p->base, -1);
    ws_version_put(p->base);
    free(p);
}

/* Nobody pulls the version, or it will never be. With store->lock, which it leaves meanwhile. */
static void wait_for_pull(struct ws_spare *p)
{
    struct ws_store *s = p->base->store;
    const uint64_t until = p->came > 0 ? ws_clock_ns() + KEPT_NS : 0;

    while (!p->over && (p->taken || (!atomic_load(&p->stop) && !atomic_load(&s->stop) && p->model->listed &&
                                     ws_clock_ns() < until)))
        (void)ws_cond_wait_until(&s->changed, &s->lock, ws_clock_ns() + LOOK_NS);
}

static void *spare_main(void *arg)
{
    struct ws_spare *p = arg;
    struct ws_store *s = p->base->store;
    struct ws_error err = {0};

    ws_thread_nice(s->options.nice);
    int rc = get_memory(p, &err);
    if (rc == 0)
        rc = fetch(p, &err);
    ws_log(WS_LOG_DEBUG, "store", "provisional delta has ended model=%s version=%lu bytes=%lu error=\"%s\"",
           p->model->name, p->link.target.version, p->came, rc < 0 ? err.text : "");
    pthread_mutex_lock(&s->lock);
    p->ended = true;
    pthread_cond_broadcast(&s->changed);
    wait_for_pull(p);
    p->over = true;
    pthread_mutex_unlock(&s->lock);
    give_back(p); /* while it can be found, so that others wait for its memory */
    pthread_mutex_lock(&s->lock);
    p->model->spare = NULL;
    pthread_mutex_unlock(&s->lock);
    free_spare(p);
    pthread_mutex_lock(&s->lock);
    s->n_pulls--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    ws_store_put(s);
    return NULL;
}

/* --- its begin --- */

/* Versions whose blocks are patched otherwise, or must be signed, come as ever; and so does what a rank on the same host writes,
 * which would wait for the processors that patch. */
static bool is_wanted(const struct ws_poller *p, struct ws_version *base, bool is_here)
{
    const struct ws_model *m = base->model;
    const enum ws_provisional given = m->store->options.provisional;

    return given != WS_PROVISIONAL_OFF && !(is_here && given == WS_PROVISIONAL_AUTO) &&
           p->strategy == WS_WAY_TCP && !p->is_hint && !p->is_static && ws_model_delta_room(m) > 0 &&
           !m->derived && !m->need && !m->learned && !m->base && !ws_one_copy_applies(base) &&
           ws_version_is_complete(base) && !ws_part_view(base) && !base->parts &&
           !atomic_load(&base->wanted) && base->named && !ws_version_must_be_signed(base) &&
           !atomic_load(&base->leaving) && !base->mapped_from;
}

void ws_spare_offer(struct ws_poller *poller, struct ws_model *m, const struct ws_delta_link *link,
                    uint64_t n_blocks, bool is_here)
{
    struct ws_store *s = m->store;
    struct ws_version *base = ws_version_lookup(m, link->base.version, link->base.lineage);
    struct ws_spare *p = m->spare;
    pthread_t thread;

    if (p) { /* one at a time; that of another version ends soon */
        if (!ws_version_id_equal(&p->link.target, &link->target))
            atomic_store(&p->stop, true);
        return;
    }
    if (!base || !is_wanted(poller, base, is_here) || strcmp(base->digest, link->base_digest) != 0 ||
        atomic_load(&s->stop) || ws_version_lookup(m, link->target.version, link->target.lineage) ||
        !(p = calloc(1, sizeof(*p))))
        return;
    p->model = m;
    p->base = ws_version_get(base);
    p->poller = ws_poller_get(poller);
    p->link = *link;
    p->n_blocks = n_blocks;
    p->most_bytes = ws_model_delta_room(m);
    ws_pace_note(&p->pace, ws_clock_ns());
    atomic_fetch_add(&s->refs, 1);
    s->n_pulls++;
    m->spare = p;
    if (ws_thread_start(&thread, spare_main, p) == 0) { /* it waits for the lock, which the caller has */
        ws_version_retain(base, 1);
        pthread_detach(thread);
        return;
    }
    m->spare = NULL;
    s->n_pulls--;
    atomic_fetch_sub(&s->refs, 1); /* the caller has one */
    ws_poller_put(poller);         /* the caller has one */
    ws_version_put_locked(base);
    free(p);
}

/* --- its end --- */

bool ws_spare_give_back(struct ws_model *m)
{
    struct ws_spare *p = m->spare;

    if (!p || p->taken || p->borrowed == 0)
        return false;
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&m->store->changed);
    return true;
}

void ws_spare_end(struct ws_model *m, const struct ws_poller *from)
{
    struct ws_spare *p = m->spare;

    if (!p || (from && p->poller != from))
        return;
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&m->store->changed);
}

/* The spare of the version, which no other takes; NULL: there is none. */
static struct ws_spare *claim(struct ws_source_select *sel)
{
    struct ws_version *v = sel->version;
    struct ws_store *s = v->store;
    const struct ws_version_id id = ws_version_id_make(v->number, v->lineage);
    struct ws_spare *p;
    uint64_t until;

    pthread_mutex_lock(&s->lock);
    p = v->model->spare;
    if (p && (!ws_version_id_equal(&p->link.target, &id) || p->taken || p->over))
        p = NULL;
    if (p) {
        p->taken = true;
        ws_pace_note(&p->pace, ws_clock_ns()); /* it may have been silent while the ranks were */
    }
    until = ws_clock_ns() + WAIT_NS;
    while (p && !p->ended && !atomic_load(&sel->stop) && ws_clock_ns() < until &&
           ws_clock_ns() < atomic_load(&p->pace.last_ns) + SILENT_NS)
        (void)ws_cond_wait_until(&s->changed, &s->lock, ws_clock_ns() + LOOK_NS);
    if (p)
        atomic_store(&p->stop, true);
    until = ws_clock_ns() + END_NS;
    while (p && !p->ended && ws_clock_ns() < until)
        (void)ws_cond_wait_until(&s->changed, &s->lock, ws_clock_ns() + LOOK_NS);
    if (p && (!p->ended || p->came == 0)) {
        p->taken = false;
        p->over = true;
        p = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return p;
}

static void release(struct ws_spare *p)
{
    struct ws_store *s = p->base->store;

    give_back(p); /* the pull needs as much at once */
    pthread_mutex_lock(&s->lock);
    p->taken = false;
    p->over = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Is the block right, or is it the base's? */
static bool has(const struct ws_spare *p, const struct ws_manifest *m, size_t file, size_t block)
{
    const uint64_t hash = m->files[file].hashes[block];

    return p->has[file][block] ? p->hashes[file][block] == hash
                               : manifest_of(p)->files[file].hashes[block] == hash;
}

static bool suits(const struct ws_spare *p, struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load(&v->manifest), *base = manifest_of(p);
    uint64_t missing = 0;

    if (m->n_files != base->n_files || m->total_bytes != base->total_bytes || v->own_bytes > 0 ||
        ws_version_has_bytes(v) || atomic_load(&v->wanted) || ws_part_view(v) || ws_version_must_be_signed(v))
        return false;
    for (size_t i = 0; i < m->n_files; i++) {
        if (strcmp(m->files[i].name, base->files[i].name) != 0 ||
            m->files[i].size_bytes != base->files[i].size_bytes)
            return false;
        for (size_t b = 0; b < m->files[i].n_blocks; b++)
            missing += has(p, m, i, b) ? 0 : ws_manifest_block_bytes(&m->files[i], b);
    }
    return missing <= p->came + MOST_MISSING && missing <= m->total_bytes / 2;
}

/* A block that no record changed comes from the base, and is hashed. */
static bool make(struct ws_spare *p, const struct ws_manifest *m, size_t file, size_t block)
{
    const struct ws_delta_record *chain[1] = {NULL};
    const uint64_t at = block * WS_BLOCK_BYTES;
    uint64_t hash;

    if (!has(p, m, file, block))
        return false;
    if (p->has[file][block])
        return true;
    return ws_patcher_block(p->patcher, ws_region_data(p->regions[file]) + at,
                            ws_region_data(ws_content_region(p->base, file)) + at,
                            ws_manifest_block_bytes(&m->files[file], block), chain, 1, &hash, NULL) == 0 &&
           hash == m->files[file].hashes[block];
}

/* --- its delta --- */

struct ws_spare_delta {
    struct ws_delta *delta; /* growing, with the records that made their blocks */
    struct ws_version *base;
};

/* NULL: no memory. */
static struct ws_spare_delta *new_delta(struct ws_spare *p, const struct ws_manifest *m)
{
    struct ws_spare_delta *d = calloc(1, sizeof(*d));
    struct ws_delta_link link = p->link;

    memcpy(link.target_digest, m->digest, sizeof(link.target_digest));
    if (!d || ws_delta_new(&d->delta, &link, m, NULL) < 0) {
        free(d);
        return NULL;
    }
    ws_delta_set_verified(d->delta);
    d->base = ws_version_get(p->base);
    ws_version_retain(d->base, 1);
    return d;
}

/* What is lacking then is made from both versions. */
static void keep_record(struct ws_spare_delta *d, const struct ws_spare *p, size_t file, size_t block)
{
    const struct ws_delta_record *r = d ? ws_delta_at(p->kept, file, block) : NULL;
    struct ws_delta_record *copy = r ? ws_delta_record_new(r->bytes) : NULL;

    if (!copy)
        return;
    memcpy(copy, r, sizeof(*r) + r->bytes);
    (void)!ws_delta_add(d->delta, copy); /* which owns it, also on failure */
}

void ws_spare_delta_end(struct ws_spare_delta *d, struct ws_version *v, const atomic_bool *stop)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    const unsigned char **files = d ? calloc(2 * m->n_files + 1, sizeof(*files)) : NULL;
    struct ws_workers *workers =
        files && ws_content_bytes(v) == m->total_bytes ? ws_workers_new(1, v->store->options.nice) : NULL;
    struct ws_delta_stats stats;

    if (!d)
        return;
    if (workers) {
        const struct ws_delta_side from = ws_comparison_side(d->base, files),
                                   to = ws_comparison_side(v, files + m->n_files);
        ws_delta_encode(d->delta, &from, &to, 0, ws_model_delta_room(v->model), workers, stop);
    } else {
        ws_delta_end(d->delta, WS_DELTA_GIVEN_UP);
    }
    ws_workers_free(workers);
    free(files);
    ws_delta_stats(d->delta, &stats);
    if (stats.state == WS_DELTA_WHOLE) {
        pthread_mutex_lock(&v->store->lock);
        ws_delta_set_add(&v->model->deltas, ws_delta_get(d->delta));
        ws_model_trim_deltas(v->model);
        pthread_mutex_unlock(&v->store->lock);
    }
    ws_delta_put(d->delta);
    ws_version_retain(d->base, -1);
    ws_version_put(d->base);
    free(d);
}

bool ws_spare_take(struct ws_source_select *sel, struct ws_spare_delta **delta)
{
    struct ws_version *v = sel->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct ws_spare *p = claim(sel);

    *delta = NULL;
    if (!p)
        return false;
    pthread_mutex_lock(&v->store->lock);
    const bool does = v->named && suits(p, v);
    if (does) {
        v->own_bytes = p->borrowed;
        p->borrowed = 0;
        v->took_from_pool = true;
    }
    pthread_mutex_unlock(&v->store->lock);
    if (does)
        *delta = new_delta(p, m);
    for (size_t i = 0; does && i < m->n_files; i++) {
        for (size_t b = 0; b < m->files[i].n_blocks; b++) {
            const bool by_record = p->has[i][b];
            p->has[i][b] = make(p, m, i, b); /* from here on: is right */
            if (by_record && p->has[i][b])
                keep_record(*delta, p, i, b);
        }
        atomic_store(&v->files[i].region, p->regions[i]);
        p->regions[i] = NULL;
        for (size_t b = 0; b < m->files[i].n_blocks; b++)
            if (p->has[i][b])
                ws_content_arrived(v, i, b);
    }
    if (does) {
        atomic_fetch_add(&v->moved_bytes, p->came);
        atomic_store(&v->way_chosen, true);
        ws_waiters_wake(v);
    }
    release(p);
    return does;
}
