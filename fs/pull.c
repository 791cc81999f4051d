/* A pull goes as far as its goal, which may rise while it runs:
 *
 *     manifest -> headers -> room and regions -> deltas -> blocks -> headers checked -> READY
 *                         \-> the source's own memory, mapped -----------/
 *
 * Before the room: what a version is made of that no source has whole (stones.h).
 *
 * Blocks are verified as they arrive, so what is left at the end is short. A pull that fails leaves
 * what is here where it is: the next one goes on from there. */
#include "fs/pull.h"
#include "fs/assembly.h"
#include "fs/content.h"
#include "fs/model.h"
#include "fs/offers.h"
#include "fs/parts.h"
#include "fs/replay.h"
#include "fs/room.h"
#include "fs/rounds.h"
#include "fs/route.h"
#include "fs/stones.h"
#include "fs/transfer.h"
#include "fs/verify.h"
#include "fs/version.h"
#include "fs/waits.h"
#include "fs/why_not.h"
#include "transports/clock.h"
#include "transports/log.h"
#include "transports/workers.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAY_TRIES   3
#define HOLD_OFF_NS WS_SECOND_NS /* after a failure: readers that ask again at once get the same answer */

struct ws_pull {
    struct ws_version *version; /* counted */
    struct ws_route route;
    atomic_int priority;
    enum ws_goal goal; /* guarded by store->lock; only rises */
};

/* --- the steps; without any lock --- */

static int get_manifest(struct ws_pull *p, struct ws_error *err)
{
    struct ws_version *v = p->version;
    struct ws_store *s = v->store;
    struct ws_leg leg = {.control = true};

    while (!atomic_load(&v->manifest)) {
        struct ws_manifest *m = NULL;
        int rc = ws_route_take(&p->route, &leg, err);
        if (rc < 0)
            return rc;
        rc = ws_source_manifest(leg.watch->source, v->model->name, v->number, v->run, &leg.leave, &m, err);
        if (rc == 0) {
            pthread_mutex_lock(&s->lock);
            rc = ws_content_describe(v, m, err);
            pthread_mutex_unlock(&s->lock);
        }
        if (rc == 0)
            ws_route_progress(&p->route, &leg);
        else if ((rc = ws_route_failed(&p->route, &leg, rc, err)) < 0)
            return rc;
        ws_route_end(&leg);
    }
    ws_waits_answer(v);
    return 0;
}

struct header {
    const struct ws_bundle_file *file;
    size_t n_good;
};

static int on_header_block(void *arg, size_t block, uint64_t hash)
{
    struct header *h = arg;

    h->n_good += hash == h->file->hashes[block];
    return 0;
}

/* Fetches the blocks of one file's header into memory of their own. */
static int fetch_header(struct ws_pull *p, struct ws_leg *leg, size_t file, unsigned char *bytes,
                        struct ws_error *err)
{
    struct ws_version *v = p->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct header h = {.file = &m->files[file]};
    struct ws_lane *lane = NULL;
    struct ws_fetch fetch = {
        .manifest = m,
        .file = file,
        .n = ws_content_header_blocks(&m->files[file]),
        .dst = bytes,
        .block = on_header_block,
        .arg = &h,
        .cancel = &leg->leave,
        .came_ns = &p->route.came_ns,
    };
    int rc = ws_lane_open(leg->watch->source, &lane, err);

    if (rc < 0)
        return rc;
    rc = ws_lane_fetch(lane, &fetch, err);
    ws_lane_close(lane);
    if (rc == 0 && h.n_good < fetch.n)
        rc = ws_error_set(err, EAGAIN,
                          "the header of %s/%lu/%s came with bytes that are not the "
                          "manifest's",
                          m->model, m->version, m->files[file].name);
    return rc;
}

static int get_header(struct ws_pull *p, size_t file, struct ws_error *err)
{
    struct ws_version *v = p->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    size_t n = ws_content_header_blocks(&m->files[file]);
    unsigned char *bytes = malloc(n * WS_BLOCK_BYTES);
    struct ws_leg leg = {.whole = true};
    unsigned n_bad = 0;
    int rc = -EAGAIN;

    if (!bytes)
        return ws_error_set(err, ENOMEM, "out of memory for the header of %s", m->files[file].name);
    while (rc < 0) {
        rc = ws_route_take(&p->route, &leg, err);
        if (rc < 0)
            break;
        rc = fetch_header(p, &leg, file, bytes, err);
        if (rc == -EAGAIN && ++n_bad >= WS_BLOCK_TRIES)
            rc = -EBADMSG;
        if (rc < 0) {
            int final = ws_route_failed(&p->route, &leg, rc, err);
            if (final < 0) {
                rc = final;
                break;
            }
        } else {
            ws_route_progress(&p->route, &leg);
        }
    }
    ws_route_end(&leg);
    if (rc == 0)
        rc = ws_content_parse_header(v, file, bytes, n * WS_BLOCK_BYTES, err);
    free(bytes);
    return rc;
}

/* A look at the tensors of a version that is not here costs its headers, and no room in the cache. */
static int get_headers(struct ws_pull *p, struct ws_error *err)
{
    struct ws_version *v = p->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    int rc = 0;

    for (size_t i = 0; i < m->n_files && rc == 0; i++) {
        const struct ws_bundle_file *f = &m->files[i];
        if (f->header_bytes && !atomic_load(&v->files[i].header) &&
            !ws_content_has(v, i, 0, ws_content_header_blocks(f)))
            rc = get_header(p, i, err);
    }
    if (rc == 0)
        ws_waits_answer(v);
    return rc;
}

/* --- the source's own memory --- */

static int check_mapped(struct ws_pull *p, struct ws_region **regions, struct ws_error *err)
{
    struct ws_version *v = p->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);

    for (size_t i = 0; i < m->n_files; i++) {
        uint64_t size = regions[i] ? ws_region_size(regions[i]) : 0;
        if (size != m->files[i].size_bytes)
            return ws_error_set(err, EPROTO,
                                "%s/%lu/%s: the source's memory has %lu bytes, its "
                                "manifest says %lu",
                                m->model, m->version, m->files[i].name, size, m->files[i].size_bytes);
    }
    if (!v->store->options.verify_imported)
        return 0;
    return ws_verify_regions(v->store, m, regions, NULL, (const atomic_bool *const[2]){&p->route.stop}, err);
}

static void give_back_mapped(struct ws_watch *w, const struct ws_manifest *m, struct ws_region **regions)
{
    for (size_t i = 0; i < m->n_files; i++)
        ws_region_free(regions[i]);
    ws_source_unmap(w->source, m->model, m->version, m->run);
}

static void keep_mapped(struct ws_version *v, struct ws_watch *w, struct ws_region **regions)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    for (size_t i = 0; i < m->n_files; i++) {
        atomic_store(&v->files[i].region, regions[i]);
        ws_content_arrived_all(v, i);
    }
    pthread_mutex_lock(&v->store->lock);
    v->mapped = ws_watch_get(w);
    pthread_mutex_unlock(&v->store->lock);
}

/* Takes the regions over from the source. -ENOTSUP: it has none to give. */
static int import(struct ws_pull *p, struct ws_error *err)
{
    struct ws_version *v = p->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct ws_region **regions = calloc(m->n_files ? m->n_files : 1, sizeof(struct ws_region *));
    const struct ws_strategies *list = &p->route.strategies;
    /* a source that is in no list may still broadcast */
    struct ws_leg leg = {.control = ws_strategies_rank(list, WSYNC_BROADCAST) >= 0};
    int rc = -EAGAIN;

    if (!regions)
        return ws_error_set(err, ENOMEM, "out of memory for %s/%lu", m->model, m->version);
    while (rc < 0 && rc != -ENOTSUP) {
        rc = ws_route_take(&p->route, &leg, err);
        if (rc < 0)
            break;
        rc = ws_strategies_rank(list, leg.watch->strategy) < 0
                 ? -ENOTSUP
                 : ws_source_map(leg.watch->source, m, regions, err);
        if (rc == 0) {
            rc = check_mapped(p, regions, err);
            if (rc == 0) {
                keep_mapped(v, leg.watch, regions);
                atomic_store(&p->route.used, leg.watch->strategy);
            } else {
                give_back_mapped(leg.watch, m, regions);
            }
        }
        if (rc < 0 && rc != -ENOTSUP) {
            int final = ws_route_failed(&p->route, &leg, rc, err);
            if (final < 0) {
                rc = final;
                break;
            }
        }
    }
    ws_route_end(&leg);
    free(regions);
    return rc;
}

/* --- memory of our own --- */

static int get_regions(struct ws_pull *p, struct ws_error *err)
{
    struct ws_version *v = p->version;
    struct ws_store *s = v->store;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    int rc = 0;

    if (v->own_bytes == 0)
        rc = ws_room_take(v, m->total_bytes, &p->route.stop, err);
    for (size_t i = 0; i < m->n_files && rc == 0; i++) {
        struct ws_region *r = NULL;
        if (m->files[i].size_bytes == 0 || ws_content_region(v, i))
            continue;
        rc = ws_pool_get(s->pool, m->files[i].size_bytes, &r, err);
        if (rc == 0) {
            atomic_store(&v->files[i].region, r);
            v->emptied_pool = true;
        }
    }
    if (rc == 0)
        ws_room_trim(s);
    return rc;
}

static bool comes_whole(struct ws_version *v)
{
    bool whole;

    pthread_mutex_lock(&v->store->lock);
    whole = ws_version_comes_whole(v);
    pthread_mutex_unlock(&v->store->lock);
    return whole;
}

/* How it is to come; *replay NULL: from the source. What a version hangs on may be evicted before it is
 * taken, and is then brought again. */
static int choose_way(struct ws_pull *p, struct ws_replay **replay, char why[WS_HOW_CHARS],
                      struct ws_error *err)
{
    struct ws_version *v = p->version;

    for (int tries = 0; tries < WAY_TRIES; tries++) {
        int rc = ws_stones_lay(&p->route, &p->priority, err);
        if (rc < 0)
            return rc;
        bool whole = comes_whole(v);
        *replay = whole && ws_version_has_bytes(v) ? NULL : ws_replay_new(&p->route, why);
        if (whole || *replay)
            return 0;
    }
    return ws_error_set(err, ENOSPC,
                        "%s/%lu is at its sources only as a delta, and what it is made of did not stay here: "
                        "cache= must have room for two versions",
                        v->model->name, v->number);
}

/* "broadcast to 4 at 38.2 GB/s, then tcp 12 MB"; "tcp full: why no delta" */
static void tell_full(char how[WS_HOW_CHARS], const char *rounds, const char *transport, uint64_t bytes,
                      const char *why)
{
    char moved[16];

    ws_room_text(bytes, moved);
    if (rounds[0] && transport[0])
        snprintf(how, WS_HOW_CHARS, "%.100s, then %s %s", rounds, transport, moved);
    else if (rounds[0])
        snprintf(how, WS_HOW_CHARS, "%s", rounds);
    else if (transport[0])
        snprintf(how, WS_HOW_CHARS, "%s full%s%.100s", transport, why[0] ? ": " : "", why);
}

/* From what is here and from deltas, as far as they go, from a broadcast, and from the source. */
static int fill(struct ws_pull *p, char how[WS_HOW_CHARS], struct ws_error *err)
{
    struct ws_version *v = p->version;
    const char *patched = "", *transport = "";
    const uint64_t before = atomic_load(&v->moved_bytes);
    char why[WS_HOW_CHARS] = "", rounds[WS_HOW_CHARS] = "", moved[16], total[16];
    uint64_t by_rounds;
    struct ws_replay *replay = NULL;
    int rc = choose_way(p, &replay, why, err);

    if (!replay)
        atomic_store(&v->decided, true);
    if (rc == 0)
        rc = get_regions(p, err);
    if (rc == 0 && replay) {
        ws_replay_run(replay, &patched);
        if (!comes_whole(v))
            rc = ws_replay_result(replay, err);
    }
    ws_replay_free(replay);
    if (rc == 0 && !replay)
        ws_rounds_run(&p->route, &p->priority, rounds);
    by_rounds = atomic_load(&v->moved_bytes) - before;
    if (rc == 0)
        rc = ws_transfer_run(&p->route, &p->priority, &transport, err);
    if (replay) {
        ws_room_text(atomic_load(&v->moved_bytes) - before, moved);
        ws_room_text(((struct ws_manifest *)atomic_load(&v->manifest))->total_bytes, total);
        snprintf(how, WS_HOW_CHARS, "%s%s%.60s: %s instead of %s%s", patched, patched[0] ? " " : "", why,
                 moved, total, transport[0] ? ", the rest whole" : "");
    } else {
        tell_full(how, rounds, transport, atomic_load(&v->moved_bytes) - before - by_rounds, why);
    }
    if (rounds[0])
        atomic_store(&p->route.used, WSYNC_BROADCAST);
    return rc;
}

/* --- the whole --- */

static void enter(struct ws_pull *p, enum ws_state state)
{
    struct ws_version *v = p->version;
    struct ws_changes changes;

    ws_changes_init(&changes);
    pthread_mutex_lock(&v->store->lock);
    if (state == WS_PULLING)
        v->pull_began_ns = ws_clock_ns();
    if (v->named)
        ws_version_set_state(v, state, &changes);
    pthread_mutex_unlock(&v->store->lock);
    ws_changes_tell(&changes, v->store);
}

/* Another source may have been heard while the bytes came. */
static int check_agreement(struct ws_version *v, struct ws_error *err)
{
    int rc;

    pthread_mutex_lock(&v->store->lock);
    rc = ws_offers_agree(v, err);
    pthread_mutex_unlock(&v->store->lock);
    return rc;
}

static int get_all(struct ws_pull *p, char how[WS_HOW_CHARS], struct ws_error *err)
{
    struct ws_version *v = p->version;
    int rc = -ENOTSUP;

    atomic_store(&p->route.used, WS_NO_STRATEGY);
    enter(p, WS_PULLING);
    if (!v->store->options.own_memory && !ws_version_has_bytes(v)) {
        rc = import(p, err);
        if (rc == 0)
            snprintf(how, WS_HOW_CHARS, "ipc");
    }
    if (rc == -ENOTSUP)
        rc = fill(p, how, err);
    if (rc == 0)
        rc = check_agreement(v, err);
    if (rc < 0)
        return rc;
    enter(p, WS_VERIFYING);
    return ws_content_check_headers(v, err);
}

/* A version that is in parts has no manifest before it is made: whoever looks at it has it made. */
static bool comes_in_parts(struct ws_pull *p)
{
    bool does;

    pthread_mutex_lock(&p->version->store->lock);
    does = ws_version_comes_in_parts(p->version);
    if (does)
        p->goal = WS_GOAL_ALL;
    pthread_mutex_unlock(&p->version->store->lock);
    return does;
}

static int assemble(struct ws_pull *p, char how[WS_HOW_CHARS], struct ws_error *err)
{
    int rc;

    enter(p, WS_PULLING);
    rc = ws_assembly_run(&p->route, &p->priority, how, err);
    if (rc < 0)
        return rc;
    enter(p, WS_VERIFYING);
    return ws_content_check_headers(p->version, err);
}

static void want_all(struct ws_pull *p)
{
    pthread_mutex_lock(&p->version->store->lock);
    p->goal = WS_GOAL_ALL;
    pthread_mutex_unlock(&p->version->store->lock);
}

static int go_to(struct ws_pull *p, enum ws_goal goal, char how[WS_HOW_CHARS], struct ws_error *err)
{
    int rc = get_manifest(p, err);

    if (rc == 0 && goal == WS_GOAL_HEADERS && !ws_content_has_headers(p->version) && !comes_whole(p->version))
        want_all(p); /* a delta has no header to look at */
    else if (rc == 0 && goal == WS_GOAL_HEADERS)
        rc = get_headers(p, err);
    if (rc == 0 && goal == WS_GOAL_ALL)
        rc = get_all(p, how, err);
    return rc;
}

/* --- the end --- */

/* What strategy it came by, and why by none before it: of a version in parts, what its first part says. */
static char *why_not(struct ws_pull *p)
{
    char text[WS_WHY_NOT_CHARS];

    if (p->route.part_why_not[0])
        return strdup(p->route.part_why_not);
    ws_why_not(&p->route, text);
    return strdup(text);
}

/* With store->lock. */
static void note_strategy(struct ws_version *v, const struct ws_route *r, char *why)
{
    free(v->why_not);
    v->why_not = why;
    v->strategy = atomic_load(&r->used);
}

/* With store->lock. */
static void note_success(struct ws_version *v, enum ws_goal goal, const char *how, struct ws_changes *c)
{
    free(v->error);
    v->error = NULL;
    v->error_code = 0;
    if (goal != WS_GOAL_ALL)
        return;
    atomic_store(&v->complete, true);
    v->pull_seconds = (double)(ws_clock_ns() - v->pull_began_ns) / 1e9;
    snprintf(v->how, sizeof(v->how), "%s", how);
    v->store->pulls_ok++;
    ws_histogram_add(&v->model->pulls, v->pull_seconds);
    if (v->named)
        ws_version_set_state(v, v->model->current == v ? WS_ACTIVE : WS_READY, c);
}

/* With store->lock. */
static void note_failure(struct ws_version *v, enum ws_goal goal, int rc, const struct ws_error *err,
                         struct ws_changes *c)
{
    free(v->error);
    v->error = strdup(err->text);
    v->error_code = -rc;
    v->failed_ns = ws_clock_ns();
    if (goal != WS_GOAL_ALL && rc != -ECANCELED)
        ws_changes_add(c, WS_VERSION_UNREAD, v->model, v);
    if (goal != WS_GOAL_ALL)
        return;
    v->pull_seconds = (double)(v->failed_ns - v->pull_began_ns) / 1e9;
    v->store->pulls_failed++;
    if (v->named)
        ws_version_set_state(v, WS_FAILED, c);
}

/* Ends the pull, unless it is to go on: then true. Afterwards p is gone. */
static bool finish(struct ws_pull *p, enum ws_goal goal, int rc, const char *how, const struct ws_error *err)
{
    struct ws_version *v = p->version;
    struct ws_store *s = v->store;
    struct ws_changes changes;
    struct ws_wait *chain;
    char *why = goal == WS_GOAL_ALL && !atomic_load(&p->route.stop) ? why_not(p) : NULL;

    ws_changes_init(&changes);
    pthread_mutex_lock(&s->lock);
    if (rc == 0 && p->goal > goal) {
        pthread_mutex_unlock(&s->lock);
        free(why);
        return true;
    }
    v->pull = NULL;
    if (why)
        note_strategy(v, &p->route, why);
    if (rc == 0)
        note_success(v, goal, how, &changes);
    else
        note_failure(v, p->goal, rc, err, &changes);
    /* Who waits for a version that was dropped did not cancel anything. */
    chain = ws_waits_take(v, rc == -ECANCELED && !v->named ? -ESTALE : rc);
    ws_model_settle(v->model, &changes);
    pthread_mutex_unlock(&s->lock);
    ws_changes_tell(&changes, s);
    ws_waits_tell(chain);
    return false;
}

static void say(struct ws_version *v, enum ws_goal goal, int rc, const char *how, const struct ws_error *err)
{
    if (rc < 0 && rc != -ECANCELED)
        ws_log(WS_LOG_WARN, "store", "pull failed model=%s version=%lu errno=%s error=\"%s\"", v->model->name,
               v->number, ws_errno_name(-rc), err->text);
    else if (rc == 0 && goal == WS_GOAL_ALL)
        ws_log(WS_LOG_INFO, "store", "ready model=%s version=%lu how=\"%s\" bytes=%lu seconds=%.3f",
               v->model->name, v->number, how, ((struct ws_manifest *)atomic_load(&v->manifest))->total_bytes,
               v->pull_seconds);
}

/* The next version will most likely have the same files. One that took over the memory of another has left
 * in the pool what was reserved for it: versions that are patched in place would reserve without end. */
static void prepare_next(struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    if (v->own_bytes && v->emptied_pool)
        ws_room_reserve(v->store, m);
    v->emptied_pool = false;
}

static void *pull_main(void *arg)
{
    struct ws_pull *p = arg;
    struct ws_version *v = p->version;
    struct ws_store *s = v->store;
    struct ws_error err;
    enum ws_goal goal;
    char how[WS_HOW_CHARS];
    int rc;

    ws_thread_nice(s->options.nice);
    do {
        pthread_mutex_lock(&s->lock);
        goal = p->goal;
        pthread_mutex_unlock(&s->lock);
        memset(&err, 0, sizeof(err));
        how[0] = '\0';
        if (comes_in_parts(p)) {
            goal = WS_GOAL_ALL;
            rc = assemble(p, how, &err);
        } else {
            rc = go_to(p, goal, how, &err);
        }
    } while (finish(p, goal, rc, how, &err));
    say(v, goal, rc, how, &err);
    if (rc == 0 && goal == WS_GOAL_ALL)
        prepare_next(v);
    ws_route_release(&p->route);
    free(p);
    pthread_mutex_lock(&s->lock);
    s->n_pulls--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    ws_version_put(v);
    return NULL;
}

/* --- what the store asks; with store->lock --- */

static int start(struct ws_version *v, enum ws_goal goal, enum ws_priority priority)
{
    struct ws_pull *p = calloc(1, sizeof(*p));
    pthread_t thread;
    int rc;

    if (!p)
        return -ENOMEM;
    p->version = ws_version_get(v);
    ws_route_init(&p->route, v);
    atomic_init(&p->priority, (int)priority);
    p->goal = goal;
    v->pull = p;
    v->pull_began_ns = ws_clock_ns();
    v->store->n_pulls++;
    rc = ws_thread_start(&thread, pull_main, p);
    if (rc == 0) {
        pthread_detach(thread);
        return 0;
    }
    v->pull = NULL;
    v->store->n_pulls--;
    ws_route_release(&p->route);
    free(p);
    ws_version_put_locked(v);
    return rc;
}

/* Is what the goal asks for here already? */
static bool has_reached(struct ws_version *v, enum ws_goal goal)
{
    return ws_wait_is_over(v,
                           goal == WS_GOAL_ALL       ? WS_FILE_ALL
                           : goal == WS_GOAL_HEADERS ? WS_FILE_HEADERS
                                                     : 0,
                           0, 0);
}

/* A crowd of readers must not ask a source that has just failed as often as they open. A command is one
 * person's, and room may have been made in the meantime. */
static bool is_held_off(const struct ws_version *v, enum ws_priority priority)
{
    return v->error_code && v->error_code != ENOSPC && priority != WS_PRIORITY_SWITCH &&
           ws_clock_ns() - v->failed_ns < HOLD_OFF_NS;
}

static int ask(struct ws_version *v, enum ws_goal goal, enum ws_priority priority)
{
    struct ws_store *s = v->store;
    struct ws_pull *p = v->pull;

    if (has_reached(v, goal))
        return 0;
    if (atomic_load(&s->stop))
        return -ECANCELED;
    if (p && !atomic_load(&p->route.stop)) {
        if (goal > p->goal)
            p->goal = goal;
        if ((int)priority > atomic_load(&p->priority))
            atomic_store(&p->priority, (int)priority);
        pthread_mutex_lock(&p->route.lock); /* a waited-for block: idle lanes look again */
        pthread_cond_broadcast(&p->route.changed);
        pthread_mutex_unlock(&p->route.lock);
        return 0;
    }
    if (p || !v->named)
        return -ESTALE;
    if (is_held_off(v, priority))
        return -v->error_code;
    if (!ws_version_is_offered(v))
        return v->error_code ? -v->error_code : -ESTALE;
    return start(v, goal, priority);
}

static void stop(struct ws_pull *p)
{
    ws_route_stop(&p->route);
}

static void leave(struct ws_pull *p, unsigned index)
{
    ws_route_leave(&p->route, index);
}

static bool wants_all(const struct ws_pull *p)
{
    return p->goal == WS_GOAL_ALL;
}

static uint64_t progress_ns(const struct ws_pull *p)
{
    const uint64_t use = atomic_load(&p->route.progress_ns), any = atomic_load(&p->route.came_ns);
    return use > any ? use : any;
}

const struct ws_puller ws_puller = {
    .ask = ask,
    .stop = stop,
    .leave = leave,
    .wants_all = wants_all,
    .progress_ns = progress_ns,
};
