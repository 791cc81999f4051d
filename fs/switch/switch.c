/* clang-format off */
/* The switch as a state machine. Engines work in parallel inside a step, one thread each; between steps all of them
 * are waited for.
 *
 *     prepare (pull, verify) -- fails ---> nothing was touched
 *        v
 *     gate (layout)          -- differs -> nothing was touched: engines get no request
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
 * and engines of one group together. An uncertain engine (timed out, connection lost after the request) is asked what it
 * serves before anything is decided. An engine is never resumed before a load that it confirmed. */
/* clang-format on */
#include "fs/switch/switch.h"
#include "fs/switch/engine_steps.h"
#include "fs/switch/freshness.h"
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
    int (*fn)(struct ws_switch_engine *se);
    const char *failed; /* "engine a ... version 42" */
} steps[] = {{ws_engine_step_query, "could not be told of"},
             {ws_engine_step_pause, "could not be paused for"},
             {ws_engine_step_load, "did not load"},
             {ws_engine_step_flush, "did not empty its caches for"},
             {ws_engine_step_resume, "did not resume on"}};
#define N_STEPS (sizeof(steps) / sizeof(steps[0]))

/* --- an end that comes from outside: cancel, deadline, the mount's end --- */

static uint64_t deadline_from(const struct ws_switch_options *o)
{
    return ws_clock_ns() + (o->deadline_s ? o->deadline_s : WS_SWITCH_DEADLINE_S) * WS_SECOND_NS;
}

/* EINTR is only for a writer that got a signal: Python writes the command again after an EINTR. */
static int check_end(struct ws_switch_run *r, struct ws_error *err)
{
    const struct ws_switch_options *o = r->options;
    if (atomic_load(&r->control->stop))
        return ws_error_set(err, ECANCELED, "the mount is ending");
    if (o->cancel && atomic_load(o->cancel))
        return ws_error_set(err, EINTR, "the writer was interrupted");
    for (size_t i = 0; i < r->n_items; i++)
        if (atomic_load(&r->items[i].controller->cancel))
            return ws_error_set(err, ECANCELED, "the switch was cancelled");
    if (ws_clock_ns() > r->deadline_ns)
        return ws_error_set(err, ETIMEDOUT, "the switch took longer than its deadline");
    return 0;
}

void ws_switch_item_release(struct ws_switch_item *item)
{
    if (item->version)
        ws_version_put(item->version);
    if (item->model)
        ws_model_put(item->model);
}

/* --- one batch after the other, there and back --- */

static bool is_going(const struct ws_switch_engine *se)
{
    return !se->lost;
}

/* Names, with commas between; those that find no room are counted. */
static bool name_lost(const struct ws_switch_run *r, char *out, size_t cap)
{
    size_t n = 0, more = 0;
    out[0] = 0;
    for (size_t i = 0; i < r->n; i++) {
        if (!r->engines[i].not_back)
            continue;
        const char *name = r->engines[i].engine->name;
        if (n + strlen(name) + 40 < cap)
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", name);
        else
            more++;
    }
    if (more > 0)
        snprintf(out + n, cap - n, "%s%zu more", n ? " and " : "", more);
    return n + more > 0;
}

static int go_back(struct ws_switch_run *r, unsigned last_batch, const struct ws_switch_engine *first,
                   const char *what, struct ws_error *err)
{
    const int code = first->err.code ? first->err.code : EREMOTEIO;
    const struct ws_error why = first->err;
    char lost[300];
    r->going_back = true;
    for (unsigned b = last_batch + 1; b-- > 0;) {
        (void)ws_engine_step_each(r, b, ws_engine_step_was_resumed, ws_engine_step_pause_again);
        (void)ws_engine_step_each(r, b, ws_engine_step_has_changed, ws_engine_step_bring_back);
    }
    ws_error_set(err, code, "engine %s (%s) %s version %s: %.500s; %s%s", first->engine->name,
                 first->engine->url, what, first->to_version, why.text,
                 name_lost(r, lost, sizeof(lost)) ? "not brought back, and left as `engines` says: "
                                                  : "every engine was brought back",
                 lost);
    return -code;
}

static bool is_in_shared_group(const struct ws_switch_run *r, const struct ws_switch_engine *se)
{
    const char *group = se->engine->group;
    for (size_t i = 0; group && i < r->n; i++)
        if (&r->engines[i] != se && r->engines[i].engine->group &&
            strcmp(r->engines[i].engine->group, group) == 0)
            return true;
    return false;
}

/* Whether the switch may continue with the remaining engines. */
static bool is_enough(const struct ws_switch_run *r)
{
    size_t lost = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct ws_controller *ctl = r->engines[i].controller;
        if (!r->engines[i].lost)
            continue;
        if (r->n_items > 1) /* a barrier over several models is always all or none */
            return false;
        if (ctl->commit == WS_COMMIT_ALL || is_in_shared_group(r, &r->engines[i]))
            return false; /* engines of one group are never parted */
        lost++;
    }
    return r->n == 0 || ws_controller_has_quorum(r->engines[0].controller, r->n, lost);
}

static const struct ws_switch_engine *first_lost(const struct ws_switch_run *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->engines[i].lost && r->engines[i].rc < 0)
            return &r->engines[i];
    return &r->engines[0];
}

static void retire(struct ws_switch_run *r)
{
    for (size_t i = 0; i < r->n; i++) {
        struct ws_switch_engine *se = &r->engines[i];
        char text[WS_ERROR_TEXT + 64];
        if (!se->lost)
            continue;
        snprintf(text, sizeof(text), "left out of version %s, brought along when it answers: %.800s",
                 se->to_version, se->err.text);
        ws_engine_step_give_up(se, text);
        ws_controller_event(r->control, se->controller, "retired model=%s version=%s engine=%s",
                            se->controller->name, se->to_version, se->engine->name);
    }
}

/* Chooses the engines that are next, as many as may be out of service beside the lost ones. Engines of one group
 * are never parted. false: none is left. */
static bool make_batch(struct ws_switch_run *r, unsigned batch)
{
    const struct ws_controller *ctl = r->engines[0].controller;
    size_t room = SIZE_MAX, taken = 0;
    if (ctl->commit == WS_COMMIT_ROLLING)
        room = ctl->commit_n;
    for (size_t i = 0; ctl->commit == WS_COMMIT_ROLLING && i < r->n; i++)
        room -= r->engines[i].lost;
    for (size_t i = 0; i < r->n && taken < room; i++) {
        const char *group = r->engines[i].engine->group;
        if (r->engines[i].batch != UINT_MAX)
            continue;
        for (size_t k = i; k < r->n; k++) {
            const char *other = r->engines[k].engine->group;
            if (k == i || (group && other && strcmp(group, other) == 0)) {
                r->engines[k].batch = batch;
                taken++;
            }
        }
    }
    return taken > 0;
}

static int drive(struct ws_switch_run *r, struct ws_error *err)
{
    for (size_t i = 0; i < r->n; i++)
        r->engines[i].batch = UINT_MAX;
    for (unsigned b = 0; make_batch(r, b); b++) {
        for (size_t s = 0; s < N_STEPS; s++) {
            struct ws_switch_engine ended = {.engine = r->engines[0].engine};
            snprintf(ended.to_version, sizeof(ended.to_version), "%s", r->engines[0].to_version);
            if (s + 1 < N_STEPS && check_end(r, &ended.err) < 0)
                return go_back(r, b, &ended, "was not told any more of", err);
            if (ws_engine_step_each(r, b, is_going, steps[s].fn) > 0 && !is_enough(r))
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

int ws_switch_pull(struct ws_control *c, struct ws_version *v, enum ws_priority priority,
                   const struct ws_switch_options *o, struct ws_error *err)
{
    struct ws_switch_run r = {.control = c, .options = o, .deadline_ns = deadline_from(o)};
    return pull(&r, v, priority, err);
}

static int fetch_served(void *arg, struct ws_version *served, struct ws_error *err)
{
    return pull(arg, served, WS_PRIORITY_SWITCH, err);
}

static int prepare(struct ws_switch_run *r, const struct ws_switch_item *p, struct ws_error *err)
{
    int rc = pull(r, p->version, WS_PRIORITY_SWITCH, err);
    if (rc == 0 && r->options->is_followed)
        rc = ws_freshness_check(r->control, p->controller, p->version, err);
    if (rc == 0 && !r->options->force_layout)
        rc = ws_gate_check(
            &(struct ws_gate){.model = p->model, .version = p->version, .fetch = fetch_served, .arg = r},
            r->control, p->controller, err);
    if (rc == 0)
        rc = ws_peer_mounts_wait(r->control, p, r->options, err);
    return rc;
}

int ws_switch_prepare(struct ws_control *c, const struct ws_switch_item *p, const struct ws_switch_options *o,
                      struct ws_error *err)
{
    struct ws_switch_run r = {.control = c, .options = o, .deadline_ns = deadline_from(o)};
    return prepare(&r, p, err);
}

/* *by_reconciler: with -EBUSY, the reconciler has it, for which an operator's switch waits. */
static int claim(struct ws_control *c, struct ws_switch_item *items, size_t n, bool catching_up,
                 bool *by_reconciler, struct ws_error *err)
{
    int rc = 0;
    size_t done = 0;
    pthread_mutex_lock(&c->lock);
    for (; rc == 0 && done < n; done++) {
        if (items[done].controller->switching) {
            *by_reconciler = items[done].controller->catching_up;
            rc = ws_error_set(err, EBUSY, "a switch of %s is running already; add wait to wait for its end",
                              items[done].controller->name);
        } else {
            items[done].controller->switching = true;
            items[done].controller->generation++;
            items[done].controller->catching_up = catching_up;
            atomic_store(&items[done].controller->cancel, false);
        }
    }
    for (size_t i = 0; rc < 0 && i + 1 < done; i++)
        items[i].controller->switching = false;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static int claim_in_time(struct ws_switch_run *r, struct ws_switch_item *items, size_t n,
                         struct ws_error *err)
{
    for (;;) {
        bool by_reconciler = false;
        int rc = claim(r->control, items, n, false, &by_reconciler, err);
        if (rc != -EBUSY || !(by_reconciler || r->options->wait))
            return rc;
        rc = check_end(r, err);
        if (rc < 0)
            return rc;
        usleep(WAIT_STEP_US);
    }
}

static void release_claim(struct ws_control *c, struct ws_switch_item *items, size_t n, bool counts, bool ok)
{
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < n; i++) {
        items[i].controller->switching = false;
        items[i].controller->generation++;
        atomic_store(&items[i].controller->cancel, false); /* it must not end what is staged next */
        if (ok)
            items[i].controller->follow_backoff.wait_ns = 0;
        if (counts && ok) {
            items[i].controller->target.lineage[0] = 0; /* the former current version is not needed */
            items[i].controller->switches_ok++;
            ws_controller_clear_error(items[i].controller, "load");
        } else if (counts) {
            items[i].controller->switches_failed++;
        }
    }
    pthread_mutex_unlock(&c->lock);
}

static void add_engine(struct ws_switch_run *r, const struct ws_switch_item *p, struct ws_engine *e)
{
    struct ws_switch_engine *se = &r->engines[r->n++];
    se->run = r;
    se->controller = p->controller;
    se->engine = e;
    ws_engine_step_path(se, p->model, p->version, se->to_path);
    const struct ws_version_id id = ws_version_id(p->version);
    snprintf(se->to_version, sizeof(se->to_version), "%" PRIu64, id.version);
    ws_version_id_text(&id, se->to_version_id);
}

/* A switch does not drive external engines. No engine is added or removed while the switch is claimed. */
static int check_kinds(const struct ws_switch_item *items, size_t n, struct ws_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (ws_controller_is_external(items[i].controller))
            return ws_error_set(err, EOPNOTSUPP,
                                "the engines of %s are external: stage %" PRIu64
                                ", let their framework load it, then write loaded %" PRIu64 " to ctl",
                                items[i].controller->name, ws_version_number(items[i].version),
                                ws_version_number(items[i].version));
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
static int collect(struct ws_switch_run *r, struct ws_switch_item *items, size_t n, const char *const *names,
                   size_t n_names, struct ws_error *err)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += items[i].controller->n_engines; /* stable: the switch is claimed */
    r->n = 0;
    r->engines = calloc(total + 1, sizeof(*r->engines));
    r->selected = calloc(total + 1, sizeof(*r->selected));
    if (!r->engines || !r->selected)
        return ws_error_set(err, ENOMEM, "no memory for a switch of %zu engines", total);
    for (size_t i = 0; i < n; i++)
        for (struct ws_engine *e = items[i].controller->engines; e; e = e->next)
            if (is_named(e, names, n_names))
                add_engine(r, &items[i], e);
    return 0;
}

/* The first switch ever of a model: should this daemon be killed in it, the next one has no version to bring
 * engines back to. It brings them to the version that this switch was for. */
static void set_target(struct ws_control *c, struct ws_switch_item *p)
{
    struct ws_version *current = ws_model_current(p->model);
    pthread_mutex_lock(&c->lock);
    p->is_target = !current && !p->controller->target.lineage[0];
    if (p->is_target)
        p->controller->target = ws_version_id(p->version);
    pthread_mutex_unlock(&c->lock);
    if (current)
        ws_version_put(current);
}

/* The switch failed. Where the mount's end left engines in the middle of it the target stays, as it does where a
 * daemon is killed. */
static void restore_target(const struct ws_switch_run *r, struct ws_switch_item *p)
{
    bool left = false;
    for (size_t i = 0; atomic_load(&r->control->stop) && i < r->n; i++)
        left = left || (r->engines[i].controller == p->controller && r->engines[i].not_back);
    pthread_mutex_lock(&r->control->lock);
    if (p->is_target && !left)
        p->controller->target.lineage[0] = 0;
    pthread_mutex_unlock(&r->control->lock);
}

static unsigned n_serving(const struct ws_switch_run *r, const struct ws_controller *ctl)
{
    unsigned n = 0;
    for (size_t i = 0; i < r->n; i++)
        n += r->engines[i].controller == ctl && !r->engines[i].lost;
    return n;
}

int ws_switch_run(struct ws_control *c, struct ws_switch_item *items, size_t n,
                  const struct ws_switch_options *o, struct ws_error *err)
{
    struct ws_switch_run r = {.control = c, .options = o, .deadline_ns = deadline_from(o)};
    uint64_t start = ws_clock_ns();
    bool drove = false;
    int rc = claim_in_time(&r, items, n, err);
    if (rc < 0)
        return rc;
    r.items = items;
    r.n_items = n;
    size_t held = 0;
    for (; rc == 0 && held < n; held += rc == 0)
        rc = ws_version_begin_switch(items[held].version, err);
    if (rc == 0)
        rc = check_kinds(items, n, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = prepare(&r, &items[i], err);
    if (rc == 0)
        rc = collect(&r, items, n, NULL, 0, err);
    if (rc == 0)
        rc = check_end(&r, err);
    if (rc == 0 && (drove = r.n > 0)) {
        for (size_t i = 0; i < n; i++)
            set_target(c, &items[i]);
        ws_engine_step_begin(&r);
        rc = drive(&r, err);
        for (size_t i = 0; rc < 0 && i < n; i++)
            restore_target(&r, &items[i]);
    }
    for (size_t i = 0; rc == 0 && i < n; i++) {
        unsigned serving = n_serving(&r, items[i].controller);
        ws_model_set_current(items[i].model, items[i].version);
        ws_freshness_record(c, items[i].controller, items[i].version);
        ws_controller_event(
            c, items[i].controller, "switched model=%s version=%" PRIu64 " run=%s engines=%u seconds=%.3f",
            ws_model_name(items[i].model), ws_version_number(items[i].version),
            ws_version_lineage(items[i].version), serving, (double)(ws_clock_ns() - start) * 1e-9);
        const struct ws_version_id id = ws_version_id(items[i].version);
        ws_presence_report(c, items[i].controller, items[i].model, &id, "loaded", NULL);
    }
    if (drove)
        ws_engine_step_over(&r);
    else if (rc == 0)
        ws_settings_save(c);
    for (size_t i = 0; i < held; i++)
        ws_version_end_switch(items[i].version);
    free(r.selected);
    free(r.engines);
    release_claim(c, items, n, true, rc == 0);
    return rc;
}

/* --- what a daemon before had left --- */

int ws_switch_restore(struct ws_control *c, struct ws_switch_item *item, struct ws_error *err)
{
    bool by_reconciler;
    int rc = claim(c, item, 1, true, &by_reconciler, err);
    if (rc < 0)
        return rc;
    struct ws_version *current = ws_model_current(item->model);
    const struct ws_version_id id = ws_version_id(item->version);
    pthread_mutex_lock(&c->lock);
    if (current)
        item->controller->target.lineage[0] = 0; /* an operator has switched meanwhile */
    bool wanted = ws_version_id_equal(&item->controller->target, &id);
    pthread_mutex_unlock(&c->lock);
    if (current)
        ws_version_put(current);
    rc = wanted ? ws_version_begin_switch(item->version, err)
                : ws_error_set(err, EEXIST, "%s was switched meanwhile", item->controller->name);
    if (rc == 0) {
        ws_model_set_current(item->model, item->version);
        ws_freshness_record(c, item->controller, item->version);
        pthread_mutex_lock(&c->lock);
        item->controller->target.lineage[0] = 0;
        pthread_mutex_unlock(&c->lock);
        ws_version_end_switch(item->version);
    }
    release_claim(c, item, 1, false, rc == 0);
    return rc;
}

/* --- catching up --- */

static int catch_up_one(struct ws_switch_engine *se)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < N_STEPS; i++)
        rc = steps[i].fn(se);
    if (rc == 0)
        return 0;
    ws_engine_step_run_on(se);
    ws_engine_step_give_up(se, se->err.text);
    return rc;
}

static int catch_up(struct ws_switch_run *r, struct ws_switch_item *item, const char *const *names, size_t n,
                    struct ws_error *err)
{
    size_t failed = 0;
    int rc = check_kinds(item, 1, err);
    if (rc == 0)
        rc = pull(r, item->version, WS_PRIORITY_SWITCH, err);
    if (rc == 0)
        rc = collect(r, item, 1, names, n, err);
    if (rc == 0 && r->n == 0)
        rc = ws_error_set(err, ENOENT, "%s has no engine '%s'", item->controller->name, names[0]);
    if (rc == 0) {
        ws_engine_step_begin(r);
        failed = ws_engine_step_each(r, 0, is_going, catch_up_one);
        ws_engine_step_over(r);
    }
    if (failed > 0) {
        const struct ws_switch_engine *se = first_lost(r);
        rc = ws_error_set(err, se->err.code ? se->err.code : EREMOTEIO,
                          "engine %s (%s) could not be brought to version %s: %.800s", se->engine->name,
                          se->engine->url, se->to_version, se->err.text);
    }
    return rc;
}

int ws_switch_catch_up(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                       const char *const *names, size_t n, int *results, struct ws_error *err)
{
    const struct ws_switch_options o = {0};
    struct ws_switch_item item = {.controller = ctl, .model = m};
    struct ws_switch_run r = {
        .control = c, .options = &o, .deadline_ns = deadline_from(&o), .items = &item, .n_items = 1};
    bool by_reconciler;
    int rc = claim(c, &item, 1, true, &by_reconciler, err);
    if (rc == 0) { /* no switch moves current any more */
        item.version = ws_model_current(m);
        rc = item.version ? ws_version_begin_switch(item.version, err)
                          : ws_error_set(err, ENOENT, "%s has no current version", ws_model_name(m));
        if (rc == 0) {
            rc = catch_up(&r, &item, names, n, err);
            ws_version_end_switch(item.version);
        }
        release_claim(c, &item, 1, false, rc == 0);
    }
    for (size_t i = 0; i < n; i++) {
        int one = r.n == 0 ? rc : -ENOENT;
        for (size_t k = 0; k < r.n; k++)
            if (strcmp(r.engines[k].engine->name, names[i]) == 0)
                one = r.engines[k].rc;
        if (results)
            results[i] = one;
        if (item.version)
            ws_controller_event(c, ctl, "caught-up model=%s engine=%s version=%" PRIu64 " result=%s",
                                ctl->name, names[i], ws_version_number(item.version),
                                one < 0 ? ws_errno_name(-one) : "ok");
    }
    free(r.selected);
    free(r.engines);
    if (item.version)
        ws_version_put(item.version);
    return rc;
}
