/* The agent's side of audits (tensor/audit.h): which versions are audited, what each rank is asked to hash,
 * and what follows when replicas differ. The first version of each placement is audited whole, of later ones
 * every N-th a share. Where the trainer spans nodes each agent decides alike, since all publish the same
 * versions of the same placements; what only one side audits is found to be incomplete, and said. */
#include "backends/trainer/agent/audit/audit.h"
#include "backends/trainer/agent/core/features.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include <errno.h>
#include <inttypes.h>

void ws_agent_audit_placed(struct ws_agent_model *m)
{
    const struct ws_replicas *r = &m->placement->replicas;
    m->audit.due = true;
    m->audit.said = false;
    m->audit.since = m->audit.turn = 0;
    if (r->silent < WS_MAX_RANKS && r->silent < m->world_size && r->every != WSYNC_NO_AUDIT)
        ws_log(
            WS_LOG_WARN, "agent",
            "audits are incomplete model=%s: rank %u has a libwsync that knows none; what it holds of other "
            "ranks' pieces is not compared",
            m->name, r->silent);
}

void ws_agent_audit_begin(struct ws_agent_model *m)
{
    struct ws_audit_state *s = &m->audit;
    const struct ws_replicas *r = &m->placement->replicas;
    ws_audit_clear(&s->said_here);
    s->epoch = m->epoch;
    s->is_whole = s->due;
    s->runs = r->n > 0 && r->every != WSYNC_NO_AUDIT &&
              (s->due || (r->every > 0 && (s->since + 1) % (uint64_t)r->every == 0));
    s->window = s->due ? ws_replicas_all(r) : ws_replicas_share(r, m->placement->total_bytes, s->turn);
}

json_t *ws_agent_audit_ask(const struct ws_agent_model *m, const struct ws_session *c)
{
    const struct ws_registration *reg = c->registration;
    json_t *all = json_array();
    for (size_t i = 0; m->audit.runs && reg->audits && i < reg->n_entries; i++) {
        const struct ws_replica *r = reg->entries[i].replica
                                         ? ws_replicas_find(&m->placement->replicas, reg->entries[i].replica)
                                         : NULL;
        uint64_t first, n = r ? ws_replica_chunks(r, &m->audit.window, &first) : 0;
        if (n > 0)
            json_array_append_new(all, json_pack("[I,I,I]", (json_int_t)i, (json_int_t)first, (json_int_t)n));
    }
    return all;
}

int ws_agent_audit_take(struct ws_agent_model *m, const struct ws_session *c, const json_t *body,
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
        if (!m->audit.runs || h.replica == 0) /* there are other ranks since it began */
            continue;
        rc = ws_audit_add(&m->audit.said_here, &h, err);
        if (rc < 0)
            return rc;
    }
    return rc;
}

static void say_incomplete(struct ws_agent_model *m, uint64_t version, const struct ws_audit_result *found)
{
    m->audit.lacks = true;
    if (m->audit.said)
        return;
    m->audit.said = true;
    ws_log(WS_LOG_WARN, "agent",
           "audit incomplete model=%s version=%" PRIu64 ": %" PRIu64 " chunks were not compared; %s", m->name,
           version, found->alone, found->text);
}

int ws_agent_audit_check(struct ws_agent_model *m, struct ws_audit *said, uint64_t version,
                         struct ws_error *err)
{
    struct ws_audit_state *s = &m->audit;
    const struct ws_replicas *r = &m->placement->replicas;
    struct ws_audit_result found;
    if (!s->runs)
        return 0;
    ws_audit_compare(said ? said : &s->said_here, r, s->epoch == m->epoch ? &s->window : NULL, said != NULL,
                     &found);
    if (s->epoch != m->epoch)
        s->lacks = true;
    if (found.alone > 0)
        say_incomplete(m, version, &found);
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
                        "let the audit warn only (audit_warns)",
                        found.text, found.different, found.compared);
}

static void end(struct ws_audit_state *s)
{
    if (s->runs)
        *(s->differs ? &s->failed : s->lacks ? &s->incomplete : &s->passed) += 1;
    ws_audit_clear(&s->said_here);
    s->runs = s->differs = s->lacks = false;
}

void ws_agent_audit_published(struct ws_agent_model *m)
{
    struct ws_audit_state *s = &m->audit;
    if (s->due && s->runs && s->is_whole && s->epoch == m->epoch) {
        s->due = false;
        s->since = 0;
    } else if (!s->due) {
        s->since++;
        s->turn += s->runs;
    }
    end(s);
}

void ws_agent_audit_dropped(struct ws_agent_model *m)
{
    m->audit.runs = m->audit.runs && m->audit.differs; /* else nothing was found out */
    end(&m->audit);
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
    ws_audit_clear(&m->audit.said_here);
}

const struct ws_agent_feature ws_feature_audit = {
    .free = free_audit,
    .written = written,
    .discarded = ws_agent_audit_dropped,
};
