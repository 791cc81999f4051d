#include "fs/pull/delta_lanes.h"
#include "fs/pull/delta_patch.h"
#include "fs/store/cache_budget.h"
#include "fs/store/model.h"
#include "fs/store/parents.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "fs/store/wants.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include "transports/delta/filter.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#define TRIES    2            /* of a part, when the connection breaks, or its sender gives a record up */
#define LOOKS    50           /* for a delta that a parent will have in a moment, ... */
#define PAUSE_MS 20           /* ... and the pause between them */
#define STEP     (64UL << 20) /* bytes reserved at once for a delta that is still being made */

/* --- memory for records ---
 *
 * A source may send as many bytes as it says that a delta has. Memory for them is reserved before they are
 * read: within delta-cache=, and beyond that from the cache. */

/* False: there is less, and nothing was reserved. */
static bool try_reserve(struct ws_delta_apply *p, uint64_t bytes)
{
    uint64_t has = atomic_load(&p->budget_bytes);

    while (has >= bytes)
        if (atomic_compare_exchange_weak(&p->budget_bytes, &has, has - bytes))
            return true;
    return false;
}

/* Reserves bytes; what is missing is borrowed from the cache, `step` bytes at least. */
static int reserve(struct ws_delta_apply *p, uint64_t bytes, uint64_t step, struct ws_error *err)
{
    int rc = 0;

    if (try_reserve(p, bytes))
        return 0;
    pthread_mutex_lock(&p->budget_lock);
    while (rc == 0 && !try_reserve(p, bytes)) {
        uint64_t has = atomic_load(&p->budget_bytes), more = bytes > has ? bytes - has : 0;
        more = more < step ? step : more;
        rc = ws_cache_budget_borrow(p->version, more, &p->borrowed, &p->selection->stop, err);
        if (rc == 0)
            atomic_fetch_add(&p->budget_bytes, more);
    }
    pthread_mutex_unlock(&p->budget_lock);
    return rc;
}

/* --- fetching a delta --- */

/* What a source offered, for all parts of a delta. */
struct offered {
    uint64_t bytes;         /* that may come; for one that is still being made, the version's size */
    bool reserved;          /* all of them at once */
    _Atomic(uint64_t) came; /* of records that are here or in flight */
};

struct lane {
    struct ws_delta_apply *apply;
    struct offered *offered;
    uint64_t coming; /* of the record in flight */
    size_t step;
    unsigned part, parts;
    unsigned stripe;                /* of the part: whose parents are asked */
    struct ws_delta_worker *worker; /* NULL: it is not the last step, nothing is patched yet */
    pthread_t thread;
    bool ok;
    bool is_again; /* some of its records may be here already */
};

static void release_coming(struct lane *l)
{
    atomic_fetch_sub(&l->offered->came, l->coming);
    if (!l->offered->reserved)
        atomic_fetch_add(&l->apply->budget_bytes, l->coming);
    l->coming = 0;
}

static int on_coming(void *arg, uint64_t bytes, struct ws_error *err)
{
    struct lane *l = arg;
    struct offered *o = l->offered;
    uint64_t came = atomic_fetch_add(&o->came, bytes) + bytes;
    int rc = 0;

    if (came > o->bytes + (l->is_again ? WS_DELTA_RECORD_BYTES + WS_BLOCK_BYTES : 0))
        rc = ws_error_set(err, E2BIG,
                          "it has more than the %lu bytes that its source offered; the rest is fetched "
                          "whole",
                          o->bytes);
    else if (!o->reserved)
        rc = reserve(l->apply, bytes, STEP, err);
    if (rc < 0)
        atomic_fetch_sub(&o->came, bytes);
    else
        l->coming = bytes;
    return rc;
}

/* The mounts that this one feeds get the record while it comes. */
static struct ws_delta *grows(void *arg, uint32_t file, uint32_t block)
{
    struct lane *l = arg;
    struct ws_delta_apply *p = l->apply;
    const bool is_block = file < p->manifest->n_files && block < p->manifest->files[file].n_blocks;
    return is_block && ws_version_wants(p->version, file, block) ? p->chain[l->step] : NULL;
}

static int on_record(void *arg, struct ws_delta_record *r)
{
    struct lane *l = arg;
    struct ws_delta_apply *p = l->apply;
    struct ws_version *v = p->version;
    const uint64_t bytes = r->bytes;
    const size_t file = r->file, block = r->block;
    const bool wanted = ws_version_wants(v, file, block);
    int rc = wanted ? ws_delta_add(p->chain[l->step], r) : 0; /* it is the delta's now */

    ws_version_moved(v, bytes);
    atomic_store(&p->selection->progress_ns, ws_clock_ns());
    if (rc < 0)
        release_coming(l); /* it was one too many */
    if (!wanted) {
        free(r);
        if (!l->offered->reserved)
            atomic_fetch_add(&p->budget_bytes, l->coming);
    }
    l->coming = 0;
    if (rc == -EINVAL)
        return 1;
    if (rc == 0 && wanted && l->worker)
        ws_delta_patch_block(p, l->worker, file, block);
    return 0;
}

/* A parent begins with a delta when this mount does, and may have to look for its base first. */
static bool is_of_parent(const struct ws_delta_apply *p, const struct ws_source_attempt *attempt)
{
    pthread_mutex_lock(&p->version->store->lock);
    const bool is = ws_parent_rank(p->version, attempt->stripe, attempt->poller) <= WS_PARENT_NEXT;
    pthread_mutex_unlock(&p->version->store->lock);
    return is && !atomic_load(&attempt->leave) && !atomic_load(&p->selection->stop);
}

/* One that has ended, or cannot be reached, is no reason to go without the delta: others have it. False: it is no
 * parent. */
static bool leave_parent(const struct ws_delta_apply *p, struct ws_source_attempt *attempt, int rc,
                         struct ws_error why)
{
    return is_of_parent(p, attempt) && ws_source_select_failed(p->selection, attempt, rc, &why) == 0;
}

static int fetch_part(struct lane *l, struct ws_error *err)
{
    struct ws_delta_apply *p = l->apply;
    const struct ws_delta_entry *o = &p->plan.steps[l->step].entry;
    struct ws_source_attempt attempt = {.stripe = l->stripe};
    struct ws_delta_fetch fetch = {
        .model = ws_model_source_name(p->version->model),
        .link = o->link,
        .n_blocks = o->n_blocks,
        .part = l->part,
        .parts = l->parts,
        .only = p->only,
        .level = ws_cost_zstd_level(&p->version->store->speeds),
        .sink = {.admit = on_coming, .record = on_record, .grows = grows, .arg = l},
        .cancel = &attempt.leave,
        .pace = &p->selection->pace};
    struct ws_lane *lane = NULL;
    struct ws_error none;
    int rc = ws_source_select_next(p->selection, &attempt, err);

    /* A mount among the sources may not have the delta yet, or not any more, or have lost its own source. That is no fault of
     * its: the next source is asked; when none is left, the last one's error stands. */
    while (attempt.poller) {
        rc = ws_lane_open(attempt.poller->source, &lane, err);
        if (rc == 0) {
            rc = ws_lane_delta(lane, &fetch, err);
            for (int looks = 0; rc == -ENOENT && looks < LOOKS && is_of_parent(p, &attempt); looks++) {
                (void)poll(NULL, 0, PAUSE_MS);
                rc = ws_lane_delta(lane, &fetch, err);
            }
            release_coming(l);
            pthread_mutex_lock(&p->selection->lock);
            p->transport = ws_source_transport(attempt.poller->source);
            l->is_again = true;
            atomic_store(&p->selection->used, attempt.poller->strategy);
            pthread_mutex_unlock(&p->selection->lock);
        }
        attempt.skip |= ws_bit(attempt.poller->index);
        ws_lane_close(lane);
        lane = NULL;
        const bool asks_next = rc == -ENOENT || rc == -ESTALE || atomic_load(&attempt.leave) ||
                               (ws_source_is_away(rc) && leave_parent(p, &attempt, rc, *err));
        ws_source_select_end(&attempt);
        if (asks_next && ws_source_select_next(p->selection, &attempt, &none) < 0)
            break;
    }
    return rc;
}

void ws_delta_lanes_record_error(struct ws_delta_apply *p, const struct ws_error *err)
{
    pthread_mutex_lock(&p->lock);
    if (p->err.code == 0)
        p->err = *err;
    pthread_mutex_unlock(&p->lock);
}

static void *lane_main(void *arg)
{
    struct lane *l = arg;
    const struct ws_version *v = l->apply->version;
    struct ws_error err = {0};
    int rc = -EAGAIN;

    ws_thread_nice(v->store->options.nice);
    for (int tries = 0; tries < TRIES && (tries == 0 || ws_source_is_away(rc) || rc == -ESTALE); tries++)
        rc = fetch_part(l, &err);
    l->ok = rc == 0;
    if (rc == 0)
        ws_delta_end_part(l->apply->chain[l->step], l->part, l->parts);
    if (rc < 0)
        ws_delta_lanes_record_error(l->apply, &err);
    if (rc < 0 && rc != -ECANCELED)
        ws_log(WS_LOG_INFO, "store", "delta incomplete model=%s version=%lu errno=%s error=\"%s\"",
               v->model->name, v->number, ws_errno_name(-rc), err.text);
    return NULL;
}

/* In how many parts a delta is fetched. The thread that fetches a part patches it, so there are no more parts
 * than threads, and than the source can send. Where it comes by trees, a part is a stripe. */
static unsigned count_parts(const struct ws_delta_apply *p, const struct ws_delta_entry *o)
{
    const struct ws_store_options *options = &p->version->store->options;
    uint64_t n = options->streams < options->threads ? options->streams : options->threads;

    pthread_mutex_lock(&p->version->store->lock);
    if (ws_parents_stripes(p->version) > 1)
        n = WS_FANOUT_STRIPES;
    pthread_mutex_unlock(&p->version->store->lock);
    if (o->most_parts && o->most_parts < n)
        n = o->most_parts;
    return (unsigned)(o->n_blocks < n ? o->n_blocks : n);
}

/* All parts at once. True: the delta is whole. */
static bool fetch_parts(struct ws_delta_apply *p, size_t i, struct offered *offered)
{
    struct lane lanes[WS_MAX_STREAMS] = {0};
    const unsigned n = count_parts(p, &p->plan.steps[i].entry);
    unsigned started = 0;
    /* The proof, by which records are checked, is there when the delta is whole: what must be signed is patched then. */
    const bool patches = i + 1 == p->plan.n_steps && !ws_version_must_be_signed(p->version);
    bool whole = n > 0;

    for (unsigned k = 0; whole && k < n; k++) {
        lanes[k] = (struct lane){.apply = p,
                                 .offered = offered,
                                 .step = i,
                                 .part = k,
                                 .parts = n,
                                 .stripe = k % WS_FANOUT_STRIPES};
        lanes[k].worker = patches ? ws_delta_worker_get(p, k) : NULL;
        whole = (!patches || lanes[k].worker) && ws_thread_start(&lanes[k].thread, lane_main, &lanes[k]) == 0;
        started += whole;
    }
    for (unsigned k = 0; k < started; k++) {
        pthread_join(lanes[k].thread, NULL);
        whole = whole && lanes[k].ok;
    }
    return whole;
}

/* Blocks of all files, by their number. */
struct numbered {
    const struct ws_delta_apply *apply;
    size_t file;
    uint64_t before; /* blocks of the files before it */
};

/* Called for ascending numbers. */
static bool wants(void *arg, uint64_t number)
{
    struct numbered *n = arg;
    const struct ws_manifest *m = n->apply->manifest;

    while (number - n->before >= m->files[n->file].n_blocks)
        n->before += m->files[n->file++].n_blocks;
    return ws_version_wants(n->apply->version, n->file, (size_t)(number - n->before));
}

/* Without it all records come, and are dropped here. */
static void make_filter(struct ws_delta_apply *p)
{
    struct numbered n = {.apply = p};
    uint64_t n_blocks = 0;

    for (size_t i = 0; i < p->manifest->n_files; i++)
        n_blocks += p->manifest->files[i].n_blocks;
    p->only = ws_delta_filter_text(wants, &n, n_blocks);
}

bool ws_delta_lanes_take_all(const struct ws_delta_apply *p)
{
    return ws_version_wanted_bytes(p->version) == p->manifest->total_bytes;
}

bool ws_delta_lanes_fetch(struct ws_delta_apply *p, size_t i)
{
    const struct ws_delta_stats *f = &p->plan.steps[i].entry.stats;
    /* Of records that are of no use here none is kept, so memory is taken for each as it comes. */
    const bool keeps_all = ws_delta_lanes_take_all(p);
    struct offered offered = {.bytes = f->bytes, .reserved = f->state == WS_DELTA_WHOLE && keeps_all};
    struct ws_error err = {0};
    int rc = 0;

    if (!keeps_all && !p->only)
        make_filter(p);
    if (offered.reserved)
        rc = reserve(p, offered.bytes, 0, &err);
    else if (f->state != WS_DELTA_WHOLE)
        offered.bytes = p->manifest->total_bytes; /* one that is longer is none */
    if (rc < 0) {
        ws_log(WS_LOG_INFO, "store", "no delta model=%s version=%lu errno=%s error=\"%s\"",
               p->version->model->name, p->version->number, ws_errno_name(-rc), err.text);
        ws_delta_lanes_record_error(p, &err);
        return false;
    }
    return fetch_parts(p, i, &offered);
}
