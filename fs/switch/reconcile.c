#include "fs/switch/reconcile.h"
#include "fs/engines/added.h"
#include "fs/engines/job.h"
#include "fs/switch/follow.h"
#include "fs/switch/restore.h"
#include "fs/switch/switch.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MS       5000
#define ANSWER_MS     5000
#define FIRST_WAIT_NS 2000000000UL    /* before an engine that could not be brought along is tried again */
#define LAST_WAIT_NS  300000000000UL  /* ... and at most */
#define SERVES        "engine-serves" /* the matter of an engine that serves something else */

struct ws_keeper {
    struct ws_control *control;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop, look; /* guarded by lock */
};

/* One look at a model's engines. */
struct look {
    struct ws_control *control;
    struct ws_desk *desk;
    const char *current; /* NULL: none */
    uint64_t turns;      /* the desk's, before current was read */
    struct ws_engine **engines;
    size_t n;
    bool *answered;
};

/* With the lock. */
static bool comes_along(const struct ws_desk *d, const struct ws_engine *e)
{
    return d->policy == WS_POLICY_FOLLOW || d->commit != WS_COMMIT_ALL ||
           ws_condition_is_doubted(&e->condition);
}

/* With the lock. What was said of one that is stale is over when none is. */
static void settle(struct ws_desk *d)
{
    const struct ws_engine *e = d->engines;
    while (e && e->condition.state != WS_ENGINE_STALE)
        e = e->next;
    if (!e)
        ws_desk_settle(d, SERVES);
}

/* What an engine said, where no switch has come between. facts NULL: it was not asked what it is. */
static void note(const struct look *l, struct ws_engine *e, int rc, const struct ws_engine_facts *facts,
                 const struct ws_engine_serving *now, const struct ws_error *err)
{
    struct ws_control *c = l->control;
    struct ws_desk *d = l->desk;
    struct ws_condition *k = &e->condition;
    bool lost = false, strange = false, astray = false;
    char why[WS_ERROR_TEXT];
    pthread_mutex_lock(&c->lock);
    const bool newest = !d->switching && d->turns == l->turns && !e->removed;
    const bool was_stale = k->state == WS_ENGINE_STALE;
    if (newest && rc == 0 && facts)
        ws_engine_note(e, facts, now);
    if (newest && rc == 0 && ws_condition_answered(k, now, l->current, &strange) && strange && !k->tells.path)
        e->facts.known = false; /* it is asked anew what it is, and where that is from */
    if (newest && rc < 0)
        (void)ws_condition_silent(k, err->text, &lost);
    if (newest) {
        astray = k->state == WS_ENGINE_STALE && !was_stale && !comes_along(d, e);
        settle(d);
    }
    pthread_mutex_unlock(&c->lock);
    if (lost)
        ws_desk_event(c, d, "engine-lost model=%s engine=%s why=\"%.300s\"", d->name, e->name,
                      ws_desk_quotable(err->text, why));
    if (strange)
        ws_desk_event(c, d, "engine-serves model=%s engine=%s version=%s", d->name, e->name, now->version);
    if (astray) {
        struct ws_error other;
        ws_error_set(&other, ESTALE,
                     "engine %s (%s) serves version %s instead of %s: it was started anew, or told so by "
                     "somebody else, "
                     "or by a load that came late; `engine sync %s` brings it along",
                     e->name, e->url, now->version, l->current, e->name);
        (void)ws_desk_fail(c, d, SERVES, &other);
    }
}

/* With the lock. */
static bool should_come_along(const struct ws_desk *d, const struct ws_engine *e)
{
    return !d->switching && !e->removed && ws_condition_is_behind(&e->condition) &&
           ws_clock_ns() >= e->next_try_ns && comes_along(d, e);
}

static void note_try(struct ws_control *c, struct ws_engine *e, int rc)
{
    pthread_mutex_lock(&c->lock);
    uint64_t wait = e->try_wait_ns ? e->try_wait_ns * 2 : FIRST_WAIT_NS;
    e->try_wait_ns = rc == 0 ? 0 : wait < LAST_WAIT_NS ? wait : LAST_WAIT_NS;
    e->next_try_ns = ws_clock_ns() + e->try_wait_ns;
    pthread_mutex_unlock(&c->lock);
}

static void ask(void *arg, size_t i)
{
    struct look *l = arg;
    struct ws_engine *e = l->engines[i];
    struct ws_engine_call call;
    struct ws_engine_facts facts;
    struct ws_engine_serving now = {0};
    struct ws_error err = {0};
    if (e->ops->external)
        return;
    int rc = ws_engine_ready(e, l->control, &err);
    ws_engine_call_of(e, l->control, &call);
    call.target.timeout_ms = call.target.timeout_ms < ANSWER_MS ? call.target.timeout_ms : ANSWER_MS;
    if (rc == 0)
        rc = call.facts.known ? e->ops->serving(&call.target, &now, &err)
                              : ws_engine_ask(e, &call.target, &facts, &now, &err);
    if (atomic_load(&l->control->stop))
        return;
    note(l, e, rc, call.facts.known ? NULL : &facts, &now, &err);
    l->answered[i] = rc == 0;
}

/* Those that shall come along now: all, and with commit=rolling=K no more of those that answer requests than
 * may be out of service beside the others. */
static size_t choose(const struct look *l, struct ws_engine **chosen)
{
    size_t n = 0, room = SIZE_MAX;
    pthread_mutex_lock(&l->control->lock);
    if (l->desk->commit == WS_COMMIT_ROLLING)
        room = l->desk->commit_n;
    for (size_t i = 0; l->desk->commit == WS_COMMIT_ROLLING && i < l->n; i++)
        room -= room > 0 && !ws_condition_answers(&l->engines[i]->condition);
    for (size_t i = 0; i < l->n; i++) {
        struct ws_engine *e = l->engines[i];
        const bool answers = ws_condition_answers(&e->condition);
        if (!l->answered[i] || !should_come_along(l->desk, e) || (answers && room == 0))
            continue;
        room -= answers;
        chosen[n++] = e;
    }
    pthread_mutex_unlock(&l->control->lock);
    return n;
}

static bool bring_along(const struct look *l, struct ws_model *m)
{
    struct ws_error err = {0};
    struct ws_engine **chosen = calloc(l->n + 1, sizeof(struct ws_engine *));
    const char **names = calloc(l->n + 1, sizeof(*names));
    int *results = calloc(l->n + 1, sizeof(*results));
    size_t n = chosen && names && results ? choose(l, chosen) : 0;
    for (size_t i = 0; i < n; i++)
        names[i] = chosen[i]->name;
    int rc = n > 0 ? ws_switch_catch_up(l->control, l->desk, m, names, n, results, &err) : 0;
    for (size_t i = 0; i < n; i++)
        note_try(l->control, chosen[i], results[i]);
    if (rc < 0 && rc != -EBUSY)
        ws_log(WS_LOG_WARN, "keeper", "%s", err.text);
    free(chosen);
    free(names);
    free(results);
    return n > 0;
}

/* Asks all at once, since dead ones take their time. */
static void look_at_engines(struct ws_control *c, struct ws_desk *d, struct ws_model *m, const char *current,
                            uint64_t turns)
{
    struct look l = {.control = c, .desk = d, .current = current, .turns = turns};
    l.engines = ws_engine_hold_all(c, d, &l.n);
    l.answered = calloc(l.n + 1, sizeof(bool));
    if (l.engines && l.answered) {
        ws_run_at_once(ask, &l, l.n);
        while (m && current && !atomic_load(&c->stop) && bring_along(&l, m))
            ; /* who failed waits for its next try, so that this ends */
    }
    free(l.answered);
    ws_engine_release_all(c, l.engines, l.n);
}

static void look_at(struct ws_control *c, struct ws_desk *d)
{
    pthread_mutex_lock(&c->lock);
    const uint64_t turns = d->turns;
    pthread_mutex_unlock(&c->lock);
    struct ws_model *m = ws_store_find(c->store, d->name);
    struct ws_version *v = m ? ws_model_current(m) : NULL;
    char current[WS_MARK_TEXT] = "";
    if (v) {
        const struct ws_mark mark = ws_version_mark(v);
        ws_mark_text(&mark, current);
    }
    look_at_engines(c, d, m, v ? current : NULL, turns);
    if (m && !v)
        ws_restore_again(c, d, m);
    if (m)
        ws_follow_look(c, m); /* min-interval may be over */
    if (v)
        ws_version_put(v);
    if (m)
        ws_model_put(m);
}

/* On a thread of its own: a folder on a server that is away may keep it. */
static void open_sources(void *arg)
{
    ws_added_open(arg);
}

static void *keep(void *arg)
{
    struct ws_keeper *k = arg;
    struct ws_control *c = k->control;
    pthread_mutex_lock(&k->lock);
    while (!k->stop) {
        const uint64_t until = ws_clock_ns() + LOOK_MS * WS_MS_NS;
        while (!k->stop && !k->look && ws_cond_wait_until(&k->changed, &k->lock, until) == 0)
            ;
        k->look = false;
        if (k->stop)
            break;
        pthread_mutex_unlock(&k->lock);
        pthread_mutex_lock(&c->lock);
        struct ws_desk *d = c->desks; /* only ever added to, at this end */
        pthread_mutex_unlock(&c->lock);
        for (; d && !atomic_load(&c->stop); d = d->next)
            look_at(c, d);
        if (atomic_exchange(&c->lacks_sources, false) && ws_job_start(c, open_sources, c) < 0)
            atomic_store(&c->lacks_sources, true);
        pthread_mutex_lock(&k->lock);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

int ws_keeper_start(struct ws_control *c, struct ws_keeper **out)
{
    struct ws_keeper *k = calloc(1, sizeof(*k));
    if (!k)
        return -ENOMEM;
    k->control = c;
    k->look = true;
    pthread_mutex_init(&k->lock, NULL);
    ws_cond_init(&k->changed);
    if (ws_thread_start(&k->thread, keep, k) < 0) {
        pthread_cond_destroy(&k->changed);
        pthread_mutex_destroy(&k->lock);
        free(k);
        return -EAGAIN;
    }
    *out = k;
    return 0;
}

void ws_keeper_wake(struct ws_keeper *k)
{
    if (!k)
        return;
    pthread_mutex_lock(&k->lock);
    k->look = true;
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
}

void ws_keeper_stop(struct ws_keeper *k)
{
    if (!k)
        return;
    pthread_mutex_lock(&k->lock);
    k->stop = true;
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
    pthread_join(k->thread, NULL);
    pthread_cond_destroy(&k->changed);
    pthread_mutex_destroy(&k->lock);
    free(k);
}
