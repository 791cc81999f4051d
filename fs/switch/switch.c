/* clang-format off */
/* The switch as a state machine. Engines work in parallel inside a step, one thread each; between steps all of them
 * are waited for.
 *
 *     prepare (pull, verify) -- fails ---> nothing was touched
 *        v
 *     gate (layout)          -- differs -> nothing was touched: no engine ever hears of it
 *        v
 *     .- ask what it serves  -- an engine fails --.
 *     |  v                                        |
 *     |  pause               -- an engine fails --|
 *     |  v                                        |
 *     |  load, confirm       -- an engine fails --+--> fewer are left than the commit setting asks for: back
 *     |  v                                        |
 *     |  empty its caches    -- an engine fails --|
 *     |  v                                        |
 *     '- resume              -- an engine fails --'--> else it is retired: out of service until it is caught up
 *        v                                             (reconcile.c), and the others go on
 *     move current, report
 *
 *     back: those that may have changed are paused, load what they served (twice at most), and resume; one that has no
 *     good weights stays paused and is called broken
 *
 * All answer before any is paused: one that hangs costs the others no pause.
 * commit=all and commit=quorum=N take all engines at once, commit=rolling=K at most K at a time, the lost ones counted,
 * and engines of one group together. An engine in doubt (timed out, connection lost after the request) is asked what it
 * serves before anything is decided. An engine is never resumed before a load that it confirmed. */
/* clang-format on */
#include "fs/switch/switch.h"
#include "fs/switch/engine_steps.h"
#include "fs/switch/gate.h"
#include "fs/switch/peer_mounts.h"
#include "fs/switch/presence.h"
#include "fs/switch/settings.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PULL_STEP_MS 250
#define WAIT_STEP_US 50000

/* What is done with each engine, in this order. */
static const struct {
    int (*fn)(struct ws_work *w);
    const char *failed; /* "engine a ... version 42" */
} steps[] = {{ws_work_ask, "could not be told of"},
             {ws_work_pause, "could not be paused for"},
             {ws_work_load, "did not load"},
             {ws_work_flush, "did not empty its caches for"},
             {ws_work_resume, "did not resume on"}};
#define N_STEPS (sizeof(steps) / sizeof(steps[0]))

/* --- an end that comes from outside --- */

static uint64_t deadline_of(const struct ws_switch_options *o)
{
    return ws_clock_ns() + (o->deadline_s ? o->deadline_s : WS_SWITCH_DEADLINE_S) * WS_SECOND_NS;
}

/* EINTR is for a writer that got a signal: from Python others would write the command again. */
static int check_end(struct ws_switch_run *r, struct ws_error *err)
{
    const struct ws_switch_options *o = r->options;
    if (atomic_load(&r->control->stop))
        return ws_error_set(err, ECANCELED, "the mount is ending");
    if (o->cancel && atomic_load(o->cancel))
        return ws_error_set(err, EINTR, "the writer was interrupted");
    for (size_t i = 0; i < r->n_parts; i++)
        if (atomic_load(&r->parts[i].desk->cancel))
            return ws_error_set(err, ECANCELED, "the switch was cancelled");
    if (ws_clock_ns() > r->deadline_ns)
        return ws_error_set(err, ETIMEDOUT, "the switch took longer than its deadline");
    return 0;
}

/* --- one batch after the other, there and back --- */

static bool is_going(const struct ws_work *w)
{
    return !w->lost;
}

/* Names, with commas between; those that find no room are counted. */
static bool name_lost(const struct ws_switch_run *r, char *out, size_t cap)
{
    size_t n = 0, more = 0;
    out[0] = 0;
    for (size_t i = 0; i < r->n; i++) {
        if (!r->works[i].not_back)
            continue;
        const char *name = r->works[i].engine->name;
        if (n + strlen(name) + 40 < cap)
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", name);
        else
            more++;
    }
    if (more > 0)
        snprintf(out + n, cap - n, "%s%zu more", n ? " and " : "", more);
    return n + more > 0;
}

static int go_back(struct ws_switch_run *r, unsigned last_batch, const struct ws_work *first,
                   const char *what, struct ws_error *err)
{
    const int code = first->err.code ? first->err.code : EREMOTEIO;
    const struct ws_error why = first->err;
    char lost[300];
    r->going_back = true;
    for (unsigned b = last_batch + 1; b-- > 0;) {
        (void)ws_work_each(r, b, ws_work_was_resumed, ws_work_pause_again);
        (void)ws_work_each(r, b, ws_work_has_changed, ws_work_bring_back);
    }
    ws_error_set(err, code, "engine %s (%s) %s version %s: %.500s; %s%s", first->engine->name,
                 first->engine->url, what, first->to_version, why.text,
                 name_lost(r, lost, sizeof(lost)) ? "not brought back, and left as `engines` says: "
                                                  : "every engine was brought back",
                 lost);
    return -code;
}

/* May the switch go on with the engines that are left? */
static bool has_mates(const struct ws_switch_run *r, const struct ws_work *w)
{
    const char *group = w->engine->group;
    for (size_t i = 0; group && i < r->n; i++)
        if (&r->works[i] != w && r->works[i].engine->group && strcmp(r->works[i].engine->group, group) == 0)
            return true;
    return false;
}

static bool is_enough(const struct ws_switch_run *r)
{
    size_t lost = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct ws_desk *d = r->works[i].desk;
        if (!r->works[i].lost)
            continue;
        if (r->n_parts > 1) /* a barrier over several models is always all or none */
            return false;
        if (d->commit == WS_COMMIT_ALL || has_mates(r, &r->works[i]))
            return false; /* engines of one group are never parted */
        lost++;
    }
    return r->n == 0 || ws_desk_is_enough(r->works[0].desk, r->n, lost);
}

static const struct ws_work *first_lost(const struct ws_switch_run *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->works[i].lost && r->works[i].rc < 0)
            return &r->works[i];
    return &r->works[0];
}

static void retire(struct ws_switch_run *r)
{
    for (size_t i = 0; i < r->n; i++) {
        struct ws_work *w = &r->works[i];
        char text[WS_ERROR_TEXT + 64];
        if (!w->lost)
            continue;
        snprintf(text, sizeof(text), "left out of version %s, brought along when it answers: %.800s",
                 w->to_version, w->err.text);
        ws_work_give_up(w, text);
        ws_desk_event(r->control, w->desk, "retired model=%s version=%s engine=%s", w->desk->name,
                      w->to_version, w->engine->name);
    }
}

/* Those that are next, as many as may be out of service beside the lost ones; engines of one group are never
 * parted. false: nobody is left. */
static bool make_batch(struct ws_switch_run *r, unsigned batch)
{
    const struct ws_desk *d = r->works[0].desk;
    size_t room = SIZE_MAX, taken = 0;
    if (d->commit == WS_COMMIT_ROLLING)
        room = d->commit_n;
    for (size_t i = 0; d->commit == WS_COMMIT_ROLLING && i < r->n; i++)
        room -= r->works[i].lost;
    for (size_t i = 0; i < r->n && taken < room; i++) {
        const char *group = r->works[i].engine->group;
        if (r->works[i].batch != UINT_MAX)
            continue;
        for (size_t k = i; k < r->n; k++) {
            const char *other = r->works[k].engine->group;
            if (k == i || (group && other && strcmp(group, other) == 0)) {
                r->works[k].batch = batch;
                taken++;
            }
        }
    }
    return taken > 0;
}

static int drive(struct ws_switch_run *r, struct ws_error *err)
{
    for (size_t i = 0; i < r->n; i++)
        r->works[i].batch = UINT_MAX;
    for (unsigned b = 0; make_batch(r, b); b++) {
        for (size_t s = 0; s < N_STEPS; s++) {
            struct ws_work ended = {.engine = r->works[0].engine};
            snprintf(ended.to_version, sizeof(ended.to_version), "%s", r->works[0].to_version);
            if (s + 1 < N_STEPS && check_end(r, &ended.err) < 0)
                return go_back(r, b, &ended, "was not told any more of", err);
            if (ws_work_each(r, b, is_going, steps[s].fn) > 0 && !is_enough(r))
                return go_back(r, b, first_lost(r), steps[s].failed, err);
        }
    }
    retire(r);
    return 0;
}

/* --- before engines are touched --- */

static int pull(struct ws_switch_run *r, struct ws_version *v, enum ws_priority priority,
                struct ws_error *err)
{
    for (;;) {
        int rc = ws_version_pull(v, priority, PULL_STEP_MS, r->options->cancel, err);
        if (rc != -EAGAIN)
            return rc;
        rc = check_end(r, err);
        if (rc == -EINTR)
            return ws_error_set(err, EINTR, "the writer was interrupted; the pull goes on in the background");
        if (rc < 0)
            return rc;
    }
}

int ws_pull_and_wait(struct ws_control *c, struct ws_version *v, enum ws_priority priority,
                     const struct ws_switch_options *o, struct ws_error *err)
{
    struct ws_switch_run r = {.control = c, .options = o, .deadline_ns = deadline_of(o)};
    return pull(&r, v, priority, err);
}

static int fetch_served(void *arg, struct ws_version *served, struct ws_error *err)
{
    return pull(arg, served, WS_PRIORITY_SWITCH, err);
}

static int prepare(struct ws_switch_run *r, const struct ws_switch_part *p, struct ws_error *err)
{
    int rc = pull(r, p->version, WS_PRIORITY_SWITCH, err);
    if (rc == 0 && !r->options->force_layout)
        rc = ws_gate_pass(
            &(struct ws_gate){.model = p->model, .version = p->version, .fetch = fetch_served, .arg = r},
            r->control, p->desk, err);
    if (rc == 0)
        rc = ws_neighbours_wait(r->control, p, r->options, err);
    return rc;
}

int ws_switch_prepare(struct ws_control *c, const struct ws_switch_part *p, const struct ws_switch_options *o,
                      struct ws_error *err)
{
    struct ws_switch_run r = {.control = c, .options = o, .deadline_ns = deadline_of(o)};
    return prepare(&r, p, err);
}

/* *by_keeper: -EBUSY is the keeper's doing, which a person's switch waits for. */
static int claim(struct ws_control *c, struct ws_switch_part *parts, size_t n, bool catching_up,
                 bool *by_keeper, struct ws_error *err)
{
    int rc = 0;
    size_t done = 0;
    pthread_mutex_lock(&c->lock);
    for (; rc == 0 && done < n; done++) {
        if (parts[done].desk->switching) {
            *by_keeper = parts[done].desk->catching_up;
            rc = ws_error_set(err, EBUSY, "a switch of %s is running already; add wait to wait for its end",
                              parts[done].desk->name);
        } else {
            parts[done].desk->switching = true;
            parts[done].desk->turns++;
            parts[done].desk->catching_up = catching_up;
            atomic_store(&parts[done].desk->cancel, false);
        }
    }
    for (size_t i = 0; rc < 0 && i + 1 < done; i++)
        parts[i].desk->switching = false;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static int claim_in_time(struct ws_switch_run *r, struct ws_switch_part *parts, size_t n,
                         struct ws_error *err)
{
    for (;;) {
        bool by_keeper = false;
        int rc = claim(r->control, parts, n, false, &by_keeper, err);
        if (rc != -EBUSY || !(by_keeper || r->options->wait))
            return rc;
        rc = check_end(r, err);
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
        parts[i].desk->turns++;
        atomic_store(&parts[i].desk->cancel, false); /* nor does it end what is staged next */
        if (ok)
            parts[i].desk->again_ns = 0;
        if (counts && ok) {
            parts[i].desk->wanted.run[0] = 0; /* what was current before is of no use any more */
            parts[i].desk->switches_ok++;
            ws_desk_settle(parts[i].desk, "load");
        } else if (counts) {
            parts[i].desk->switches_failed++;
        }
    }
    pthread_mutex_unlock(&c->lock);
}

static void add_work(struct ws_switch_run *r, const struct ws_switch_part *p, struct ws_engine *e)
{
    struct ws_work *w = &r->works[r->n++];
    w->run = r;
    w->desk = p->desk;
    w->engine = e;
    ws_work_path_of(w, p->model, p->version, w->to_path);
    const struct ws_mark mark = ws_version_mark(p->version);
    snprintf(w->to_version, sizeof(w->to_version), "%" PRIu64, mark.version);
    ws_mark_text(&mark, w->to_mark);
}

/* Engines that drive themselves are not ours to drive. Nobody adds or removes one while the switch is
 * claimed. */
static int check_kinds(const struct ws_switch_part *parts, size_t n, struct ws_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (ws_desk_is_external(parts[i].desk))
            return ws_error_set(err, EOPNOTSUPP,
                                "the engines of %s are external: stage %" PRIu64
                                ", let their framework load it, then write loaded %" PRIu64 " to ctl",
                                parts[i].desk->name, ws_version_number(parts[i].version),
                                ws_version_number(parts[i].version));
    return 0;
}

static bool is_named(const struct ws_engine *e, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(e->name, names[i]) == 0)
            return true;
    return names == NULL;
}

/* names NULL: all engines. */
static int collect(struct ws_switch_run *r, struct ws_switch_part *parts, size_t n, const char *const *names,
                   size_t n_names, struct ws_error *err)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += parts[i].desk->n_engines; /* stable: the switch is claimed */
    r->n = 0;
    r->works = calloc(total + 1, sizeof(*r->works));
    r->chosen = calloc(total + 1, sizeof(*r->chosen));
    if (!r->works || !r->chosen)
        return ws_error_set(err, ENOMEM, "no memory for a switch of %zu engines", total);
    for (size_t i = 0; i < n; i++)
        for (struct ws_engine *e = parts[i].desk->engines; e; e = e->next)
            if (is_named(e, names, n_names))
                add_work(r, &parts[i], e);
    return 0;
}

/* The first switch ever of a model: should this daemon be killed in it, the next one finds nothing that it
 * could bring engines back to, and brings them to what was asked for. */
static void wish(struct ws_control *c, struct ws_switch_part *p)
{
    struct ws_version *current = ws_model_current(p->model);
    pthread_mutex_lock(&c->lock);
    p->is_wished = !current && !p->desk->wanted.run[0];
    if (p->is_wished)
        p->desk->wanted = ws_version_mark(p->version);
    pthread_mutex_unlock(&c->lock);
    if (current)
        ws_version_put(current);
}

/* It failed. An end of the mount that left engines in the middle of it is no different from a daemon's death.
 */
static void take_back_wish(const struct ws_switch_run *r, struct ws_switch_part *p)
{
    bool left = false;
    for (size_t i = 0; atomic_load(&r->control->stop) && i < r->n; i++)
        left = left || (r->works[i].desk == p->desk && r->works[i].not_back);
    pthread_mutex_lock(&r->control->lock);
    if (p->is_wished && !left)
        p->desk->wanted.run[0] = 0;
    pthread_mutex_unlock(&r->control->lock);
}

static unsigned n_serving(const struct ws_switch_run *r, const struct ws_desk *d)
{
    unsigned n = 0;
    for (size_t i = 0; i < r->n; i++)
        n += r->works[i].desk == d && !r->works[i].lost;
    return n;
}

int ws_switch_run(struct ws_control *c, struct ws_switch_part *parts, size_t n,
                  const struct ws_switch_options *o, struct ws_error *err)
{
    struct ws_switch_run r = {.control = c, .options = o, .deadline_ns = deadline_of(o)};
    uint64_t start = ws_clock_ns();
    bool drove = false;
    int rc = claim_in_time(&r, parts, n, err);
    if (rc < 0)
        return rc;
    r.parts = parts;
    r.n_parts = n;
    size_t held = 0;
    for (; rc == 0 && held < n; held += rc == 0)
        rc = ws_version_hold(parts[held].version, err);
    if (rc == 0)
        rc = check_kinds(parts, n, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = prepare(&r, &parts[i], err);
    if (rc == 0)
        rc = collect(&r, parts, n, NULL, 0, err);
    if (rc == 0)
        rc = check_end(&r, err);
    if (rc == 0 && (drove = r.n > 0)) {
        for (size_t i = 0; i < n; i++)
            wish(c, &parts[i]);
        ws_work_begin(&r);
        rc = drive(&r, err);
        for (size_t i = 0; rc < 0 && i < n; i++)
            take_back_wish(&r, &parts[i]);
    }
    for (size_t i = 0; rc == 0 && i < n; i++) {
        unsigned serving = n_serving(&r, parts[i].desk);
        ws_model_set_current(parts[i].model, parts[i].version);
        ws_desk_event(c, parts[i].desk,
                      "switched model=%s version=%" PRIu64 " run=%s engines=%u seconds=%.3f",
                      ws_model_name(parts[i].model), ws_version_number(parts[i].version),
                      ws_version_run(parts[i].version), serving, (double)(ws_clock_ns() - start) * 1e-9);
        const struct ws_mark mark = ws_version_mark(parts[i].version);
        ws_standing_report(c, parts[i].desk, parts[i].model, &mark, "loaded", NULL);
    }
    if (drove)
        ws_work_over(&r);
    else if (rc == 0)
        ws_settings_save(c);
    for (size_t i = 0; i < held; i++)
        ws_version_let_go(parts[i].version);
    free(r.chosen);
    free(r.works);
    let_go(c, parts, n, true, rc == 0);
    return rc;
}

/* --- what a daemon before had left --- */

int ws_switch_restore(struct ws_control *c, struct ws_switch_part *part, struct ws_error *err)
{
    bool by_keeper;
    int rc = claim(c, part, 1, true, &by_keeper, err);
    if (rc < 0)
        return rc;
    struct ws_version *current = ws_model_current(part->model);
    const struct ws_mark mark = ws_version_mark(part->version);
    pthread_mutex_lock(&c->lock);
    if (current)
        part->desk->wanted.run[0] = 0; /* somebody has decided otherwise */
    bool wanted = ws_mark_is(&part->desk->wanted, &mark);
    pthread_mutex_unlock(&c->lock);
    if (current)
        ws_version_put(current);
    rc = wanted ? ws_version_hold(part->version, err)
                : ws_error_set(err, EEXIST, "%s was switched meanwhile", part->desk->name);
    if (rc == 0) {
        ws_model_set_current(part->model, part->version);
        pthread_mutex_lock(&c->lock);
        part->desk->wanted.run[0] = 0;
        pthread_mutex_unlock(&c->lock);
        ws_version_let_go(part->version);
    }
    let_go(c, part, 1, false, rc == 0);
    return rc;
}

/* --- catching up --- */

static int catch_up_one(struct ws_work *w)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < N_STEPS; i++)
        rc = steps[i].fn(w);
    if (rc == 0)
        return 0;
    ws_work_run_on(w);
    ws_work_give_up(w, w->err.text);
    return rc;
}

static int catch_up(struct ws_switch_run *r, struct ws_switch_part *part, const char *const *names, size_t n,
                    struct ws_error *err)
{
    size_t failed = 0;
    int rc = check_kinds(part, 1, err);
    if (rc == 0)
        rc = pull(r, part->version, WS_PRIORITY_SWITCH, err);
    if (rc == 0)
        rc = collect(r, part, 1, names, n, err);
    if (rc == 0 && r->n == 0)
        rc = ws_error_set(err, ENOENT, "%s has no engine '%s'", part->desk->name, names[0]);
    if (rc == 0) {
        ws_work_begin(r);
        failed = ws_work_each(r, 0, is_going, catch_up_one);
        ws_work_over(r);
    }
    if (failed > 0) {
        const struct ws_work *w = first_lost(r);
        rc = ws_error_set(err, w->err.code ? w->err.code : EREMOTEIO,
                          "engine %s (%s) could not be brought to version %s: %.800s", w->engine->name,
                          w->engine->url, w->to_version, w->err.text);
    }
    return rc;
}

int ws_switch_catch_up(struct ws_control *c, struct ws_desk *d, struct ws_model *m, const char *const *names,
                       size_t n, int *results, struct ws_error *err)
{
    const struct ws_switch_options o = {0};
    struct ws_switch_part part = {.desk = d, .model = m};
    struct ws_switch_run r = {
        .control = c, .options = &o, .deadline_ns = deadline_of(&o), .parts = &part, .n_parts = 1};
    bool by_keeper;
    int rc = claim(c, &part, 1, true, &by_keeper, err);
    if (rc == 0) { /* no switch moves current any more */
        part.version = ws_model_current(m);
        rc = part.version ? ws_version_hold(part.version, err)
                          : ws_error_set(err, ENOENT, "%s has no current version", ws_model_name(m));
        if (rc == 0) {
            rc = catch_up(&r, &part, names, n, err);
            ws_version_let_go(part.version);
        }
        let_go(c, &part, 1, false, rc == 0);
    }
    for (size_t i = 0; i < n; i++) {
        int one = r.n == 0 ? rc : -ENOENT;
        for (size_t k = 0; k < r.n; k++)
            if (strcmp(r.works[k].engine->name, names[i]) == 0)
                one = r.works[k].rc;
        if (results)
            results[i] = one;
        if (part.version)
            ws_desk_event(c, d, "caught-up model=%s engine=%s version=%" PRIu64 " result=%s", d->name,
                          names[i], ws_version_number(part.version), one < 0 ? ws_errno_name(-one) : "ok");
    }
    free(r.chosen);
    free(r.works);
    if (part.version)
        ws_version_put(part.version);
    return rc;
}
