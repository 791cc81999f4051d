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
 *     |  prepare its patch   -- fails: it loads the whole version below
 *     |  v                                        |
 *     |  pause               -- an engine fails --|
 *     |  v                                        |
 *     |  load or patch       -- an engine fails --+--> fewer are left than the commit setting asks for: back
 *     |  v                                        |
 *     |  load its draft      -- an engine fails --|
 *     |  v                                        |
 *     |  load its adapters   -- an engine fails --|
 *     |  v                                        |
 *     |  empty its caches    -- an engine fails --|
 *     |  v                                        |
 *     '- resume              -- an engine fails --'--> else it is retired: out of service until it is caught up
 *        v                                             (reconcile.c), and the others go on
 *     move current, report
 *
 *     back: those that may have changed are paused, undo their patch or load what they served (twice at most), and
 *     resume; one that has no good weights stays paused and is called broken
 *
 * All answer before any is paused: one that hangs costs the others no pause. Each engine takes the steps for what the switch
 * has of its target, its draft and its adapters (set.h): where only adapters move, one step, without a pause.
 * commit=all and commit=quorum=N take all engines at once, commit=rolling=K at most K at a time, the lost ones counted,
 * and engines of one group together. An uncertain engine (timed out, connection lost after the request) is asked what it
 * serves before anything is decided. An engine is never resumed before a load that it confirmed. */
/* clang-format on */
#include "fs/switch/switch.h"
#include "fs/switch/adapter_gate.h"
#include "fs/switch/adapter_steps.h"
#include "fs/switch/claim.h"
#include "fs/switch/drive.h"
#include "fs/switch/freshness.h"
#include "fs/switch/gate.h"
#include "fs/switch/goal.h"
#include "fs/switch/kept.h"
#include "fs/switch/needed.h"
#include "fs/switch/patch_steps.h"
#include "fs/switch/peer_mounts.h"
#include "fs/switch/presence.h"
#include "fs/switch/reconcile.h"
#include "fs/switch/set.h"
#include "fs/switch/settings.h"
#include "transports/base/audit_log.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_STEP_US 50000
#define PATIENCE_NS  (60 * WS_SECOND_NS) /* of a release for engines that are being brought along */

void ws_switch_item_release(struct ws_switch_item *item)
{
    if (item->version)
        ws_version_put(item->version);
    if (item->model)
        ws_model_put(item->model);
}

/* --- before engines are touched --- */

int ws_switch_pull(struct ws_control *c, struct ws_version *v, enum ws_priority priority,
                   const struct ws_switch_options *o, struct ws_error *err)
{
    struct ws_switch_run r = {.control = c, .options = o, .deadline_ns = ws_switch_deadline(o)};
    return ws_switch_run_pull(&r, v, priority, err);
}

static int fetch_served(void *arg, struct ws_version *served, struct ws_error *err)
{
    return ws_switch_run_pull(arg, served, WS_PRIORITY_SWITCH, err);
}

static int prepare(struct ws_switch_run *r, const struct ws_switch_item *p, struct ws_error *err)
{
    bool is_adapter = false;
    int rc = ws_version_direct(p->version, err);
    if (rc == 0)
        rc = ws_switch_run_pull(r, p->version, WS_PRIORITY_SWITCH, err);
    if (rc == 0 && r->options->is_followed)
        rc = ws_freshness_check(r->control, p->controller, p->version, err);
    if (rc == 0)
        rc = ws_adapter_gate_check(r->control, p->controller, p->version, &is_adapter, err);
    if (rc == 0 && !r->options->force_layout && !is_adapter)
        rc = ws_gate_check(
            &(struct ws_gate){.model = p->model, .version = p->version, .fetch = fetch_served, .arg = r},
            r->control, p->controller, err);
    if (rc == 0)
        rc = ws_gate_check_reloads(p->version, r->control, p->controller, err);
    if (rc == 0)
        rc = ws_peer_mounts_wait(r->control, p, r->options, err);
    return rc;
}

/* What an engine that comes back is brought to, and a release's version, are not in the one copy at once: one goes after
 * the other. */
static int wait_for_engines(struct ws_switch_run *r, struct ws_controller *ctl, struct ws_error *err)
{
    const uint64_t until = ws_clock_ns() + PATIENCE_NS;
    for (;;) {
        pthread_mutex_lock(&r->control->lock);
        const bool waits = ctl->switching;
        ctl->preparing += !waits;
        pthread_mutex_unlock(&r->control->lock);
        if (!waits)
            return 0;
        int rc = ws_switch_check_end(r, err);
        if (rc < 0)
            return rc;
        if (ws_clock_ns() > until)
            return ws_error_set(
                err, EBUSY,
                "engines of %s have been on their way to another version for %u s, and memory "
                "holds one of them (copies): look at `engines`, and release again",
                ctl->name, (unsigned)(PATIENCE_NS / WS_SECOND_NS));
        usleep(WAIT_STEP_US);
    }
}

int ws_switch_prepare(struct ws_control *c, const struct ws_switch_item *p, const struct ws_switch_options *o,
                      struct ws_error *err)
{
    struct ws_switch_run r = {.control = c, .options = o, .deadline_ns = ws_switch_deadline(o)};
    const bool waits = o->is_followed && ws_model_has_one_copy(p->model);
    int rc = waits ? wait_for_engines(&r, p->controller, err) : 0;
    if (rc < 0)
        return rc;
    rc = prepare(&r, p, err);
    if (rc < 0 && rc != -EINTR) /* not where a later release has ended this one, and has the copy */
        ws_version_turn_back(p->version);
    pthread_mutex_lock(&c->lock);
    p->controller->preparing -= waits;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static int claim_in_time(struct ws_switch_run *r, struct ws_switch_item *items, size_t n,
                         struct ws_error *err)
{
    for (;;) {
        bool waits = false;
        int rc = ws_switch_claim(r->control, items, n, false, &waits, err);
        if (rc != -EBUSY || !(waits || r->options->wait))
            return rc;
        rc = ws_switch_check_end(r, err);
        if (rc < 0)
            return rc;
        usleep(WAIT_STEP_US);
    }
}

static unsigned n_serving(const struct ws_switch_run *r, const struct ws_switch_item *p)
{
    unsigned n = 0;
    for (size_t i = 0; i < r->n; i++)
        n += ws_engine_step_is_of(&r->engines[i], p) && !r->engines[i].lost;
    return n;
}

/* Into the audit log. A switch that had begun with its engines and failed has taken them back. */
static void record(const struct ws_switch_run *r, const struct ws_switch_item *item, const char *what, int rc,
                   const struct ws_error *err)
{
    char to[WS_MAX_NAME + 32];
    snprintf(to, sizeof(to), "%s/%" PRIu64, ws_model_name(item->model), ws_version_number(item->version));
    ws_audit_log_write(&(struct ws_audit_entry){.what = what,
                                                .who = r->options->by,
                                                .from = r->options->from,
                                                .to = to,
                                                .outcome = rc < 0 ? WS_AUDIT_FAILED : WS_AUDIT_DONE,
                                                .error = rc < 0 ? err->text : NULL});
}

static void record_rollback(const struct ws_switch_run *r, const struct ws_switch_item *item)
{
    struct ws_error err = {0};
    unsigned left = 0;
    for (size_t i = 0; i < r->n; i++)
        left += ws_engine_step_is_of(&r->engines[i], item) && r->engines[i].not_back;
    if (left)
        (void)ws_error_set(&err, EREMOTEIO, "%u engines could not be taken back", left);
    record(r, item, "rollback", -err.code, &err);
}

/* Adapters: what engines list decides how the versions are called, and an engine that does not answer costs the others
 * nothing. */
static int name_adapters(struct ws_switch_run *r, struct ws_error *err)
{
    if (ws_engine_step_each(r, 0, ws_adapter_step_moves, ws_adapter_step_ask) > 0) {
        const struct ws_switch_engine *se = ws_switch_first_lost(r);
        return ws_error_set(err, se->err.code ? se->err.code : EREMOTEIO,
                            "engine %s (%s) cannot load an adapter: %.700s; no engine was told of version %s",
                            se->engine->name, se->engine->url, se->err.text, se->to_version);
    }
    ws_adapter_steps_name(r);
    return 0;
}

/* The version becomes current. Engines list the one before for a while, where it is an adapter. */
static void make_current(struct ws_switch_run *r, struct ws_switch_item *p, uint64_t start_ns)
{
    struct ws_control *c = r->control;
    const struct ws_version_id id = ws_version_id(p->version);
    struct ws_version *before = ws_model_current(p->model);
    const unsigned serving = n_serving(r, p);
    if (ws_engine_has_role(c, p->controller->name, WS_MEMBER_ADAPTER)) {
        if (before && before != p->version)
            ws_kept_push(c, p->controller, before);
        ws_kept_remove(c, p->controller, &id);
    }
    ws_model_set_current(p->model, p->version);
    ws_freshness_record(c, p->controller, p->version);
    ws_needed_loaded(c, p->controller);
    ws_model_learn_end(p->model, false);
    ws_controller_event(
        c, p->controller, "switched model=%s version=%" PRIu64 " run=%s engines=%u seconds=%.3f",
        ws_model_name(p->model), id.version, id.lineage, serving, (double)(ws_clock_ns() - start_ns) * 1e-9);
    ws_presence_report(c, p->controller, p->model, &id, "loaded", 0, NULL);
    if (before)
        ws_version_put(before);
}

int ws_switch_run(struct ws_control *c, struct ws_switch_item *items, size_t n,
                  const struct ws_switch_options *o, struct ws_error *err)
{
    struct ws_switch_run r = {.control = c, .options = o, .deadline_ns = ws_switch_deadline(o)};
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
        rc = ws_switch_check_kinds(items, n, err);
    if (rc == 0)
        rc = ws_set_check(c, items, n, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = prepare(&r, &items[i], err);
    if (rc == 0)
        rc = ws_switch_collect(&r, items, n, NULL, 0, err);
    if (rc == 0)
        rc = name_adapters(&r, err);
    if (rc == 0)
        rc = ws_switch_check_end(&r, err);
    for (size_t i = 0; rc < 0 && rc != -EINTR && held == n && i < n; i++)
        ws_model_turn_back(items[i].model); /* no engine was told */
    if (rc == 0 && (drove = r.n > 0)) {
        ws_goal_begin(&r);
        ws_engine_step_begin(&r);
        rc = ws_switch_drive(&r, err);
        if (rc < 0)
            ws_goal_drop(&r);
        else
            ws_goal_commit(&r);
    }
    for (size_t i = 0; rc == 0 && i < n; i++)
        make_current(&r, &items[i], start);
    for (size_t i = 0; i < n; i++) {
        record(&r, &items[i], "switch", rc, err);
        if (rc < 0 && drove)
            record_rollback(&r, &items[i]);
    }
    if (drove) {
        ws_patch_steps_end(&r);
        ws_engine_step_over(&r);
    } else if (rc == 0)
        ws_settings_save(c);
    bool has_adapters = false;
    for (size_t i = 0; i < r.n; i++)
        has_adapters = has_adapters || r.engines[i].n_adapters > 0;
    for (size_t i = 0; i < held; i++)
        ws_version_end_switch(items[i].version);
    free(r.selected);
    free(r.engines);
    ws_switch_claim_release(c, items, n, true, rc == 0);
    if (has_adapters)
        ws_reconciler_wake(c->reconciler); /* engines list more than they should, or less */
    return rc;
}

/* --- what a daemon before had left --- */

int ws_switch_restore(struct ws_control *c, struct ws_switch_item *item, struct ws_error *err)
{
    bool waits;
    int rc = ws_switch_claim(c, item, 1, true, &waits, err);
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
    ws_switch_claim_release(c, item, 1, false, rc == 0);
    return rc;
}
