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

/* Engines are not left half-way because somebody lost patience; the mount's end alone ends it. */
static void patient_call_of(struct ws_work *w, struct ws_engine_call *call)
{
    struct ws_control *c = w->run->control;
    ws_engine_call_of(w->engine, c, call);
    call->target.cancel[0] = &c->cut;
    call->target.end_ns = atomic_load(&c->stop) ? c->end_by_ns : 0;
}

static void call_of(struct ws_work *w, struct ws_engine_call *call)
{
    const struct ws_switch_run *r = w->run;
    if (r->going_back) {
        patient_call_of(w, call);
        return;
    }
    ws_engine_call_of(w->engine, r->control, call);
    call->target.cancel[1] = r->options->cancel;
    call->target.cancel[2] = &w->desk->cancel;
    call->target.end_ns = r->deadline_ns;
}

/* --- its condition --- */

static struct ws_condition *lock(const struct ws_work *w)
{
    pthread_mutex_lock(&w->run->control->lock);
    return &w->engine->condition;
}

static void unlock(const struct ws_work *w)
{
    pthread_mutex_unlock(&w->run->control->lock);
}

void ws_work_begin(struct ws_switch_run *r)
{
    for (size_t i = 0; i < r->n; i++) {
        const bool free = ws_condition_begin(lock(&r->works[i]));
        unlock(&r->works[i]);
        assert(free); /* the desk is claimed */
    }
    ws_settings_save(r->control);
}

void ws_work_over(struct ws_switch_run *r)
{
    const bool ending = atomic_load(&r->control->stop);
    for (size_t i = 0; i < r->n; i++) {
        ws_condition_over(lock(&r->works[i]), ending);
        unlock(&r->works[i]);
    }
    ws_settings_save(r->control);
}

bool ws_work_has_changed(const struct ws_work *w)
{
    const bool is = ws_condition_has_changed(lock(w));
    unlock(w);
    return is;
}

bool ws_work_was_resumed(const struct ws_work *w)
{
    const bool is = ws_condition_was_resumed(lock(w));
    unlock(w);
    return is;
}

static bool may_run(const struct ws_work *w)
{
    const bool is = ws_condition_may_run(lock(w));
    unlock(w);
    return is;
}

/* --- steps in parallel --- */

struct step {
    struct ws_work **works;
    int (*fn)(struct ws_work *w);
};

static void run_step(void *arg, size_t i)
{
    const struct step *s = arg;
    s->works[i]->rc = s->fn(s->works[i]);
}

size_t ws_work_each(struct ws_switch_run *r, unsigned batch, bool (*when)(const struct ws_work *w),
                    int (*fn)(struct ws_work *w))
{
    struct step step = {r->chosen, fn};
    size_t n = 0, failed = 0;
    for (size_t i = 0; i < r->n; i++)
        if (r->works[i].batch == batch && when(&r->works[i]))
            r->chosen[n++] = &r->works[i];
    ws_run_at_once(run_step, &step, n);
    for (size_t i = 0; i < n; i++)
        failed += r->chosen[i]->rc < 0;
    return failed;
}

static void tell(struct ws_work *w, const char *phase, uint64_t start_ns, int rc)
{
    char why[WS_ERROR_TEXT], pause[32] = "";
    if (w->pause_s > 0)
        snprintf(pause, sizeof(pause), " pause=%.3f", w->pause_s);
    ws_desk_event(w->run->control, w->desk,
                  "%s model=%s version=%s engine=%s seconds=%.3f%s result=%s%s%.300s%s", phase, w->desk->name,
                  w->to_version, w->engine->name, (double)(ws_clock_ns() - start_ns) * 1e-9, pause,
                  rc < 0 ? ws_errno_name(-rc) : "ok", rc < 0 ? " why=\"" : "",
                  rc < 0 ? ws_desk_quotable(w->err.text, why) : "", rc < 0 ? "\"" : "");
}

/* --- one engine --- */

/* Does it serve something else than what we left it with, or has it not been asked what it is? */
static bool is_another(struct ws_work *w, const struct ws_engine_serving *now)
{
    const bool another = ws_condition_is_another(lock(w), now) || !w->engine->facts.known;
    unlock(w);
    return another;
}

void ws_work_path_of(const struct ws_work *w, struct ws_model *m, struct ws_version *v, char out[PATH_MAX])
{
    const struct ws_engine *e = w->engine;
    char name[WS_MAX_NAME + 1];
    ws_version_name(v, name);
    snprintf(out, PATH_MAX, "%s/%s/%s", e->prefix ? e->prefix : w->run->control->options.mountpoint,
             ws_model_name(m), name);
}

/* What is current, as engines are told it; empty: nothing is. path: where this one sees it; may be NULL. */
static void find_current(struct ws_work *w, char text[WS_MARK_TEXT], char path[PATH_MAX])
{
    struct ws_model *m = ws_store_find(w->run->control->store, w->desk->name);
    struct ws_version *v = m ? ws_model_current(m) : NULL;
    text[0] = 0;
    if (v) {
        const struct ws_mark mark = ws_version_mark(v);
        ws_mark_text(&mark, text);
        if (path)
            ws_work_path_of(w, m, v, path);
        ws_version_put(v);
    }
    if (m)
        ws_model_put(m);
}

/* What it serves now is the way back. Where it does not say where that is from, and we did not see it load
 * (it was added, or we started, later), but names the current version, that is what it has. */
static void note_way_back(struct ws_work *w, const struct ws_engine_serving *now)
{
    char current[WS_MARK_TEXT], path[PATH_MAX];
    find_current(w, current, path);
    struct ws_condition *c = lock(w);
    ws_condition_asked(c, now);
    if (!c->back_path[0] && current[0] && strcmp(c->back_version, current) == 0)
        ws_condition_came_from(c, path);
    unlock(w);
}

static int fail_before(struct ws_work *w, uint64_t start, int rc)
{
    ws_condition_failed(lock(w), w->err.text);
    unlock(w);
    w->lost = true;
    tell(w, "paused", start, rc);
    return rc;
}

int ws_work_ask(struct ws_work *w)
{
    struct ws_engine_call call;
    struct ws_engine_facts facts;
    struct ws_engine_serving now = {0};
    uint64_t start = ws_clock_ns();
    int rc = ws_engine_ready(w->engine, w->run->control, &w->err);
    call_of(w, &call);
    if (rc == 0)
        rc = w->engine->ops->serving(&call.target, &now, &w->err);
    if (rc == 0 && is_another(w, &now)) { /* restarted since: it may be of another release, too */
        rc = ws_engine_ask(w->engine, &call.target, &facts, &now, &w->err);
        if (rc == 0) {
            (void)lock(w);
            ws_engine_note(w->engine, &facts, &now);
            unlock(w);
        }
    }
    if (rc == 0 && now.sleep_unknown && !w->engine->condition.sleep_told)
        rc = ws_error_set(
            &w->err, EAGAIN,
            "it is paused, and its /metrics do not say whether it sleeps: resume it where it was "
            "paused on purpose, else restart it");
    if (rc < 0)
        return fail_before(w, start, rc);
    note_way_back(w, &now);
    return 0;
}

static int pause_engine(struct ws_work *w)
{
    struct ws_engine_call call;
    call_of(w, &call);
    int rc = w->engine->ops->pause(&call.target, &w->err);
    w->paused_ns = ws_clock_ns();
    struct ws_condition *c = lock(w);
    if (rc != -EHOSTUNREACH && rc != -EACCES) /* also when the answer was lost: it is resumed */
        ws_condition_told_to_pause(c);
    if (rc == 0)
        ws_condition_paused(c);
    unlock(w);
    return rc;
}

int ws_work_pause(struct ws_work *w)
{
    const uint64_t start = ws_clock_ns();
    int rc = pause_engine(w);
    if (rc < 0)
        return fail_before(w, start, rc);
    tell(w, "paused", start, rc);
    return 0;
}

static int load_path(struct ws_work *w, const char *path, const char *version, bool *told)
{
    struct ws_engine_call call;
    call_of(w, &call);
    struct ws_condition *c = lock(w);
    *told = ws_condition_is_touched(c) || ws_condition_is_broken(c);
    const bool begins = ws_condition_load_begins(c, version);
    unlock(w);
    assert(begins); /* it was paused before */
    int rc = ws_engine_load(w->engine->ops, &call.target, path, version, told, &w->err);
    c = lock(w);
    ws_condition_load_ended(c, path, *told, rc == 0);
    unlock(w);
    return rc;
}

int ws_work_load(struct ws_work *w)
{
    uint64_t start = ws_clock_ns();
    bool told;
    int rc = load_path(w, w->to_path, w->to_mark, &told);
    w->lost = rc < 0;
    tell(w, "loaded", start, rc);
    return rc;
}

static int flush(struct ws_work *w)
{
    struct ws_engine_call call;
    call_of(w, &call);
    return w->engine->ops->flush(&call.target, &w->err);
}

int ws_work_flush(struct ws_work *w)
{
    uint64_t start = ws_clock_ns();
    int rc = flush(w);
    w->lost = rc < 0;
    if (w->engine->cache != WS_CACHE_KEEP)
        tell(w, "flushed", start, rc);
    return rc;
}

static void note_pause(struct ws_work *w)
{
    struct ws_control *c = w->run->control;
    double seconds = (double)(ws_clock_ns() - w->paused_ns) * 1e-9;
    pthread_mutex_lock(&c->lock);
    w->pause_s = w->engine->pause_seconds = seconds;
    ws_histogram_add(&w->engine->pauses, seconds);
    pthread_mutex_unlock(&c->lock);
}

/* Whether it may be resumed once more after a resume that failed: it was never told, or is as we left it. */
static bool may_resume_again(struct ws_work *w, const struct ws_engine_target *t, int *rc)
{
    struct ws_engine_serving now = {0};
    if (*rc == -EHOSTUNREACH)
        return true;
    if (w->engine->ops->serving(t, &now, NULL) < 0)
        return false;
    if (now.tells_paused && !now.paused)
        *rc = 0; /* it did, and the answer was lost */
    const bool same = !ws_condition_is_another(lock(w), &now);
    unlock(w);
    return *rc < 0 && same;
}

/* version: what it was told to load since its pause; NULL: nothing, and it goes on also where its switch was
 * cancelled or the daemon ends. */
static int resume(struct ws_work *w, const char *version)
{
    struct ws_engine_call call;
    int rc = -EIO;
    assert(may_run(w));
    if (version)
        call_of(w, &call);
    else
        patient_call_of(w, &call);
    if (!w->run->going_back && call.target.end_ns < ws_clock_ns() + RESUME_NS)
        call.target.end_ns = ws_clock_ns() + RESUME_NS;
    for (int i = 0; i < RESUME_TRIES && rc < 0; i++) {
        rc = w->engine->ops->resume(&call.target, &w->err);
        if (rc < 0 && !may_resume_again(w, &call.target, &rc))
            break;
    }
    if (rc == 0) {
        const bool runs = ws_condition_runs(lock(w));
        unlock(w);
        assert(runs);
        note_pause(w);
    }
    if (rc == 0 && version && w->engine->condition.tells.version)
        rc = ws_engine_confirm(w->engine->ops, &call.target, version, &w->err);
    return rc;
}

int ws_work_resume(struct ws_work *w)
{
    uint64_t start = ws_clock_ns();
    int rc = resume(w, w->to_mark);
    struct ws_condition *c = lock(w);
    const bool serves = rc == 0 && ws_condition_serves(c);
    if (!serves)
        ws_condition_resume_failed(c, w->err.text);
    unlock(w);
    w->lost = rc < 0;
    tell(w, "resumed", start, rc);
    return rc;
}

void ws_work_run_on(struct ws_work *w)
{
    const struct ws_error why = w->err;
    const bool may = ws_condition_may_run_on(lock(w));
    unlock(w);
    if (may)
        (void)resume(w, NULL);
    w->err = why;
}

void ws_work_give_up(struct ws_work *w, const char *why)
{
    struct ws_engine_call call;
    struct ws_engine_serving now = {0};
    const bool touched = ws_condition_is_touched(lock(w));
    unlock(w);
    patient_call_of(w, &call);
    const bool told = w->engine->condition.tells.version && touched &&
                      w->engine->ops->serving(&call.target, &now, NULL) == 0;
    ws_condition_given_up(lock(w), told ? now.version : NULL, why);
    unlock(w);
}

int ws_work_pause_again(struct ws_work *w)
{
    int rc = pause_engine(w);
    if (rc < 0) { /* it is loaded back either way */
        ws_condition_told_to_pause(lock(w));
        unlock(w);
    }
    return rc;
}

/* It stays as it is; whether it answers, and has whole weights, says what it is called. heard: of the way
 * back, if there was one; else it was busy then and may be so still, whatever it answers in between. */
static void stay(struct ws_work *w, bool heard)
{
    struct ws_engine_call call;
    struct ws_engine_serving now;
    const char *prefix = w->engine->prefix;
    char text[WS_ERROR_TEXT + 200], ask[120] = "";
    call_of(w, &call);
    const bool there = heard && w->engine->ops->serving(&call.target, &now, NULL) == 0;
    const bool broken = ws_condition_is_broken(lock(w));
    unlock(w);
    if (there && broken && prefix)
        snprintf(ask, sizeof(ask), " (is prefix=%.60s where it sees this mount?)", prefix);
    snprintf(text, sizeof(text), "%s%s: %.800s",
             !there   ? "it does not answer"
             : broken ? "it has no good weights until it loads a version, or you restart it"
                      : "it is paused, or may be, and will be brought along",
             ask, w->err.text);
    ws_condition_not_back(lock(w), there, text);
    unlock(w);
}

/* Loads what it served before, and empties its caches. One that did not hear of it was waited for long
 * enough. */
static int load_back(struct ws_work *w, const char *path, const char *version, bool *heard)
{
    int rc = -EIO;
    for (int i = 0; i < BACK_TRIES && rc < 0 && *heard; i++)
        rc = load_path(w, path, version, heard);
    return rc == 0 ? flush(w) : rc;
}

/* It runs, and goes on running: a pause without an answer has come once another one is answered. version: as
 * of resume. */
static int resume_for_good(struct ws_work *w, const char *version, bool sleeps)
{
    const bool may_be_paused_yet = ws_condition_may_be_paused_yet(lock(w));
    unlock(w);
    int rc = may_be_paused_yet ? pause_engine(w) : 0;
    const struct ws_error why = w->err;
    const int resumed =
        may_run(w) && !sleeps ? resume(w, version) : 0; /* else it waits to be brought along */
    if (resumed < 0)
        return resumed;
    w->err = why;
    return rc;
}

/* Back to what it served: nothing to load when it was never told. */
int ws_work_bring_back(struct ws_work *w)
{
    const struct ws_error why = w->err;
    const uint64_t start = ws_clock_ns();
    char path[PATH_MAX], version[64], current[WS_MARK_TEXT];
    int rc = 0;
    bool heard = true;
    struct ws_condition *c = lock(w);
    const bool touched = ws_condition_is_touched(c), broken = ws_condition_is_broken(c), sleeps = c->sleeping;
    snprintf(path, sizeof(path), "%s", c->back_path);
    snprintf(version, sizeof(version), "%s", c->back_version[0] ? c->back_version : "default");
    unlock(w);
    if (touched && path[0])
        rc = load_back(w, path, version, &heard);
    else if (touched)
        rc = ws_error_set(&w->err, EREMOTEIO, "it never said what it served before");
    else if (broken)
        rc = ws_error_set(&w->err, EREMOTEIO, "it has had no good weights since an earlier switch");
    if (rc == 0)
        rc = resume_for_good(w, touched ? version : NULL, sleeps && !touched);
    w->not_back = rc < 0;
    find_current(w, current, NULL);
    if (rc == 0) {
        ws_condition_brought_back(lock(w), current[0] ? current : NULL);
        unlock(w);
    } else {
        stay(w, heard);
    }
    tell(w, "brought-back", start, rc);
    w->err = why;
    return rc;
}
