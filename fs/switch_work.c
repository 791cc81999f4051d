#include "fs/switch_work.h"
#include "backends/engine/load.h"
#include "transports/clock.h"
#include "transports/workers.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BACK_TRIES   2
#define RESUME_TRIES 3
#define LEAST_MS     1 /* of a call whose time is over */

static void limit(struct ws_engine_call *call, uint64_t until_ns)
{
    const uint64_t now = ws_clock_ns();
    const uint64_t left_ms = now < until_ns ? (until_ns - now) / WS_MS_NS + 1 : LEAST_MS;
    if (left_ms < call->target.timeout_ms)
        call->target.timeout_ms = (unsigned)left_ms;
}

static void call_of(struct ws_work *w, struct ws_engine_call *call)
{
    struct ws_run *r = w->run;
    ws_engine_call_of(w->engine, r->control, call);
    call->target.sleeping = w->sleeping;
    if (r->going_back) { /* engines are not left half-way because somebody lost patience */
        call->target.cancel[0] = NULL;
        if (atomic_load(&r->control->stop))
            limit(call, r->control->end_by_ns);
        return;
    }
    call->target.cancel[1] = r->options->cancel;
    call->target.cancel[2] = &w->desk->cancel;
    limit(call, r->deadline_ns);
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

size_t ws_work_each(struct ws_run *r, unsigned batch, bool (*when)(const struct ws_work *w),
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

void ws_work_set_state(struct ws_work *w, enum ws_engine_state state, const char *version, const char *error)
{
    struct ws_control *c = w->run->control;
    pthread_mutex_lock(&c->lock);
    w->engine->state = state;
    if (state == WS_ENGINE_SERVING)
        w->engine->doubted = w->engine->weights_gone = false;
    if (state == WS_ENGINE_BROKEN)
        w->engine->weights_gone = true;
    if (version)
        snprintf(w->engine->version, sizeof(w->engine->version), "%s", version);
    snprintf(w->engine->error, sizeof(w->engine->error), "%s", error ? error : "");
    pthread_mutex_unlock(&c->lock);
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
    struct ws_control *c = w->run->control;
    pthread_mutex_lock(&c->lock);
    bool another = w->engine->tells_version && strcmp(now->version, w->engine->version) != 0;
    another = another || !w->engine->facts.known;
    pthread_mutex_unlock(&c->lock);
    return another;
}

/* What it serves now: by its own words, or by ours where it has none. */
static void note_way_back(struct ws_work *w, const struct ws_engine_serving *now)
{
    struct ws_control *c = w->run->control;
    struct ws_engine *e = w->engine;
    pthread_mutex_lock(&c->lock);
    if (!now->sleep_unknown) {
        e->sleeping = now->sleeping;
        e->sleep_told = true;
    }
    w->sleeping = e->sleeping;
    if (e->ops->tells_paused && !now->paused)
        e->weights_gone = false; /* it was left paused: somebody has started it anew */
    w->broken = e->weights_gone;
    w->doubted = e->doubted;
    w->ran = !now->paused && !e->doubted && (e->state == WS_ENGINE_SERVING || e->state == WS_ENGINE_STALE);
    snprintf(w->back_path, sizeof(w->back_path), "%s", now->path[0] ? now->path : e->path);
    snprintf(w->back_version, sizeof(w->back_version), "%s", e->tells_version ? now->version : e->version);
    pthread_mutex_unlock(&c->lock);
}

void ws_work_path_of(const struct ws_work *w, struct ws_model *m, struct ws_version *v, char out[PATH_MAX])
{
    const struct ws_engine *e = w->engine;
    char name[WS_MAX_NAME + 1];
    ws_version_name(v, name);
    snprintf(out, PATH_MAX, "%s/%s/%s", e->prefix ? e->prefix : w->run->control->options.mountpoint,
             ws_model_name(m), name);
}

/* It does not say where it loaded from, and we did not see it load: it was added, or we started, later. Where
 * it names the current version, that is what it has. */
static void find_way_back(struct ws_work *w)
{
    struct ws_model *m = ws_store_find(w->run->control->store, w->desk->name);
    struct ws_version *v = m ? ws_model_current(m) : NULL;
    char text[WS_MARK_TEXT];
    if (v) {
        const struct ws_mark mark = ws_version_mark(v);
        ws_mark_text(&mark, text);
        if (strcmp(w->back_version, text) == 0)
            ws_work_path_of(w, m, v, w->back_path);
        ws_version_put(v);
    }
    if (m)
        ws_model_put(m);
}

static int tell_paused(struct ws_work *w, uint64_t start, int rc)
{
    ws_work_set_state(w, rc < 0 ? WS_ENGINE_UNKNOWN : WS_ENGINE_PAUSED, NULL, rc < 0 ? w->err.text : NULL);
    w->lost = rc < 0;
    tell(w, "paused", start, rc);
    return rc;
}

int ws_work_ask(struct ws_work *w)
{
    struct ws_engine_call call;
    struct ws_engine_serving now = {0};
    uint64_t start = ws_clock_ns();
    int rc = ws_engine_ready(w->engine, w->run->control, &w->err);
    call_of(w, &call);
    if (rc == 0)
        rc = w->engine->ops->serving(&call.target, &now, &w->err);
    if (rc == 0 && is_another(w, &now)) { /* restarted since: it may be of another release, too */
        rc = ws_engine_ask(w->engine, w->run->control, call.target.timeout_ms, &now, &w->err);
        call_of(w, &call);
    }
    if (rc == 0 && now.sleep_unknown && !w->engine->sleep_told)
        rc = ws_error_set(
            &w->err, EAGAIN,
            "it is paused, and its /metrics do not say whether it sleeps: resume it where it was "
            "paused on purpose, else restart it");
    if (rc == 0) {
        note_way_back(w, &now);
        if (!w->back_path[0])
            find_way_back(w);
    }
    return rc < 0 ? tell_paused(w, start, rc) : 0;
}

int ws_work_pause(struct ws_work *w)
{
    struct ws_engine_call call;
    uint64_t start = ws_clock_ns();
    call_of(w, &call);
    int rc = w->engine->ops->pause(&call.target, &w->err);
    w->paused = rc != -EHOSTUNREACH && rc != -EACCES; /* also when the answer was lost: it is resumed */
    w->paused_ns = ws_clock_ns();
    return tell_paused(w, start, rc);
}

static int load_path(struct ws_work *w, const char *path, const char *version, bool *told)
{
    struct ws_control *c = w->run->control;
    struct ws_engine_call call;
    call_of(w, &call);
    ws_work_set_state(w, WS_ENGINE_LOADING, version, NULL);
    int rc = ws_engine_load(w->engine->ops, &call.target, path, version, told, &w->err);
    w->touched = w->touched || *told;
    w->good = rc == 0;
    pthread_mutex_lock(&c->lock);
    if (*told)
        snprintf(w->engine->path, sizeof(w->engine->path), "%s", rc == 0 ? path : "");
    pthread_mutex_unlock(&c->lock);
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
    struct ws_control *c = w->run->control;
    struct ws_engine_serving now = {0};
    if (*rc == -EHOSTUNREACH)
        return true;
    if (w->engine->ops->serving(t, &now, NULL) < 0)
        return false;
    if (w->engine->ops->tells_paused && !now.paused)
        *rc = 0; /* it did, and the answer was lost */
    pthread_mutex_lock(&c->lock);
    bool same = !w->engine->tells_version || strcmp(now.version, w->engine->version) == 0;
    pthread_mutex_unlock(&c->lock);
    return *rc < 0 && same;
}

/* version: what it was told to load since its pause; NULL: nothing. */
static int resume(struct ws_work *w, const char *version)
{
    struct ws_control *c = w->run->control;
    struct ws_engine_call call;
    int rc = -EIO;
    call_of(w, &call);
    for (int i = 0; i < RESUME_TRIES && rc < 0; i++) {
        rc = w->engine->ops->resume(&call.target, &w->err);
        if (rc < 0 && !may_resume_again(w, &call.target, &rc))
            break;
    }
    if (rc == 0) {
        w->paused = false;
        pthread_mutex_lock(&c->lock);
        w->sleeping = w->engine->sleeping = false;
        pthread_mutex_unlock(&c->lock);
        note_pause(w);
    }
    if (rc == 0 && version && w->engine->tells_version)
        rc = ws_engine_confirm(w->engine->ops, &call.target, version, &w->err);
    return rc;
}

int ws_work_resume(struct ws_work *w)
{
    uint64_t start = ws_clock_ns();
    int rc = resume(w, w->to_mark);
    ws_work_set_state(w,
                      rc == 0     ? WS_ENGINE_SERVING
                      : w->paused ? WS_ENGINE_PAUSED
                                  : WS_ENGINE_UNKNOWN,
                      w->to_mark, rc == 0 ? NULL : w->err.text);
    w->lost = rc < 0;
    tell(w, "resumed", start, rc);
    return rc;
}

void ws_work_run_on(struct ws_work *w)
{
    const struct ws_error why = w->err;
    if (w->ran && w->paused && !w->touched && !w->sleeping)
        (void)resume(w, NULL);
    w->err = why;
}

/* Not every engine says that it is paused: it must not be taken for one that serves. */
static void note_left_paused(struct ws_work *w)
{
    struct ws_control *c = w->run->control;
    pthread_mutex_lock(&c->lock);
    w->engine->doubted = w->engine->doubted || w->paused;
    pthread_mutex_unlock(&c->lock);
}

void ws_work_give_up(struct ws_work *w, const char *why)
{
    enum ws_engine_state state = w->touched && !w->good ? WS_ENGINE_BROKEN
                                 : w->good && w->paused ? WS_ENGINE_PAUSED
                                                        : WS_ENGINE_UNKNOWN;
    struct ws_engine_call call;
    struct ws_engine_serving now = {0};
    call_of(w, &call);
    call.target.cancel[0] = call.target.cancel[1] = call.target.cancel[2] = NULL;
    bool told =
        w->engine->tells_version && w->touched && w->engine->ops->serving(&call.target, &now, NULL) == 0;
    ws_work_set_state(w, state, told ? now.version : NULL, why);
    note_left_paused(w);
}

int ws_work_pause_again(struct ws_work *w)
{
    struct ws_engine_call call;
    call_of(w, &call);
    int rc = w->engine->ops->pause(&call.target, &w->err);
    w->paused = true; /* also when the answer was lost: it is loaded back either way */
    w->paused_ns = ws_clock_ns();
    return rc;
}

/* Back to what it served: nothing to load when it was never told. */
int ws_work_bring_back(struct ws_work *w)
{
    struct ws_error why = w->err;
    uint64_t start = ws_clock_ns();
    const char *version = w->back_version[0] ? w->back_version : "default";
    int rc = w->touched || w->broken ? -EIO : 0;
    bool told = true; /* one that is busy with an earlier load was waited for long enough */
    for (int i = 0; w->touched && w->back_path[0] && i < BACK_TRIES && rc < 0 && told; i++)
        rc = load_path(w, w->back_path, version, &told);
    if (w->touched && rc == 0)
        rc = flush(w);
    if (w->broken && !w->touched)
        ws_error_set(&w->err, EREMOTEIO, "it has had no good weights since an earlier switch");
    else if (w->touched && !w->back_path[0])
        ws_error_set(&w->err, EREMOTEIO, "it never said what it served before");
    const bool stays = w->doubted && !w->touched; /* paused, for the keeper to bring along */
    if (rc == 0 && w->paused && !stays && (w->touched || !w->sleeping)) /* else it sleeps on */
        rc = resume(w, w->touched ? version : NULL);
    w->not_back = rc < 0;
    if (rc == 0 && stays) {
        ws_work_set_state(w, WS_ENGINE_PAUSED, NULL, "it was left in the middle of an earlier switch");
    } else if (rc == 0) {
        ws_work_set_state(w, WS_ENGINE_SERVING, w->back_version, NULL);
    } else {
        struct ws_engine_call call;
        struct ws_engine_serving now;
        call_of(w, &call);
        bool there = w->engine->ops->serving(&call.target, &now, NULL) == 0;
        char text[WS_ERROR_TEXT + 64];
        snprintf(text, sizeof(text), "%s: %.800s", there ? "restart it" : "it does not answer", w->err.text);
        ws_work_set_state(w, there ? WS_ENGINE_BROKEN : WS_ENGINE_UNKNOWN, NULL, text);
        if (!there)
            note_left_paused(w);
    }
    tell(w, "brought-back", start, rc);
    w->err = why;
    return rc;
}
