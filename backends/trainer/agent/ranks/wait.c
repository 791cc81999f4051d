/* A rank that waits until a version is announced, its delta made, or served by the engines of mounts. */
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/sessions.h"
#include "backends/trainer/agent/delta/encoder.h"
#include "backends/trainer/agent/group/group.h"
#include "backends/trainer/agent/ranks/routes.h"
#include "transports/base/clock.h"
#include "transports/protocol/source.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A secondary asks the primary, which the mounts report to; the lock is given up meanwhile. */
static bool is_loaded_there(struct ws_agent *a, const struct ws_agent_model *m, uint64_t version,
                            const char *which, char *missing, size_t cap)
{
    char path[WS_API_PATH_BYTES];
    struct ws_error err = {0};
    json_t *reply = NULL;
    ws_api_loaded_path(path, m->name, version, which);
    pthread_mutex_unlock(&a->lock);
    int rc = ws_source_call(a->primary, "GET", path, NULL, &reply, &err);
    pthread_mutex_lock(&a->lock);
    const char *text = json_string_value(json_object_get(reply, "missing"));
    snprintf(missing, cap, "%s", rc < 0 ? err.text : text ? text : "");
    bool loaded = rc == 0 && json_is_true(json_object_get(reply, "loaded"));
    json_decref(reply);
    return loaded;
}

static bool is_loaded(struct ws_agent *a, const struct ws_agent_model *m, uint64_t version, const char *which,
                      char *missing, size_t cap)
{
    struct ws_version_id to = {.version = version};
    if (a->primary && m->slot_owner != m)
        return is_loaded_there(a, m, version, which, missing, cap);
    snprintf(to.lineage, sizeof(to.lineage), "%s", m->lineage);
    return ws_fleet_serves(&m->fleet, &to, which, ws_clock_ns(), missing, cap);
}

/* Without a timeout_ms there is no limit: a year, so that the clock's arithmetic stays in range. */
static uint64_t patient_deadline(const json_t *body)
{
    uint64_t ms = ws_agent_number(body, "timeout_ms", UINT64_MAX);
    return ws_clock_ns() + (ms > 31536000000ULL ? 31536000000ULL : ms) * WS_MS_NS;
}

static int timed_out(const struct ws_agent *a, const struct ws_agent_model *m, uint64_t version, bool loaded,
                     const char *missing, struct ws_error *err)
{
    char ranks[WS_ERROR_TEXT / 2];
    if (atomic_load(&a->stop))
        return ws_error_set(err, ECONNRESET, "the agent is stopping");
    if (loaded)
        return ws_error_set(err, ETIMEDOUT, "version %" PRIu64 " of %s was not loaded in time%s%s", version,
                            m->name, missing[0] ? ": " : "", missing);
    ws_group_describe_missing(a, m, true, ranks, sizeof(ranks));
    return ws_error_set(err, ETIMEDOUT,
                        "version %" PRIu64 " of %s was not published in time: not all ranks have offloaded "
                        "it, or it is still hashed%s",
                        version, m->name, ranks);
}

static int wait_version(struct ws_agent *a, struct ws_session *c, const json_t *body, uint64_t deadline,
                        struct ws_error *err)
{
    uint64_t version = ws_agent_number(body, "version", 0);
    const char *what = json_string_value(json_object_get(body, "what"));
    bool loaded = what && strcmp(what, "loaded") == 0;
    const char *which = json_string_value(json_object_get(body, "who"));
    char missing[WS_ERROR_TEXT / 2] = "";
    struct ws_agent_model *m = c->model;
    int rc = m ? 0 : ws_error_set(err, EINVAL, "this rank is not registered");
    const char *lineage = json_string_value(json_object_get(body, "run"));
    while (rc == 0 &&
           !(m->has_published && (!lineage || strcmp(lineage, m->lineage) == 0) && m->newest >= version &&
             (!loaded || is_loaded(a, m, version, which ? which : "all", missing, sizeof(missing))))) {
        bool pending = m->writing && m->writing_version == version &&
                       (!lineage || strcmp(lineage, m->writing->lineage) == 0);
        const bool given_up =
            !pending && m->given_up.version == version && m->given_up.lineage[0] &&
            (!lineage || strcmp(lineage, m->given_up.lineage) == 0) &&
            !(m->has_published && strcmp(m->given_up.lineage, m->lineage) == 0 && m->newest >= version);
        if (!pending && (!loaded || given_up))
            rc = ws_error_set(err, ECANCELED, "version %" PRIu64 " of %s was abandoned or never begun%s%s",
                              version, m->name, m->why[0] ? "; the last that was: " : "", m->why);
        else if (!ws_session_wait(a, c, deadline)) /* a mount that falls silent counts no more */
            rc = timed_out(a, m, version, loaded, missing, err);
    }
    return rc;
}

/* Of a version that is announced: 0: its delta is made; 1: not yet; else there will be none. */
static int delta_state(const struct ws_agent_model *m, uint64_t version, struct ws_error *err)
{
    const struct ws_agent_model *owner = m->slot_owner ? m->slot_owner : m;
    const struct ws_version_id target = ws_version_id_make(version, m->lineage);
    json_t *all = ws_encoder_chain_json(owner, &target);
    const char *state = json_string_value(json_object_get(json_array_get(all, 0), "state"));
    bool growing = state && strcmp(state, "growing") == 0, whole = state && strcmp(state, "whole") == 0;
    json_decref(all);
    if (growing || whole)
        return growing;
    return ws_error_set(err, ENODATA,
                        "there is no delta that leads to version %" PRIu64
                        " of %s: it is the first, too much has changed, or its slot was wanted",
                        version, m->name);
}

static int wait_delta(struct ws_agent *a, const struct ws_session *c, const struct ws_agent_model *m,
                      uint64_t version, uint64_t deadline, struct ws_error *err)
{
    int rc;
    while ((rc = delta_state(m, version, err)) == 1)
        if (!ws_session_wait(a, c, deadline))
            return ws_error_set(err, ETIMEDOUT, "the delta to version %" PRIu64 " of %s was not made in time",
                                version, m->name);
    return rc;
}

int ws_rank_wait(struct ws_rank_call *q, struct ws_error *err)
{
    struct ws_agent *a = q->a;
    const char *what = json_string_value(json_object_get(q->body, "what"));
    uint64_t deadline = patient_deadline(q->body);
    pthread_mutex_lock(&a->lock);
    const struct ws_agent_model *m =
        q->session->model; /* a publisher that takes this rank's place meanwhile ends the session */
    int rc = wait_version(a, q->session, q->body, deadline, err);
    if (rc == 0 && what && strcmp(what, "delta") == 0)
        rc = wait_delta(a, q->session, m, ws_agent_number(q->body, "version", 0), deadline, err);
    pthread_mutex_unlock(&a->lock);
    return rc;
}
