#include "fs/pull/outcome.h"
#include "fs/store/arrivals.h"
#include "fs/store/version.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ws_outcome_set_strategy(struct ws_version *v, const struct ws_source_select *sel, char *why)
{
    free(v->why_not);
    v->why_not = why;
    v->strategy = atomic_load(&sel->used);
}

void ws_outcome_set_pace(struct ws_version *v, struct ws_source_select *sel)
{
    ws_pace_end(&sel->pace, ws_clock_ns());
    const uint64_t first_ns = atomic_load(&sel->pace.first_ns);
    v->first_seconds = first_ns > v->pull_began_ns ? (double)(first_ns - v->pull_began_ns) / 1e9 : -1;
    v->stalls = atomic_load(&sel->pace.n_stalls);
    v->stalled_seconds = (double)atomic_load(&sel->pace.stalled_ns) / 1e9;
}

void ws_outcome_clear_error(struct ws_version *v)
{
    free(v->error);
    v->error = NULL;
    v->error_code = 0;
}

void ws_outcome_success(struct ws_version *v, enum ws_goal goal, const char *how, struct ws_store_events *ev)
{
    ws_outcome_clear_error(v);
    if (goal != WS_GOAL_ALL)
        return;
    atomic_store(&v->complete, true);
    v->pull_seconds = (double)(ws_clock_ns() - v->pull_began_ns) / 1e9;
    snprintf(v->how, sizeof(v->how), "%s", how);
    v->store->pulls_ok++;
    ws_histogram_add(&v->model->pulls, v->pull_seconds);
    ws_arrivals_add(v);
    if (v->named)
        ws_version_set_state(v, v->model->current == v ? WS_ACTIVE : WS_READY, ev);
}

void ws_outcome_failure(struct ws_version *v, enum ws_goal goal, int rc, const struct ws_error *err,
                        struct ws_store_events *ev)
{
    free(v->error);
    v->error = strdup(err->text);
    v->error_code = -rc;
    v->failed_ns = ws_clock_ns();
    if (goal != WS_GOAL_ALL && rc != -ECANCELED)
        ws_store_events_add(ev, WS_VERSION_READ_FAILED, v->model, v);
    if (goal != WS_GOAL_ALL)
        return;
    v->pull_seconds = (double)(v->failed_ns - v->pull_began_ns) / 1e9;
    v->store->pulls_failed++;
    ws_arrivals_add(v);
    if (v->named)
        ws_version_set_state(v, WS_FAILED, ev);
}

void ws_outcome_turned_away(struct ws_version *v, int rc, const struct ws_error *err,
                            struct ws_store_events *ev)
{
    free(v->error);
    v->error = strdup(err->text);
    v->error_code = -rc;
    v->failed_ns = 0; /* the next reader asks anew: the copy may be elsewhere by then */
    if (v->named)
        ws_version_set_state(v, WS_KNOWN, ev);
    ws_store_events_add(ev, WS_VERSION_READ_FAILED, v->model, v);
}

void ws_outcome_log(struct ws_version *v, enum ws_goal goal, int rc, const char *how,
                    const struct ws_error *err)
{
    if (rc < 0 && rc != -ECANCELED)
        ws_log(WS_LOG_WARN, "store", "pull failed model=%s version=%lu errno=%s error=\"%s\"", v->model->name,
               v->number, ws_errno_name(-rc), err->text);
    else if (rc == 0 && goal == WS_GOAL_ALL)
        ws_log(WS_LOG_INFO, "store", "ready model=%s version=%lu how=\"%s\" bytes=%lu seconds=%.3f",
               v->model->name, v->number, how, ((struct ws_manifest *)atomic_load(&v->manifest))->total_bytes,
               v->pull_seconds);
}
