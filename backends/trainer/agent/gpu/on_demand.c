/* Versions on demand: announced as soon as all ranks share them, without a slot. The first request for their
 * bytes has the ranks fill one out of the shared memory, by an ordinary begin and commit; then they are as
 * others are. One that is taken back, or whose rank ends, before anybody asked is gone. */
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/sessions.h"
#include "backends/trainer/agent/gpu/share.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HOLD_OFF_NS WS_SECOND_NS /* after a failure: those who wait are told of it */
#define POLL_MS     2000

static struct ws_gpu_version *unmade(const struct ws_agent_model *m, uint64_t version, const char *run)
{
    struct ws_gpu_version *v = m->gpu;
    while (v && !(v->on_demand && !v->made && v->version == version && strcmp(v->run, run) == 0))
        v = v->next;
    return v;
}

/* --- gathering --- */

/* A rank shares the next version while others still share this one. */
static int wait_for_others(struct ws_rank_call *q, uint64_t version, uint64_t deadline, struct ws_error *err)
{
    struct ws_gpu_version *v;
    bool told = false;
    while (q->c->model && (v = ws_gpu_gathering_of(q->c->model)) && v->version != version) {
        const uint64_t theirs = v->version; /* it may be gone after waiting */
        if (version < theirs)
            return ws_error_set(err, EPROTO,
                                "rank %u shares version %" PRIu64 " while others share %" PRIu64
                                ": give every rank the same version",
                                q->c->rank, version, theirs);
        if (!ws_gpu_is_of(v, q->c)) {
            ws_gpu_end(q->c->model, v, "a rank went on without it", &told);
            ws_gpu_tidy(q->c->model);
            pthread_cond_broadcast(&q->a->changed); /* those that wait with the next one */
        } else if (!ws_agent_wait(q->a, deadline)) {
            return ws_error_set(err, ETIMEDOUT,
                                "rank %u waited with version %" PRIu64 " for version %" PRIu64
                                ", which not all ranks have shared",
                                q->c->rank, version, theirs);
        }
    }
    return 0;
}

int ws_gpu_check_unmade(struct ws_rank_call *q, struct ws_error *err)
{
    const uint64_t version = ws_agent_number(q->body, "version", 0),
                   deadline = ws_clock_ns() + ws_agent_number(q->body, "timeout_ms", 60000) * WS_MS_NS;
    const char *run = json_string_value(json_object_get(q->body, "run"));
    int rc = run ? ws_session_check(q->c, err) : ws_error_set(err, EINVAL, "share needs a run");
    if (rc == 0 && q->c->model->spans_nodes)
        return ws_error_set(err, EOPNOTSUPP,
                            "the ranks of %s are on several nodes: what is shared on demand is one node's",
                            q->c->model->name);
    if (rc == 0)
        rc = wait_for_others(q, version, deadline, err);
    if (rc == 0)
        rc = ws_session_check(q->c, err);
    if (rc == 0 && strcmp(run, q->c->model->group_run) != 0)
        rc = ws_error_set(err, EINVAL, "share needs the run of the registration");
    return rc == 0 ? ws_session_check_version(q->c->model, version, run, err) : rc;
}

/* POST share/commit {version} */
int ws_gpu_do_told(struct ws_rank_call *q, struct ws_error *err)
{
    struct ws_agent_model *m = q->c->model;
    const uint64_t version = ws_agent_number(q->body, "version", 0);
    bool offered = false;
    pthread_mutex_lock(&q->a->lock);
    struct ws_gpu_version *v = m ? ws_gpu_gathering_of(m) : NULL;
    const struct ws_gpu_share *s = m ? ws_gpu_gathering(q->c, version) : NULL;
    int rc = s && v->on_demand
                 ? 0
                 : ws_error_set(err, ECANCELED, "version %" PRIu64 " was given up by another rank", version);
    if (rc == 0 && s->n_missing > 0)
        rc = ws_error_set(err, EINVAL, "not all descriptors of version %" PRIu64 " are here", version);
    if (rc == 0 && ++v->n_told == m->world_size) {
        v->created_ns = ws_clock_day_ns();
        v->bytes = ws_agent_layout(m)->total_bytes;
        ws_agent_publish_unmade(q->a, m, v->version, v->run);
        ws_gpu_published(m, v->version, v->run);
        pthread_cond_broadcast(&q->a->changed);
        offered = true;
    }
    pthread_mutex_unlock(&q->a->lock);
    if (offered)
        ws_agent_announce(q->a);
    return rc;
}

/* --- making --- */

int ws_gpu_want(struct ws_agent *a, struct ws_agent_model *m, uint64_t version, const char *run,
                struct ws_error *err)
{
    struct ws_gpu_version *v = unmade(m, version, run);
    if (!v || (v->state != WS_GPU_OFFERED && !ws_gpu_is_writing(m, v)))
        return 0;
    if (v->failed_ns && ws_clock_ns() - v->failed_ns < HOLD_OFF_NS)
        return ws_error_set(err, EIO, "%s/%" PRIu64 " could not be made out of the GPUs' memory: %s", m->name,
                            version, v->why);
    if (!v->wanted)
        pthread_cond_broadcast(&a->changed);
    v->wanted = true;
    return ws_error_set(err, EINPROGRESS, "%s/%" PRIu64 " is being made out of the GPUs' memory", m->name,
                        version);
}

int ws_gpu_may_make(const struct ws_agent_model *m, uint64_t version, const char *run, struct ws_error *err)
{
    const struct ws_gpu_version *v = unmade(m, version, run);
    if (v && (v->state == WS_GPU_OFFERED || ws_gpu_is_writing(m, v)))
        return 0;
    return ws_error_set(err, ECANCELED, "version %" PRIu64 " of %s is not to be made (any more)", version,
                        m->name);
}

bool ws_gpu_made(struct ws_agent_model *m, const struct ws_slot *slot)
{
    struct ws_gpu_version *v = unmade(m, slot->version, slot->run);
    if (!v)
        return false;
    v->made = true;
    v->wanted = false;
    ws_gpu_tidy(m);
    return true;
}

bool ws_gpu_end_unmade(struct ws_agent *a, struct ws_agent_model *m, struct ws_gpu_version *v,
                       const struct ws_session *c)
{
    if (!v->on_demand || v->made || !ws_gpu_is_writing(m, v) || c->committed == m->writing)
        return false;
    ws_agent_abandon(a, m, "a rank took its memory back");
    return true;
}

static void note_failure(struct ws_gpu_version *v, const char *why)
{
    v->wanted = false;
    v->failed_ns = ws_clock_ns();
    snprintf(v->why, sizeof(v->why), "%s", why);
}

void ws_gpu_make_failed(struct ws_agent_model *m)
{
    for (struct ws_gpu_version *v = m->gpu; v; v = v->next)
        if (v->on_demand && !v->made && ws_gpu_is_writing(m, v))
            note_failure(v, m->why);
}

/* The rank's oldest version that somebody waits for, and that it has not done its part of. */
static struct ws_gpu_version *wanted(struct ws_agent_model *m, unsigned rank, pid_t pid)
{
    struct ws_gpu_version *oldest = NULL;
    for (struct ws_gpu_version *v = m->gpu; v; v = v->next) {
        const struct ws_gpu_share *s = v->shares;
        while (s && !(s->rank == rank && s->pid == pid && s->owner))
            s = s->next;
        if (s && v->wanted && !(ws_gpu_is_writing(m, v) && s->owner->committed == m->writing))
            oldest = v;
    }
    return oldest;
}

/* POST gpu/wanted {model, rank, timeout_ms}: a version of this process's rank, or null. */
int ws_gpu_do_wanted(struct ws_rank_call *q, struct ws_error *err)
{
    const char *model = json_string_value(json_object_get(q->body, "model"));
    uint64_t ms = ws_agent_number(q->body, "timeout_ms", 0);
    const uint64_t deadline = ws_clock_ns() + (ms < POLL_MS ? ms : POLL_MS) * WS_MS_NS;
    struct ws_gpu_version *v = NULL;
    pthread_mutex_lock(&q->a->lock);
    struct ws_agent_model *m = model ? ws_agent_find(q->a, model) : NULL;
    while (m && !(v = wanted(m, (unsigned)ws_agent_number(q->body, "rank", 0), q->c->pid)))
        if (!ws_agent_wait(q->a, deadline))
            break;
    *q->reply = v ? json_pack("{s:I}", "version", (json_int_t)v->version) : json_null();
    pthread_mutex_unlock(&q->a->lock);
    return *q->reply ? 0 : ws_error_set(err, ENOMEM, "no memory for an answer");
}

/* POST gpu/unmade {model, version, why}: this process's rank could not. */
int ws_gpu_do_unmade(struct ws_rank_call *q, struct ws_error *err)
{
    const char *model = json_string_value(json_object_get(q->body, "model")),
               *why = json_string_value(json_object_get(q->body, "why"));
    (void)err;
    pthread_mutex_lock(&q->a->lock);
    struct ws_agent_model *m = model ? ws_agent_find(q->a, model) : NULL;
    for (struct ws_gpu_version *v = m ? m->gpu : NULL; v; v = v->next) {
        const struct ws_gpu_share *s = v->shares;
        while (s && s->pid != q->c->pid)
            s = s->next;
        if (s && v->wanted && v->version == ws_agent_number(q->body, "version", 0))
            note_failure(v, why ? why : "");
    }
    pthread_mutex_unlock(&q->a->lock);
    ws_agent_announce(q->a);
    return 0;
}

/* --- what is shown --- */

void ws_gpu_list_unmade(const struct ws_agent_model *m, json_t *versions)
{
    for (const struct ws_gpu_version *v = m->gpu; v; v = v->next) {
        size_t at = 0;
        if (!v->on_demand || v->made || v->state != WS_GPU_OFFERED)
            continue;
        while (at < json_array_size(versions) &&
               (uint64_t)json_integer_value(json_object_get(json_array_get(versions, at), "created_ns")) <
                   v->created_ns)
            at++;
        json_array_insert_new(versions, at,
                              json_pack("{s:I,s:s,s:s,s:I,s:I,s:s}", "version", (json_int_t)v->version, "run",
                                        v->run, "digest", "", "bytes", (json_int_t)v->bytes, "created_ns",
                                        (json_int_t)v->created_ns, "gpu", ws_gpu_strategy(v)));
    }
}
