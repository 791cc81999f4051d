/* Every lane is a thread with a connection of its own. It claims the next extent, a run of missing blocks of
 * a file of at most 16 MiB, fetches it, and claims the next. Awaited blocks go first, then small files and
 * the headers of all others, because readers begin with them, then the rest in order. A block is here when
 * the hash of what was stored is the manifest's. A wrong block is missing again, and so are the blocks of an
 * extent that was cut.
 *
 * Lanes at different sources are compared. A lane whose source sent next to nothing while lanes at others
 * moved several extents gives its extent back and goes on at another source; once nothing else is missing,
 * sooner. Only bytes are compared, which means the same on every link, also with a long round trip.
 *
 * Towards the end extents get shorter, so that the lanes finish together. */
#include "fs/pull/transfer.h"
#include "fs/store/content.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EXTENT_BLOCKS 4
#define NAP_MS        20 /* of a lane that lets a more urgent pull go first */
#define IDLE_MS       500
#define SLOWER        8 /* times slower than others: it gives its extent back */
#define SLACK         (EXTENT_BLOCKS * WS_BLOCK_BYTES) /* bytes that a lane may be behind at first */
#define LAST_SLACK    (256UL << 10)                    /* ... once nothing else is missing */

enum block_state { MISSING, TAKEN, HERE };

struct block {
    unsigned char state, tries;
};

/* Where the search for the next missing block continues. */
struct cursor {
    enum { SIDECARS, HEADERS, REST, END } phase;
    size_t file, block;
};

struct transfer {
    struct ws_source_select *selection;
    struct ws_version *version;
    const struct ws_manifest *manifest;
    const atomic_int *priority;
    unsigned n_lanes;
    struct lane *lanes;
    /* guarded by selection->lock */
    struct block **blocks; /* by file */
    size_t n_missing, n_left;
    uint64_t moved[WS_MAX_SOURCES]; /* by source: bytes of extents that are over */
    struct cursor next;
    int rc; /* why it ends; 0: it continues, or is complete */
    struct ws_error err;
    const char *transport;
};

struct extent {
    size_t file, first, n;
};

struct lane {
    struct transfer *t;
    struct ws_source_attempt attempt;
    struct ws_lane *lane;
    struct extent extent;
    bool doubtful;          /* a block of the extent was wrong */
    _Atomic(uint64_t) came; /* bytes of the extent */
    /* guarded by selection->lock */
    bool has_source, fetches;
    unsigned source;
    uint64_t others; /* what lanes at other sources had moved when the extent began */
    pthread_t thread;
};

/* --- the table of blocks; with selection->lock --- */

static void end_with(struct transfer *t, int rc, const struct ws_error *err)
{
    if (t->rc == 0) {
        t->rc = rc;
        t->err = *err;
    }
    pthread_cond_broadcast(&t->selection->changed);
}

/* Claims missing blocks from the first one in [first, end); none once the transfer ends. */
static bool claim(struct transfer *t, size_t file, size_t first, size_t end, struct extent *extent)
{
    struct block *b = t->blocks[file];
    size_t most = (t->n_missing + 2 * t->n_lanes - 1) / (2 * t->n_lanes);

    if (most > EXTENT_BLOCKS)
        most = EXTENT_BLOCKS;
    while (first < end && b[first].state != MISSING)
        first++;
    if (first >= end || t->rc < 0 || atomic_load(&t->selection->stop))
        return false;
    *extent = (struct extent){.file = file, .first = first};
    while (extent->n < most && first + extent->n < end && b[first + extent->n].state == MISSING)
        b[first + extent->n++].state = TAKEN;
    t->n_missing -= extent->n;
    return true;
}

/* Blocks of a file that belong to the phase: [0, end). */
static size_t phase_end(const struct transfer *t, const struct cursor *at)
{
    const struct ws_manifest_file *f = &t->manifest->files[at->file];

    if (at->phase == SIDECARS)
        return f->header_bytes ? 0 : f->n_blocks;
    return at->phase == HEADERS ? ws_content_header_blocks(f) : f->n_blocks;
}

static bool claim_next(struct transfer *t, struct extent *extent)
{
    struct cursor *at = &t->next;

    for (; at->phase != END; at->phase++, at->file = 0) {
        for (; at->file < t->manifest->n_files; at->file++, at->block = 0) {
            if (claim(t, at->file, at->block, phase_end(t, at), extent)) {
                at->block = extent->first + extent->n;
                return true;
            }
        }
    }
    return false;
}

static void give_back(struct transfer *t, const struct extent *extent)
{
    for (size_t b = extent->first; b < extent->first + extent->n; b++) {
        if (t->blocks[extent->file][b].state == TAKEN) {
            t->blocks[extent->file][b].state = MISSING;
            t->n_missing++;
            t->next = (struct cursor){0};
        }
    }
    pthread_cond_broadcast(&t->selection->changed);
}

/* --- sources compared; with selection->lock --- */

static uint64_t moved_by_others(const struct transfer *t, unsigned source)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < WS_MAX_SOURCES; i++)
        bytes += i == source ? 0 : t->moved[i];
    for (unsigned i = 0; i < t->n_lanes; i++)
        if (t->lanes[i].fetches && t->lanes[i].source != source)
            bytes += atomic_load(&t->lanes[i].came);
    return bytes;
}

static void extent_begins(struct lane *l)
{
    assert(l->attempt.poller); /* a lane that is open has a source */
    l->has_source = l->fetches = true;
    l->source = l->attempt.poller->index;
    l->others = moved_by_others(l->t, l->source);
    atomic_store(&l->came, 0);
}

static void extent_ends(struct lane *l)
{
    if (l->fetches)
        l->t->moved[l->source] += atomic_load(&l->came);
    l->fetches = false;
}

static void make_leave(struct lane *l)
{
    const struct ws_version *v = l->t->version;

    if (!atomic_exchange(&l->attempt.leave, true))
        ws_log(WS_LOG_INFO, "store", "a source is much slower than others model=%s version=%lu source=%s",
               v->model->name, v->number, l->attempt.poller->source->url);
}

/* Has lanes that are much slower than those at other sources give their extents back. */
static void compare(struct transfer *t)
{
    for (unsigned i = 0; i < t->n_lanes; i++) {
        struct lane *l = &t->lanes[i];
        unsigned n = 0;
        if (!l->fetches)
            continue;
        for (unsigned k = 0; k < t->n_lanes; k++)
            n += t->lanes[k].has_source && t->lanes[k].source != l->source;
        if (n == 0)
            continue;
        const uint64_t slack = t->n_missing > 0 ? SLACK : LAST_SLACK,
                       others = (moved_by_others(t, l->source) - l->others) / n;
        if (others > SLOWER * (atomic_load(&l->came) + slack))
            make_leave(l);
    }
}

static int make_table(struct transfer *t)
{
    const struct ws_manifest *m = t->manifest;

    t->blocks = calloc(m->n_files ? m->n_files : 1, sizeof(*t->blocks));
    for (size_t i = 0; t->blocks && i < m->n_files; i++) {
        size_t n = m->files[i].n_blocks;
        t->blocks[i] = calloc(n ? n : 1, sizeof(**t->blocks));
        if (!t->blocks[i])
            return -ENOMEM;
        for (size_t b = 0; b < n; b++) {
            bool here = ws_content_has(t->version, i, b, 1);
            t->blocks[i][b].state = here ? HERE : MISSING;
            t->n_missing += !here;
        }
    }
    t->n_left = t->n_missing;
    return t->blocks ? 0 : -ENOMEM;
}

static void free_table(struct transfer *t)
{
    for (size_t i = 0; t->blocks && i < t->manifest->n_files; i++)
        free(t->blocks[i]);
    free(t->blocks);
}

/* --- the next extent --- */

/* The first extent that a waiter waits for. The list of waiters is read anew each time, so blocks that are no
 * longer awaited do not go first. */
static bool claim_awaited(struct transfer *t, struct extent *extent)
{
    struct ws_version *v = t->version;
    bool found = false;

    if (atomic_load(&v->n_waiters) == 0)
        return false;
    pthread_mutex_lock(&v->store->lock);
    pthread_mutex_lock(&t->selection->lock);
    for (const struct ws_waiter *w = v->waiters; w && !found; w = w->next) {
        size_t file = w->file;
        if (file >= t->manifest->n_files || w->n == 0)
            continue;
        size_t n_blocks = t->manifest->files[file].n_blocks;
        if (w->first < n_blocks)
            found = claim(t, file, w->first, w->n < n_blocks - w->first ? w->first + w->n : n_blocks, extent);
    }
    pthread_mutex_unlock(&t->selection->lock);
    pthread_mutex_unlock(&v->store->lock);
    return found;
}

static bool is_outranked(const struct transfer *t)
{
    for (int p = atomic_load(t->priority) + 1; p <= WS_PRIORITY_READER; p++) {
        if (atomic_load(&t->version->store->n_moving[p]) > 0)
            return true;
    }
    return false;
}

/* Waits until there is an extent to fetch; false when nothing is left to do. */
static bool next_extent(struct lane *l)
{
    struct transfer *t = l->t;
    struct ws_source_select *sel = t->selection;
    bool found = false, goes_on = true;

    while (!found && goes_on) {
        uint64_t until;
        if (claim_awaited(t, &l->extent))
            return true;
        pthread_mutex_lock(&sel->lock);
        compare(t);
        bool outranked = is_outranked(t);
        goes_on = t->rc == 0 && t->n_left > 0 && !atomic_load(&sel->stop);
        found = goes_on && !outranked && claim_next(t, &l->extent);
        if (goes_on && !found) {
            until = ws_clock_ns() + (outranked ? NAP_MS : IDLE_MS) * WS_MS_NS;
            (void)ws_cond_wait_until(&sel->changed, &sel->lock, until);
            if (outranked)
                atomic_store(&sel->progress_ns, ws_clock_ns()); /* to wait for its turn is no silence */
        }
        pthread_mutex_unlock(&sel->lock);
    }
    return found;
}

/* --- one extent --- */

/* A block was stored and hashed. Called by the transport on the lane's thread. */
static int on_block(void *arg, size_t block, uint64_t hash)
{
    struct lane *l = arg;
    struct transfer *t = l->t;
    struct ws_version *v = t->version;
    const struct ws_manifest_file *f = &t->manifest->files[l->extent.file];
    struct block *b = &t->blocks[l->extent.file][block];
    const unsigned char *bytes =
        (unsigned char *)ws_region_data(ws_content_region(v, l->extent.file)) + block * WS_BLOCK_BYTES;
    bool good = hash == f->hashes[block] && ws_content_is_as_signed(v, l->extent.file, block, bytes);
    uint64_t len = ws_manifest_block_bytes(f, block);
    struct ws_error err;
    int rc;

    assert(block >= l->extent.first && block < l->extent.first + l->extent.n);
    atomic_fetch_add(&v->moved_bytes, len);
    atomic_fetch_add(&v->store->moved_bytes, len);
    pthread_mutex_lock(&t->selection->lock);
    assert(b->state == TAKEN);
    if (good) {
        ws_content_arrived(v, l->extent.file, block);
        b->state = HERE;
        if (--t->n_left == 0)
            pthread_cond_broadcast(&t->selection->changed);
    } else if (++b->tries >= WS_BLOCK_TRIES) {
        ws_error_set(&err, EBADMSG,
                     "block %zu of %s/%lu/%s came %d times with bytes that are not the %s; "
                     "check the source and the network to it",
                     block, v->model->name, v->number, f->name, WS_BLOCK_TRIES,
                     hash == f->hashes[block] ? "signed ones" : "manifest's");
        end_with(t, -EBADMSG, &err);
    }
    rc = t->rc;
    pthread_mutex_unlock(&t->selection->lock);
    if (good) {
        ws_source_select_progress(t->selection, &l->attempt);
        ws_waiters_wake(v);
    } else {
        l->doubtful = true;
        atomic_fetch_add(&v->bad_blocks, 1);
        atomic_fetch_add(&v->store->bad_blocks, 1);
    }
    return rc < 0 ? -ECANCELED : 0;
}

static void close_lane(struct lane *l)
{
    ws_lane_close(l->lane);
    l->lane = NULL;
}

/* Fetches the lane's extent. 0; a failure of the source, if the attempt has one; else a final error. */
static int fetch_extent(struct lane *l, struct ws_error *err)
{
    struct transfer *t = l->t;
    atomic_uint *moving;
    int rc = 0;

    if (!l->lane) {
        rc = ws_source_select_next(t->selection, &l->attempt, err);
        if (rc == 0)
            rc = ws_lane_open(l->attempt.poller->source, &l->lane, err);
    }
    if (rc < 0)
        return rc;
    struct ws_fetch fetch = {
        .manifest = t->manifest,
        .file = l->extent.file,
        .first = l->extent.first,
        .n = l->extent.n,
        .dst = ws_region_data(ws_content_region(t->version, l->extent.file)),
        .block = on_block,
        .arg = l,
        .cancel = &l->attempt.leave,
        .came = &l->came,
        .came_ns = &t->selection->came_ns,
    };
    pthread_mutex_lock(&t->selection->lock);
    extent_begins(l);
    pthread_mutex_unlock(&t->selection->lock);
    moving = &t->version->store->n_moving[atomic_load(t->priority)];
    atomic_fetch_add(moving, 1);
    rc = ws_lane_fetch(l->lane, &fetch, err);
    atomic_fetch_sub(moving, 1);
    return rc;
}

static void *lane_main(void *arg)
{
    struct lane *l = arg;
    struct transfer *t = l->t;

    ws_thread_nice(t->version->store->options.nice);
    while (next_extent(l)) {
        struct ws_error err = {0};
        int rc = fetch_extent(l, &err);
        pthread_mutex_lock(&t->selection->lock);
        extent_ends(l);
        give_back(t, &l->extent);
        if (rc == 0)
            t->transport = ws_source_transport(l->attempt.poller->source);
        bool over = t->rc != 0;
        pthread_mutex_unlock(&t->selection->lock);
        if (rc == 0 && l->doubtful && !over) {
            close_lane(l);
            ws_source_select_distrust(t->selection, &l->attempt);
        }
        l->doubtful = false;
        if (rc == 0 || over)
            continue;
        if (l->attempt.poller) {
            close_lane(l);
            rc = ws_source_select_failed(t->selection, &l->attempt, rc, &err);
        }
        if (rc < 0) {
            pthread_mutex_lock(&t->selection->lock);
            end_with(t, rc, &err);
            pthread_mutex_unlock(&t->selection->lock);
        }
    }
    close_lane(l);
    ws_source_select_end(&l->attempt);
    return NULL;
}

static int run_lanes(struct transfer *t, struct ws_error *err)
{
    struct lane lanes[WS_MAX_STREAMS];
    unsigned started = 0;
    int rc = 0;

    memset(lanes, 0, sizeof(lanes));
    t->lanes = lanes;
    for (unsigned i = 0; i < t->n_lanes; i++)
        lanes[i] = (struct lane){.t = t, .attempt.needs_whole = true};
    while (started < t->n_lanes) {
        rc = ws_thread_start(&lanes[started].thread, lane_main, &lanes[started]);
        if (rc < 0)
            break;
        started++;
    }
    for (unsigned i = 0; i < started; i++)
        pthread_join(lanes[i].thread, NULL);
    t->lanes = NULL;
    if (started == 0)
        return ws_error_set(err, -rc, "cannot start a thread for a transfer: %s", strerror(-rc));
    return 0;
}

int ws_transfer_run(struct ws_source_select *sel, const atomic_int *priority, const char **transport,
                    struct ws_error *err)
{
    struct ws_version *v = sel->version;
    struct transfer t = {
        .selection = sel,
        .version = v,
        .manifest = atomic_load(&v->manifest),
        .priority = priority,
        .transport = "",
    };
    int rc = make_table(&t);
    const uint64_t began = ws_clock_ns(), before = atomic_load(&v->moved_bytes);

    if (rc < 0) {
        rc = ws_error_set(err, ENOMEM, "out of memory for the blocks of %s/%lu", v->model->name, v->number);
    } else if (t.n_left > 0) {
        unsigned streams = v->store->options.streams;
        t.n_lanes = t.n_left < streams ? (unsigned)t.n_left : streams;
        rc = run_lanes(&t, err);
        ws_speeds_record(&v->store->speeds, &v->store->speeds.link, atomic_load(&v->moved_bytes) - before,
                         (double)(ws_clock_ns() - began) / 1e9);
    }
    if (rc == 0 && t.n_left > 0) {
        rc = t.rc ? t.rc : -ECANCELED;
        if (t.rc && err)
            *err = t.err;
        else
            ws_source_select_canceled(sel, err);
    }
    *transport = t.transport;
    free_table(&t);
    return rc;
}
