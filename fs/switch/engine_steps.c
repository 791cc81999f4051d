#include "fs/switch/engine_steps.h"
#include "backends/engine/load.h"
#include "fs/switch/settings.h"
#include "transports/base/clock.h"
#include "transports/base/workers.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BACK_TRIES   2
#define RESUME_TRIES 3
#define RESUME_NS    (5 * WS_SECOND_NS) /* whatever the deadline: what has loaded is not left paused for it */

/* For the way back: no deadline and no cancel leaves engines half-way; only the mount's end does. */
static void init_patient_call(struct ws_switch_engine *se, struct ws_engine_call *call)
{
    struct ws_control *c = se->run->control;
    ws_engine_call_init(se->engine, c, call);
    call->target.cancel[0] = &c->calls_cut;
    call->target.end_ns = atomic_load(&c->stop) ? c->end_by_ns : 0;
}

static void init_call(struct ws_switch_engine *se, struct ws_engine_call *call)
{
    const struct ws_switch_run *r = se->run;
    if (r->going_back) {
        init_patient_call(se, call);
        return;
    }
    ws_engine_call_init(se->engine, r->control, call);
    call->target.cancel[1] = r->options->cancel;
    call->target.cancel[2] = &se->controller->cancel;
    call->target.end_ns = r->deadline_ns;
}

/* --- its condition --- */

static struct ws_condition *lock(const struct ws_switch_engine *se)
{
    pthread_mutex_lock(&se->run->control->lock);
    return &se->engine->condition;
}

static void unlock(const struct ws_switch_engine *se)
{
    pthread_mutex_unlock(&se->run->control->lock);
}

void ws_engine_step_begin(struct ws_switch_run *r)
{
    for (size_t i = 0; i < r->n; i++) {
        const bool free = ws_condition_begin(lock(&r->engines[i]));
        unlock(&r->engines[i]);
        assert(free); /* the controller is claimed */
    }
    ws_settings_save(r->control);
}

void ws_engine_step_over(struct ws_switch_run *r)
{
    const bool ending = atomic_load(&r->control->stop);
    for (size_t i = 0; i < r->n; i++) {
        ws_condition_over(lock(&r->engines[i]), ending);
        unlock(&r->engines[i]);
    }
    ws_settings_save(r->control);
}

bool ws_engine_step_has_changed(const struct ws_switch_engine *se)
{
    const bool is = ws_condition_has_changed(lock(se));
    unlock(se);
    return is;
}

bool ws_engine_step_was_resumed(const struct ws_switch_engine *se)
{
    const bool is = ws_condition_was_resumed(lock(se));
    unlock(se);
    return is;
}

static bool may_run(const struct ws_switch_engine *se)
{
    const bool is = ws_condition_may_run(lock(se));
    unlock(se);
    return is;
}

/* --- steps in parallel --- */

struct step {
    struct ws_switch_engine **engines;
    int (*fn)(struct ws_switch_engine *se);
};

static void run_step(void *arg, size_t i)
{
    const struct step *s = arg;
    s->engines[i]->rc = s->fn(s->engines[i]);
}

size_t ws_engine_step_each(struct ws_switch_run *r, unsigned batch,
                           bool (*when)(const struct ws_switch_engine *se),
                           int (*fn)(struct ws_switch_engine *se))
{
    struct step step = {r->selected, fn};
    size_t n = 0, failed = 0;
    for (size_t i = 0; i < r->n; i++)
        if (r->engines[i].batch == batch && when(&r->engines[i]))
            r->selected[n++] = &r->engines[i];
    ws_workers_run_at_once(run_step, &step, n);
    for (size_t i = 0; i < n; i++)
        failed += r->selected[i]->rc < 0;
    return failed;
}

static void post_event(struct ws_switch_engine *se, const char *phase, uint64_t start_ns, int rc)
{
    char why[WS_ERROR_TEXT], pause[32] = "";
    if (se->pause_s > 0)
        snprintf(pause, sizeof(pause), " pause=%.3f", se->pause_s);
    ws_controller_event(se->run->control, se->controller,
                        "%s model=%s version=%s engine=%s seconds=%.3f%s result=%s%s%.300s%s", phase,
                        se->controller->name, se->to_version, se->engine->name,
                        (double)(ws_clock_ns() - start_ns) * 1e-9, pause, rc < 0 ? ws_errno_name(-rc) : "ok",
                        rc < 0 ? " why=\"" : "", rc < 0 ? ws_controller_quotable(se->err.text, why) : "",
                        rc < 0 ? "\"" : "");
}

/* --- one engine --- */

/* Does it name another version than the one it was left with, or has it not been asked what it is? */
static bool is_another(struct ws_switch_engine *se, const struct ws_engine_serving *now)
{
    const bool another = ws_condition_names_another(lock(se), now) || !se->engine->facts.known;
    unlock(se);
    return another;
}

void ws_engine_step_path(const struct ws_switch_engine *se, struct ws_model *m, struct ws_version *v,
                         char out[PATH_MAX])
{
    const struct ws_engine *e = se->engine;
    char name[WS_MAX_NAME + 1];
    ws_version_name(v, name);
    snprintf(out, PATH_MAX, "%s/%s/%s", e->prefix ? e->prefix : se->run->control->options.mountpoint,
             ws_model_name(m), name);
}

/* The current version, as engines are told it; empty: there is none. path: where this engine sees it; may be
 * NULL. */
static void find_current(struct ws_switch_engine *se, char text[WS_VERSION_ID_TEXT], char path[PATH_MAX])
{
    struct ws_model *m = ws_store_find(se->run->control->store, se->controller->name);
    struct ws_version *v = m ? ws_model_current(m) : NULL;
    text[0] = 0;
    if (v) {
        const struct ws_version_id id = ws_version_id(v);
        ws_version_id_text(&id, text);
        if (path)
            ws_engine_step_path(se, m, v, path);
        ws_version_put(v);
    }
    if (m)
        ws_model_put(m);
}

/* What it serves now is the way back. Where it names the current version but not its path, and this daemon did
 * not see it load (the engine was added, or the daemon started, later), the path is the current version's. */
static void record_way_back(struct ws_switch_engine *se, const struct ws_engine_serving *now)
{
    char current[WS_VERSION_ID_TEXT], path[PATH_MAX];
    find_current(se, current, path);
    struct ws_condition *c = lock(se);
    ws_condition_queried(c, now);
    if (!c->back_path[0] && current[0] && strcmp(c->back_version, current) == 0)
        ws_condition_path_found(c, path);
    unlock(se);
}

static int fail_before(struct ws_switch_engine *se, uint64_t start, int rc)
{
    ws_condition_failed(lock(se), se->err.text);
    unlock(se);
    se->lost = true;
    post_event(se, "paused", start, rc);
    return rc;
}

int ws_engine_step_query(struct ws_switch_engine *se)
{
    struct ws_engine_call call;
    struct ws_engine_facts facts;
    struct ws_engine_serving now = {0};
    uint64_t start = ws_clock_ns();
    int rc = ws_engine_ready(se->engine, se->run->control, &se->err);
    init_call(se, &call);
    if (rc == 0)
        rc = se->engine->ops->serving(&call.target, &now, &se->err);
    if (rc == 0 && is_another(se, &now)) { /* restarted since: it may be of another release, too */
        rc = ws_engine_query(se->engine, &call.target, &facts, &now, &se->err);
        if (rc == 0) {
            (void)lock(se);
            ws_engine_record(se->engine, &facts, &now);
            unlock(se);
        }
    }
    if (rc == 0 && now.sleep_unknown && !se->engine->condition.sleep_known)
        rc = ws_error_set(
            &se->err, EAGAIN,
            "it is paused, and its /metrics do not say whether it sleeps: resume it where it was "
            "paused on purpose, else restart it");
    if (rc < 0)
        return fail_before(se, start, rc);
    record_way_back(se, &now);
    return 0;
}

static int pause_engine(struct ws_switch_engine *se)
{
    struct ws_engine_call call;
    bool acted = false;
    init_call(se, &call);
    call.target.acted = &acted;
    int rc = se->engine->ops->pause(&call.target, &se->err);
    se->paused_ns = ws_clock_ns();
    struct ws_condition *c = lock(se);
    if (rc == 0 || acted) /* also when the answer was lost: it is resumed */
        ws_condition_pause_sent(c);
    if (rc == 0)
        ws_condition_paused(c);
    unlock(se);
    return rc;
}

int ws_engine_step_pause(struct ws_switch_engine *se)
{
    const uint64_t start = ws_clock_ns();
    int rc = pause_engine(se);
    if (rc < 0)
        return fail_before(se, start, rc);
    post_event(se, "paused", start, rc);
    return 0;
}

static int load_path(struct ws_switch_engine *se, const char *path, const char *version, bool *told)
{
    struct ws_engine_call call;
    init_call(se, &call);
    struct ws_condition *c = lock(se);
    *told = ws_condition_was_told_to_load(c) || ws_condition_is_broken(c);
    const bool begins = ws_condition_load_begins(c, version);
    unlock(se);
    assert(begins); /* it was paused before */
    int rc = ws_engine_load(se->engine->ops, &call.target, path, version, told, &se->err);
    c = lock(se);
    ws_condition_load_ended(c, path, *told, rc == 0);
    unlock(se);
    return rc;
}

int ws_engine_step_load(struct ws_switch_engine *se)
{
    uint64_t start = ws_clock_ns();
    bool told;
    int rc = load_path(se, se->to_path, se->to_version_id, &told);
    se->lost = rc < 0;
    post_event(se, "loaded", start, rc);
    return rc;
}

static int flush(struct ws_switch_engine *se)
{
    struct ws_engine_call call;
    init_call(se, &call);
    return se->engine->ops->flush(&call.target, &se->err);
}

int ws_engine_step_flush(struct ws_switch_engine *se)
{
    uint64_t start = ws_clock_ns();
    int rc = flush(se);
    se->lost = rc < 0;
    if (se->engine->cache != WS_CACHE_KEEP)
        post_event(se, "flushed", start, rc);
    return rc;
}

static void record_pause(struct ws_switch_engine *se)
{
    struct ws_control *c = se->run->control;
    double seconds = (double)(ws_clock_ns() - se->paused_ns) * 1e-9;
    pthread_mutex_lock(&c->lock);
    se->pause_s = se->engine->pause_seconds = seconds;
    ws_histogram_add(&se->engine->pauses, seconds);
    pthread_mutex_unlock(&c->lock);
}

/* May it be resumed once more after a resume that failed? It did not hear of it, or serves the same version. */
static bool may_resume_again(struct ws_switch_engine *se, const struct ws_engine_target *t, int *rc)
{
    struct ws_engine_serving now = {0};
    if (*rc == -EHOSTUNREACH)
        return true;
    if (se->engine->ops->serving(t, &now, NULL) < 0)
        return false;
    if (now.reports_paused && !now.paused)
        *rc = 0; /* it did, and the answer was lost */
    const bool same = !ws_condition_names_another(lock(se), &now);
    unlock(se);
    return *rc < 0 && same;
}

/* version: what it was told to load since its pause; NULL: nothing, and then it is resumed also where its switch
 * was cancelled or the daemon ends. */
static int resume(struct ws_switch_engine *se, const char *version)
{
    struct ws_engine_call call;
    int rc = -EIO;
    assert(may_run(se));
    if (version)
        init_call(se, &call);
    else
        init_patient_call(se, &call);
    if (!se->run->going_back && call.target.end_ns < ws_clock_ns() + RESUME_NS)
        call.target.end_ns = ws_clock_ns() + RESUME_NS;
    for (int i = 0; i < RESUME_TRIES && rc < 0; i++) {
        rc = se->engine->ops->resume(&call.target, &se->err);
        if (rc < 0 && !may_resume_again(se, &call.target, &rc))
            break;
    }
    if (rc == 0) {
        const bool runs = ws_condition_runs(lock(se));
        unlock(se);
        assert(runs);
        record_pause(se);
    }
    if (rc == 0 && version && se->engine->condition.reports.version)
        rc = ws_engine_confirm(se->engine->ops, &call.target, version, &se->err);
    return rc;
}

int ws_engine_step_resume(struct ws_switch_engine *se)
{
    uint64_t start = ws_clock_ns();
    int rc = resume(se, se->to_version_id);
    struct ws_condition *c = lock(se);
    const bool serves = rc == 0 && ws_condition_serves(c);
    if (!serves)
        ws_condition_resume_failed(c, se->err.text);
    unlock(se);
    se->lost = rc < 0;
    post_event(se, "resumed", start, rc);
    return rc;
}

void ws_engine_step_run_on(struct ws_switch_engine *se)
{
    const struct ws_error why = se->err;
    const bool may = ws_condition_may_run_on(lock(se));
    unlock(se);
    if (may)
        (void)resume(se, NULL);
    se->err = why;
}

void ws_engine_step_give_up(struct ws_switch_engine *se, const char *why)
{
    struct ws_engine_call call;
    struct ws_engine_serving now = {0};
    const bool touched = ws_condition_was_told_to_load(lock(se));
    unlock(se);
    init_patient_call(se, &call);
    const bool told = se->engine->condition.reports.version && touched &&
                      se->engine->ops->serving(&call.target, &now, NULL) == 0;
    ws_condition_given_up(lock(se), told ? now.version : NULL, why);
    unlock(se);
}

int ws_engine_step_pause_again(struct ws_switch_engine *se)
{
    int rc = pause_engine(se);
    if (rc < 0) { /* it is loaded back either way */
        ws_condition_pause_sent(lock(se));
        unlock(se);
    }
    return rc;
}

/* It stays as it is. What it is called depends on whether it answers and has whole weights. heard: it heard of
 * the way back, if there was one; else it was busy then and may be so still, whatever it answers meanwhile. */
static void stay(struct ws_switch_engine *se, bool heard)
{
    struct ws_engine_call call;
    struct ws_engine_serving now;
    const char *prefix = se->engine->prefix;
    char text[WS_ERROR_TEXT + 200], ask[120] = "";
    init_call(se, &call);
    const bool there = heard && se->engine->ops->serving(&call.target, &now, NULL) == 0;
    const bool broken = ws_condition_is_broken(lock(se));
    unlock(se);
    if (there && broken && prefix)
        snprintf(ask, sizeof(ask), " (is prefix=%.60s where it sees this mount?)", prefix);
    snprintf(text, sizeof(text), "%s%s: %.800s",
             !there   ? "it does not answer"
             : broken ? "it has no good weights until it loads a version, or you restart it"
                      : "it is paused, or may be, and will be brought along",
             ask, se->err.text);
    ws_condition_not_back(lock(se), there, text);
    unlock(se);
}

/* Loads what it served before, and empties its caches. An engine that did not hear of the load is not tried
 * again: it has been waited for long enough. */
static int load_back(struct ws_switch_engine *se, const char *path, const char *version, bool *heard)
{
    int rc = -EIO;
    for (int i = 0; i < BACK_TRIES && rc < 0 && *heard; i++)
        rc = load_path(se, path, version, heard);
    return rc == 0 ? flush(se) : rc;
}

/* Resumes it so that it goes on running: a pause without an answer cannot come any more once another one is
 * answered. version: as for resume. */
static int resume_for_good(struct ws_switch_engine *se, const char *version, bool sleeps)
{
    const bool may_be_paused_yet = ws_condition_may_be_paused_yet(lock(se));
    unlock(se);
    int rc = may_be_paused_yet ? pause_engine(se) : 0;
    const struct ws_error why = se->err;
    const int resumed =
        may_run(se) && !sleeps ? resume(se, version) : 0; /* else it waits to be brought along */
    if (resumed < 0)
        return resumed;
    se->err = why;
    return rc;
}

/* Back to what it served: nothing to load when it was never told. */
int ws_engine_step_bring_back(struct ws_switch_engine *se)
{
    const struct ws_error why = se->err;
    const uint64_t start = ws_clock_ns();
    char path[PATH_MAX], version[64], current[WS_VERSION_ID_TEXT];
    int rc = 0;
    bool heard = true;
    struct ws_condition *c = lock(se);
    const bool touched = ws_condition_was_told_to_load(c), broken = ws_condition_is_broken(c),
               sleeps = c->sleeping;
    snprintf(path, sizeof(path), "%s", c->back_path);
    snprintf(version, sizeof(version), "%s", c->back_version[0] ? c->back_version : "default");
    unlock(se);
    if (touched && path[0])
        rc = load_back(se, path, version, &heard);
    else if (touched)
        rc = ws_error_set(&se->err, EREMOTEIO, "it never said what it served before");
    else if (broken)
        rc = ws_error_set(&se->err, EREMOTEIO, "it has had no good weights since an earlier switch");
    if (rc == 0)
        rc = resume_for_good(se, touched ? version : NULL, sleeps && !touched);
    se->not_back = rc < 0;
    find_current(se, current, NULL);
    if (rc == 0) {
        ws_condition_brought_back(lock(se), current[0] ? current : NULL);
        unlock(se);
    } else {
        stay(se, heard);
    }
    post_event(se, "brought-back", start, rc);
    se->err = why;
    return rc;
}
