/* Drive: batches, and what follows where an engine fails (drive.h). */
#include "fs/switch/drive.h"
#include "fs/switch/adapter_steps.h"
#include "fs/switch/draft_steps.h"
#include "fs/switch/engine_query.h"
#include "fs/switch/patch_steps.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PULL_STEP_MS 250

static bool pauses(const struct ws_switch_engine *se)
{
    return ws_switch_is_going(se) && ws_engine_step_pauses(se);
}

static bool loads_target(const struct ws_switch_engine *se)
{
    return ws_switch_is_going(se) && se->target;
}

static bool loads_draft(const struct ws_switch_engine *se)
{
    return ws_switch_is_going(se) && se->draft;
}

static bool loads_adapters(const struct ws_switch_engine *se)
{
    return ws_switch_is_going(se) && ws_adapter_step_is_due(se);
}

/* What is done with each engine, in this order. */
static const struct {
    bool (*when)(const struct ws_switch_engine *se);
    int (*fn)(struct ws_switch_engine *se);
    const char *failed; /* "engine a ... version 42" */
    bool may_wait;      /* an engine that is brought along alone runs without: the reconciler tries again */
} steps[] = {{pauses, ws_engine_step_query, "could not be told of", false},
             {ws_patch_step_is_due, ws_patch_step_prepare, "was not prepared for", false},
             {pauses, ws_engine_step_pause, "could not be paused for", false},
             {loads_target, ws_engine_step_load, "did not load", false},
             {loads_draft, ws_draft_step_load, "did not load the draft model of", false},
             {loads_adapters, ws_adapter_step_load, "does not have the adapters of", true},
             {pauses, ws_engine_step_flush, "did not empty its caches for", false},
             {pauses, ws_engine_step_resume, "did not resume on", false}};
#define N_STEPS (sizeof(steps) / sizeof(steps[0]))

/* --- an end that comes from outside: cancel, deadline, the mount's end --- */

uint64_t ws_switch_deadline(const struct ws_switch_options *o)
{
    return ws_clock_ns() + (o->deadline_s ? o->deadline_s : WS_SWITCH_DEADLINE_S) * WS_SECOND_NS;
}

int ws_switch_check_end(struct ws_switch_run *r, struct ws_error *err)
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

int ws_switch_run_pull(struct ws_switch_run *r, struct ws_version *v, enum ws_priority priority,
                       struct ws_error *err)
{
    for (;;) {
        int rc = ws_version_pull(v, priority, PULL_STEP_MS, r->options->cancel, err);
        if (rc != -EAGAIN)
            return rc;
        rc = ws_switch_check_end(r, err);
        if (rc == -EINTR)
            return ws_error_set(err, EINTR, "the writer was interrupted; the pull goes on in the background");
        if (rc < 0)
            return rc;
    }
}

/* --- one batch after the other, there and back --- */

bool ws_switch_is_going(const struct ws_switch_engine *se)
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

/* Where one version of a model is in memory, it is the current one again, which engines are brought back to. */
static void bring_copies_back(struct ws_switch_run *r)
{
    for (size_t i = 0; i < r->n_items; i++) {
        struct ws_version *current = ws_model_current(r->items[i].model);
        struct ws_one_copy_info info;
        struct ws_error err = {0};
        int rc = ws_model_one_copy(r->items[i].model, &info) ? -EAGAIN : 0;
        if (info.holder)
            ws_version_put(info.holder);
        ws_model_turn_back(r->items[i].model);
        while (current && rc == -EAGAIN && !atomic_load(&r->control->calls_cut))
            rc = ws_version_pull(current, WS_PRIORITY_SWITCH, PULL_STEP_MS, NULL, &err);
        if (current && rc < 0)
            (void)ws_controller_fail(r->control, r->items[i].controller, "go back", &err);
        if (current)
            ws_version_put(current);
    }
}

static int go_back(struct ws_switch_run *r, unsigned last_batch, const struct ws_switch_engine *first,
                   const char *what, struct ws_error *err)
{
    const int code = first->err.code ? first->err.code : EREMOTEIO;
    const struct ws_error why = first->err;
    char lost[300];
    r->going_back = true;
    bring_copies_back(r);
    for (unsigned b = last_batch + 1; b-- > 0;) {
        (void)ws_engine_step_each(r, b, ws_engine_step_was_resumed, ws_engine_step_pause_again);
        (void)ws_engine_step_each(r, b, ws_engine_step_has_changed, ws_engine_step_bring_back);
        (void)ws_engine_step_each(r, b, ws_adapter_step_has_changed, ws_adapter_step_bring_back);
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
        if (ctl != r->items[0].controller) /* so is what engines of another model serve beside it */
            return false;
        if (ctl->commit == WS_COMMIT_ALL || is_in_shared_group(r, &r->engines[i]))
            return false; /* engines of one group are never parted */
        lost++;
    }
    return r->n == 0 || ws_controller_has_quorum(r->engines[0].controller, r->n, lost);
}

const struct ws_switch_engine *ws_switch_first_lost(const struct ws_switch_run *r)
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

int ws_switch_drive(struct ws_switch_run *r, struct ws_error *err)
{
    for (size_t i = 0; i < r->n; i++)
        r->engines[i].batch = UINT_MAX;
    for (unsigned b = 0; make_batch(r, b); b++) {
        for (size_t s = 0; s < N_STEPS; s++) {
            struct ws_switch_engine ended = {.engine = r->engines[0].engine};
            snprintf(ended.to_version, sizeof(ended.to_version), "%s", r->engines[0].to_version);
            if (s + 1 < N_STEPS && ws_switch_check_end(r, &ended.err) < 0)
                return go_back(r, b, &ended, "was not told any more of", err);
            if (ws_engine_step_each(r, b, steps[s].when, steps[s].fn) > 0 && !is_enough(r))
                return go_back(r, b, ws_switch_first_lost(r), steps[s].failed, err);
        }
    }
    retire(r);
    return 0;
}

int ws_switch_drive_one(struct ws_switch_engine *se)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < N_STEPS; i++) {
        rc = steps[i].when(se) ? steps[i].fn(se) : 0;
        if (rc < 0 && steps[i].may_wait) {
            se->lost = false;
            rc = 0;
        }
    }
    if (rc == 0)
        return 0;
    ws_engine_step_run_on(se);
    ws_engine_step_give_up(se, se->err.text);
    return rc;
}
