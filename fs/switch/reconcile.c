#include "fs/switch/reconcile.h"
#include "fs/engines/added.h"
#include "fs/engines/job.h"
#include "fs/switch/adapter_upkeep.h"
#include "fs/switch/catch_up.h"
#include "fs/switch/drift.h"
#include "fs/switch/follow.h"
#include "fs/switch/kept.h"
#include "fs/switch/learned_file.h"
#include "fs/switch/patch_steps.h"
#include "fs/switch/presence.h"
#include "fs/switch/quarantine.h"
#include "fs/switch/restore.h"
#include "fs/switch/set.h"
#include "fs/switch/settings.h"
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
#define FIRST_WAIT_NS (2 * WS_SECOND_NS)   /* before another try for an engine that could not be reconciled */
#define LAST_WAIT_NS  (300 * WS_SECOND_NS) /* ... and at most */
#define SERVES        "engine-serves"      /* the matter of an engine that serves something else */

struct ws_reconciler {
    struct ws_control *control;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop, look; /* guarded by lock */
};

/* One look at a model's engines. */
struct look {
    struct ws_control *control;
    struct ws_controller *controller;
    const char *current; /* NULL: none */
    uint64_t generation; /* the controller's, before current was read */
    struct ws_engine **engines;
    size_t n;
    bool *answered, *runs; /* runs: and does not say that it is paused or asleep */
};

/* With the lock. */
static bool may_reconcile(const struct ws_controller *ctl, const struct ws_engine *e)
{
    return ws_policy_follows(ctl->policy) || ctl->commit != WS_COMMIT_ALL ||
           ws_condition_is_uncertain(&e->condition);
}

/* With the lock. The error about a stale engine is cleared when none is stale. */
static void clear_stale_error(struct ws_controller *ctl)
{
    const struct ws_engine *e = ctl->engines;
    while (e && e->condition.state != WS_ENGINE_STALE)
        e = e->next;
    if (!e)
        ws_controller_clear_error(ctl, SERVES);
}

/* Records what an engine answered, where no switch has come between. facts NULL: it was not asked what it is. process: that
 * answered, empty: not known. */
static void record(const struct look *l, struct ws_engine *e, int rc, const struct ws_engine_facts *facts,
                   const struct ws_engine_serving *now, const char *process, const struct ws_error *err)
{
    struct ws_control *c = l->control;
    struct ws_controller *ctl = l->controller;
    struct ws_condition *k = &e->condition;
    bool lost = false, restarted = false, strayed = false, slept, sleeps;
    char why[WS_ERROR_TEXT];
    pthread_mutex_lock(&c->lock);
    const bool newest = !ctl->switching && ctl->generation == l->generation && !e->removed;
    const bool was_stale = k->state == WS_ENGINE_STALE;
    slept = ws_condition_is_asleep(k);
    if (newest && rc == 0 && facts)
        ws_engine_record(e, facts, now);
    if (newest && rc == 0 && ws_condition_answered(k, now, l->current, &restarted) && restarted &&
        !k->reports.path)
        e->facts.known = false; /* it is asked anew what it is, and where that is from */
    if (restarted)              /* what the one before could not do */
        ws_backoff_reset(&e->catch_up_backoff);
    const bool had_draft = e->draft.id.lineage[0];
    /* Of one that was kept for an engine that does not name its process, only a current version tells whether it ran on. */
    const bool tells = l->current || process[0] || !e->draft.is_kept;
    if (newest && rc == 0 && tells) /* the draft model of another process is what that was started with */
        ws_draft_seen(&e->draft, process, restarted, l->current && strcmp(now->version, l->current) == 0);
    if (had_draft && !e->draft.id.lineage[0])
        e->facts.known = false;
    if (newest && rc < 0)
        (void)ws_condition_silent(k, err->text, &lost);
    if (lost) /* what answers next may be another one under the same name of a version */
        e->facts.known = false;
    if (newest) {
        strayed = k->state == WS_ENGINE_STALE && !was_stale && !may_reconcile(ctl, e);
        clear_stale_error(ctl);
    }
    sleeps = ws_condition_is_asleep(k);
    pthread_mutex_unlock(&c->lock);
    if (lost)
        ws_controller_event(c, ctl, "engine-lost model=%s engine=%s why=\"%.300s\"", ctl->name, e->name,
                            ws_controller_quotable(err->text, why));
    if (sleeps != slept) {
        ws_settings_save(c); /* the next daemon has to know it: it may be woken meanwhile */
        ws_controller_event(c, ctl, "%s model=%s engine=%s", sleeps ? "engine-asleep" : "engine-awake",
                            ctl->name, e->name);
    }
    if (restarted)
        ws_controller_event(c, ctl, "engine-serves model=%s engine=%s version=%s", ctl->name, e->name,
                            now->version);
    if (strayed) {
        struct ws_error other;
        ws_error_set(&other, ESTALE,
                     "engine %s (%s) serves version %s instead of %s: it was started anew, another program "
                     "told it to, or a load came late; `engine sync %s` brings it along",
                     e->name, e->url, now->version, l->current, e->name);
        (void)ws_controller_fail(c, ctl, SERVES, &other);
    }
}

/* With the lock. Is it not as it should be: its target, where a version of that is current, or its draft model? One that
 * does not serve and whose target stays is not resumed for its draft's sake. One that sleeps has lent its memory to
 * whoever put it to sleep: it is looked at once it is awake. */
static bool is_behind(const struct look *l, const struct ws_engine *e)
{
    if (ws_condition_is_asleep(&e->condition))
        return false;
    return (l->current && ws_condition_is_behind(&e->condition)) ||
           (e->condition.state == WS_ENGINE_SERVING && ws_set_lacks_draft(l->control, e));
}

/* With the lock. */
static bool is_due(const struct look *l, const struct ws_engine *e)
{
    const struct ws_controller *ctl = l->controller;
    return !ctl->switching && !ctl->preparing && !e->removed && is_behind(l, e) &&
           ws_backoff_is_over(&e->catch_up_backoff) && may_reconcile(ctl, e) &&
           !ws_set_waits_for_draft(l->control, e);
}

static void record_try(struct ws_control *c, struct ws_engine *e, int rc)
{
    pthread_mutex_lock(&c->lock);
    if (rc == 0)
        ws_backoff_reset(&e->catch_up_backoff);
    else
        ws_backoff_failed(&e->catch_up_backoff, FIRST_WAIT_NS, LAST_WAIT_NS);
    pthread_mutex_unlock(&c->lock);
}

static void query(void *arg, size_t i)
{
    struct look *l = arg;
    struct ws_engine *e = l->engines[i];
    struct ws_engine_call call;
    struct ws_engine_facts facts;
    struct ws_engine_serving now = {0};
    struct ws_error err = {0};
    char process[WS_ENGINE_PROCESS_CHARS + 1] = "";
    if (e->ops->external)
        return;
    int rc = ws_engine_ready(e, l->control, &err);
    ws_engine_call_init(e, l->control, &call);
    ws_engine_call_limit(&call, ANSWER_MS);
    if (rc == 0)
        rc = call.facts.known ? e->ops->serving(&call.target, &now, &err)
                              : ws_engine_query(e, &call.target, &facts, &now, &err);
    if (rc == 0 && e->ops->process && ws_members_draft(&e->members) &&
        e->ops->process(&call.target, process, NULL) < 0)
        process[0] = 0;
    if (atomic_load(&l->control->stop))
        return;
    if (rc == 0)
        ws_patch_step_drop_left(l->control, e, &call.target);
    record(l, e, rc, call.facts.known ? NULL : &facts, &now, process, &err);
    l->answered[i] = rc == 0;
    l->runs[i] = rc == 0 && !now.paused && !now.sleeping;
}

/* The engines that are reconciled now. With commit=rolling=K, of those that answer requests, no more than may
 * be out of service beside the others. */
static size_t select_due(const struct look *l, struct ws_engine **due)
{
    size_t n = 0, room = SIZE_MAX;
    pthread_mutex_lock(&l->control->lock);
    if (l->controller->commit == WS_COMMIT_ROLLING)
        room = l->controller->commit_n;
    for (size_t i = 0; l->controller->commit == WS_COMMIT_ROLLING && i < l->n; i++)
        room -= room > 0 && !ws_condition_answers(&l->engines[i]->condition);
    for (size_t i = 0; i < l->n; i++) {
        struct ws_engine *e = l->engines[i];
        const bool answers = ws_condition_answers(&e->condition);
        if (!l->answered[i] || !is_due(l, e) || (answers && room == 0))
            continue;
        room -= answers;
        due[n++] = e;
    }
    pthread_mutex_unlock(&l->control->lock);
    return n;
}

static bool bring_up_to_date(const struct look *l, struct ws_model *m)
{
    struct ws_error err = {0};
    struct ws_engine **due = calloc(l->n + 1, sizeof(struct ws_engine *));
    const char **names = calloc(l->n + 1, sizeof(*names));
    int *results = calloc(l->n + 1, sizeof(*results));
    size_t n = due && names && results ? select_due(l, due) : 0;
    for (size_t i = 0; i < n; i++)
        names[i] = due[i]->name;
    int rc = n > 0 ? ws_switch_catch_up(l->control, l->controller, m, names, n, false, results, &err) : 0;
    for (size_t i = 0; i < n; i++)
        record_try(l->control, due[i], results[i]);
    if (rc < 0 && rc != -EBUSY)
        ws_log(WS_LOG_WARN, "reconcile", "%s", err.text);
    free(due);
    free(names);
    free(results);
    return n > 0;
}

/* One that cannot say that it is paused was left so. */
static bool is_running(const struct ws_condition *k)
{
    return k->state == WS_ENGINE_SERVING || (k->state == WS_ENGINE_STALE && !k->abandoned);
}

/* In quarantine no engine is brought to the current version, which a release has left behind: one that came back, or was
 * resumed by another program, is paused. */
static void hold_those_that_run(const struct look *l, struct ws_model *m)
{
    struct ws_error err = {0};
    bool runs = false;
    pthread_mutex_lock(&l->control->lock);
    for (size_t i = 0; i < l->n; i++)
        runs = runs || (l->answered[i] && is_running(&l->engines[i]->condition));
    pthread_mutex_unlock(&l->control->lock);
    const int rc = runs ? ws_switch_hold(l->control, l->controller, m, "it runs again", &err) : 0;
    if (rc < 0 && rc != -EBUSY)
        ws_log(WS_LOG_WARN, "reconcile", "%s", err.text);
}

/* Asks all engines at once, because one that is down takes its time. */
static void check_engines(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                          const char *current, uint64_t generation)
{
    struct look l = {.control = c, .controller = ctl, .current = current, .generation = generation};
    l.engines = ws_engine_get_all(c, ctl, false, &l.n);
    l.answered = calloc(l.n + 1, sizeof(bool));
    l.runs = calloc(l.n + 1, sizeof(bool));
    if (l.engines && l.answered && l.runs) {
        ws_workers_run_at_once(query, &l, l.n);
        if (m && current && ws_quarantine_holds(c, ctl, m))
            hold_those_that_run(&l, m);
        else
            while (m && !atomic_load(&c->stop) && bring_up_to_date(&l, m))
                ; /* one that failed waits for its next try, so that this ends */
        ws_adapter_upkeep(c, ctl, m, l.engines, l.runs, l.n);
        ws_drift_look(c, ctl, l.engines, l.runs, l.n);
    }
    free(l.answered);
    free(l.runs);
    ws_engine_put_all(c, l.engines, l.n);
}

static void check_controller(struct ws_control *c, struct ws_controller *ctl)
{
    pthread_mutex_lock(&c->lock);
    const uint64_t generation = ctl->generation;
    pthread_mutex_unlock(&c->lock);
    struct ws_model *m = ws_store_find(c->store, ctl->name);
    struct ws_version *v = m ? ws_model_current(m) : NULL;
    char current[WS_VERSION_ID_TEXT] = "";
    if (v) {
        const struct ws_version_id id = ws_version_id(v);
        ws_version_id_text(&id, current);
    }
    check_engines(c, ctl, m, v ? current : NULL, generation);
    if (m && !v)
        ws_restore_again(c, ctl, m);
    ws_kept_trim(c, ctl);
    if (m)
        ws_follow_check(c, m); /* min-interval may be over */
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

static void *reconcile(void *arg)
{
    struct ws_reconciler *r = arg;
    struct ws_control *c = r->control;
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        const uint64_t until = ws_clock_ns() + LOOK_MS * WS_MS_NS;
        while (!r->stop && !r->look && ws_cond_wait_until(&r->changed, &r->lock, until) == 0)
            ;
        r->look = false;
        if (r->stop)
            break;
        pthread_mutex_unlock(&r->lock);
        pthread_mutex_lock(&c->lock);
        struct ws_controller *ctl = c->controllers; /* only ever added to, at this end */
        pthread_mutex_unlock(&c->lock);
        for (; ctl && !atomic_load(&c->stop); ctl = ctl->next) {
            check_controller(c, ctl);
            ws_presence_post_error(c, ctl);
        }
        ws_learned_file_save(c, false);
        if (atomic_exchange(&c->lacks_sources, false) && ws_job_start(c, open_sources, c) < 0)
            atomic_store(&c->lacks_sources, true);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

int ws_reconciler_start(struct ws_control *c, struct ws_reconciler **out)
{
    struct ws_reconciler *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->control = c;
    r->look = true;
    pthread_mutex_init(&r->lock, NULL);
    ws_cond_init(&r->changed);
    if (ws_thread_start(&r->thread, reconcile, r) < 0) {
        pthread_cond_destroy(&r->changed);
        pthread_mutex_destroy(&r->lock);
        free(r);
        return -EAGAIN;
    }
    *out = r;
    return 0;
}

void ws_reconciler_wake(struct ws_reconciler *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->look = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void ws_reconciler_stop(struct ws_reconciler *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
