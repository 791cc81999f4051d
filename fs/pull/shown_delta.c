#include "fs/pull/shown_delta.h"
#include "fs/store/cache_budget.h"
#include "fs/store/comparison.h"
#include "fs/store/content.h"
#include "fs/store/delta_cache.h"
#include "fs/store/way_back.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include "transports/delta/encode.h"
#include "transports/delta/patcher.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PART    2           /* of the version that a delta may take */
#define STEP    (1UL << 20) /* of what is borrowed */
#define THREADS 4           /* at most: each has room for a block's changes beside the cache */

/* How it comes about. */
enum source { NONE, HELD, COMPARED, WAY_BACK };

struct making {
    struct ws_comparison comparison;
    enum source source;
    struct ws_delta *delta; /* counted */
    uint64_t most_bytes;
    struct ws_delta *steps
        [WS_MAX_DELTA_ENTRIES]; /* of the way back, counted; from the target to the base, the last first */
    size_t n_steps;
    struct worker **workers;
    struct ws_delta_comparer *comparer; /* COMPARED */
    struct ws_element_widths *widths;   /* else: of the file's elements */
    size_t file;                        /* that is worked on */
    atomic_int rc;
    pthread_mutex_t lock;
    uint64_t borrowed; /* from the cache; guarded by lock */
};

static const struct ws_manifest *sealed(const struct ws_version *v)
{
    return atomic_load(&v->unsealed) ? NULL : atomic_load(&v->manifest);
}

/* --- with store->lock: what there is --- */

/* Does it name all that changed, and can it be read without the base's bytes, or are these here? */
static bool is_readable(const struct ws_delta *d, const struct ws_version *base)
{
    struct ws_delta_stats stats;
    ws_delta_stats(d, &stats);
    return stats.state == WS_DELTA_WHOLE && ws_delta_is_verified(d) &&
           (stats.n_blocks_whole == 0 || ws_version_is_complete(base));
}

static struct ws_delta *find_held(const struct ws_delta_set *set, const struct ws_delta_link *l,
                                  const struct ws_version *base)
{
    struct ws_delta *d = ws_delta_set_find(set, &l->base, &l->target);
    const struct ws_delta_link *own = d ? ws_delta_link(d) : NULL;
    return d && strcmp(own->base_digest, l->base_digest) == 0 &&
                   strcmp(own->target_digest, l->target_digest) == 0 && is_readable(d, base)
               ? d
               : NULL;
}

static bool is_learned(const struct ws_version *v)
{
    return v->model->learned != NULL;
}

static const char *why_none(const struct ws_version *base, const struct ws_version *target)
{
    if (base == target)
        return "it is that version";
    if (!ws_version_is_complete(target))
        return "the version is not here whole: pull it first";
    if (is_learned(target))
        return "the mount learns which tensors are read (need=learn), and a reader of changes reads others";
    if (atomic_load(&target->wanted) || atomic_load(&base->wanted))
        return "only some blocks of it come";
    if (!sealed(base) || !sealed(target))
        return "the base's manifest is not here";
    if (!base->named || !target->named)
        return "one of both versions was dropped";
    return NULL;
}

/* What the version's bytes, where the one copy went on, were before. */
static size_t find_way_back(const struct ws_version *base, const struct ws_version *target,
                            struct ws_delta *steps[WS_MAX_DELTA_ENTRIES])
{
    const size_t n = ws_way_back_find(sealed(target), base, steps);
    bool is_whole = n > 0 && n <= WS_MAX_DELTA_CHAIN;
    for (size_t i = 0; i < n && is_whole; i++)
        is_whole = ws_delta_state(steps[i]) == WS_DELTA_WHOLE;
    return is_whole ? n : 0;
}

static enum source find_source(struct ws_version *base, struct ws_version *target, struct ws_delta **held,
                               struct ws_delta *steps[WS_MAX_DELTA_ENTRIES], size_t *n_steps,
                               struct ws_error *why)
{
    const struct ws_model *m = target->model;
    const char *not_so = why_none(base, target);
    if (not_so) {
        ws_error_set(why, is_learned(target) ? EOPNOTSUPP : ENOENT, "no changes of %s %lu from %lu: %s",
                     m->name, target->number, base->number, not_so);
        return NONE;
    }
    const struct ws_delta_link l = ws_delta_link_between(sealed(base), sealed(target));
    if ((*held = find_held(&m->deltas, &l, base)) || (*held = find_held(&m->shown, &l, base)))
        return HELD;
    if (ws_version_is_complete(base))
        return COMPARED;
    if ((*n_steps = find_way_back(base, target, steps)) > 0)
        return WAY_BACK;
    ws_error_set(why, ENOENT,
                 "no changes of %s %lu from %lu: %lu is not here, and %lu did not come by one delta from it",
                 m->name, target->number, base->number, base->number, target->number);
    return NONE;
}

bool ws_shown_delta_exists(struct ws_version *base, struct ws_version *target, struct ws_error *why)
{
    struct ws_delta *held, *steps[WS_MAX_DELTA_ENTRIES];
    size_t n;
    if (base->model != target->model)
        return false;
    pthread_mutex_lock(&target->store->lock);
    const bool is = find_source(base, target, &held, steps, &n, why) != NONE;
    pthread_mutex_unlock(&target->store->lock);
    return is;
}

/* --- comparing --- */

static void give_files(struct ws_version *v, const unsigned char **files)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    for (size_t i = 0; i < m->n_files; i++) {
        struct ws_region *r = ws_content_region(v, i);
        files[i] = r ? ws_region_data(r) : NULL;
    }
}

/* One block of two versions that are both here. */
static int compare_block(struct making *k, size_t block, unsigned worker)
{
    if (ws_delta_comparer_is_equal(k->comparer, k->file, block))
        return 0;
    struct ws_delta_record *r = ws_delta_comparer_block(k->comparer, k->file, block, worker);
    return r ? ws_delta_add(k->delta, r) : -ENOMEM;
}

/* --- by the way back --- */

struct worker {
    struct ws_patcher *patcher;
    struct ws_delta_block_encoder *encoder;
    unsigned char before[WS_BLOCK_BYTES], out[WS_BLOCK_BYTES];
};

static struct worker *worker_of(struct making *k, unsigned i)
{
    struct worker *w = k->workers[i];
    if (w)
        return w;
    w = k->workers[i] = calloc(1, sizeof(*w));
    if (w && (w->patcher = ws_patcher_new()) && (w->encoder = ws_delta_block_encoder_new()))
        return w;
    return NULL;
}

static void free_worker(struct worker *w)
{
    if (!w)
        return;
    ws_patcher_free(w->patcher);
    ws_delta_block_encoder_free(w->encoder);
    free(w);
}

/* One block: what it was in the base, whose hash is known, and the delta from that. */
static int go_back(struct making *k, struct worker *w, size_t block, const struct ws_element_widths *widths)
{
    const struct ws_manifest *from = atomic_load(&k->comparison.base->manifest),
                             *to = atomic_load(&k->comparison.target->manifest);
    const struct ws_manifest_file *f = &to->files[k->file], *old = ws_manifest_find(from, f->name);
    const size_t len = ws_manifest_block_bytes(f, block), at = block * WS_BLOCK_BYTES;
    const struct ws_delta_record *chain[WS_MAX_DELTA_CHAIN];
    const unsigned char *now = ws_region_data(ws_content_region(k->comparison.target, k->file)) + at;
    uint64_t hash;
    size_t bytes = 0;
    uint32_t changed = 0;
    if (!old || old->size_bytes != f->size_bytes)
        return -EOPNOTSUPP; /* both have the same files, else there would be no way back */
    if (old->hashes[block] == f->hashes[block])
        return 0;
    for (size_t i = 0; i < k->n_steps; i++)
        chain[i] = ws_delta_at(k->steps[k->n_steps - 1 - i], k->file, block);
    int rc = ws_patcher_block(w->patcher, w->before, now, len, chain, k->n_steps, &hash, NULL);
    if (rc == 0 && hash != old->hashes[block])
        rc = -EBADMSG;
    if (rc == 0)
        rc = ws_delta_block_encode(w->encoder, w->before, now, len, widths, at, w->out, &bytes, &changed);
    if (rc < 0 || bytes == 0)
        return rc == -E2BIG ? -EFBIG : rc;
    struct ws_delta_record *r = ws_delta_record_make((uint32_t)k->file, (uint32_t)block, WS_DELTA_EDIT,
                                                     changed, w->out, (uint32_t)bytes, 0);
    return r ? ws_delta_add(k->delta, r) : -ENOMEM;
}

/* --- all blocks --- */

/* What the list takes is the cache's while it is made. The base does not give way to what is made of it. */
static int borrow(struct making *k, uint64_t bytes)
{
    struct ws_error why;
    int rc = 0;
    pthread_mutex_lock(&k->lock);
    while (rc == 0 && bytes > k->borrowed) {
        ws_version_retain(k->comparison.base, 1);
        rc = ws_cache_budget_borrow(k->comparison.target, STEP, &k->borrowed, &k->comparison.stop, &why);
        ws_version_retain(k->comparison.base, -1);
    }
    pthread_mutex_unlock(&k->lock);
    return rc == -ECANCELED ? -ESTALE : rc;
}

static int make_block(struct making *k, size_t block, unsigned worker)
{
    struct worker *w = k->comparer ? NULL : worker_of(k, worker);
    struct ws_delta_stats stats;
    if (atomic_load(&k->comparison.stop))
        return -ESTALE;
    if (!k->comparer && !w)
        return -ENOMEM;
    const int rc = w ? go_back(k, w, block, k->widths) : compare_block(k, block, worker);
    ws_delta_stats(k->delta, &stats);
    return rc < 0 ? rc : stats.bytes > k->most_bytes ? -EFBIG : borrow(k, stats.bytes);
}

static void do_block(void *arg, size_t block, unsigned worker)
{
    struct making *k = arg;
    const int rc = atomic_load(&k->rc) ? 0 : make_block(k, block, worker);
    if (rc < 0)
        atomic_store(&k->rc, rc);
}

static int open_comparer(struct making *k, const unsigned char **files, unsigned n_workers)
{
    const struct ws_manifest *from = atomic_load(&k->comparison.base->manifest),
                             *to = atomic_load(&k->comparison.target->manifest);
    give_files(k->comparison.base, files);
    give_files(k->comparison.target, files + from->n_files);
    const struct ws_delta_side a = {.manifest = from, .files = files},
                               b = {.manifest = to, .files = files + from->n_files};
    k->comparer = ws_delta_comparer_new(&a, &b, 0, n_workers);
    return k->comparer ? 0 : -ENOMEM;
}

static int do_file(struct making *k, struct ws_workers *workers)
{
    struct ws_version *v = k->comparison.target;
    const struct ws_manifest_file *f = &((struct ws_manifest *)atomic_load(&v->manifest))->files[k->file];
    const struct ws_safetensors *st =
        !k->comparer && f->header_bytes ? ws_version_header(v, k->file, NULL) : NULL;
    k->widths = k->comparer ? NULL : ws_element_widths_new(st);
    if (!k->comparer && !k->widths)
        return -ENOMEM;
    ws_workers_run_indexed(workers, do_block, k, f->n_blocks);
    free(k->widths);
    return atomic_load(&k->rc);
}

static int do_all(struct making *k, struct ws_workers *workers)
{
    const struct ws_manifest *from = atomic_load(&k->comparison.base->manifest),
                             *to = atomic_load(&k->comparison.target->manifest);
    const unsigned n = ws_workers_count(workers);
    const unsigned char **files = calloc(from->n_files + to->n_files + 1, sizeof(*files));
    k->workers = calloc(n, sizeof(struct worker *));
    int rc = files && k->workers ? 0 : -ENOMEM;
    if (rc == 0 && k->source == COMPARED)
        rc = open_comparer(k, files, n);
    for (k->file = 0; rc == 0 && k->file < to->n_files; k->file++)
        rc = do_file(k, workers);
    for (unsigned i = 0; k->workers && i < n; i++)
        free_worker(k->workers[i]);
    free(k->workers);
    ws_delta_comparer_free(k->comparer);
    free(files);
    ws_delta_end(k->delta, rc < 0 ? WS_DELTA_GIVEN_UP : WS_DELTA_WHOLE);
    return rc;
}

/* --- making one --- */

/* True: it is to be made, and k holds both versions. Else *held, counted, or err says why there is none. */
static bool begin(struct making *k, struct ws_version *base, struct ws_version *target,
                  struct ws_delta **held, struct ws_error *err)
{
    struct ws_store *s = target->store;
    struct ws_delta *found = NULL;
    pthread_mutex_lock(&s->lock);
    k->source = find_source(base, target, &found, k->steps, &k->n_steps, err);
    if (k->source == HELD)
        *held = ws_delta_get(found);
    const bool begins = k->source == COMPARED || k->source == WAY_BACK;
    if (begins)
        ws_comparison_begin(&k->comparison, base, target);
    for (size_t i = 0; k->source == WAY_BACK && i < k->n_steps; i++)
        (void)ws_delta_get(k->steps[i]);
    pthread_mutex_unlock(&s->lock);
    return begins;
}

static int result(struct making *k, int rc, struct ws_error *err)
{
    const struct ws_version *base = k->comparison.base, *v = k->comparison.target;
    const int code = atomic_load(&k->comparison.stop) ? ESTALE : -rc;
    if (rc == 0)
        return 0;
    return ws_error_set(err, code, "no changes of %s %lu from %lu: %s", v->model->name, v->number,
                        base->number,
                        code == ESTALE   ? "one of both versions went meanwhile, or the mount ends"
                        : code == EFBIG  ? "they would be half as large as the version: read it whole"
                        : code == ENOSPC ? "the cache has no room for them: mount with a larger cache="
                                         : strerror(code));
}

static int make(struct making *k, struct ws_error *err)
{
    struct ws_version *base = k->comparison.base, *v = k->comparison.target;
    const struct ws_store_options *o = &v->store->options;
    const struct ws_manifest *to = atomic_load(&v->manifest);
    const struct ws_delta_link l = ws_delta_link_between(atomic_load(&base->manifest), to);
    const uint64_t began_ns = ws_clock_ns();
    struct ws_workers *workers = ws_workers_new(o->threads < THREADS ? o->threads : THREADS, o->nice);
    int rc = workers ? ws_delta_new(&k->delta, &l, to, err)
                     : ws_error_set(err, ENOMEM, "no memory to compare versions");
    k->most_bytes = to->total_bytes / PART + (1UL << 20);
    if (rc == 0)
        ws_delta_set_verified(k->delta); /* made of both */
    if (rc == 0)
        rc = result(k, do_all(k, workers), err);
    ws_workers_free(workers);
    if (rc == 0)
        ws_log(WS_LOG_INFO, "store", "changes listed model=%s base=%lu version=%lu how=%s seconds=%.3f",
               v->model->name, base->number, v->number, k->source == COMPARED ? "compared" : "way-back",
               (double)(ws_clock_ns() - began_ns) / 1e9);
    return rc;
}

static void keep(struct making *k)
{
    struct ws_model *m = k->comparison.target->model;
    pthread_mutex_lock(&m->store->lock);
    if (m->listed) {
        ws_delta_set_add(&m->shown, ws_delta_get(k->delta));
        m->shown_bytes += k->borrowed;
        k->borrowed = 0;
        ws_model_trim_deltas(m);
    }
    pthread_mutex_unlock(&m->store->lock);
}

int ws_shown_delta_get(struct ws_delta **out, struct ws_version *base, struct ws_version *target,
                       struct ws_error *err)
{
    struct making k = {.source = NONE, .lock = PTHREAD_MUTEX_INITIALIZER};
    int rc = 0;
    *out = NULL;
    if (base->model != target->model)
        return ws_error_set(err, ENOENT, "both are versions of other models");
    pthread_mutex_lock(
        &target->tensor_diff_lock); /* one comparison at a time: the next finds what this one made */
    if (begin(&k, base, target, out, err)) {
        rc = make(&k, err);
        if (rc == 0) {
            keep(&k);
            *out = ws_delta_get(k.delta);
        }
        for (size_t i = 0; k.source == WAY_BACK && i < k.n_steps; i++)
            ws_delta_put(k.steps[i]);
        ws_delta_put(k.delta);
        ws_cache_budget_return(target->store, k.borrowed);
        ws_comparison_end(&k.comparison);
    } else if (!*out) {
        rc = -err->code;
    }
    pthread_mutex_unlock(&target->tensor_diff_lock);
    return rc;
}
