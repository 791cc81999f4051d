/* The switch as a state machine. Engines work in parallel inside a step, one thread each; between steps all
 * of them are waited for.
 *
 *     prepare (pull, verify) -- fails --> nothing was touched
 *        v
 *     gate (layout)          -- differs -> nothing was touched: no engine ever hears of it
 *        v
 *     .- pause  (asks first) -- an engine fails --.
 *     |  v                                        |   fewer are left than the commit setting asks for:
 *     |  load, confirm       -- an engine fails --+-----> back: those that may have changed are paused and
 * load what |  v                                        |       they served (twice at most), then resume; one
 * without
 *     '- resume              -- an engine fails --'       good weights stays paused and is called broken
 *        v                                        |   else: it is retired: it stays out of service until it
 * is move current, report                               caught up, and the others go on
 *
 * commit=all and commit=quorum=N take all engines at once, commit=rolling=K at most K at a time, the lost
 * ones counted, and engines of one group together. An engine in doubt (timed out, connection lost after the
 * request) is asked what it serves before anything is decided. An engine is never resumed before a load that
 * it confirmed. */
#include "fs/switch.h"
#include "fs/gate.h"
#include "fs/settings.h"
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
#define WAIT_STEP_US 50000
#define ENDING_MS    30000 /* of a way back while the mount ends */
#define STACK_BYTES  (256UL << 10)

/* One engine in a switch. */
struct work {
    struct run *run;
    struct ws_desk *desk;
    struct ws_engine *engine;
    unsigned batch;
    char to_path[PATH_MAX], to_version[64];
    char back_path[PATH_MAX], back_version[64];
    bool chosen;   /* takes part in the next step */
    bool paused;   /* by us, and not resumed */
    bool touched;  /* a load was asked for */
    bool sleeping; /* by its words before the pause */
    bool lost;     /* failed; what follows goes on without it, or back */
    bool broken; /* had no good weights when the switch began: only a load that it confirms lets it be resumed
                  */
    uint64_t paused_ns;
    int rc;
    struct ws_error err;
};

struct run {
    struct ws_control *control;
    const struct ws_switch_options *options;
    uint64_t deadline_ns;
    bool going_back;
    struct work *works;
    size_t n;
    unsigned n_batches;
};

/* --- an end that comes from outside --- */

static uint64_t deadline_of(const struct ws_switch_options *o)
{
    return ws_time_mono_ns() + (o->deadline_s ? o->deadline_s : WS_SWITCH_DEADLINE_S) * 1000000000UL;
}

static int check_end(struct run *r, const struct ws_desk *d, struct ws_error *err)
{
    const struct ws_switch_options *o = r->options;
    if (atomic_load(&r->control->stop))
        return ws_error_set(err, ECANCELED, "the mount is ending");
    if ((o->cancel && atomic_load(o->cancel)) || (d && atomic_load(&d->cancel)))
        return ws_error_set(err, EINTR, "the switch was cancelled");
    if (ws_time_mono_ns() > r->deadline_ns)
        return ws_error_set(err, ETIMEDOUT, "the switch took longer than its deadline");
    return 0;
}

static void call_of(struct work *w, struct ws_engine_call *call)
{
    struct run *r = w->run;
    uint64_t now = ws_time_mono_ns();
    ws_engine_call_of(w->engine, r->control, call);
    call->target.sleeping = w->sleeping;
    if (r->going_back) { /* engines are not left half-way because somebody lost patience */
        call->target.cancel[0] = NULL;
        if (atomic_load(&r->control->stop) && call->target.timeout_ms > ENDING_MS)
            call->target.timeout_ms = ENDING_MS;
        return;
    }
    call->target.cancel[1] = r->options->cancel;
    call->target.cancel[2] = &w->desk->cancel;
    uint64_t left_ms = now < r->deadline_ns ? (r->deadline_ns - now) / 1000000 + 1 : 1;
    if (left_ms < call->target.timeout_ms)
        call->target.timeout_ms = (unsigned)left_ms;
}

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

/* Runs fn for those engines of a batch; how many failed. */
static size_t each(struct run *r, unsigned batch, bool (*when)(const struct work *w),
                   int (*fn)(struct work *w))
{
    struct step *steps = calloc(r->n + 1, sizeof(*steps));
    pthread_t *threads = calloc(r->n + 1, sizeof(*threads));
    bool *started = calloc(r->n + 1, sizeof(*started));
    pthread_attr_t attr;
    size_t failed = 0;
    for (size_t i = 0; i < r->n; i++)
        r->works[i].chosen = r->works[i].batch == batch && when(&r->works[i]);
    pthread_attr_init(&attr);
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    for (size_t i = 0; i < r->n; i++) {
        if (!r->works[i].chosen)
            continue;
        if (steps && threads && started) {
            steps[i] = (struct step){&r->works[i], fn};
            started[i] = pthread_create(&threads[i], &attr, run_step, &steps[i]) == 0;
        }
        if (!started || !started[i])
            r->works[i].rc = fn(&r->works[i]);
    }
    for (size_t i = 0; i < r->n; i++) {
        if (started && started[i])
            pthread_join(threads[i], NULL);
        failed += r->works[i].chosen && r->works[i].rc < 0;
    }
    pthread_attr_destroy(&attr);
    free(steps);
    free(threads);
    free(started);
    return failed;
}

static void set_state(struct work *w, enum ws_engine_state state, const char *version, const char *error)
{
    struct ws_control *c = w->run->control;
    pthread_mutex_lock(&c->lock);
    w->engine->state = state;
    if (state == WS_ENGINE_SERVING)
        w->engine->doubted = false;
    if (version)
        snprintf(w->engine->version, sizeof(w->engine->version), "%s", version);
    snprintf(w->engine->error, sizeof(w->engine->error), "%s", error ? error : "");
    pthread_mutex_unlock(&c->lock);
}

static void tell(struct work *w, const char *phase, uint64_t start_ns, int rc)
{
    ws_desk_event(w->run->control, w->desk,
                  "%s model=%s version=%s engine=%s seconds=%.3f result=%s%s%.300s%s", phase, w->desk->name,
                  w->to_version, w->engine->name, (double)(ws_time_mono_ns() - start_ns) * 1e-9,
                  rc < 0 ? ws_errno_name(-rc) : "ok", rc < 0 ? " why=\"" : "", rc < 0 ? w->err.text : "",
                  rc < 0 ? "\"" : "");
}

/* --- one engine --- */

/* Does it serve something else than what we left it with? */
static bool is_another(struct work *w, const struct ws_engine_serving *now)
{
    struct ws_control *c = w->run->control;
    pthread_mutex_lock(&c->lock);
    bool another = w->engine->ops->tells_version && strcmp(now->version, w->engine->version) != 0;
    pthread_mutex_unlock(&c->lock);
    return another;
}

/* What it serves now: by its own words, or by ours where it has none. */
static void note_way_back(struct work *w, const struct ws_engine_serving *now)
{
    struct ws_control *c = w->run->control;
    const struct ws_engine *e = w->engine;
    w->sleeping = now->sleeping;
    pthread_mutex_lock(&c->lock);
    w->broken = e->state == WS_ENGINE_BROKEN;
    snprintf(w->back_path, sizeof(w->back_path), "%s", e->ops->tells_path ? now->path : e->path);
    snprintf(w->back_version, sizeof(w->back_version), "%s",
             e->ops->tells_version ? now->version : e->version);
    pthread_mutex_unlock(&c->lock);
}

static int ask_and_pause(struct work *w)
{
    struct ws_engine_call call;
    struct ws_engine_serving now = {0};
    uint64_t start = ws_time_mono_ns();
    call_of(w, &call);
    int rc = w->engine->ops->serving(&call.target, &now, &w->err);
    if (rc == 0 && is_another(w, &now)) { /* restarted since: it may be of another release, too */
        rc = ws_engine_ask(w->engine, w->run->control, call.target.timeout_ms, &now, &w->err);
        call_of(w, &call);
    }
    if (rc == 0) {
        note_way_back(w, &now);
        rc = w->engine->ops->pause(&call.target, &w->err);
        w->paused = rc != -EHOSTUNREACH; /* also when the answer was lost: it is resumed either way */
        w->paused_ns = ws_time_mono_ns();
    }
    if (rc < 0) {
        set_state(w, WS_ENGINE_UNKNOWN, NULL, w->err.text);
        w->lost = true;
    } else {
        set_state(w, WS_ENGINE_PAUSED, NULL, NULL);
    }
    tell(w, "paused", start, rc);
    return rc;
}

/* Loads and, when the answer was lost, asks. */
static int load_path(struct work *w, const char *path, const char *version)
{
    struct ws_control *c = w->run->control;
    const struct ws_engine_ops *ops = w->engine->ops;
    struct ws_engine_call call;
    struct ws_engine_serving now = {0};
    call_of(w, &call);
    set_state(w, WS_ENGINE_LOADING, version, NULL);
    int rc = ops->load(&call.target, path, version, &w->err);
    if (rc == -ETIMEDOUT || rc == -ECONNRESET || rc == -ECANCELED) {
        call.target.cancel[0] = call.target.cancel[1] = call.target.cancel[2] = NULL;
        if (ops->tells_version && ops->serving(&call.target, &now, NULL) == 0 &&
            strcmp(now.version, version) == 0 && (!ops->tells_path || strcmp(now.path, path) == 0))
            rc = 0;
    }
    pthread_mutex_lock(&c->lock);
    snprintf(w->engine->path, sizeof(w->engine->path), "%s", rc == 0 ? path : "");
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static int load_new(struct work *w)
{
    uint64_t start = ws_time_mono_ns();
    int rc = load_path(w, w->to_path, w->to_version);
    w->touched = rc != -EHOSTUNREACH; /* that one never heard of it */
    w->lost = rc < 0;
    tell(w, "loaded", start, rc);
    return rc;
}

static void note_pause(struct work *w)
{
    struct ws_control *c = w->run->control;
    double seconds = (double)(ws_time_mono_ns() - w->paused_ns) * 1e-9;
    size_t b = 0;
    while (b < WS_PAUSE_BUCKETS && seconds > ws_pause_bounds[b])
        b++;
    pthread_mutex_lock(&c->lock);
    w->engine->pause_seconds = seconds;
    w->desk->pauses[b]++;
    w->desk->pause_sum += seconds;
    pthread_mutex_unlock(&c->lock);
}

static int resume(struct work *w)
{
    const struct ws_engine_ops *ops = w->engine->ops;
    struct ws_engine_call call;
    struct ws_engine_serving now = {0};
    int rc = -EIO;
    call_of(w, &call);
    for (int i = 0; i < RESUME_TRIES && rc < 0; i++) {
        rc = ops->resume(&call.target, &w->err);
        if (rc < 0 && ops->tells_paused && ops->serving(&call.target, &now, NULL) == 0 && !now.paused)
            rc = 0; /* it did, and the answer was lost */
    }
    if (rc == 0) {
        w->paused = false;
        note_pause(w);
    }
    return rc;
}

static int resume_new(struct work *w)
{
    uint64_t start = ws_time_mono_ns();
    int rc = resume(w);
    set_state(w, rc == 0 ? WS_ENGINE_SERVING : WS_ENGINE_PAUSED, w->to_version, rc == 0 ? NULL : w->err.text);
    w->lost = rc < 0;
    tell(w, "resumed", start, rc);
    return rc;
}

static int pause_again(struct work *w)
{
    struct ws_engine_call call;
    call_of(w, &call);
    int rc = w->engine->ops->pause(&call.target, &w->err);
    w->paused = true; /* also when the answer was lost: it is loaded back either way */
    w->paused_ns = ws_time_mono_ns();
    return rc;
}

/* Back to what it served: nothing to load when it was never told. */
static int bring_back(struct work *w)
{
    struct ws_error why = w->err;
    uint64_t start = ws_time_mono_ns();
    int rc = w->touched || w->broken ? -EIO : 0;
    for (int i = 0; w->touched && w->back_path[0] && i < BACK_TRIES && rc < 0; i++)
        rc = load_path(w, w->back_path, w->back_version[0] ? w->back_version : "default");
    if (w->broken && !w->touched)
        ws_error_set(&w->err, EREMOTEIO, "it has had no good weights since an earlier switch");
    else if (w->touched && !w->back_path[0])
        ws_error_set(&w->err, EREMOTEIO, "it never said what it served before");
    if (rc == 0)
        rc = w->paused ? resume(w) : 0;
    if (rc == 0) {
        set_state(w, WS_ENGINE_SERVING, w->back_version, NULL);
    } else {
        struct ws_engine_call call;
        struct ws_engine_serving now;
        call_of(w, &call);
        bool there = w->engine->ops->serving(&call.target, &now, NULL) == 0;
        char text[WS_ERROR_TEXT + 64];
        snprintf(text, sizeof(text), "%s: %.800s", there ? "restart it" : "it does not answer", w->err.text);
        set_state(w, there ? WS_ENGINE_BROKEN : WS_ENGINE_UNKNOWN, NULL, text);
    }
    tell(w, "brought-back", start, rc);
    w->err = why;
    return rc;
}

/* --- one batch after the other, there and back --- */

static bool is_going(const struct work *w)
{
    return !w->lost;
}

static bool was_resumed(const struct work *w)
{
    return w->touched && !w->paused;
}

static bool has_changed(const struct work *w)
{
    return w->paused || w->touched;
}

static int go_back(struct run *r, unsigned last_batch, const struct work *first, const char *what,
                   struct ws_error *err)
{
    int code = first->err.code ? first->err.code : EREMOTEIO;
    ws_error_set(
        err, code,
        "engine %s (%s) %s version %s: %.700s; every engine was brought back where that was possible",
        first->engine->name, first->engine->url, what, first->to_version, first->err.text);
    r->going_back = true;
    for (unsigned b = last_batch + 1; b-- > 0;) {
        (void)each(r, b, was_resumed, pause_again);
        (void)each(r, b, has_changed, bring_back);
    }
    return -code;
}

/* May the switch go on with the engines that are left? */
static bool is_enough(const struct run *r)
{
    size_t lost[2] = {0};
    for (size_t i = 0; i < r->n; i++) { /* a barrier over several models is always all or none */
        const struct ws_desk *d = r->works[i].desk;
        if (!r->works[i].lost)
            continue;
        if (d->commit == WS_COMMIT_ALL || d != r->works[0].desk)
            return false;
        lost[0]++;
    }
    if (lost[0] == 0)
        return true;
    const struct ws_desk *d = r->works[0].desk;
    return d->commit == WS_COMMIT_QUORUM ? r->n - lost[0] >= d->commit_n
                                         : lost[0] < d->commit_n && lost[0] < r->n;
}

static const struct work *first_lost(const struct run *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->works[i].lost && r->works[i].rc < 0)
            return &r->works[i];
    return &r->works[0];
}

static void retire(struct run *r)
{
    for (size_t i = 0; i < r->n; i++) {
        struct work *w = &r->works[i];
        char text[WS_ERROR_TEXT + 64];
        if (!w->lost)
            continue;
        snprintf(text, sizeof(text), "left out of version %s, brought along when it answers: %.800s",
                 w->to_version, w->err.text);
        set_state(w, w->touched ? WS_ENGINE_BROKEN : WS_ENGINE_UNKNOWN, NULL, text);
        ws_desk_event(r->control, w->desk, "retired model=%s version=%s engine=%s", w->desk->name,
                      w->to_version, w->engine->name);
    }
}

static int drive(struct run *r, struct ws_error *err)
{
    static const struct {
        int (*fn)(struct work *w);
        const char *failed;
    } steps[] = {{ask_and_pause, "could not be paused for"},
                 {load_new, "did not load"},
                 {resume_new, "did not resume on"}};
    for (unsigned b = 0; b < r->n_batches; b++) {
        for (size_t s = 0; s < sizeof(steps) / sizeof(steps[0]); s++) {
            struct work ended = {.engine = r->works[0].engine};
            snprintf(ended.to_version, sizeof(ended.to_version), "%s", r->works[0].to_version);
            if (s < 2 && check_end(r, r->works[0].desk, &ended.err) < 0)
                return go_back(r, b, &ended, "was not told any more of", err);
            if (each(r, b, is_going, steps[s].fn) > 0 && !is_enough(r))
                return go_back(r, b, first_lost(r), steps[s].failed, err);
        }
    }
    retire(r);
    return 0;
}

/* --- before engines are touched --- */

int ws_pull_and_wait(struct ws_control *c, struct ws_version *v, enum ws_priority priority,
                     const struct ws_switch_options *o, struct ws_error *err)
{
    struct run r = {.control = c, .options = o, .deadline_ns = deadline_of(o)};
    for (;;) {
        int rc = ws_version_pull(v, priority, PULL_STEP_MS, o->cancel, err);
        if (rc != -ETIMEDOUT || ws_version_state(v) == WS_FAILED)
            return rc;
        rc = check_end(&r, NULL, err);
        if (rc == -EINTR)
            return ws_error_set(err, EINTR, "the writer was interrupted; the pull goes on in the background");
        if (rc < 0)
            return rc;
    }
}

int ws_switch_prepare(struct ws_control *c, const struct ws_switch_part *p, const struct ws_switch_options *o,
                      struct ws_error *err)
{
    int rc = ws_pull_and_wait(c, p->version, WS_PRIORITY_SWITCH, o, err);
    if (rc == 0 && !o->force_layout)
        rc = ws_gate(c, p->desk, p->model, p->version, err);
    return rc;
}

static int claim(struct ws_control *c, struct ws_switch_part *parts, size_t n, bool catching_up,
                 struct ws_error *err)
{
    int rc = 0;
    size_t done = 0;
    pthread_mutex_lock(&c->lock);
    for (; rc == 0 && done < n; done++) {
        if (parts[done].desk->switching) {
            /* a person's switch waits for the keeper's, and is refused by a person's */
            rc = ws_error_set(err, parts[done].desk->catching_up ? EAGAIN : EBUSY,
                              "a switch of %s is running already; add wait to wait for its end",
                              parts[done].desk->name);
        } else {
            parts[done].desk->switching = true;
            parts[done].desk->catching_up = catching_up;
            atomic_store(&parts[done].desk->cancel, false);
        }
    }
    for (size_t i = 0; rc < 0 && i + 1 < done; i++)
        parts[i].desk->switching = false;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static int claim_in_time(struct run *r, struct ws_switch_part *parts, size_t n, struct ws_error *err)
{
    for (;;) {
        int rc = claim(r->control, parts, n, false, err);
        if (rc != -EAGAIN && (rc != -EBUSY || !r->options->wait))
            return rc;
        rc = check_end(r, NULL, err);
        if (rc < 0)
            return rc;
        usleep(WAIT_STEP_US);
    }
}

static void let_go(struct ws_control *c, struct ws_switch_part *parts, size_t n, bool counts, bool ok)
{
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < n; i++) {
        parts[i].desk->switching = false;
        if (counts && ok)
            parts[i].desk->switches_ok++;
        else if (counts)
            parts[i].desk->switches_failed++;
    }
    pthread_mutex_unlock(&c->lock);
}

static void add_work(struct run *r, const struct ws_switch_part *p, struct ws_engine *e)
{
    struct work *w = &r->works[r->n++];
    char name[WS_MAX_NAME + 1];
    ws_version_name(p->version, name);
    w->run = r;
    w->desk = p->desk;
    w->engine = e;
    snprintf(w->to_path, sizeof(w->to_path), "%s/%s/%s",
             e->prefix ? e->prefix : r->control->options.mountpoint, ws_model_name(p->model), name);
    snprintf(w->to_version, sizeof(w->to_version), "%" PRIu64, ws_version_number(p->version));
}

/* Engines of one group are never parted. */
static void make_batches(struct run *r)
{
    const struct ws_desk *d = r->n ? r->works[0].desk : NULL;
    unsigned size = d && d->commit == WS_COMMIT_ROLLING ? d->commit_n : UINT_MAX, taken = 0;
    r->n_batches = r->n > 0;
    for (size_t i = 0; i < r->n; i++)
        r->works[i].batch = UINT_MAX;
    for (size_t i = 0; i < r->n; i++) {
        if (r->works[i].batch != UINT_MAX)
            continue;
        if (taken >= size) {
            r->n_batches++;
            taken = 0;
        }
        const char *group = r->works[i].engine->group;
        for (size_t k = i; k < r->n; k++) {
            const char *other = r->works[k].engine->group;
            if (k == i || (group && other && strcmp(group, other) == 0)) {
                r->works[k].batch = r->n_batches - 1;
                taken++;
            }
        }
    }
}

/* engine NULL: all of them. */
static int collect(struct run *r, struct ws_switch_part *parts, size_t n, const char *engine,
                   struct ws_error *err)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += parts[i].desk->n_engines; /* stable: the switch is claimed */
    r->works = calloc(total + 1, sizeof(*r->works));
    if (!r->works)
        return ws_error_set(err, ENOMEM, "no memory for a switch of %zu engines", total);
    for (size_t i = 0; i < n; i++)
        for (struct ws_engine *e = parts[i].desk->engines; e; e = e->next)
            if (!engine || strcmp(e->name, engine) == 0)
                add_work(r, &parts[i], e);
    make_batches(r);
    return 0;
}

static void report(struct ws_control *c, const struct ws_switch_part *p, unsigned n_engines)
{
    char host[256] = "?";
    (void)gethostname(host, sizeof(host) - 1);
    ws_version_report(p->version,
                      json_pack("{s:s,s:s,s:s,s:i,s:b}", "host", host, "mount", c->options.mountpoint, "run",
                                ws_version_run(p->version), "engines", (int)n_engines, "ok", 1));
}

static unsigned n_serving(const struct run *r, const struct ws_desk *d)
{
    unsigned n = 0;
    for (size_t i = 0; i < r->n; i++)
        n += r->works[i].desk == d && !r->works[i].lost;
    return n;
}

static void set_touching(struct ws_control *c, struct ws_switch_part *parts, size_t n, bool touching)
{
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < n; i++)
        parts[i].desk->touching = touching;
    pthread_mutex_unlock(&c->lock);
    ws_settings_save(c);
}

int ws_switch_run(struct ws_control *c, struct ws_switch_part *parts, size_t n,
                  const struct ws_switch_options *o, struct ws_error *err)
{
    struct run r = {.control = c, .options = o, .deadline_ns = deadline_of(o)};
    uint64_t start = ws_time_mono_ns();
    int rc = claim_in_time(&r, parts, n, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n; i++)
        ws_version_keep(parts[i].version, 1);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = ws_switch_prepare(c, &parts[i], o, err);
    if (rc == 0)
        rc = collect(&r, parts, n, NULL, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = check_end(&r, parts[i].desk, err);
    if (rc == 0 && r.n > 0) {
        set_touching(c, parts, n, true); /* a daemon that is killed now knows it when it is back */
        rc = drive(&r, err);
    }
    for (size_t i = 0; rc == 0 && i < n; i++) {
        unsigned serving = n_serving(&r, parts[i].desk);
        ws_model_set_current(parts[i].model, parts[i].version);
        ws_desk_event(c, parts[i].desk,
                      "switched model=%s version=%" PRIu64 " run=%s engines=%u seconds=%.3f",
                      ws_model_name(parts[i].model), ws_version_number(parts[i].version),
                      ws_version_run(parts[i].version), serving, (double)(ws_time_mono_ns() - start) * 1e-9);
        report(c, &parts[i], serving);
    }
    if (rc == 0 || r.n > 0)
        set_touching(c, parts, n, false);
    for (size_t i = 0; i < n; i++)
        ws_version_keep(parts[i].version, -1);
    free(r.works);
    let_go(c, parts, n, true, rc == 0);
    return rc;
}

int ws_switch_catch_up(struct ws_control *c, struct ws_desk *d, struct ws_model *m, const char *engine,
                       struct ws_error *err)
{
    const struct ws_switch_options o = {0};
    struct ws_switch_part part = {.desk = d, .model = m, .version = ws_model_current(m)};
    struct run r = {.control = c, .options = &o, .deadline_ns = deadline_of(&o)};
    if (!part.version)
        return ws_error_set(err, ENOENT, "%s has no current version", ws_model_name(m));
    int rc = claim(c, &part, 1, true, err);
    if (rc == -EAGAIN)
        rc = -EBUSY;
    if (rc == 0) {
        ws_version_keep(part.version, 1);
        rc = ws_pull_and_wait(c, part.version, WS_PRIORITY_SWITCH, &o, err);
        if (rc == 0)
            rc = collect(&r, &part, 1, engine, err);
        if (rc == 0 && r.n == 0)
            rc = ws_error_set(err, ENOENT, "%s has no engine '%s'", d->name, engine);
        if (rc == 0 && (each(&r, 0, is_going, ask_and_pause) > 0 || each(&r, 0, is_going, load_new) > 0 ||
                        each(&r, 0, is_going, resume_new) > 0)) {
            const struct work *w = &r.works[0];
            rc = ws_error_set(err, w->err.code ? w->err.code : EREMOTEIO,
                              "engine %s (%s) could not be brought to version %s: %.800s", w->engine->name,
                              w->engine->url, w->to_version, w->err.text);
            if (w->touched)
                set_state(&r.works[0], WS_ENGINE_BROKEN, NULL, w->err.text);
        }
        free(r.works);
        ws_version_keep(part.version, -1);
        let_go(c, &part, 1, false, rc == 0);
        ws_desk_event(c, d, "caught-up model=%s engine=%s version=%" PRIu64 " result=%s", d->name, engine,
                      ws_version_number(part.version), rc < 0 ? ws_errno_name(-rc) : "ok");
    }
    ws_version_put(part.version);
    return rc;
}
