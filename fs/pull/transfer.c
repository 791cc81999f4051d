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
 * Towards the end extents get shorter, so that the lanes finish together.
 *
 * Where mounts feed each other (fs/store/parents.h) the blocks are dealt out to stripes, the same ones at every mount:
 * one after the other, or in large versions by extents. A block decides which source it is asked of: a lane begins
 * with a stripe of its own, and helps with others once nothing of it is missing, at their parents. Such lanes wait for
 * blocks that their parents wait for, so they are not compared here but by parent_watch.h. */
#include "fs/pull/transfer.h"
#include "fs/pull/block_table.h"
#include "fs/pull/undo.h"
#include "fs/store/content.h"
#include "fs/store/growing.h"
#include "fs/store/parents.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NAP_MS       20 /* of a lane that lets a more urgent pull go first */
#define IDLE_MS      500
#define UCX_PAUSE_MS 30000 /* of ucx that has failed */
#define SLOWER       8     /* times slower than others: it gives its extent back */
#define SLACK        (WS_EXTENT_BLOCKS * WS_BLOCK_BYTES) /* bytes that a lane may be behind at first */
#define LAST_SLACK   (256UL << 10)                       /* ... once nothing else is missing */

struct transfer {
    struct ws_source_select *selection;
    struct ws_version *version;
    const struct ws_manifest *manifest;
    const atomic_int *priority;
    struct lane *lanes;
    struct ws_block_table table;
    bool aside; /* blocks are made aside: the memory was another version's (undo.h) */
    struct ws_undo *undo;
    /* guarded by selection->lock */
    uint64_t moved[WS_MAX_SOURCES]; /* by source: bytes of extents that are over */
    int rc;                         /* why it ends; 0: it continues, or is complete */
    struct ws_error err;
    const char *transport;
};

struct lane {
    struct transfer *t;
    /* Of a part, or of what is made aside; NULL: blocks come into regions. A part's block is scattered out of it, where it
     * was not stored as it came. */
    unsigned char *buffer;
    unsigned char *scratch;   /* of a part that is made aside */
    bool stored;              /* the block is stored as it comes */
    bool misfits;             /* it is not what the map was made of */
    struct ws_sums_seam seam; /* of what was stored last */
    struct ws_source_attempt attempt;
    struct ws_lane *lane;
    struct ws_extent extent; /* the last one's stripe is where the next is looked for first */
    bool doubtful;           /* a block of the extent was wrong */
    _Atomic(uint64_t) came;  /* bytes of the extent */
    /* guarded by selection->lock */
    bool has_source, fetches;
    unsigned source;
    uint64_t others; /* what lanes at other sources had moved when the extent began */
    pthread_t thread;
};

/* --- the end; with selection->lock --- */

static void end_with(struct transfer *t, int rc, const struct ws_error *err)
{
    if (t->rc == 0) {
        t->rc = rc;
        t->err = *err;
    }
    pthread_cond_broadcast(&t->selection->changed);
}

/* --- sources compared; with selection->lock --- */

static uint64_t moved_by_others(const struct transfer *t, unsigned source)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < WS_MAX_SOURCES; i++)
        bytes += i == source ? 0 : t->moved[i];
    for (unsigned i = 0; i < t->table.n_lanes; i++)
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
    for (unsigned i = 0; i < t->table.n_lanes; i++) {
        struct lane *l = &t->lanes[i];
        unsigned n = 0;
        if (!l->fetches || t->table.n_stripes > 1)
            continue;
        for (unsigned k = 0; k < t->table.n_lanes; k++)
            n += t->lanes[k].has_source && t->lanes[k].source != l->source;
        if (n == 0)
            continue;
        const uint64_t slack = t->table.n_missing > 0 ? SLACK : LAST_SLACK,
                       others = (moved_by_others(t, l->source) - l->others) / n;
        if (others > SLOWER * (atomic_load(&l->came) + slack))
            make_leave(l);
    }
}

/* --- the next extent --- */

/* Of the lane's own stripe: other lanes leave theirs to none of the mounts below, which ask for one stripe only. Where
 * there are fewer lanes than stripes, of any. The list of waiters is read anew each time, so blocks that are no longer
 * awaited do not go first. */
static bool claim_awaited(struct transfer *t, struct ws_extent *extent)
{
    struct ws_version *v = t->version, *whole = ws_part_view(v) ? ws_part_view(v)->whole : NULL;
    const unsigned own = extent->stripe, n = t->table.n_lanes < t->table.n_stripes ? t->table.n_stripes : 1;
    bool found = false;

    if (atomic_load(&v->n_waiters) == 0 && (!whole || atomic_load(&whole->n_waiters) == 0))
        return false;
    pthread_mutex_lock(&v->store->lock);
    pthread_mutex_lock(&t->selection->lock);
    const bool goes_on = t->rc == 0 && !atomic_load(&t->selection->stop);
    for (unsigned k = 0; goes_on && k < n && !found; k++)
        found = ws_block_table_claim_awaited(&t->table, (own + k) % t->table.n_stripes, extent);
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
        goes_on = t->rc == 0 && t->table.n_left > 0 && !atomic_load(&sel->stop);
        found = goes_on && !outranked && ws_block_table_claim_next(&t->table, &l->extent);
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

/* The map of the version before was used, and this part is described otherwise. */
static int describes_another(const struct lane *l, struct ws_error *err)
{
    const struct ws_version *v = l->t->version;

    atomic_store(&ws_part_view(v)->parts->is_wrong, true);
    return ws_error_set(err, ESTALE, "%s/%lu is laid out otherwise than the version before; try again",
                        v->model->name, v->number);
}

static void block_begins(struct lane *l)
{
    l->stored = l->misfits = false;
    l->seam.of = NULL;
}

/* Is a block that has come the right one? What is in the buffer is stored now. -EBADMSG: it is not; any other error ends
 * the transfer. */
static int check_block(struct lane *l, size_t block, uint64_t hash, struct ws_error *err)
{
    struct ws_version *v = l->t->version;
    const size_t file = l->extent.file, len = ws_manifest_block_bytes(&l->t->manifest->files[file], block);

    if (hash != l->t->manifest->files[file].hashes[block])
        return -EBADMSG;
    if (l->stored && l->misfits)
        return describes_another(l, err);
    if (ws_version_must_be_signed(v)) {
        const unsigned char *bytes =
            l->buffer && !l->stored ? l->buffer : ws_content_block(v, file, block, l->buffer);
        if (!ws_content_is_as_signed(v, file, block, bytes))
            return -EBADMSG;
    }
    if (l->t->aside) {
        const int rc = ws_undo_write(l->t->undo, v, (unsigned)(l - l->t->lanes), file, block, l->buffer,
                                     l->scratch, err);
        return rc == -ESTALE && ws_part_view(v) ? describes_another(l, err) : rc;
    }
    return !l->buffer || l->stored || ws_part_view_write(v, file, block * WS_BLOCK_BYTES, len, l->buffer)
               ? 0
               : describes_another(l, err);
}

/* Pieces of a block of a part. Called by the transport on the lane's thread. */
static void on_piece(void *arg, struct ws_hasher *h, uint64_t at, const unsigned char *bytes, size_t n)
{
    struct lane *l = arg;

    l->stored = true;
    if (!ws_part_view_store(l->t->version, l->extent.file, at, n, bytes, h, &l->seam))
        l->misfits = true;
}

/* Bytes of a block have come. Called by the transport on the lane's thread. */
static void on_growth(void *arg, size_t block, uint64_t n)
{
    struct lane *l = arg;

    ws_growing_store(l->t->version, (unsigned)(l - l->t->lanes), l->extent.file, block, n);
}

/* A block was stored and hashed. Called by the transport on the lane's thread. */
static int on_block(void *arg, size_t block, uint64_t hash)
{
    struct lane *l = arg;
    struct transfer *t = l->t;
    struct ws_version *v = t->version;
    const struct ws_manifest_file *f = &t->manifest->files[l->extent.file];
    struct ws_block *b = &t->table.blocks[l->extent.file][block];
    uint64_t len = ws_manifest_block_bytes(f, block);
    struct ws_error err;

    if (l->stored)
        ws_copy_order();
    int rc = check_block(l, block, hash, &err);
    const bool good = rc == 0;

    block_begins(l);
    if (rc < 0 && rc != -EBADMSG) {
        pthread_mutex_lock(&t->selection->lock);
        end_with(t, rc, &err);
        pthread_mutex_unlock(&t->selection->lock);
        return -ECANCELED;
    }
    assert(block >= l->extent.first && block < l->extent.first + l->extent.n);
    ws_version_moved(v, len);
    pthread_mutex_lock(&t->selection->lock);
    assert(b->state == WS_BLOCK_TAKEN);
    if (good) {
        ws_content_arrived(v, l->extent.file, block);
        b->state = WS_BLOCK_HERE;
        if (--t->table.n_left == 0)
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
    ws_growing_end(v, (unsigned)(l - t->lanes));
    if (good) {
        ws_source_select_progress(t->selection, &l->attempt);
        if (ws_part_view(v))
            ws_part_view_arrived(v, l->extent.file, block);
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

/* By the ucx beside the source, where the list has it before the source's own strategy. */
static int open_lane(struct lane *l, struct ws_error *err)
{
    const struct ws_transport_prefs *list = &l->t->selection->transport_prefs;
    struct ws_poller *p = l->attempt.poller;
    const int ucx = ws_transport_prefs_rank(list, WS_WAY_UCX);

    l->attempt.by_ucx = p->ucx && ucx >= 0 && ucx < ws_transport_prefs_rank(list, p->strategy) &&
                        ws_clock_ns() >= atomic_load(&p->ucx_from_ns);
    return ws_lane_open(l->attempt.by_ucx ? p->ucx : p->source, &l->lane, err);
}

/* It came by ucx, and it failed, or bytes were wrong: the source itself is asked, for some time. */
static void leave_ucx(struct lane *l, const char *why)
{
    struct ws_poller *p = l->attempt.poller;
    struct ws_source_select *sel = l->t->selection;

    if (atomic_exchange(&p->ucx_from_ns, ws_clock_ns() + UCX_PAUSE_MS * WS_MS_NS) < ws_clock_ns())
        ws_log(WS_LOG_WARN, "store", "by tcp, since ucx failed model=%s version=%lu source=%s error=\"%s\"",
               l->t->version->model->name, l->t->version->number, p->source->url, why);
    ws_source_select_record_reason(sel, WS_WAY_UCX, why);
    close_lane(l);
    ws_source_select_end(&l->attempt);
    l->attempt.by_ucx = false;
}

/* Fetches the lane's extent. 0; a failure of the source, if the attempt has one; else a final error. */
static int fetch_extent(struct lane *l, struct ws_error *err)
{
    struct transfer *t = l->t;
    atomic_uint *moving;
    int rc = 0;

    if (l->lane &&
        (l->attempt.stripe != l->extent.stripe || ws_source_select_has_moved(t->selection, &l->attempt))) {
        close_lane(l);
        ws_source_select_end(&l->attempt);
    }
    l->attempt.stripe = l->extent.stripe;
    block_begins(l);
    if (!l->lane) {
        l->attempt.by_ucx = false; /* of the source before, which there may be no other after */
        rc = ws_source_select_next(t->selection, &l->attempt, err);
        if (rc == 0)
            rc = open_lane(l, err);
    }
    if (rc < 0)
        return rc;
    struct ws_fetch fetch = {
        .manifest = t->manifest,
        .file = l->extent.file,
        .first = l->extent.first,
        .n = l->extent.n,
        .dst = l->buffer ? l->buffer : ws_region_data(ws_content_region(t->version, l->extent.file)),
        .one_block = l->buffer != NULL,
        .store = ws_part_view(t->version) && !t->aside ? on_piece : NULL,
        .grows = l->buffer ? NULL : on_growth,
        .block = on_block,
        .arg = l,
        .cancel = &l->attempt.leave,
        .came = &l->came,
        .pace = &t->selection->pace,
    };
    pthread_mutex_lock(&t->selection->lock);
    extent_begins(l);
    pthread_mutex_unlock(&t->selection->lock);
    moving = &t->version->store->n_moving[atomic_load(t->priority)];
    atomic_fetch_add(moving, 1);
    rc = ws_lane_fetch(l->lane, &fetch, err);
    ws_growing_end(t->version, (unsigned)(l - t->lanes));
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
        ws_block_table_give_back(&t->table, &l->extent);
        pthread_cond_broadcast(&t->selection->changed);
        if (rc == 0)
            t->transport = ws_source_transport(l->lane->source);
        bool over = t->rc != 0;
        pthread_mutex_unlock(&t->selection->lock);
        if (l->attempt.by_ucx && !over && !atomic_load(&l->attempt.leave) && (rc < 0 || l->doubtful)) {
            leave_ucx(l, rc < 0 ? err.text : "it brought bytes that are not the manifest's");
            l->doubtful = false;
            continue;
        }
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
    for (unsigned i = 0; i < t->table.n_lanes; i++)
        lanes[i] = (struct lane){.t = t,
                                 .extent.stripe = i % t->table.n_stripes,
                                 .attempt = {.needs_whole = true, .came = &lanes[i].came}};
    while (started < t->table.n_lanes) {
        const bool is_part = ws_part_view(t->version);
        if (((is_part || t->aside) && !(lanes[started].buffer = malloc(WS_BLOCK_BYTES))) ||
            (is_part && t->aside && !(lanes[started].scratch = malloc(WS_BLOCK_BYTES)))) {
            rc = -ENOMEM;
            break;
        }
        rc = ws_thread_start(&lanes[started].thread, lane_main, &lanes[started]);
        if (rc < 0)
            break;
        started++;
    }
    for (unsigned i = 0; i < started; i++)
        pthread_join(lanes[i].thread, NULL);
    for (unsigned i = 0; i < t->table.n_lanes; i++) {
        free(lanes[i].buffer);
        free(lanes[i].scratch);
    }
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
        .aside = ws_undo_is_needed(v),
    };
    int rc = ws_block_table_init(&t.table, v);
    if (!ws_part_view(v) && !t.aside)
        ws_growing_new(v);
    const uint64_t began = ws_clock_ns(), before = atomic_load(&v->moved_bytes);

    if (rc < 0) {
        rc = ws_error_set(err, ENOMEM, "out of memory for the blocks of %s/%lu", v->model->name, v->number);
    } else if (t.table.n_left > 0) {
        unsigned streams = v->store->options.streams;
        t.table.n_lanes = t.table.n_left < streams ? (unsigned)t.table.n_left : streams;
        t.undo = ws_undo_open(sel, t.table.n_lanes);
        rc = run_lanes(&t, err);
        ws_undo_close(t.undo);
        ws_speeds_record(&v->store->speeds, &v->store->speeds.link, atomic_load(&v->moved_bytes) - before,
                         (double)(ws_clock_ns() - began) / 1e9);
    }
    if (rc == 0 && t.table.n_left > 0) {
        rc = t.rc ? t.rc : -ECANCELED;
        if (t.rc && err)
            *err = t.err;
        else
            ws_source_select_canceled(sel, err);
    }
    *transport = t.transport;
    ws_block_table_release(&t.table);
    return rc;
}
