#include "fs/pull/lazy.h"
#include "fs/pull/signatures.h"
#include "fs/pull/source_select.h"
#include "fs/store/content.h"
#include "fs/store/version.h"
#include "fs/store/wants.h"
#include "transports/base/clock.h"
#include "transports/base/workers.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ASKED_AGAIN_NS (250 * WS_MS_NS)

enum slot_state { EMPTY, COMING, HERE };

/* A block. Those that are used or coming are at most as many as there are threads. */
struct slot {
    enum slot_state state;
    uint64_t serial; /* of its version */
    size_t file, block;
    unsigned users;
    uint64_t used; /* when it was used last, in uses */
    unsigned char *bytes;
};

/* A version of which nothing came as long as a reader waits (deadline=). */
struct failure {
    uint64_t serial, at_ns; /* serial 0: none */
    struct ws_error err;
};

struct ws_lazy {
    struct ws_store *store;
    bool all;
    unsigned n_threads;
    pthread_t threads[WS_LAZY_THREADS];
    pthread_mutex_t lock; /* store->lock is not taken with it held */
    pthread_cond_t changed;
    /* guarded by lock */
    bool stop;
    struct ws_lazy_read *first, **last;
    struct ws_lazy_read *running[WS_LAZY_THREADS];
    struct failure failed; /* the last one */
    struct slot slots[WS_LAZY_BLOCKS];
    uint64_t uses;
    struct ws_source_select *selections[WS_LAZY_THREADS]; /* of fetches that run */
};

_Static_assert(WS_LAZY_BLOCKS > WS_LAZY_THREADS, "each thread uses one at a time");
_Static_assert(WS_LAZY_EACH < WS_LAZY_THREADS, "some are left for the reads of other sources");

/* --- fetching a block --- */

struct fetching {
    struct ws_version *version;
    size_t file, block;
    unsigned char *bytes;
    struct ws_pace *pace;
    bool good;
    unsigned n_bad;
};

static int on_block(void *arg, size_t block, uint64_t hash)
{
    struct fetching *f = arg;
    const struct ws_manifest *m = atomic_load(&f->version->manifest);

    f->good = hash == m->files[f->file].hashes[block] &&
              ws_content_is_as_signed(f->version, f->file, block, f->bytes);
    return 0;
}

static int use_source(void *arg, struct ws_source_attempt *attempt, struct ws_error *err)
{
    struct fetching *f = arg;
    struct ws_version *v = f->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    const struct ws_fetch fetch = {
        .manifest = m,
        .file = f->file,
        .first = f->block,
        .n = 1,
        .dst = f->bytes,
        .one_block = true,
        .block = on_block,
        .arg = f,
        .cancel = &attempt->leave,
        .pace = f->pace,
    };
    struct ws_lane *lane = NULL;
    int rc = ws_lane_open(attempt->poller->source, &lane, err);

    f->good = false;
    if (rc == 0)
        rc = ws_lane_fetch(lane, &fetch, err);
    ws_lane_close(lane);
    if (rc == 0 && !f->good) {
        atomic_fetch_add(&v->bad_blocks, 1);
        atomic_fetch_add(&v->store->bad_blocks, 1);
        rc = ws_error_set(err, ++f->n_bad >= WS_BLOCK_TRIES ? EBADMSG : EAGAIN,
                          "block %zu of %s/%lu/%s came with bytes that are not the %s", f->block, m->model,
                          m->version, m->files[f->file].name,
                          ws_version_must_be_signed(v) ? "signed ones" : "manifest's");
    }
    return rc;
}

static void begin(struct ws_lazy *l, unsigned thread, struct ws_source_select *sel, struct ws_version *v)
{
    pthread_mutex_lock(&v->store->lock);
    ws_source_select_init(sel, v);
    pthread_mutex_unlock(&v->store->lock);
    pthread_mutex_lock(&l->lock);
    l->selections[thread] = sel;
    const bool stop = l->stop;
    pthread_mutex_unlock(&l->lock);
    if (stop)
        ws_source_select_stop(sel);
}

static void end(struct ws_lazy *l, unsigned thread, struct ws_source_select *sel)
{
    pthread_mutex_lock(&l->lock);
    l->selections[thread] = NULL;
    pthread_mutex_unlock(&l->lock);
    ws_source_select_release(sel);
}

static int fetch_block(struct ws_lazy *l, unsigned thread, struct ws_version *v, const struct slot *slot,
                       struct ws_error *err)
{
    struct ws_source_select sel;
    struct ws_source_attempt attempt = {.needs_whole = true, .not_parents = true};
    struct fetching f = {
        .version = v, .file = slot->file, .block = slot->block, .bytes = slot->bytes, .pace = &sel.pace};
    const struct ws_manifest *m = atomic_load(&v->manifest);
    const uint64_t n = ws_manifest_block_bytes(&m->files[slot->file], slot->block);

    begin(l, thread, &sel, v);
    int rc = ws_signatures_get_tree(&sel, err);
    if (rc == 0)
        rc = ws_source_select_try(&sel, &attempt, use_source, &f, err);
    end(l, thread, &sel);
    if (rc == 0) {
        ws_version_moved(v, n);
        atomic_fetch_add(&v->store->on_demand_bytes, n);
    } else if (rc == -ENODATA) {
        ws_error_set(err, ENODATA,
                     "%s/%lu is at its sources only as a delta, of which no block can be read by itself "
                     "(open=lazy, need=learn): pull it whole, or read another version",
                     v->model->name, v->number);
    }
    return rc;
}

/* --- slots; with l->lock --- */

static struct slot *find(struct ws_lazy *l, const struct ws_version *v, size_t file, size_t block)
{
    for (size_t i = 0; i < WS_LAZY_BLOCKS; i++) {
        struct slot *s = &l->slots[i];
        if (s->state != EMPTY && s->serial == v->serial && s->file == file && s->block == block)
            return s;
    }
    return NULL;
}

/* The one that was used longest ago. */
static struct slot *oldest(struct ws_lazy *l)
{
    struct slot *best = NULL;

    for (size_t i = 0; i < WS_LAZY_BLOCKS; i++) {
        struct slot *s = &l->slots[i];
        if (s->users == 0 && s->state != COMING && (!best || s->used < best->used))
            best = s;
    }
    assert(best);
    return best;
}

static void note_result(struct ws_lazy *l, const struct ws_version *v, int rc, const struct ws_error *err)
{
    if (rc == -ETIMEDOUT || rc == -EHOSTUNREACH)
        l->failed = (struct failure){v->serial, ws_clock_ns(), *err};
    else if (rc == 0 && l->failed.serial == v->serial)
        l->failed = (struct failure){0};
}

/* Fetches the block into a slot. The lock is let go meanwhile. */
static int fill(struct ws_lazy *l, unsigned thread, struct ws_version *v, size_t file, size_t block,
                struct slot **out, struct ws_error *err)
{
    struct slot *s = *out = oldest(l);
    int rc = 0;

    s->state = COMING;
    s->serial = v->serial;
    s->file = file;
    s->block = block;
    pthread_mutex_unlock(&l->lock);
    if (!s->bytes && !(s->bytes = malloc(WS_BLOCK_BYTES)))
        rc = ws_error_set(err, ENOMEM, "out of memory for a block of %s/%lu", v->model->name, v->number);
    if (rc == 0)
        rc = fetch_block(l, thread, v, s, err);
    pthread_mutex_lock(&l->lock);
    s->state = rc == 0 ? HERE : EMPTY;
    note_result(l, v, rc, err);
    pthread_cond_broadcast(&l->changed);
    return rc;
}

/* Did the version fail while the read has waited for most of the time that the failed one had? It would only fail as well, and
 * whoever waits behind it would wait for that. Or just before it came, and no source has answered anything since? The kernel asks once
 * more for a page that it could not read ahead, and the reader would wait twice. */
static bool has_failed(const struct ws_lazy *l, const struct ws_lazy_read *r)
{
    const uint64_t half_ns = (uint64_t)l->store->options.deadline_ms * WS_MS_NS / 2, at_ns = l->failed.at_ns;

    return l->failed.serial == r->version->serial &&
           (at_ns >= r->since_ns + half_ns ||
            (r->since_ns >= at_ns && r->since_ns - at_ns < ASKED_AGAIN_NS && r->heard_ns <= at_ns));
}

/* A block that is here, used until it is let go. */
static int get_block(struct ws_lazy *l, unsigned thread, const struct ws_lazy_read *r, size_t block,
                     struct slot **out, struct ws_error *err)
{
    struct slot *s;
    int rc = 0;

    pthread_mutex_lock(&l->lock);
    while ((s = find(l, r->version, r->file, block)) && s->state == COMING && !l->stop && !has_failed(l, r))
        pthread_cond_wait(&l->changed, &l->lock);
    if (l->stop)
        rc = ws_error_set(err, ECANCELED, "the mount ends");
    else if ((!s || s->state == COMING) && has_failed(l, r))
        rc = ws_error_set(err, l->failed.err.code, "%s", l->failed.err.text);
    else if (!s)
        rc = fill(l, thread, r->version, r->file, block, &s, err);
    if (rc == 0) {
        s->users++;
        s->used = ++l->uses;
        *out = s;
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}

static void let_go(struct ws_lazy *l, struct slot *s)
{
    pthread_mutex_lock(&l->lock);
    s->users--;
    pthread_mutex_unlock(&l->lock);
}

/* --- threads --- */

static int run(struct ws_lazy *l, unsigned thread, struct ws_lazy_read *r, struct ws_error *err)
{
    int rc = 0;

    for (uint64_t done = 0, n; done < r->n && rc == 0; done += n) {
        const uint64_t at = r->at + done, skip = at % WS_BLOCK_BYTES;
        struct slot *s = NULL;
        n = r->n - done < WS_BLOCK_BYTES - skip ? r->n - done : WS_BLOCK_BYTES - skip;
        rc = get_block(l, thread, r, (size_t)(at / WS_BLOCK_BYTES), &s, err);
        if (rc < 0)
            break;
        memcpy(r->out + done, s->bytes + skip, n);
        let_go(l, s);
        r->since_ns = ws_clock_ns();
    }
    return rc;
}

/* Is a thread left for reads of its sources, one of which may be silent? With l->lock. */
static bool may_run(const struct ws_lazy *l, const struct ws_lazy_read *r)
{
    unsigned n = 0;

    for (size_t i = 0; i < WS_LAZY_THREADS; i++)
        n += l->running[i] && (l->running[i]->sources & r->sources);
    return n < WS_LAZY_EACH;
}

/* Takes one out of the queue; NULL: there is none that may. With l->lock. */
static struct ws_lazy_read *take(struct ws_lazy *l)
{
    for (struct ws_lazy_read **at = &l->first, *r; (r = *at); at = &r->next)
        if (l->stop || has_failed(l, r) || may_run(l, r)) {
            *at = r->next;
            if (!r->next)
                l->last = at;
            return r;
        }
    return NULL;
}

/* The lock is let go meanwhile. */
static void serve(struct ws_lazy *l, unsigned thread, struct ws_lazy_read *r)
{
    struct ws_error err = {0};

    l->running[thread] = r;
    pthread_mutex_unlock(&l->lock);
    const int rc = run(l, thread, r, &err);
    pthread_mutex_lock(&l->lock);
    l->running[thread] = NULL;
    pthread_cond_broadcast(&l->changed); /* to those that may run now */
    pthread_mutex_unlock(&l->lock);
    r->done(r, rc, &err);
    pthread_mutex_lock(&l->lock);
}

struct starting {
    struct ws_lazy *lazy;
    unsigned thread;
};

static void *lazy_main(void *arg)
{
    struct starting of = *(struct starting *)arg;
    struct ws_lazy *l = of.lazy;

    free(arg);
    ws_thread_nice(l->store->options.nice);
    pthread_mutex_lock(&l->lock);
    for (;;) {
        struct ws_lazy_read *r = take(l);
        if (r)
            serve(l, of.thread, r);
        else if (l->stop)
            break;
        else
            pthread_cond_wait(&l->changed, &l->lock);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

int ws_lazy_new(struct ws_lazy **out, struct ws_store *s, bool all, struct ws_error *err)
{
    struct ws_lazy *l = *out = calloc(1, sizeof(*l));
    int rc = l ? 0 : -ENOMEM;

    if (l) {
        l->store = s;
        l->all = all;
        l->last = &l->first;
        pthread_mutex_init(&l->lock, NULL);
        pthread_cond_init(&l->changed, NULL);
    }
    while (rc == 0 && l->n_threads < WS_LAZY_THREADS) {
        struct starting *of = malloc(sizeof(*of));
        if (of)
            *of = (struct starting){l, l->n_threads};
        rc = of ? ws_thread_start(&l->threads[l->n_threads], lazy_main, of) : -ENOMEM;
        if (rc == 0)
            l->n_threads++;
        else
            free(of);
    }
    return rc < 0 ? ws_error_set(err, -rc, "cannot start the threads that fetch blocks for reads: %s",
                                 strerror(-rc))
                  : 0;
}

void ws_lazy_free(struct ws_lazy *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    for (unsigned i = 0; i < WS_LAZY_THREADS; i++)
        if (l->selections[i])
            ws_source_select_stop(l->selections[i]);
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    for (unsigned i = 0; i < l->n_threads; i++)
        pthread_join(l->threads[i], NULL);
    for (size_t i = 0; i < WS_LAZY_BLOCKS; i++)
        free(l->slots[i].bytes);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

bool ws_lazy_applies(const struct ws_lazy *l, struct ws_version *v, size_t file, uint64_t at, uint64_t n)
{
    const size_t first = (size_t)(at / WS_BLOCK_BYTES), last = (size_t)((at + n - 1) / WS_BLOCK_BYTES);
    bool comes;

    if (!ws_version_has_manifest(v))
        return false;
    if (ws_version_leaves_blocks_out(v, file, first, last - first + 1))
        return true;
    if (!l->all || ws_version_is_complete(v) || ws_content_has(v, file, first, last - first + 1) ||
        ws_version_is_made_first(v))
        return false;
    pthread_mutex_lock(&v->store->lock);
    comes = v->pull && v->store->puller->wants_all(v->pull);
    pthread_mutex_unlock(&v->store->lock);
    return !comes;
}

void ws_lazy_submit(struct ws_lazy *l, struct ws_lazy_read *r)
{
    const struct ws_store *s = l->store;
    pthread_mutex_lock(&l->store->lock);
    r->sources = r->version->sources;
    r->heard_ns = 0;
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++)
        if (r->sources & ws_bit(i) && s->pollers[i] && s->pollers[i]->contact_ns > r->heard_ns)
            r->heard_ns = s->pollers[i]->contact_ns;
    pthread_mutex_unlock(&l->store->lock);
    r->since_ns = ws_clock_ns();
    r->next = NULL;
    pthread_mutex_lock(&l->lock);
    *l->last = r;
    l->last = &r->next;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}
