/* Audit: which versions are audited, what each rank is asked to hash (tensor/audit.h), and what follows when
 * replicas differ. The first version of each placement is audited in full, of later ones every N-th in part.
 * Where the trainer spans nodes each agent decides alike, since all publish the same versions of the same
 * placements. If one agent audits a version and another does not, the result is incomplete, and the log says
 * so. / */
#include "backends/trainer/agent/audit/audit.h"
#include "backends/trainer/agent/core/features.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include <errno.h>
#include <inttypes.h>

/* A model's. */
struct progress {
    bool full_due;                   /* nothing of this placement was published yet: audit all replicas */
    bool logged_incomplete;          /* that not all of this placement can be compared */
    uint64_t n_published, n_partial; /* since then: versions, audits in part */
    bool is_running, is_full;        /* the version on its way is audited; in full */
    bool differs, is_incomplete;     /* and replicas differ; not all were compared */
    uint64_t epoch;                  /* of the placement that it was begun by */
    struct ws_replica_window window; /* what is compared */
    struct ws_audit local_hashes;    /* of this node's ranks */
    uint64_t n_passed, n_failed, n_incomplete;
};

static struct progress *progress_of(const struct ws_agent_model *m)
{
    return m->feature_state[WS_FEATURE_audit];
}

bool ws_agent_audit_is_running(const struct ws_agent_model *m)
{
    return progress_of(m)->is_running;
}

struct ws_audit *ws_agent_audit_local_hashes(const struct ws_agent_model *m)
{
    return &progress_of(m)->local_hashes;
}

void ws_agent_audit_placed(struct ws_agent_model *m)
{
    const struct ws_replicas *r = &m->placement->replicas;
    progress_of(m)->full_due = true;
    progress_of(m)->logged_incomplete = false;
    progress_of(m)->n_published = progress_of(m)->n_partial = 0;
    if (r->first_without_audits < WS_MAX_RANKS && r->first_without_audits < m->world_size &&
        r->every != WSYNC_NO_AUDIT)
        ws_log(
            WS_LOG_WARN, "agent",
            "audits are incomplete model=%s: rank %u has a libwsync that knows none; what it holds of other "
            "ranks' pieces is not compared",
            m->name, r->first_without_audits);
}

void ws_agent_audit_begin(struct ws_agent_model *m)
{
    struct progress *s = progress_of(m);
    const struct ws_replicas *r = &m->placement->replicas;
    ws_audit_reset(&s->local_hashes);
    s->epoch = m->epoch;
    s->is_full = s->full_due;
    s->is_running = r->n > 0 && r->every != WSYNC_NO_AUDIT &&
                    (s->full_due || (r->every > 0 && (s->n_published + 1) % (uint64_t)r->every == 0));
    s->window = s->full_due ? ws_replicas_window_all(r)
                            : ws_replicas_window_turn(r, m->placement->total_bytes, s->n_partial);
}

json_t *ws_agent_audit_request(const struct ws_agent_model *m, const struct ws_session *c)
{
    const struct ws_registration *reg = c->registration;
    json_t *all = json_array();
    for (size_t i = 0; progress_of(m)->is_running && reg->audits && i < reg->n_entries; i++) {
        const struct ws_replica *r = reg->entries[i].replica
                                         ? ws_replicas_find(&m->placement->replicas, reg->entries[i].replica)
                                         : NULL;
        uint64_t first, n = r ? ws_replica_chunks(r, &progress_of(m)->window, &first) : 0;
        if (n > 0)
            json_array_append_new(all, json_pack("[I,I,I]", (json_int_t)i, (json_int_t)first, (json_int_t)n));
    }
    return all;
}

int ws_agent_audit_record(struct ws_agent_model *m, const struct ws_session *c, const json_t *body,
                          struct ws_error *err)
{
    const struct ws_registration *reg = c->registration;
    const json_t *one;
    size_t k;
    int rc = 0;
    json_array_foreach(json_object_get(body, "audit"), k, one)
    {
        const uint64_t i = (uint64_t)json_integer_value(json_array_get(one, 0));
        struct ws_audit_hash h = {
            .chunk = (uint64_t)json_integer_value(json_array_get(one, 1)), .rank = c->rank, .n = 1};
        if (i >= reg->n_entries || ws_text_hash(json_string_value(json_array_get(one, 2)), &h.hash) < 0)
            return ws_error_set(err, EINVAL, "a hash of the audit in commit is malformed");
        h.replica = reg->entries[i].replica;
        if (!progress_of(m)->is_running || h.replica == 0) /* there are other ranks since it began */
            continue;
        rc = ws_audit_add(&progress_of(m)->local_hashes, &h, 1, err);
        if (rc < 0)
            return rc;
    }
    return rc;
}

static void log_incomplete(struct ws_agent_model *m, uint64_t version, const struct ws_audit_result *found)
{
    progress_of(m)->is_incomplete = true;
    if (progress_of(m)->logged_incomplete)
        return;
    progress_of(m)->logged_incomplete = true;
    ws_log(WS_LOG_WARN, "agent",
           "audit incomplete model=%s version=%" PRIu64 ": %" PRIu64 " chunks were not compared; %s", m->name,
           version, found->incomplete, found->text);
}

int ws_agent_audit_check(struct ws_agent_model *m, struct ws_audit *all_hashes, uint64_t version,
                         struct ws_error *err)
{
    struct progress *s = progress_of(m);
    const struct ws_replicas *r = &m->placement->replicas;
    struct ws_audit_result found;
    if (!s->is_running)
        return 0;
    ws_audit_compare(all_hashes ? all_hashes : &s->local_hashes, r, s->epoch == m->epoch ? &s->window : NULL,
                     all_hashes != NULL, &found);
    if (s->epoch != m->epoch)
        s->is_incomplete = true;
    if (found.incomplete > 0)
        log_incomplete(m, version, &found);
    if (found.different == 0)
        return 0;
    s->differs = true;
    ws_log(r->warns ? WS_LOG_WARN : WS_LOG_ERROR, "agent",
           "audit: replicas differ model=%s version=%" PRIu64 " chunks=%" PRIu64 " of=%" PRIu64 ": %s",
           m->name, version, found.different, found.compared, found.text);
    if (r->warns)
        return 0;
    return ws_error_set(err, ECANCELED,
                        "replicas differ: %s (%" PRIu64 " of %" PRIu64
                        " compared chunks); give all ranks the same values there before the offload, or "
                        "let the audit warn only (audit_warn=True, in C audit_warns)",
                        found.text, found.different, found.compared);
}

static void finish(struct progress *s)
{
    if (s->is_running)
        *(s->differs ? &s->n_failed : s->is_incomplete ? &s->n_incomplete : &s->n_passed) += 1;
    ws_audit_reset(&s->local_hashes);
    s->is_running = s->differs = s->is_incomplete = false;
}

void ws_agent_audit_published(struct ws_agent_model *m)
{
    struct progress *s = progress_of(m);
    if (s->full_due && s->is_running && s->is_full && s->epoch == m->epoch) {
        s->full_due = false;
        s->n_published = 0;
    } else if (!s->full_due) {
        s->n_published++;
        s->n_partial += s->is_running;
    }
    finish(s);
}

void ws_agent_audit_discarded(struct ws_agent_model *m)
{
    progress_of(m)->is_running =
        progress_of(m)->is_running && progress_of(m)->differs; /* else nothing was found out */
    finish(progress_of(m));
}

/* It may have been announced before: what is audited are ranks that write. */
static bool written(struct ws_agent_model *m, const struct ws_slot *s)
{
    (void)s;
    ws_agent_audit_published(m);
    return false;
}

static void free_audit(struct ws_agent_model *m)
{
    ws_audit_reset(&progress_of(m)->local_hashes);
}

const struct ws_agent_feature ws_feature_audit = {
    .model_bytes = sizeof(struct progress),
    .free = free_audit,
    .written = written,
    .discarded = ws_agent_audit_discarded,
};
