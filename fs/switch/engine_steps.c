#include "fs/switch/engine_steps.h"
#include "backends/engine/load.h"
#include "fs/switch/adapter_steps.h"
#include "fs/switch/draft_steps.h"
#include "fs/switch/patch_steps.h"
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
    call->target.cancel[2] = se->target ? &se->controller->cancel : &r->items[0].controller->cancel;
    call->target.end_ns = r->deadline_ns;
}

void ws_engine_step_call(struct ws_switch_engine *se, bool patient, struct ws_engine_call *call)
{
    if (patient)
        init_patient_call(se, call);
    else
        init_call(se, call);
}

bool ws_engine_step_is_of(const struct ws_switch_engine *se, const struct ws_switch_item *item)
{
    bool is = se->target == item || se->draft == item;
    for (size_t i = 0; i < se->n_adapters; i++)
        is = is || se->adapters[i].item == item;
    return is;
}

bool ws_engine_step_pauses(const struct ws_switch_engine *se)
{
    return se->target || se->draft;
}

/* --- its condition --- */

struct ws_condition *ws_engine_step_lock(const struct ws_switch_engine *se)
{
    pthread_mutex_lock(&se->run->control->lock);
    return &se->engine->condition;
}

void ws_engine_step_unlock(const struct ws_switch_engine *se)
{
    pthread_mutex_unlock(&se->run->control->lock);
}

void ws_engine_step_begin(struct ws_switch_run *r)
{
    for (size_t i = 0; i < r->n; i++) {
        if (!ws_engine_step_pauses(&r->engines[i]))
            continue;
        const bool free = ws_condition_begin(ws_engine_step_lock(&r->engines[i]));
        ws_engine_step_unlock(&r->engines[i]);
        assert(free); /* the controller is claimed */
    }
    ws_settings_save(r->control);
}

void ws_engine_step_over(struct ws_switch_run *r)
{
    const bool ending = atomic_load(&r->control->stop);
    for (size_t i = 0; i < r->n; i++) {
        if (!ws_engine_step_pauses(&r->engines[i]))
            continue;
        ws_condition_over(ws_engine_step_lock(&r->engines[i]), ending);
        ws_engine_step_unlock(&r->engines[i]);
    }
    ws_settings_save(r->control);
}

bool ws_engine_step_has_changed(const struct ws_switch_engine *se)
{
    const bool is = ws_condition_has_changed(ws_engine_step_lock(se));
    ws_engine_step_unlock(se);
    return is || se->draft_told;
}

bool ws_engine_step_was_resumed(const struct ws_switch_engine *se)
{
    const struct ws_condition *c = ws_engine_step_lock(se);
    const bool is = ws_condition_was_resumed(c) || (se->draft_told && !ws_condition_has_changed(c));
    ws_engine_step_unlock(se);
    return is;
}

static bool may_run(const struct ws_switch_engine *se)
{
    const bool is = ws_condition_may_run(ws_engine_step_lock(se));
    ws_engine_step_unlock(se);
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

void ws_engine_step_event(struct ws_switch_engine *se, const char *phase, uint64_t start_ns, int rc)
{
    char why[WS_ERROR_TEXT], pause[32] = "";
    if (se->pause_s > 0)
        snprintf(pause, sizeof(pause), " pause=%.3f", se->pause_s);
    ws_controller_event(se->run->control, se->controller,
                        "%s model=%s version=%s engine=%s seconds=%.3f%s%s%s result=%s%s%.300s%s", phase,
                        se->controller->name, se->to_version, se->engine->name,
                        (double)(ws_clock_ns() - start_ns) * 1e-9, pause, se->patch.how[0] ? " " : "",
                        se->patch.how, rc < 0 ? ws_errno_name(-rc) : "ok", rc < 0 ? " why=\"" : "",
                        rc < 0 ? ws_controller_quotable(se->err.text, why) : "", rc < 0 ? "\"" : "");
    se->patch.how[0] = 0;
}

/* --- one engine --- */

const char *ws_engine_step_mountpoint(const struct ws_switch_engine *se)
{
    return se->engine->prefix ? se->engine->prefix : se->run->control->options.mountpoint;
}

void ws_engine_step_path(const struct ws_switch_engine *se, struct ws_model *m, struct ws_version *v,
                         char out[PATH_MAX])
{
    char name[WS_MAX_NAME + 1];
    ws_version_name(v, name);
    snprintf(out, PATH_MAX, "%s/%s/%s", ws_engine_step_mountpoint(se), ws_model_name(m), name);
}

void ws_engine_step_current(struct ws_switch_engine *se, char text[WS_VERSION_ID_TEXT], char path[PATH_MAX])
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

int ws_engine_step_fail(struct ws_switch_engine *se, uint64_t start, int rc)
{
    ws_condition_failed(ws_engine_step_lock(se), se->err.text);
    ws_engine_step_unlock(se);
    se->lost = true;
    ws_engine_step_event(se, "paused", start, rc);
    return rc;
}

static int pause_engine(struct ws_switch_engine *se)
{
    struct ws_engine_call call;
    bool acted = false;
    init_call(se, &call);
    call.target.acted = &acted;
    int rc = se->engine->ops->pause(&call.target, &se->err);
    se->paused_ns = ws_clock_ns();
    struct ws_condition *c = ws_engine_step_lock(se);
    if (rc == 0 || acted) /* also when the answer was lost: it is resumed */
        ws_condition_pause_sent(c);
    if (rc == 0)
        ws_condition_paused(c);
    ws_engine_step_unlock(se);
    return rc;
}

int ws_engine_step_pause(struct ws_switch_engine *se)
{
    const uint64_t start = ws_clock_ns();
    int rc = pause_engine(se);
    if (rc < 0)
        return ws_engine_step_fail(se, start, rc);
    ws_engine_step_event(se, "paused", start, rc);
    return 0;
}

static int load_path(struct ws_switch_engine *se, const char *path, const char *version, bool *told)
{
    struct ws_engine_call call;
    const char *before = se->settled[0] && !se->run->going_back ? se->settled : NULL;
    init_call(se, &call);
    struct ws_condition *c = ws_engine_step_lock(se);
    *told = ws_condition_was_told_to_load(c) || ws_condition_is_broken(c);
    const bool begins = ws_condition_load_begins(c, version);
    ws_engine_step_unlock(se);
    assert(begins); /* it was paused before */
    int rc = ws_engine_load(se->engine->ops, &call.target, path, version, before, told, &se->err);
    c = ws_engine_step_lock(se);
    ws_condition_load_ended(c, path, *told, rc == 0);
    ws_engine_step_unlock(se);
    return rc;
}

int ws_engine_step_load(struct ws_switch_engine *se)
{
    uint64_t start = ws_clock_ns();
    bool told;
    int rc;
    if (!ws_patch_step_put(se, &rc)) {
        rc = load_path(se, se->to_path, se->to_version_id, &told);
        ws_patch_step_whole(se, rc);
    }
    se->lost = rc < 0;
    ws_engine_step_event(se, "loaded", start, rc);
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
        ws_engine_step_event(se, "flushed", start, rc);
    return rc;
}

/* resumed_ns: when it said that it resumes, and was right; 0: it is not known, so now. */
static void record_pause(struct ws_switch_engine *se, uint64_t resumed_ns)
{
    struct ws_control *c = se->run->control;
    double seconds = (double)((resumed_ns ? resumed_ns : ws_clock_ns()) - se->paused_ns) * 1e-9;
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
    const bool same = !ws_condition_names_another(ws_engine_step_lock(se), &now);
    ws_engine_step_unlock(se);
    return *rc < 0 && same;
}

/* version: what it was told to load since its pause; NULL: nothing, and then it is resumed also where its switch
 * was cancelled or the daemon ends. */
static int resume(struct ws_switch_engine *se, const char *version)
{
    struct ws_engine_call call;
    uint64_t resumed_ns = 0;
    int rc = -EIO;
    assert(may_run(se));
    if (version)
        init_call(se, &call);
    else
        init_patient_call(se, &call);
    call.target.resumed_ns = &resumed_ns;
    if (!se->run->going_back && call.target.end_ns < ws_clock_ns() + RESUME_NS)
        call.target.end_ns = ws_clock_ns() + RESUME_NS;
    for (int i = 0; i < RESUME_TRIES && rc < 0; i++) {
        rc = se->engine->ops->resume(&call.target, &se->err);
        if (rc < 0 && !may_resume_again(se, &call.target, &rc))
            break;
    }
    if (rc == 0) {
        const bool runs = ws_condition_runs(ws_engine_step_lock(se));
        ws_engine_step_unlock(se);
        assert(runs);
        record_pause(se, resumed_ns);
    }
    if (rc == 0 && version && se->engine->condition.reports.version)
        rc = ws_engine_confirm(se->engine->ops, &call.target, version, &se->err);
    return rc;
}

int ws_engine_step_resume(struct ws_switch_engine *se)
{
    uint64_t start = ws_clock_ns();
    char current[WS_VERSION_ID_TEXT];
    int rc = resume(se, se->target ? se->to_version_id : NULL);
    ws_engine_step_current(se, current, NULL);
    struct ws_condition *c = ws_engine_step_lock(se);
    if (rc == 0 && !se->target)
        ws_condition_brought_back(c, current[0] ? current : NULL); /* its target stayed */
    else if (rc < 0 || !ws_condition_serves(c))
        ws_condition_resume_failed(c, se->err.text);
    ws_engine_step_unlock(se);
    se->lost = rc < 0;
    ws_engine_step_event(se, "resumed", start, rc);
    return rc;
}

void ws_engine_step_run_on(struct ws_switch_engine *se)
{
    const struct ws_error why = se->err;
    const bool may = ws_condition_may_run_on(ws_engine_step_lock(se));
    ws_engine_step_unlock(se);
    if (may)
        (void)resume(se, NULL);
    se->err = why;
}

void ws_engine_step_give_up(struct ws_switch_engine *se, const char *why)
{
    struct ws_engine_call call;
    struct ws_engine_serving now = {0};
    const bool touched = ws_condition_was_told_to_load(ws_engine_step_lock(se));
    ws_engine_step_unlock(se);
    init_patient_call(se, &call);
    const bool told = se->engine->condition.reports.version && touched &&
                      se->engine->ops->serving(&call.target, &now, NULL) == 0;
    ws_condition_given_up(ws_engine_step_lock(se), told ? now.version : NULL, why);
    ws_engine_step_unlock(se);
}

void ws_engine_step_held(struct ws_switch_engine *se)
{
    ws_condition_not_back(ws_engine_step_lock(se), true,
                          "held: a release left what it serves behind, and it is brought along");
    ws_engine_step_unlock(se);
}

int ws_engine_step_pause_again(struct ws_switch_engine *se)
{
    int rc = pause_engine(se);
    if (rc < 0) { /* it is loaded back either way */
        ws_condition_pause_sent(ws_engine_step_lock(se));
        ws_engine_step_unlock(se);
    }
    return rc;
}

/* It stays as it is. What it is called depends on whether it answers and has whole weights. heard: it heard of
 * the way back, if there was one; else it was busy then and may be so still, whatever it answers meanwhile. */
static void stay(struct ws_switch_engine *se, bool heard, bool has_current)
{
    struct ws_engine_call call;
    struct ws_engine_serving now;
    const char *prefix = se->engine->prefix;
    char text[WS_ERROR_TEXT + 200], ask[120] = "";
    init_call(se, &call);
    const bool there = heard && se->engine->ops->serving(&call.target, &now, NULL) == 0;
    const bool broken = ws_condition_is_broken(ws_engine_step_lock(se));
    ws_engine_step_unlock(se);
    if (there && broken && prefix)
        snprintf(ask, sizeof(ask), " (is prefix=%.60s where it sees this mount?)", prefix);
    snprintf(text, sizeof(text), "%s%s: %.800s",
             !there   ? "it does not answer"
             : broken ? "it has no good weights until it loads a version, or you restart it"
             : has_current
                 ? "it is paused, or may be, and will be brought along"
                 : "it is paused, or may be, until a switch succeeds: no version is current that it could be "
                   "brought to",
             ask, se->err.text);
    ws_condition_not_back(ws_engine_step_lock(se), there, text);
    ws_engine_step_unlock(se);
}

/* Loads what it served before. An engine that did not hear of the load is not tried again: it has been waited for long
 * enough. */
static int load_back(struct ws_switch_engine *se, const char *path, const char *version, bool *heard)
{
    int rc = -EIO;
    for (int i = 0; i < BACK_TRIES && rc < 0 && *heard; i++)
        rc = load_path(se, path, version, heard);
    return rc;
}

/* Resumes it so that it goes on running: a pause without an answer cannot come any more once another one is
 * answered. version: as for resume. */
static int resume_for_good(struct ws_switch_engine *se, const char *version, bool sleeps)
{
    const bool may_be_paused_yet = ws_condition_may_be_paused_yet(ws_engine_step_lock(se));
    ws_engine_step_unlock(se);
    int rc = may_be_paused_yet ? pause_engine(se) : 0;
    const struct ws_error why = se->err;
    const int resumed =
        may_run(se) && !sleeps ? resume(se, version) : 0; /* else it waits to be brought along */
    if (resumed < 0)
        return resumed;
    se->err = why;
    return rc;
}

/* Back to what it served: nothing to load when it was never told, and had good weights. */
int ws_engine_step_bring_back(struct ws_switch_engine *se)
{
    const struct ws_error why = se->err;
    const uint64_t start = ws_clock_ns();
    char path[PATH_MAX], version[64], current[WS_VERSION_ID_TEXT];
    int rc = 0;
    bool heard = true;
    struct ws_condition *c = ws_engine_step_lock(se);
    const bool touched = ws_condition_was_told_to_load(c), loads = touched || ws_condition_is_broken(c),
               sleeps = c->sleeping;
    snprintf(path, sizeof(path), "%s", c->back_path);
    snprintf(version, sizeof(version), "%s", c->back_version[0] ? c->back_version : "default");
    ws_engine_step_unlock(se);
    if (touched && ws_patch_step_undo(se))
        rc = 0;
    else if (loads && path[0])
        rc = load_back(se, path, version, &heard);
    else if (touched)
        rc = ws_error_set(&se->err, EREMOTEIO, "it never said what it served before");
    else if (loads)
        rc = ws_error_set(&se->err, EREMOTEIO, "it has had no good weights since an earlier switch");
    if (rc == 0 && se->draft_told)
        rc = ws_draft_step_bring_back(se);
    if (rc == 0 && (loads || se->draft_told))
        rc = flush(se);
    if (rc == 0)
        ws_adapter_step_bring_back(se);
    const bool holds = se->run->options->holds_back;
    if (rc == 0 && !holds)
        rc = resume_for_good(se, loads ? version : NULL, sleeps && !loads);
    se->not_back = rc < 0;
    ws_engine_step_current(se, current, NULL);
    if (rc == 0 && holds) {
        ws_engine_step_held(se);
    } else if (rc == 0) {
        ws_condition_brought_back(ws_engine_step_lock(se), current[0] ? current : NULL);
        ws_engine_step_unlock(se);
    } else {
        stay(se, heard, current[0]);
    }
    ws_engine_step_event(se, "brought-back", start, rc);
    se->err = why;
    return rc;
}
