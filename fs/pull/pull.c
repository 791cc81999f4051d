/* A pull goes as far as its goal, which may rise while it runs:
 *
 *     manifest -> headers -> cache and regions -> deltas -> blocks -> headers checked -> READY
 *     (metadata.h)        |  (fill.h)                            /
 *                         \-> the source's own memory, mapped --+  (import.h)
 *
 * A version in parts is assembled (assemble.h), and a view that this mount makes is derived (derive.h).
 *
 * Blocks are verified as they arrive, so little is left to do at the end. A pull that fails leaves the bytes
 * that came: the next pull goes on from there. */
#include "fs/pull/pull.h"
#include "fs/pull/assemble.h"
#include "fs/pull/assemble_in_place.h"
#include "fs/pull/delta_bases.h"
#include "fs/pull/derive.h"
#include "fs/pull/fill.h"
#include "fs/pull/import.h"
#include "fs/pull/inherit.h"
#include "fs/pull/metadata.h"
#include "fs/pull/outcome.h"
#include "fs/pull/parent_watch.h"
#include "fs/pull/spare.h"
#include "fs/pull/why_not.h"
#include "fs/store/content.h"
#include "fs/store/derived.h"
#include "fs/store/keeper.h"
#include "fs/store/learned.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/offers.h"
#include "fs/store/one_copy.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOLD_OFF_NS WS_SECOND_NS /* after a failure: readers within this time get the same error */
#define WAY_CHANGES 3            /* of one pull, each after a source that had the version whole */

struct ws_pull {
    struct ws_version *version; /* counted */
    struct ws_source_select selection;
    atomic_int priority;
    enum ws_goal goal; /* guarded by store->lock; only rises */
    /* the pull's thread's */
    unsigned n_changes;             /* of the way */
    struct ws_derived_delta *delta; /* to be made of the version; NULL: none */
};

/* With store->lock. */
static void begin_clock(struct ws_pull *p)
{
    p->version->pull_began_ns = ws_clock_ns();
    ws_pace_begin(&p->selection.pace);
}

/* --- as far as the goal; without any lock --- */

static void enter(struct ws_pull *p, enum ws_version_state state)
{
    struct ws_version *v = p->version;
    struct ws_store_events events;

    ws_store_events_init(&events);
    pthread_mutex_lock(&v->store->lock);
    if (state == WS_PULLING)
        begin_clock(p);
    else
        ws_outcome_clear_error(v); /* of a reader that gave up before the bytes came */
    if (v->named)
        ws_version_set_state(v, state, &events);
    pthread_mutex_unlock(&v->store->lock);
    ws_store_events_notify(&events, v->store);
}

/* Another source may have listed the version while the bytes came. */
static int check_agreement(struct ws_version *v, struct ws_error *err)
{
    int rc;

    pthread_mutex_lock(&v->store->lock);
    rc = ws_offers_agree(v, err);
    pthread_mutex_unlock(&v->store->lock);
    return rc;
}

/* Of a model with need=learn: what comes of it. A source that has only a delta has no headers to tell that by, and an archive has
 * only deltas to most versions, whose bases have to be whole: what that lists comes whole. */
static int choose_wanted(struct ws_pull *p, struct ws_error *err)
{
    struct ws_version *v = p->version;
    bool whole;

    pthread_mutex_lock(&v->store->lock);
    whole = ws_source_select_comes_whole(&p->selection) && !ws_version_is_archived(v);
    pthread_mutex_unlock(&v->store->lock);
    if (!ws_model_learns(v->model) || !whole)
        return 0;
    const int rc = ws_metadata_headers(&p->selection, err);
    if (rc == 0) {
        ws_learned_choose(v);
        ws_waiters_wake(v); /* those for what does not come */
    }
    return rc;
}

static int get_all(struct ws_pull *p, char how[WS_HOW_CHARS], struct ws_error *err)
{
    struct ws_version *v = p->version;
    int rc;

    atomic_store(&p->selection.used, WS_NO_WAY);
    enter(p, WS_PULLING);
    rc = choose_wanted(p, err);
    if (rc < 0)
        return rc;
    rc = -ENOTSUP;
    if (!v->store->options.own_memory && !ws_version_has_bytes(v) &&
        !ws_fill_knows_way(v)) { /* a part has bytes */
        rc = ws_inherit_run(&p->selection, err);
        if (rc == 0)
            snprintf(how, WS_HOW_CHARS, "was kept");
        if (rc == -ENOTSUP && (rc = ws_import_run(&p->selection, err)) == 0)
            snprintf(how, WS_HOW_CHARS, "ipc");
    }
    if (rc == -ENOTSUP)
        rc = ws_fill_run(&p->selection, &p->priority, how, err);
    if (rc == 0)
        rc = check_agreement(v, err);
    if (rc < 0)
        return rc;
    enter(p, WS_VERIFYING);
    rc = ws_content_check_headers(v, err);
    if (rc == 0)
        ws_keeper_keep(v);
    return rc;
}

/* A version in parts has no manifest before its parts have come, so even a look at that has them pulled. */
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
    rc = ws_assemble_run(&p->selection, &p->priority, how, err);
    if (rc < 0)
        return rc;
    enter(p, WS_VERIFYING);
    return ws_content_check_headers(p->version, err);
}

/* So has one that is made here: no source has anything of it. */
static bool is_derived(struct ws_pull *p)
{
    bool is;

    pthread_mutex_lock(&p->version->store->lock);
    is = ws_version_comes_derived(p->version);
    if (is)
        p->goal = WS_GOAL_ALL;
    pthread_mutex_unlock(&p->version->store->lock);
    return is;
}

static int derive(struct ws_pull *p, char how[WS_HOW_CHARS], struct ws_error *err)
{
    int rc;

    enter(p, WS_PULLING);
    rc = ws_pull_derive(&p->selection, &p->priority, how, &p->delta, err);
    if (rc == 0)
        rc = check_agreement(p->version, err);
    if (rc == 0) {
        enter(p, WS_VERIFYING);
        rc = ws_content_check_headers(p->version, err);
    }
    if (rc < 0) {
        ws_derived_delta_give_up(p->delta);
        p->delta = NULL;
    }
    return rc;
}

/* The sources that had made it have it no more, or are away. It is made here then; where some of it has come, the name
 * goes to a version of which nothing has. */
static bool falls_back(struct ws_pull *p, int rc, struct ws_error *err)
{
    struct ws_version *v = p->version;
    struct ws_store_events events;
    bool falls;

    if (rc == 0 || rc == -ECANCELED || atomic_load(&p->selection.stop))
        return false;
    ws_store_events_init(&events);
    pthread_mutex_lock(&v->store->lock);
    falls = (rc == -ESTALE || ws_source_is_away(rc)) && v->named && ws_derived_source(v);
    if (falls)
        p->goal = WS_GOAL_ALL;
    if (falls && ws_version_has_bytes(v)) {
        falls = false;
        if (v != v->model->current && !v->pinned) {
            ws_version_retire(v, &events);
            ws_error_set(
                err, ESTALE,
                "%s/%lu is gone at the source that began to send it; open it again: it is made here then",
                v->model->name, v->number);
        }
    }
    pthread_mutex_unlock(&v->store->lock);
    ws_store_events_notify(&events, v->store);
    if (falls)
        ws_log(WS_LOG_INFO, "store", "made here, as its source failed model=%s version=%lu why=\"%s\"",
               v->model->name, v->number, err->text);
    return falls;
}

/* A delta has no headers, so a look at the headers has the version made of it. */
static bool comes_as_delta(struct ws_pull *p)
{
    bool does;

    pthread_mutex_lock(&p->version->store->lock);
    does = !ws_source_select_comes_whole(&p->selection);
    if (does)
        p->goal = WS_GOAL_ALL;
    pthread_mutex_unlock(&p->version->store->lock);
    return does;
}

/* What describes a part. Where its sources have only a delta to it, it is described as the base is, which is pulled. */
static int get_description(struct ws_pull *p, struct ws_error *err)
{
    bool whole;

    pthread_mutex_lock(&p->version->store->lock);
    whole = ws_source_select_comes_whole(&p->selection);
    pthread_mutex_unlock(&p->version->store->lock);
    return whole ? ws_metadata_description(&p->selection, err)
                 : ws_delta_bases_pull(&p->selection, &p->priority, err);
}

static int pull_to_goal(struct ws_pull *p, enum ws_goal goal, char how[WS_HOW_CHARS], struct ws_error *err)
{
    int rc = ws_metadata_manifest(&p->selection, err);

    if (rc == 0 && goal == WS_GOAL_DELTAS)
        return ws_assemble_in_place_list(&p->selection, err);
    if (rc == 0 && goal == WS_GOAL_HEADERS && ws_model_is_hidden(p->version->model))
        return get_description(p, err);
    if (rc == 0 && goal == WS_GOAL_HEADERS && (ws_content_has_headers(p->version) || !comes_as_delta(p)))
        rc = ws_metadata_headers(&p->selection, err);
    if (rc == 0 && goal == WS_GOAL_ALL)
        rc = get_all(p, how, err);
    return rc;
}

/* --- the end --- */

static char *why_not(struct ws_pull *p)
{
    char text[WS_WHY_NOT_CHARS];

    ws_why_not(&p->selection, text);
    return strdup(text);
}

/* The version came whole, and those that had it so are gone; another source has a delta to it. */
static bool goes_another_way(struct ws_pull *p, int rc, const struct ws_error *err)
{
    const struct ws_version *v = p->version;

    if (rc == 0 || !atomic_exchange(&p->selection.way_is_gone, false) || atomic_load(&p->selection.stop) ||
        p->n_changes++ == WAY_CHANGES)
        return false;
    ws_log(WS_LOG_INFO, "store", "the way of a pull is chosen anew model=%s version=%lu why=\"%s\"",
           v->model->name, v->number, err->text);
    atomic_store(&p->selection.progress_ns, ws_clock_ns());
    return true;
}

/* Ends the pull, unless it must continue: then true. Afterwards p is freed. */
static bool finish(struct ws_pull *p, enum ws_goal goal, int rc, const char *how, const struct ws_error *err)
{
    struct ws_version *v = p->version;
    struct ws_store *s = v->store;
    struct ws_store_events events;
    struct ws_waiter *chain, *of_parts = NULL;
    char *why = goal == WS_GOAL_ALL && !atomic_load(&p->selection.stop) ? why_not(p) : NULL;

    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    if (rc == 0 && p->goal > goal) {
        pthread_mutex_unlock(&s->lock);
        free(why);
        return true;
    }
    v->pull = NULL;
    ws_outcome_set_pace(v, &p->selection);
    if (why)
        ws_outcome_set_strategy(v, &p->selection, why);
    if (rc == 0)
        ws_outcome_success(v, goal, how, &events);
    else if (p->selection.turned_away)
        ws_outcome_turned_away(v, rc, err, &events);
    else
        ws_outcome_failure(v, p->goal, rc, err, &events);
    /* Waiters for a dropped version did not cancel anything themselves. */
    chain = ws_waiters_collect(v, rc == -ECANCELED && !v->named ? -ESTALE : rc);
    if (rc < 0)
        of_parts = ws_node_parts_give_up(v, rc);
    ws_model_reconcile(v->model, &events);
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
    ws_waiters_complete(chain);
    ws_waiters_complete(of_parts);
    return false;
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
        } else if (is_derived(p)) {
            goal = WS_GOAL_ALL;
            rc = derive(p, how, &err);
        } else {
            rc = pull_to_goal(p, goal, how, &err);
            if (falls_back(p, rc, &err)) {
                goal = WS_GOAL_ALL;
                rc = derive(p, how, &err);
            }
        }
    } while (goes_another_way(p, rc, &err) || finish(p, goal, rc, how, &err));
    ws_outcome_log(v, goal, rc, how, &err);
    if (rc == 0 && goal == WS_GOAL_ALL)
        ws_fill_prepare_next(v);
    ws_derived_delta_make(p->delta);
    ws_source_select_release(&p->selection);
    free(p);
    pthread_mutex_lock(&s->lock);
    s->n_pulls--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    ws_version_put(v);
    return NULL;
}

/* --- the puller's functions; with store->lock --- */

static int start(struct ws_version *v, enum ws_goal goal, enum ws_priority priority)
{
    struct ws_pull *p = calloc(1, sizeof(*p));
    pthread_t thread;
    int rc;

    if (!p)
        return -ENOMEM;
    p->version = ws_version_get(v);
    ws_source_select_init(&p->selection, v);
    atomic_init(&p->priority, (int)priority);
    p->goal = goal;
    v->pull = p;
    begin_clock(p);
    v->store->n_pulls++;
    rc = ws_thread_start(&thread, pull_main, p);
    if (rc == 0) {
        pthread_detach(thread);
        return 0;
    }
    v->pull = NULL;
    v->store->n_pulls--;
    ws_source_select_release(&p->selection);
    free(p);
    ws_version_put_locked(v);
    return rc;
}

/* Is everything here that the goal needs? */
static bool has_reached(struct ws_version *v, enum ws_goal goal)
{
    if (goal == WS_GOAL_DELTAS)
        return atomic_load(&v->listed_deltas);
    return ws_waiter_is_satisfied(v,
                                  goal == WS_GOAL_ALL       ? WS_FILE_ALL
                                  : goal == WS_GOAL_HEADERS ? WS_FILE_HEADERS
                                                            : WS_FILE_MANIFEST,
                                  0, 0);
}

/* Many readers must not start a pull with each open while the source fails. A command may, because an
 * operator gives it; and after -ENOSPC any pull may, because the cache may have space by now. */
static bool is_held_off(const struct ws_version *v, enum ws_priority priority)
{
    return v->error_code && v->error_code != ENOSPC && priority != WS_PRIORITY_SWITCH &&
           ws_clock_ns() - v->failed_ns < HOLD_OFF_NS;
}

static int request(struct ws_version *v, enum ws_goal goal, enum ws_priority priority);

/* A part comes into the memory of the whole version, whose pull has all of them come. */
static int request_whole(struct ws_version *part, enum ws_priority priority)
{
    struct ws_version *whole = ws_node_parts_whole(part);

    return whole && ws_version_comes_in_parts(whole) ? request(whole, WS_GOAL_ALL, priority) : -ESTALE;
}

static int request(struct ws_version *v, enum ws_goal goal, enum ws_priority priority)
{
    struct ws_store *s = v->store;
    struct ws_pull *p = v->pull;

    if (has_reached(v, goal))
        return 0;
    const struct ws_part_view *view = ws_part_view(v);
    if (goal == WS_GOAL_ALL && ws_model_is_hidden(v->model) && !(view && atomic_load(&view->is_ready)))
        return request_whole(v, priority);
    if (atomic_load(&s->stop))
        return -ECANCELED;
    if (p && !atomic_load(&p->selection.stop)) {
        if (goal > p->goal)
            p->goal = goal;
        if ((int)priority > atomic_load(&p->priority))
            atomic_store(&p->priority, (int)priority);
        pthread_mutex_lock(&p->selection.lock); /* idle lanes look for awaited blocks */
        pthread_cond_broadcast(&p->selection.changed);
        pthread_mutex_unlock(&p->selection.lock);
        return 0;
    }
    if (p || !v->named)
        return -ESTALE;
    if (is_held_off(v, priority))
        return -v->error_code;
    if (!ws_version_is_offered(v) && !ws_one_copy_knows_way(v))
        return v->error_code ? -v->error_code : -ESTALE;
    return start(v, goal, priority);
}

static void stop(struct ws_pull *p)
{
    ws_source_select_stop(&p->selection);
}

static void leave(struct ws_pull *p, unsigned index)
{
    ws_source_select_leave(&p->selection, index);
}

static bool wants_all(const struct ws_pull *p)
{
    return p->goal == WS_GOAL_ALL;
}

static uint64_t progress_ns(const struct ws_pull *p)
{
    const uint64_t use = atomic_load(&p->selection.progress_ns),
                   any = atomic_load(&p->selection.pace.last_ns);
    return use > any ? use : any;
}

static uint64_t check_silence(struct ws_pull *p, uint64_t now_ns)
{
    return ws_source_select_check_silence(&p->selection, progress_ns(p), now_ns);
}

static uint64_t watch_parents(struct ws_pull *p, uint64_t now_ns)
{
    return ws_parent_watch_look(&p->selection, now_ns);
}

/* Of a version in parts: the first part that has not come; of a view: what it is made of. */
static void describe(struct ws_pull *p, char out[WS_ERROR_TEXT / 2])
{
    struct ws_version *source = ws_derived_source(p->version);
    struct ws_pull *made_of = source && source->pull ? source->pull : p;
    struct ws_version *w = ws_node_parts_late(made_of->version);

    ws_source_select_describe(w ? &w->pull->selection : &made_of->selection, out);
}

const struct ws_puller ws_puller = {
    .request = request,
    .stop = stop,
    .leave = leave,
    .wants_all = wants_all,
    .progress_ns = progress_ns,
    .check_silence = check_silence,
    .watch_parents = watch_parents,
    .describe = describe,
    .coming = ws_spare_offer,
    .give_back = ws_spare_give_back,
    .end_coming = ws_spare_end,
};
