/* A pull goes as far as its goal, which may rise while it runs:
 *
 *     manifest -> headers -> cache and regions -> deltas -> blocks -> headers checked -> READY
 *     (metadata.h)        |  (fill.h)                            /
 *                         \-> the source's own memory, mapped --+  (import.h)
 *
 * Blocks are verified as they arrive, so little is left to do at the end. A pull that fails leaves the bytes
 * that came: the next pull goes on from there. */
#include "fs/pull/pull.h"
#include "fs/pull/assemble.h"
#include "fs/pull/fill.h"
#include "fs/pull/import.h"
#include "fs/pull/metadata.h"
#include "fs/pull/outcome.h"
#include "fs/pull/why_not.h"
#include "fs/store/content.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/offers.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOLD_OFF_NS WS_SECOND_NS /* after a failure: readers within this time get the same error */

struct ws_pull {
    struct ws_version *version; /* counted */
    struct ws_source_select selection;
    atomic_int priority;
    enum ws_goal goal; /* guarded by store->lock; only rises */
};

/* --- as far as the goal; without any lock --- */

static void enter(struct ws_pull *p, enum ws_version_state state)
{
    struct ws_version *v = p->version;
    struct ws_store_events events;

    ws_store_events_init(&events);
    pthread_mutex_lock(&v->store->lock);
    if (state == WS_PULLING)
        v->pull_began_ns = ws_clock_ns();
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

static int get_all(struct ws_pull *p, char how[WS_HOW_CHARS], struct ws_error *err)
{
    struct ws_version *v = p->version;
    int rc = -ENOTSUP;

    atomic_store(&p->selection.used, WS_NO_WAY);
    enter(p, WS_PULLING);
    if (!v->store->options.own_memory && !ws_version_has_bytes(v)) {
        rc = ws_import_run(&p->selection, err);
        if (rc == 0)
            snprintf(how, WS_HOW_CHARS, "ipc");
    }
    if (rc == -ENOTSUP)
        rc = ws_fill_run(&p->selection, &p->priority, how, err);
    if (rc == 0)
        rc = check_agreement(v, err);
    if (rc < 0)
        return rc;
    enter(p, WS_VERIFYING);
    return ws_content_check_headers(v, err);
}

/* A version in parts has no manifest before it is assembled, so even a look at its manifest has it assembled.
 */
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

/* A delta has no headers, so a look at the headers has the version made of it. */
static bool comes_as_delta(struct ws_pull *p)
{
    bool does;

    pthread_mutex_lock(&p->version->store->lock);
    does = !ws_version_comes_whole(p->version);
    if (does)
        p->goal = WS_GOAL_ALL;
    pthread_mutex_unlock(&p->version->store->lock);
    return does;
}

static int pull_to_goal(struct ws_pull *p, enum ws_goal goal, char how[WS_HOW_CHARS], struct ws_error *err)
{
    int rc = ws_metadata_manifest(&p->selection, err);

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

/* Ends the pull, unless it must continue: then true. Afterwards p is freed. */
static bool finish(struct ws_pull *p, enum ws_goal goal, int rc, const char *how, const struct ws_error *err)
{
    struct ws_version *v = p->version;
    struct ws_store *s = v->store;
    struct ws_store_events events;
    struct ws_waiter *chain;
    char *why = goal == WS_GOAL_ALL && !atomic_load(&p->selection.stop) ? why_not(p) : NULL;

    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    if (rc == 0 && p->goal > goal) {
        pthread_mutex_unlock(&s->lock);
        free(why);
        return true;
    }
    v->pull = NULL;
    if (why)
        ws_outcome_set_strategy(v, &p->selection, why);
    if (rc == 0)
        ws_outcome_success(v, goal, how, &events);
    else
        ws_outcome_failure(v, p->goal, rc, err, &events);
    /* Waiters for a dropped version did not cancel anything themselves. */
    chain = ws_waiters_collect(v, rc == -ECANCELED && !v->named ? -ESTALE : rc);
    ws_model_reconcile(v->model, &events);
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
    ws_waiters_complete(chain);
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
        } else {
            rc = pull_to_goal(p, goal, how, &err);
        }
    } while (finish(p, goal, rc, how, &err));
    ws_outcome_log(v, goal, rc, how, &err);
    if (rc == 0 && goal == WS_GOAL_ALL)
        ws_fill_prepare_next(v);
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
    v->pull_began_ns = ws_clock_ns();
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
    return ws_waiter_is_satisfied(v,
                                  goal == WS_GOAL_ALL       ? WS_FILE_ALL
                                  : goal == WS_GOAL_HEADERS ? WS_FILE_HEADERS
                                                            : 0,
                                  0, 0);
}

/* Many readers must not start a pull with each open while the source fails. A command may, because an
 * operator gives it; and after -ENOSPC any pull may, because the cache may have space by now. */
static bool is_held_off(const struct ws_version *v, enum ws_priority priority)
{
    return v->error_code && v->error_code != ENOSPC && priority != WS_PRIORITY_SWITCH &&
           ws_clock_ns() - v->failed_ns < HOLD_OFF_NS;
}

static int request(struct ws_version *v, enum ws_goal goal, enum ws_priority priority)
{
    struct ws_store *s = v->store;
    struct ws_pull *p = v->pull;

    if (has_reached(v, goal))
        return 0;
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
    if (!ws_version_is_offered(v))
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
    const uint64_t use = atomic_load(&p->selection.progress_ns), any = atomic_load(&p->selection.came_ns);
    return use > any ? use : any;
}

static uint64_t check_silence(struct ws_pull *p, uint64_t now_ns)
{
    return ws_source_select_check_silence(&p->selection, progress_ns(p), now_ns);
}

static void describe(struct ws_pull *p, char out[WS_ERROR_TEXT / 2])
{
    ws_source_select_describe(&p->selection, out);
}

const struct ws_puller ws_puller = {
    .request = request,
    .stop = stop,
    .leave = leave,
    .wants_all = wants_all,
    .progress_ns = progress_ns,
    .check_silence = check_silence,
    .describe = describe,
};
