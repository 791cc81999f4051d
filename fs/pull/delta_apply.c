/* ws_delta_apply_new chooses, ws_delta_apply_run does it. Lanes fetch the last delta of the chain in parts
 * and patch each block as its record comes; then all threads patch the blocks without a record. Deltas before
 * the last are fetched first. Only a mount that missed some versions has to do so, and it keeps what it
 * fetched. */
#include "fs/pull/delta_apply.h"
#include "fs/pull/delta_plan.h"
#include "fs/pull/signatures.h"
#include "fs/store/cache_budget.h"
#include "fs/store/content.h"
#include "fs/store/model.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include "transports/delta/patcher.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BITS  64
#define NONE  SIZE_MAX
#define SPARE 4            /* old deltas that are kept for mounts that pull from this one */
#define TRIES 2            /* of a part, when the connection breaks */
#define STEP  (64UL << 20) /* bytes reserved at once for a delta that is still being made */

struct ws_delta_apply {
    struct ws_source_select *selection;
    struct ws_version *version;
    const struct ws_manifest *manifest;
    struct ws_delta_plan plan;
    struct ws_delta *chain[WS_MAX_DELTA_CHAIN]; /* by step */
    struct ws_delta_proof
        *proofs[WS_MAX_DELTA_CHAIN]; /* by step, where versions must be signed; NULL: none came */
    size_t *base_file;               /* of each file: its number in the base, or NONE */
    atomic_uchar **tried;            /* a byte a block: it was patched, or that failed */
    const char *transport;           /* guarded by selection->lock */
    _Atomic(uint64_t) patched_bytes, patched_ns;
    _Atomic(uint64_t) budget_bytes; /* for records that are still to come */
    pthread_mutex_t budget_lock;    /* for borrowing more; taken alone */
    uint64_t borrowed;              /* from the cache, beyond delta-cache=; guarded by budget_lock */
    pthread_mutex_t lock;
    struct ws_error err; /* why a delta did not come; guarded by lock */
    /* by lane, and after the lanes by worker; NULL: it has not patched yet */
    struct ws_patcher **patchers;
};

static int make_tables(struct ws_delta_apply *p)
{
    const struct ws_manifest *m = p->manifest;

    p->base_file = calloc(m->n_files + 1, sizeof(*p->base_file));
    p->tried = calloc(m->n_files + 1, sizeof(*p->tried));
    p->patchers = calloc(p->version->store->options.threads, sizeof(struct ws_patcher *));
    for (size_t i = 0; p->base_file && p->tried && i < m->n_files; i++) {
        const struct ws_manifest_file *f = ws_manifest_find(p->plan.base, m->files[i].name);
        p->base_file[i] = f ? (size_t)(f - p->plan.base->files) : NONE;
        p->tried[i] = calloc(m->files[i].n_blocks + 1, sizeof(*p->tried[i]));
        if (!p->tried[i])
            return -ENOMEM;
    }
    return p->base_file && p->tried && p->patchers ? 0 : -ENOMEM;
}

struct ws_delta_apply *ws_delta_apply_new(struct ws_source_select *sel, char why[WS_HOW_CHARS])
{
    struct ws_version *v = sel->version;
    struct ws_error err = {0};
    struct ws_delta_apply *p;
    struct ws_delta_chain *chain;
    bool wanted;

    why[0] = '\0';
    pthread_mutex_lock(&v->store->lock);
    wanted = v->store->options.delta_cache_bytes > 0 || !ws_version_comes_whole(v);
    pthread_mutex_unlock(&v->store->lock);
    if (!wanted)
        return NULL;
    p = calloc(1, sizeof(*p));
    chain = calloc(1, sizeof(*chain));
    if (p && chain) {
        p->selection = sel;
        p->version = v;
        p->manifest = atomic_load(&v->manifest);
        pthread_mutex_init(&p->lock, NULL);
        pthread_mutex_init(&p->budget_lock, NULL);
        atomic_init(&p->budget_bytes, v->store->options.delta_cache_bytes);
        if (ws_delta_chain_query(sel, chain, &err) < 0)
            ws_log(WS_LOG_DEBUG, "store", "no list of deltas model=%s version=%lu error=\"%s\"",
                   v->model->name, v->number, err.text);
        if (!ws_delta_plan_make(&p->plan, sel, chain, why) || make_tables(p) < 0) {
            ws_delta_apply_free(p);
            p = NULL;
        }
    } else {
        free(p);
        p = NULL;
    }
    free(chain);
    return p;
}

void ws_delta_apply_free(struct ws_delta_apply *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->plan.n_steps; i++) {
        ws_delta_put(p->chain[i]);
        ws_delta_proof_free(p->proofs[i]);
    }
    for (size_t i = 0; p->tried && i < p->manifest->n_files; i++)
        free(p->tried[i]);
    free(p->tried);
    free(p->base_file);
    ws_delta_plan_release(&p->plan);
    for (unsigned i = 0; p->patchers && i < p->version->store->options.threads; i++)
        ws_patcher_free(p->patchers[i]);
    free(p->patchers);
    if (p->borrowed)
        ws_cache_budget_return(p->version->store, p->borrowed);
    pthread_mutex_destroy(&p->budget_lock);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* --- a block --- */

/* NULL: no memory. */
static struct ws_patcher *get_patcher(struct ws_delta_apply *p, unsigned index)
{
    if (!p->patchers[index])
        p->patchers[index] = ws_patcher_new();
    return p->patchers[index];
}

static bool base_has(const struct ws_delta_apply *p, size_t file, size_t block)
{
    size_t f = p->base_file[file];

    if (f == NONE)
        return false;
    return !p->plan.here || (atomic_load(&p->plan.here[f][block / BITS]) & 1UL << (block % BITS));
}

static const unsigned char *base_data(const struct ws_delta_apply *p, size_t file, size_t block)
{
    if (!p->plan.copied || p->base_file[file] == NONE)
        return NULL;
    return ws_region_data(ws_content_region(p->plan.copied, p->base_file[file])) + block * WS_BLOCK_BYTES;
}

/* Do the records of the block make what was signed? The base was verified when it came, so it is enough that each
 * step has the signed record, or none where none was signed. Records are checked here, whoever brought them when. */
static bool are_signed(const struct ws_delta_apply *p, size_t file, size_t block,
                       const struct ws_delta_record *const *records)
{
    bool all = true;

    if (!ws_version_must_be_signed(p->version))
        return true;
    for (size_t i = 0; all && i < p->plan.n_steps; i++)
        all = p->proofs[i] && (records[i] ? ws_delta_proof_has(p->proofs[i], records[i])
                                          : !ws_delta_proof_names(p->proofs[i], file, block));
    return all;
}

/* Makes the block with those deltas of the chain that are here. One that has the hash of the base's in both
 * manifests, which are signed where they must be, is the base's. */
static bool make_block(struct ws_delta_apply *p, struct ws_patcher *patcher, size_t file, size_t block)
{
    const struct ws_manifest_file *f = &p->manifest->files[file];
    const struct ws_delta_record *records[WS_MAX_DELTA_CHAIN];
    unsigned char *dst = ws_region_data(ws_content_region(p->version, file)) + block * WS_BLOCK_BYTES;
    size_t len = ws_manifest_block_bytes(f, block), n = p->plan.n_steps;
    uint64_t began = ws_clock_ns(), hash = 0;
    bool based = base_has(p, file, block);
    bool same = based && p->plan.base->files[p->base_file[file]].hashes[block] == f->hashes[block];

    if (same && !p->plan.copied)
        return true;
    for (size_t i = 0; i < n; i++) {
        records[i] = same || !p->chain[i] ? NULL : ws_delta_at(p->chain[i], file, block);
        based = based || (records[i] && records[i]->kind == WS_DELTA_BLOCK);
    }
    if (!same && !are_signed(p, file, block, records))
        return false;
    if (!based || ws_patcher_block(patcher, dst, base_data(p, file, block), len, records, n, &hash, NULL) < 0)
        return false;
    atomic_fetch_add(&p->patched_bytes, len);
    atomic_fetch_add(&p->patched_ns, ws_clock_ns() - began);
    return hash == f->hashes[block];
}

static void patch_block(struct ws_delta_apply *p, struct ws_patcher *patcher, size_t file, size_t block)
{
    struct ws_version *v = p->version;

    if (atomic_exchange(&p->tried[file][block], 1) || ws_content_has(v, file, block, 1))
        return;
    if (make_block(p, patcher, file, block)) {
        ws_content_arrived(v, file, block);
        atomic_store(&p->selection->progress_ns, ws_clock_ns());
        ws_waiters_wake(v);
    }
}

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
    struct ws_patcher *patcher; /* NULL: it is not the last step, nothing is patched yet */
    pthread_t thread;
    bool ok;
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

    if (came > o->bytes)
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

static int on_record(void *arg, struct ws_delta_record *r)
{
    struct lane *l = arg;
    struct ws_delta_apply *p = l->apply;
    struct ws_version *v = p->version;
    const uint64_t bytes = r->bytes;
    const size_t file = r->file, block = r->block;
    int rc = ws_delta_add(p->chain[l->step], r); /* it is the delta's now */

    atomic_fetch_add(&v->moved_bytes, bytes);
    atomic_fetch_add(&v->store->moved_bytes, bytes);
    atomic_store(&p->selection->progress_ns, ws_clock_ns());
    if (rc < 0)
        release_coming(l); /* it was one too many */
    l->coming = 0;
    if (rc == -EINVAL)
        return 1;
    if (rc == 0 && l->patcher)
        patch_block(p, l->patcher, file, block);
    return 0;
}

static int fetch_part(struct lane *l, struct ws_error *err)
{
    struct ws_delta_apply *p = l->apply;
    const struct ws_delta_entry *o = &p->plan.steps[l->step].entry;
    struct ws_source_attempt attempt = {0};
    struct ws_delta_fetch fetch = {.model = p->version->model->name,
                                   .link = o->link,
                                   .n_blocks = o->n_blocks,
                                   .part = l->part,
                                   .parts = l->parts,
                                   .level = ws_cost_zstd_level(&p->version->store->speeds),
                                   .sink = {on_coming, on_record, l},
                                   .cancel = &attempt.leave,
                                   .came_ns = &p->selection->came_ns};
    struct ws_lane *lane = NULL;
    struct ws_error none;
    int rc = ws_source_select_next(p->selection, &attempt, err);

    /* A mount among the sources may not have the delta yet, or not any more. Then the next source is asked;
     * when none is left, the last one's error stands. */
    while (attempt.poller) {
        rc = ws_lane_open(attempt.poller->source, &lane, err);
        if (rc == 0) {
            rc = ws_lane_delta(lane, &fetch, err);
            release_coming(l);
            pthread_mutex_lock(&p->selection->lock);
            p->transport = ws_source_transport(attempt.poller->source);
            atomic_store(&p->selection->used, attempt.poller->strategy);
            pthread_mutex_unlock(&p->selection->lock);
        }
        attempt.skip |= ws_bit(attempt.poller->index);
        ws_lane_close(lane);
        lane = NULL;
        ws_source_select_end(&attempt);
        if ((rc == -ENOENT || atomic_load(&attempt.leave)) &&
            ws_source_select_next(p->selection, &attempt, &none) < 0)
            break;
    }
    return rc;
}

static void record_error(struct ws_delta_apply *p, const struct ws_error *err)
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
    for (int tries = 0; tries < TRIES && (tries == 0 || ws_source_is_away(rc)); tries++)
        rc = fetch_part(l, &err);
    l->ok = rc == 0;
    if (rc < 0)
        record_error(l->apply, &err);
    if (rc < 0 && rc != -ECANCELED)
        ws_log(WS_LOG_INFO, "store", "delta incomplete model=%s version=%lu errno=%s error=\"%s\"",
               v->model->name, v->number, ws_errno_name(-rc), err.text);
    return NULL;
}

/* In how many parts a delta is fetched. The thread that fetches a part patches it, so there are no more parts
 * than threads, and than the source can send. */
static unsigned count_parts(const struct ws_delta_apply *p, const struct ws_delta_entry *o)
{
    const struct ws_store_options *options = &p->version->store->options;
    uint64_t n = options->streams < options->threads ? options->streams : options->threads;

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
    bool whole = n > 0, last = i + 1 == p->plan.n_steps;

    for (unsigned k = 0; whole && k < n; k++) {
        lanes[k] = (struct lane){.apply = p, .offered = offered, .step = i, .part = k, .parts = n};
        lanes[k].patcher = last ? get_patcher(p, k) : NULL;
        whole = (!last || lanes[k].patcher) && ws_thread_start(&lanes[k].thread, lane_main, &lanes[k]) == 0;
        started += whole;
    }
    for (unsigned k = 0; k < started; k++) {
        pthread_join(lanes[k].thread, NULL);
        whole = whole && lanes[k].ok;
    }
    return whole;
}

static bool fetch_delta(struct ws_delta_apply *p, size_t i)
{
    const struct ws_delta_stats *f = &p->plan.steps[i].entry.stats;
    struct offered offered = {.bytes = f->bytes, .reserved = f->state == WS_DELTA_WHOLE};
    struct ws_error err = {0};
    int rc = 0;

    if (offered.reserved)
        rc = reserve(p, offered.bytes, 0, &err);
    else
        offered.bytes = p->manifest->total_bytes; /* one that is longer is none */
    if (rc < 0) {
        ws_log(WS_LOG_INFO, "store", "no delta model=%s version=%lu errno=%s error=\"%s\"",
               p->version->model->name, p->version->number, ws_errno_name(-rc), err.text);
        record_error(p, &err);
        return false;
    }
    return fetch_parts(p, i, &offered);
}

/* Drops deltas that no version here can be patched with any more, but for a few that other mounts may pull,
 * and what is over delta-cache=. With store->lock. */
static void trim_deltas(struct ws_model *m)
{
    uint64_t oldest = UINT64_MAX;

    for (const struct ws_version *v = m->versions; v; v = v->next)
        if ((v->own_bytes || v->pull) && v->number < oldest)
            oldest = v->number;
    while (m->deltas.n > SPARE && ws_delta_link(m->deltas.list[m->deltas.n - 1])->target.version <= oldest)
        ws_delta_set_drop_oldest(&m->deltas);
    while (m->deltas.n > 0 && ws_delta_set_bytes(&m->deltas) > m->store->options.delta_cache_bytes)
        ws_delta_set_drop_oldest(&m->deltas);
}

/* Begins to fetch a delta, which mounts that pull from this one see. */
static int add_delta(struct ws_delta_apply *p, size_t i)
{
    struct ws_store *s = p->version->store;
    /* All versions of a chain have the same files, else there would be no chain. */
    int rc = ws_delta_new(&p->chain[i], &p->plan.steps[i].entry.link, p->manifest, NULL);

    if (rc < 0 || ws_delta_blocks(p->chain[i]) != p->plan.steps[i].entry.n_blocks)
        return -EPROTO;
    pthread_mutex_lock(&s->lock);
    ws_delta_set_add(&p->version->model->deltas, ws_delta_get(p->chain[i]));
    trim_deltas(p->version->model);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

/* --- signatures --- */

/* Has the delta a proof that leads on from the step before, or from the base? */
static bool follows(const struct ws_delta_apply *p, size_t i)
{
    unsigned char id[WS_HASH_BYTES];
    const struct ws_delta_proof *proof = p->proofs[i];

    if (i > 0)
        memcpy(id, p->proofs[i - 1]->target_id, sizeof(id));
    else
        ws_manifest_id(p->plan.base, id);
    if (memcmp(id, proof->base_id, sizeof(id)) != 0)
        return false;
    ws_manifest_id(p->manifest, id);
    return i + 1 < p->plan.n_steps || memcmp(id, proof->target_id, sizeof(id)) == 0;
}

/* Gets the proof of a delta before its records are read, so that each is checked before its block is shown. False:
 * there is none, and the delta is not used. */
static bool prove(struct ws_delta_apply *p, size_t i)
{
    const struct ws_version *v = p->version;
    struct ws_error err = {0};
    int rc = 0;

    if (!ws_version_must_be_signed(v))
        return true;
    if (i > 0 && !p->proofs[i - 1])
        return false;
    rc = ws_signatures_get_delta(p->selection, &p->plan.steps[i].entry.link, &p->proofs[i], &err);
    if (rc == 0 && !follows(p, i)) {
        rc = ws_error_set(&err, EBADMSG, "the signature of a delta is that of other versions");
        ws_delta_proof_free(p->proofs[i]);
        p->proofs[i] = NULL;
    }
    if (rc < 0) {
        ws_log(WS_LOG_INFO, "store", "delta not taken model=%s version=%lu errno=%s error=\"%s\"",
               v->model->name, v->number, ws_errno_name(-rc), err.text);
        record_error(p, &err);
    }
    return rc == 0;
}

/* --- the whole --- */

static bool fetch_chain(struct ws_delta_apply *p)
{
    bool whole = true;

    for (size_t i = 0; i < p->plan.n_steps; i++) {
        if (p->plan.steps[i].held)
            p->chain[i] = ws_delta_get(p->plan.steps[i].held);
        else
            whole = whole && add_delta(p, i) == 0;
    }
    atomic_store(&p->version->way_chosen, true);
    for (size_t i = 0; i < p->plan.n_steps; i++) {
        whole = whole && prove(p, i);
        if (p->plan.steps[i].held || !p->chain[i])
            continue;
        whole = whole && fetch_delta(p, i);
        ws_delta_end(p->chain[i], whole ? WS_DELTA_WHOLE : WS_DELTA_GIVEN_UP);
    }
    return whole;
}

struct rest {
    struct ws_delta_apply *apply;
    size_t file;
    bool whole; /* a block without a record is unchanged */
};

static bool has_last_record(const struct ws_delta_apply *p, size_t file, size_t block)
{
    const struct ws_delta *last = p->chain[p->plan.n_steps - 1];

    return last && ws_delta_at(last, file, block);
}

static void patch_rest(void *arg, size_t block, unsigned worker)
{
    struct rest *r = arg;
    struct ws_delta_apply *p = r->apply;
    const struct ws_manifest_file *f = &p->manifest->files[r->file];
    size_t base = p->base_file[r->file];
    bool same = base_has(p, r->file, block) && p->plan.base->files[base].hashes[block] == f->hashes[block];
    struct ws_patcher *patcher;

    if (atomic_load(&p->selection->stop) || (!r->whole && !same && !has_last_record(p, r->file, block)))
        return;
    patcher = get_patcher(p, worker);
    if (patcher)
        patch_block(p, patcher, r->file, block);
}

void ws_delta_apply_run(struct ws_delta_apply *p, const char **transport)
{
    const struct ws_store_options *o = &p->version->store->options;
    struct ws_speeds *speeds = &p->version->store->speeds;
    bool whole = fetch_chain(p);
    struct ws_workers *workers = ws_workers_new(o->threads, o->nice);

    for (size_t i = 0; workers && i < p->manifest->n_files; i++) {
        struct rest r = {.apply = p, .file = i, .whole = whole};
        ws_workers_run_indexed(workers, patch_rest, &r, p->manifest->files[i].n_blocks);
    }
    ws_workers_free(workers);
    pthread_mutex_lock(&p->version->store->lock);
    trim_deltas(p->version->model); /* how large they are is known now */
    pthread_mutex_unlock(&p->version->store->lock);
    ws_speeds_record(speeds, p->plan.copied ? &speeds->copy : &speeds->patch, atomic_load(&p->patched_bytes),
                     (double)atomic_load(&p->patched_ns) / 1e9);
    if (p->transport)
        *transport = p->transport;
}

int ws_delta_apply_result(struct ws_delta_apply *p, struct ws_error *err)
{
    struct ws_version *v = p->version;
    int code;

    if (ws_content_bytes(v) == p->manifest->total_bytes)
        return 0;
    if (atomic_load(&p->selection->stop))
        return ws_source_select_canceled(p->selection, err);
    pthread_mutex_lock(&p->lock);
    code = p->err.code;
    if (code)
        ws_error_set(err, code, "%s/%lu is at its sources only as a delta: %s", v->model->name, v->number,
                     p->err.text);
    pthread_mutex_unlock(&p->lock);
    if (code)
        return -code;
    return ws_error_set(
        err, EBADMSG,
        "%s/%lu is at its sources only as a delta, and with what it is made of (%lu) that gives "
        "other bytes than its manifest's",
        v->model->name, v->number, p->plan.base->version);
}
