/* A pull goes as far as its goal, which may rise while it runs:
 *
 *     manifest -> headers -> room and regions -> deltas -> blocks -> headers checked -> READY
 *     (metadata.h)        |  (fill.h)                           /
 *                         \-> the source's own memory, mapped -+  (import.h)
 *
 * Blocks are verified as they arrive, so what is left at the end is short. A pull that fails leaves
 * what is here where it is: the next one goes on from there. */
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

#define HOLD_OFF_NS WS_SECOND_NS /* after a failure: readers that ask again at once get the same answer */

struct ws_pull {
    struct ws_version *version; /* counted */
    struct ws_route route;
    atomic_int priority;
    enum ws_goal goal; /* guarded by store->lock; only rises */
};

/* --- as far as the goal; without any lock --- */

static void enter(struct ws_pull *p, enum ws_state state)
{
    struct ws_version *v = p->version;
    struct ws_changes changes;

    ws_changes_init(&changes);
    pthread_mutex_lock(&v->store->lock);
    if (state == WS_PULLING)
        v->pull_began_ns = ws_clock_ns();
    else
        ws_outcome_forget(v); /* a reader that went away; its bytes are here now */
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

    atomic_store(&p->route.used, WS_NO_WAY);
    enter(p, WS_PULLING);
    if (!v->store->options.own_memory && !ws_version_has_bytes(v)) {
        rc = ws_import_run(&p->route, err);
        if (rc == 0)
            snprintf(how, WS_HOW_CHARS, "ipc");
    }
    if (rc == -ENOTSUP)
        rc = ws_fill_run(&p->route, &p->priority, how, err);
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

/* A delta has no header to look at: whoever looks has the version made of it. */
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

static int go_to(struct ws_pull *p, enum ws_goal goal, char how[WS_HOW_CHARS], struct ws_error *err)
{
    int rc = ws_metadata_manifest(&p->route, err);

    if (rc == 0 && goal == WS_GOAL_HEADERS && (ws_content_has_headers(p->version) || !comes_as_delta(p)))
        rc = ws_metadata_headers(&p->route, err);
    if (rc == 0 && goal == WS_GOAL_ALL)
        rc = get_all(p, how, err);
    return rc;
}

/* --- the end --- */

static char *why_not(struct ws_pull *p)
{
    char text[WS_WHY_NOT_CHARS];

    ws_why_not(&p->route, text);
    return strdup(text);
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
        ws_outcome_strategy(v, &p->route, why);
    if (rc == 0)
        ws_outcome_success(v, goal, how, &changes);
    else
        ws_outcome_failure(v, p->goal, rc, err, &changes);
    /* Who waits for a version that was dropped did not cancel anything. */
    chain = ws_waits_take(v, rc == -ECANCELED && !v->named ? -ESTALE : rc);
    ws_model_settle(v->model, &changes);
    pthread_mutex_unlock(&s->lock);
    ws_changes_tell(&changes, s);
    ws_waits_tell(chain);
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
            rc = go_to(p, goal, how, &err);
        }
    } while (finish(p, goal, rc, how, &err));
    ws_outcome_log(v, goal, rc, how, &err);
    if (rc == 0 && goal == WS_GOAL_ALL)
        ws_fill_prepare_next(v);
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

static uint64_t hurry(struct ws_pull *p, uint64_t now_ns)
{
    return ws_route_hurry(&p->route, progress_ns(p), now_ns);
}

static void describe(struct ws_pull *p, char out[WS_ERROR_TEXT / 2])
{
    ws_route_describe(&p->route, out);
}

const struct ws_puller ws_puller = {
    .ask = ask,
    .stop = stop,
    .leave = leave,
    .wants_all = wants_all,
    .progress_ns = progress_ns,
    .hurry = hurry,
    .describe = describe,
};
