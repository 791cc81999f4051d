/* Versions on demand: announced as soon as all ranks share them, without a slot. The first request for their
 * bytes has the ranks fill a slot out of the shared memory, by an ordinary begin and commit; from then on it
 * is a version like others. If a rank takes it back or ends before the first request, the version is lost. */
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/sessions.h"
#include "backends/trainer/agent/gpu/share.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HOLD_OFF_NS WS_SECOND_NS /* after a failure: readers that wait get the error */
#define POLL_MS     2000

static struct ws_gpu_version *find_pending(const struct ws_agent_model *m, uint64_t version,
                                           const char *lineage)
{
    struct ws_gpu_version *v = *ws_gpu_versions(m);
    while (v && !(v->on_demand && !v->in_slot && v->version == version && strcmp(v->lineage, lineage) == 0))
        v = v->next;
    return v;
}

/* --- gathering --- */

/* A rank shares the next version while others still share this one. */
static int wait_for_others(struct ws_rank_call *q, uint64_t version, uint64_t deadline, struct ws_error *err)
{
    struct ws_gpu_version *v;
    bool announce = false;
    while (q->session->model && (v = ws_gpu_version_gathering(q->session->model)) && v->version != version) {
        const uint64_t theirs = v->version; /* it may be gone after waiting */
        if (version < theirs)
            return ws_error_set(err, EPROTO,
                                "rank %u shares version %" PRIu64 " while others share %" PRIu64
                                ": give every rank the same version",
                                q->session->rank, version, theirs);
        if (!ws_gpu_version_has_rank(v, q->session)) {
            ws_gpu_version_end(q->session->model, v, "a rank went on without it", &announce);
            ws_gpu_versions_sweep(q->session->model);
            pthread_cond_broadcast(&q->a->changed); /* those that wait with the next one */
        } else if (!ws_agent_wait(q->a, deadline)) {
            return ws_error_set(err, ETIMEDOUT,
                                "rank %u waited with version %" PRIu64 " for version %" PRIu64
                                ", which not all ranks have shared",
                                q->session->rank, version, theirs);
        }
    }
    return 0;
}

int ws_gpu_on_demand_check(struct ws_rank_call *q, struct ws_error *err)
{
    const uint64_t version = ws_agent_number(q->body, "version", 0),
                   deadline = ws_clock_ns() + ws_agent_number(q->body, "timeout_ms", 60000) * WS_MS_NS;
    const char *lineage = json_string_value(json_object_get(q->body, "run"));
    int rc = lineage ? ws_session_check(q->session, err) : ws_error_set(err, EINVAL, "share needs a run");
    if (rc == 0 && q->session->model->spans_nodes)
        return ws_error_set(err, EOPNOTSUPP,
                            "the ranks of %s are on several nodes: what is shared on demand is one node's",
                            q->session->model->name);
    if (rc == 0)
        rc = wait_for_others(q, version, deadline, err);
    if (rc == 0)
        rc = ws_session_check(q->session, err);
    if (rc == 0 && strcmp(lineage, q->session->model->group_lineage) != 0)
        rc = ws_error_set(err, EINVAL, "share needs the run of the registration");
    return rc == 0 ? ws_session_check_version(q->session->model, version, lineage, err) : rc;
}

/* POST share/commit {version} */
int ws_gpu_on_demand_do_commit(struct ws_rank_call *q, struct ws_error *err)
{
    struct ws_agent_model *m = q->session->model;
    const uint64_t version = ws_agent_number(q->body, "version", 0);
    bool offered = false;
    pthread_mutex_lock(&q->a->lock);
    struct ws_gpu_version *v = m ? ws_gpu_version_gathering(m) : NULL;
    const struct ws_gpu_share *s = m ? ws_gpu_share_gathering(q->session, version) : NULL;
    int rc = s && v->on_demand
                 ? 0
                 : ws_error_set(err, ECANCELED, "version %" PRIu64 " was given up by another rank", version);
    if (rc == 0 && s->n_missing > 0)
        rc = ws_error_set(err, EINVAL, "not all descriptors of version %" PRIu64 " are here", version);
    if (rc == 0 && ++v->n_complete == m->world_size) {
        v->created_ns = ws_clock_day_ns();
        v->bytes = ws_agent_model_local_placement(m)->total_bytes;
        ws_agent_model_publish_pending(q->a, m, v->version, v->lineage);
        ws_gpu_version_published(m, v->version, v->lineage);
        pthread_cond_broadcast(&q->a->changed);
        offered = true;
    }
    pthread_mutex_unlock(&q->a->lock);
    if (offered)
        ws_agent_announce(q->a);
    return rc;
}

/* --- making --- */

int ws_gpu_on_demand_want(struct ws_agent *a, struct ws_agent_model *m, uint64_t version, const char *lineage,
                          struct ws_error *err)
{
    struct ws_gpu_version *v = find_pending(m, version, lineage);
    if (!v || (v->state != WS_GPU_OFFERED && !ws_gpu_version_is_writing(m, v)))
        return 0;
    if (v->failed_ns && ws_clock_ns() - v->failed_ns < HOLD_OFF_NS)
        return ws_error_set(err, EIO, "%s/%" PRIu64 " could not be made out of the GPUs' memory: %s", m->name,
                            version, v->why);
    if (!v->requested)
        pthread_cond_broadcast(&a->changed);
    v->requested = true;
    return ws_error_set(err, EINPROGRESS, "%s/%" PRIu64 " is being made out of the GPUs' memory", m->name,
                        version);
}

int ws_gpu_on_demand_may_write(const struct ws_agent_model *m, uint64_t version, const char *lineage,
                               struct ws_error *err)
{
    const struct ws_gpu_version *v = find_pending(m, version, lineage);
    if (v && (v->state == WS_GPU_OFFERED || ws_gpu_version_is_writing(m, v)))
        return 0;
    return ws_error_set(err, ECANCELED, "version %" PRIu64 " of %s is not to be made (any more)", version,
                        m->name);
}

bool ws_gpu_on_demand_written(struct ws_agent_model *m, const struct ws_slot *slot)
{
    struct ws_gpu_version *v = find_pending(m, slot->version, slot->lineage);
    if (!v)
        return false;
    v->in_slot = true;
    v->requested = false;
    ws_gpu_versions_sweep(m);
    return true;
}

bool ws_gpu_on_demand_abandon(struct ws_agent *a, struct ws_agent_model *m, struct ws_gpu_version *v,
                              const struct ws_session *c)
{
    if (!v->on_demand || v->in_slot || !ws_gpu_version_is_writing(m, v) || c->committed == m->writing)
        return false;
    ws_agent_model_abandon(a, m, "a rank took its memory back");
    return true;
}

static void record_failure(struct ws_gpu_version *v, const char *why)
{
    v->requested = false;
    v->failed_ns = ws_clock_ns();
    snprintf(v->why, sizeof(v->why), "%s", why);
}

void ws_gpu_on_demand_failed(struct ws_agent_model *m)
{
    for (struct ws_gpu_version *v = *ws_gpu_versions(m); v; v = v->next)
        if (v->on_demand && !v->in_slot && ws_gpu_version_is_writing(m, v))
            record_failure(v, m->why);
}

/* The rank's oldest version that a reader waits for and this rank has not filled. */
static struct ws_gpu_version *find_requested(struct ws_agent_model *m, unsigned rank, pid_t pid)
{
    struct ws_gpu_version *oldest = NULL;
    for (struct ws_gpu_version *v = *ws_gpu_versions(m); v; v = v->next) {
        const struct ws_gpu_share *s = v->shares;
        while (s && !(s->rank == rank && s->pid == pid && s->owner))
            s = s->next;
        if (s && v->requested && !(ws_gpu_version_is_writing(m, v) && s->owner->committed == m->writing))
            oldest = v;
    }
    return oldest;
}

/* POST gpu/wanted {model, rank, timeout_ms}: a version of this process's rank, or null. */
int ws_gpu_on_demand_do_wanted(struct ws_rank_call *q, struct ws_error *err)
{
    const char *model = json_string_value(json_object_get(q->body, "model"));
    uint64_t ms = ws_agent_number(q->body, "timeout_ms", 0);
    const uint64_t deadline = ws_clock_ns() + (ms < POLL_MS ? ms : POLL_MS) * WS_MS_NS;
    struct ws_gpu_version *v = NULL;
    pthread_mutex_lock(&q->a->lock);
    struct ws_agent_model *m = model ? ws_agent_model_find(q->a, model) : NULL;
    while (m && !(v = find_requested(m, (unsigned)ws_agent_number(q->body, "rank", 0), q->session->pid)))
        if (!ws_agent_wait(q->a, deadline))
            break;
    *q->reply = v ? json_pack("{s:I}", "version", (json_int_t)v->version) : json_null();
    pthread_mutex_unlock(&q->a->lock);
    return *q->reply ? 0 : ws_error_set(err, ENOMEM, "no memory for an answer");
}

/* POST gpu/unmade {model, version, why}: this process's rank could not. */
int ws_gpu_on_demand_do_unmade(struct ws_rank_call *q, struct ws_error *err)
{
    const char *model = json_string_value(json_object_get(q->body, "model")),
               *why = json_string_value(json_object_get(q->body, "why"));
    (void)err;
    pthread_mutex_lock(&q->a->lock);
    struct ws_agent_model *m = model ? ws_agent_model_find(q->a, model) : NULL;
    for (struct ws_gpu_version *v = m ? *ws_gpu_versions(m) : NULL; v; v = v->next) {
        const struct ws_gpu_share *s = v->shares;
        while (s && s->pid != q->session->pid)
            s = s->next;
        if (s && v->requested && v->version == ws_agent_number(q->body, "version", 0))
            record_failure(v, why ? why : "");
    }
    pthread_mutex_unlock(&q->a->lock);
    ws_agent_announce(q->a);
    return 0;
}

/* --- what is shown --- */

void ws_gpu_on_demand_list(const struct ws_agent_model *m, json_t *versions)
{
    for (const struct ws_gpu_version *v = *ws_gpu_versions(m); v; v = v->next) {
        size_t at = 0;
        if (!v->on_demand || v->in_slot || v->state != WS_GPU_OFFERED)
            continue;
        while (at < json_array_size(versions) &&
               (uint64_t)json_integer_value(json_object_get(json_array_get(versions, at), "created_ns")) <
                   v->created_ns)
            at++;
        json_array_insert_new(versions, at,
                              json_pack("{s:I,s:s,s:s,s:I,s:I,s:s}", "version", (json_int_t)v->version, "run",
                                        v->lineage, "digest", "", "bytes", (json_int_t)v->bytes, "created_ns",
                                        (json_int_t)v->created_ns, "gpu", ws_gpu_version_strategy(v)));
    }
}
