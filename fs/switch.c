/* The switch as a state machine. Engines work in parallel inside a step, one thread each; between steps all
 * of them are waited for.
 *
 *     prepare (pull, verify) -- fails --> nothing was touched
 *        v
 *     gate (layout)          -- differs -> nothing was touched: no engine ever hears of it
 *        v
 *     ask and pause          -- fails --> resume those that were paused; nothing changed
 *        v
 *     load, confirm          -- fails --> back: load the old path into every engine that may have changed
 *        v                               (twice at most), resume those that have it; an engine without good
 *     resume                 -- fails --> back     weights stays paused and is called broken
 *        v
 *     move current, report
 *
 * An engine in doubt (timed out, connection lost after the request) is asked what it serves before anything
 * is decided. An engine is never resumed before a load that it confirmed. */
#include "fs/switch.h"
#include "fs/gate.h"
#include "transports/log.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BACK_TRIES   2
#define RESUME_TRIES 3
#define PULL_STEP_MS 250

/* One engine in a switch. */
struct work {
    struct ws_control *control;
    struct ws_desk *desk;
    struct ws_engine *engine;
    const struct ws_switch_part *part;
    char to_path[PATH_MAX], to_version[64];
    char back_path[PATH_MAX], back_version[64];
    bool paused, touched, good; /* touched: a load was asked for; good: confirmed weights are in it */
    uint64_t paused_ns;
    int rc;
    struct ws_error err;
};

struct run {
    struct ws_control *control;
    struct work *works;
    size_t n;
};

/* --- steps in parallel --- */

struct step {
    struct work *work;
    int (*fn)(struct work *w);
};

static void *run_step(void *arg)
{
    struct step *s = arg;
    s->work->rc = s->fn(s->work);
    return NULL;
}

/* Runs fn for every engine for which `when` says so; the first failure's index, or -1. */
static long each(struct run *r, int (*fn)(struct work *w), bool (*when)(const struct work *w))
{
    struct step *steps = calloc(r->n + 1, sizeof(*steps));
    pthread_t *threads = calloc(r->n + 1, sizeof(*threads));
    bool *started = calloc(r->n + 1, sizeof(*started));
    long failed = -1;
    for (size_t i = 0; i < r->n; i++) {
        if (when && !when(&r->works[i])) {
            r->works[i].rc = 0;
            continue;
        }
        if (steps && threads && started) {
            steps[i] = (struct step){&r->works[i], fn};
            started[i] = pthread_create(&threads[i], NULL, run_step, &steps[i]) == 0;
        }
        if (!started || !started[i])
            r->works[i].rc = fn(&r->works[i]);
    }
    for (size_t i = 0; i < r->n; i++) {
        if (started && started[i])
            pthread_join(threads[i], NULL);
        if (r->works[i].rc < 0 && failed < 0)
            failed = (long)i;
    }
    free(steps);
    free(threads);
    free(started);
    return failed;
}

static void set_state(struct work *w, enum ws_engine_state state, const char *version, const char *error)
{
    pthread_mutex_lock(&w->control->lock);
    w->engine->state = state;
    if (version)
        snprintf(w->engine->version, sizeof(w->engine->version), "%s", version);
    snprintf(w->engine->error, sizeof(w->engine->error), "%s", error ? error : "");
    pthread_mutex_unlock(&w->control->lock);
}

/* --- one engine --- */

/* Does it serve something else than what we left it with? */
static bool is_another(struct work *w, const struct ws_engine_serving *now)
{
    pthread_mutex_lock(&w->control->lock);
    bool another = w->engine->ops->tells_version && strcmp(now->version, w->engine->version) != 0;
    pthread_mutex_unlock(&w->control->lock);
    return another;
}

/* What it serves now: by its own words, or by ours where it has none. */
static void note_way_back(struct work *w, const struct ws_engine_serving *now)
{
    const struct ws_engine *e = w->engine;
    pthread_mutex_lock(&w->control->lock);
    snprintf(w->back_path, sizeof(w->back_path), "%s", e->ops->tells_path ? now->path : e->path);
    snprintf(w->back_version, sizeof(w->back_version), "%s",
             e->ops->tells_version ? now->version : e->version);
    pthread_mutex_unlock(&w->control->lock);
}

static int ask_and_pause(struct work *w)
{
    struct ws_engine_call call;
    ws_engine_call_of(w->engine, w->control, &call);
    struct ws_engine_serving now = {0};
    int rc = w->engine->ops->serving(&call.target, &now, &w->err);
    if (rc == 0 && is_another(w, &now)) { /* restarted since: it may be of another release, too */
        rc = ws_engine_ask(w->engine, w->control, w->engine->timeout_ms, &now, &w->err);
        ws_engine_call_of(w->engine, w->control, &call);
    }
    if (rc == 0) {
        note_way_back(w, &now);
        rc = w->engine->ops->pause(&call.target, &w->err);
    }
    if (rc < 0) {
        set_state(w, WS_ENGINE_UNKNOWN, NULL, w->err.text);
        return rc;
    }
    w->paused = true;
    w->paused_ns = ws_time_mono_ns();
    set_state(w, WS_ENGINE_PAUSED, NULL, NULL);
    return 0;
}

/* Loads and, when the answer was lost, asks. */
static int load_path(struct work *w, const char *path, const char *version)
{
    struct ws_engine_call call;
    ws_engine_call_of(w->engine, w->control, &call);
    struct ws_engine_serving now = {0};
    struct ws_error ignored;
    set_state(w, WS_ENGINE_LOADING, version, NULL);
    int rc = w->engine->ops->load(&call.target, path, version, &w->err);
    if (rc == -ETIMEDOUT || rc == -ECONNRESET) {
        const struct ws_engine_ops *ops = w->engine->ops;
        if (ops->tells_version && ops->serving(&call.target, &now, &ignored) == 0 &&
            strcmp(now.version, version) == 0 && (!ops->tells_path || strcmp(now.path, path) == 0))
            rc = 0;
    }
    pthread_mutex_lock(&w->control->lock);
    snprintf(w->engine->path, sizeof(w->engine->path), "%s", rc == 0 ? path : "");
    pthread_mutex_unlock(&w->control->lock);
    return rc;
}

static int load_new(struct work *w)
{
    int rc = load_path(w, w->to_path, w->to_version);
    w->touched = rc != -EHOSTUNREACH; /* that one never heard of it */
    w->good = rc == 0;
    return rc;
}

static int resume(struct work *w)
{
    struct ws_engine_call call;
    ws_engine_call_of(w->engine, w->control, &call);
    struct ws_engine_serving now = {0};
    int rc = -EIO;
    for (int i = 0; i < RESUME_TRIES && rc < 0; i++) {
        rc = w->engine->ops->resume(&call.target, &w->err);
        if (rc < 0 && w->engine->ops->tells_paused &&
            w->engine->ops->serving(&call.target, &now, NULL) == 0 && !now.paused)
            rc = 0; /* it did, and the answer was lost */
    }
    if (rc == 0) {
        double seconds = (double)(ws_time_mono_ns() - w->paused_ns) * 1e-9;
        w->paused = false;
        pthread_mutex_lock(&w->control->lock);
        w->engine->pause_seconds = seconds;
        size_t b = 0;
        while (b < WS_PAUSE_BUCKETS && seconds > ws_pause_bounds[b])
            b++;
        w->desk->pauses[b]++;
        w->desk->pause_sum += seconds;
        pthread_mutex_unlock(&w->control->lock);
    }
    return rc;
}

static int resume_new(struct work *w)
{
    int rc = resume(w);
    set_state(w, rc == 0 ? WS_ENGINE_SERVING : WS_ENGINE_PAUSED, w->to_version, rc == 0 ? NULL : w->err.text);
    return rc;
}

static int pause_again(struct work *w)
{
    struct ws_engine_call call;
    ws_engine_call_of(w->engine, w->control, &call);
    int rc = w->engine->ops->pause(&call.target, &w->err);
    w->paused = true; /* also when the answer was lost: it is loaded back either way */
    w->paused_ns = ws_time_mono_ns();
    return rc;
}

static bool is_running(const struct work *w)
{
    return !w->paused;
}

static bool is_paused(const struct work *w)
{
    return w->paused;
}

/* Back to what it served: nothing to load when it was never told. */
static int bring_back(struct work *w)
{
    struct ws_error why = w->err;
    int rc = w->touched ? -EIO : 0;
    for (int i = 0; w->touched && w->back_path[0] && i < BACK_TRIES && rc < 0; i++)
        rc = load_path(w, w->back_path, w->back_version[0] ? w->back_version : "default");
    if (w->touched && !w->back_path[0])
        ws_error_set(&w->err, EREMOTEIO, "it never said what it served before");
    if (rc == 0)
        rc = w->paused ? resume(w) : 0;
    if (rc == 0) {
        set_state(w, WS_ENGINE_SERVING, w->back_version, NULL);
    } else {
        struct ws_engine_call call;
        ws_engine_call_of(w->engine, w->control, &call);
        struct ws_engine_serving now;
        bool there = w->engine->ops->serving(&call.target, &now, NULL) == 0;
        char text[WS_ERROR_TEXT + 64];
        snprintf(text, sizeof(text), "%s: %.800s", there ? "restart it" : "it does not answer", w->err.text);
        set_state(w, there ? WS_ENGINE_BROKEN : WS_ENGINE_UNKNOWN, NULL, text);
    }
    ws_desk_event(w->control, w->desk, "engine-back model=%s engine=%s version=%s ok=%d", w->desk->name,
                  w->engine->name, w->back_version, rc == 0);
    w->err = why;
    return rc;
}

static int go_back(struct run *r, long failed, const char *what, struct ws_error *err)
{
    struct work *w = &r->works[failed];
    int code = w->rc < 0 ? -w->rc : EREMOTEIO;
    ws_error_set(
        err, code,
        "engine %s (%s) %s version %s: %.700s; every engine was brought back where that was possible",
        w->engine->name, w->engine->url, what, w->to_version, w->err.text);
    (void)each(r, bring_back, is_paused);
    return -code;
}

/* --- before engines are touched --- */

int ws_pull_and_wait(struct ws_control *c, struct ws_version *v, enum ws_priority priority,
                     const atomic_bool *cancel, struct ws_error *err)
{
    for (;;) {
        int rc = ws_version_pull(v, priority, PULL_STEP_MS, cancel, err);
        if (rc != -ETIMEDOUT || ws_version_state(v) == WS_FAILED)
            return rc;
        if (atomic_load(&c->stop))
            return ws_error_set(err, ECANCELED, "the mount is ending");
        if (cancel && atomic_load(cancel))
            return ws_error_set(err, EINTR, "the writer was interrupted; the pull goes on in the background");
    }
}

static int prepare(struct ws_control *c, const struct ws_switch_part *p, bool force,
                   const atomic_bool *cancel, struct ws_error *err)
{
    int rc = ws_pull_and_wait(c, p->version, WS_PRIORITY_SWITCH, cancel, err);
    if (rc == 0 && !force)
        rc = ws_gate(p->model, p->version, err);
    return rc;
}

static int claim(struct ws_control *c, struct ws_switch_part *parts, size_t n, struct ws_error *err)
{
    int rc = 0;
    size_t done = 0;
    pthread_mutex_lock(&c->lock);
    for (; rc == 0 && done < n; done++) {
        if (parts[done].desk->switching)
            rc = ws_error_set(err, EBUSY, "a switch of %s is running already", parts[done].desk->name);
        else
            parts[done].desk->switching = true;
    }
    for (size_t i = 0; rc < 0 && i + 1 < done; i++)
        parts[i].desk->switching = false;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static void let_go(struct ws_control *c, struct ws_switch_part *parts, size_t n, bool ok)
{
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < n; i++) {
        parts[i].desk->switching = false;
        if (ok)
            parts[i].desk->switches_ok++;
        else
            parts[i].desk->switches_failed++;
    }
    pthread_mutex_unlock(&c->lock);
}

static int collect(struct ws_control *c, struct ws_switch_part *parts, size_t n, struct run *r,
                   struct ws_error *err)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += parts[i].desk->n_engines; /* stable: the switch is claimed */
    *r = (struct run){.control = c, .works = calloc(total + 1, sizeof(*r->works))};
    if (!r->works)
        return ws_error_set(err, ENOMEM, "no memory for a switch of %zu engines", total);
    for (size_t i = 0; i < n; i++) {
        char name[WS_MAX_NAME + 1];
        ws_version_name(parts[i].version, name);
        for (struct ws_engine *e = parts[i].desk->engines; e; e = e->next) {
            struct work *w = &r->works[r->n++];
            w->control = c;
            w->desk = parts[i].desk;
            w->engine = e;
            w->part = &parts[i];
            snprintf(w->to_path, sizeof(w->to_path), "%s/%s/%s",
                     e->prefix ? e->prefix : c->options.mountpoint, ws_model_name(parts[i].model), name);
            snprintf(w->to_version, sizeof(w->to_version), "%" PRIu64, ws_version_number(parts[i].version));
        }
    }
    return 0;
}

static int drive(struct run *r, struct ws_error *err)
{
    long failed = each(r, ask_and_pause, NULL);
    if (failed >= 0)
        return go_back(r, failed, "could not be paused for", err);
    failed = each(r, load_new, NULL);
    if (failed >= 0)
        return go_back(r, failed, "did not load", err);
    failed = each(r, resume_new, NULL);
    if (failed >= 0) {
        (void)each(r, pause_again, is_running); /* those that run on the new version must go back too */
        r->works[failed].rc = -EREMOTEIO;
        return go_back(r, failed, "did not resume on", err);
    }
    return 0;
}

static void report(struct ws_control *c, const struct ws_switch_part *p)
{
    char host[256] = "?";
    (void)gethostname(host, sizeof(host) - 1);
    ws_version_report(p->version,
                      json_pack("{s:s,s:s,s:s,s:i,s:b}", "host", host, "mount", c->options.mountpoint, "run",
                                ws_version_run(p->version), "engines", (int)p->desk->n_engines, "ok", 1));
}

int ws_switch_run(struct ws_control *c, struct ws_switch_part *parts, size_t n, bool force,
                  const atomic_bool *cancel, struct ws_error *err)
{
    struct run r = {0};
    uint64_t start = ws_time_mono_ns();
    int rc = claim(c, parts, n, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n; i++)
        ws_version_keep(parts[i].version, 1);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = prepare(c, &parts[i], force, cancel, err);
    if (rc == 0)
        rc = collect(c, parts, n, &r, err);
    if (rc == 0 && cancel && atomic_load(cancel))
        rc = ws_error_set(err, EINTR, "the writer was interrupted before any engine was told");
    if (rc == 0 && r.n > 0)
        rc = drive(&r, err);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        ws_model_set_current(parts[i].model, parts[i].version);
        ws_desk_event(c, parts[i].desk,
                      "switched model=%s version=%" PRIu64 " run=%s engines=%u seconds=%.3f",
                      ws_model_name(parts[i].model), ws_version_number(parts[i].version),
                      ws_version_run(parts[i].version), parts[i].desk->n_engines,
                      (double)(ws_time_mono_ns() - start) * 1e-9);
        report(c, &parts[i]);
    }
    for (size_t i = 0; i < n; i++)
        ws_version_keep(parts[i].version, -1);
    free(r.works);
    let_go(c, parts, n, rc == 0);
    return rc;
}
