/* Sessions: what follows when a rank of this node ends, and whether a rank may continue (sessions.h). */
#include "backends/trainer/agent/core/sessions.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "transports/base/clock.h"
#include "transports/base/text.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RANDOM_RUN_BYTES 8
#define POLL_NS          (500 * WS_MS_NS)

void ws_session_end(struct ws_agent *a, struct ws_session *c, const char *how)
{
    struct ws_agent_model *m = c->model;
    char why[128];
    snprintf(why, sizeof(why), "rank %u (process %d) %s before it had committed", c->rank, (int)c->pid, how);
    /* Half of what it writes may be in the slot. A rank that has not begun may come back and begin, but nodes
     * do not wait for one another's ranks. */
    if (m && m->writing && (c->writing || (m->spans_nodes && c->committed != m->writing)))
        ws_agent_model_abandon(a, m, why);
    else if (m && c->placed && m->spans_nodes && !m->writing)
        ws_agent_model_record_why(m, why);
    if (m && m->writing && c->committed == m->writing)
        m->n_ended++;
    if (m) {
        m->n_told -= c->placed_hash != 0;
        m->n_stale -= c->stale;
    }
    c->writing = false;
    c->committed = NULL;
    c->placed = c->stale = false;
    c->placed_hash = c->last_begun = c->given_up_until = c->from = 0;
    if (m && m->ranks && c->rank < m->world_size && m->ranks[c->rank] == c) {
        m->ranks[c->rank] = NULL;
        m->n_registered--;
        snprintf(why, sizeof(why), "all ranks have ended, rank %u (process %d) as the last", c->rank,
                 (int)c->pid);
        if (m->n_registered == 0 && !m->spans_nodes)
            ws_agent_model_abandon(a, m, why);
        pthread_cond_broadcast(&a->changed);
        ws_features_left(a, m);
    }
    c->model = NULL;
    ws_registration_free(c->registration); /* also one that was refused before it joined a group */
    c->registration = NULL;
}

bool ws_session_wait(struct ws_agent *a, const struct ws_session *c, uint64_t deadline_ns)
{
    const uint64_t soon = ws_clock_ns() + POLL_NS;
    if (ws_ipc_peer_is_gone(c->peer))
        return false;
    return ws_agent_wait(a, soon < deadline_ns ? soon : deadline_ns) ||
           (soon < deadline_ns && !atomic_load(&a->stop));
}

static void random_run(char out[WS_LINEAGE_CHARS + 1])
{
    if (ws_text_random(out, RANDOM_RUN_BYTES))
        snprintf(out, WS_LINEAGE_CHARS + 1, "%016" PRIx64, ws_clock_ns() ^ ((uint64_t)getpid() << 40));
}

int ws_session_set_lineage(struct ws_agent_model *m, const char *lineage, bool new_run, bool first,
                           struct ws_error *err)
{
    if (lineage && !ws_lineage_is_safe(lineage))
        return ws_error_set(err, EINVAL, "'%.80s' is no run id: 1 to %d of letters, digits, '.', '_', '-'",
                            lineage, WS_LINEAGE_CHARS);
    if (lineage && m->has_published && strcmp(lineage, m->lineage) != 0 && !new_run &&
        strcmp(lineage, m->opened_lineage) != 0)
        return ws_error_set(err, EEXIST, "%s has the lineage %s; to supersede it by %s say so (--new-run)",
                            m->name, m->lineage, lineage);
    if (lineage && m->has_published && strcmp(lineage, m->lineage) == 0 && new_run)
        return ws_error_set(err, EEXIST, "%s has the lineage %s already; a new one needs another id", m->name,
                            lineage);
    if (!first && lineage && strcmp(lineage, m->group_lineage) != 0)
        return ws_error_set(err, EPROTO,
                            "the ranks of %s name different runs, %s and %s: give all of them the same",
                            m->name, m->group_lineage, lineage);
    if (!first)
        return 0;
    if (lineage)
        snprintf(m->group_lineage, sizeof(m->group_lineage), "%s", lineage);
    else if (m->has_published && !new_run)
        memcpy(m->group_lineage, m->lineage, sizeof(m->group_lineage));
    else
        random_run(m->group_lineage);
    if (new_run)
        memcpy(m->opened_lineage, m->group_lineage, sizeof(m->opened_lineage));
    return 0;
}

void ws_session_record_late(struct ws_agent_model *m, uint64_t version)
{
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->ranks[r] && m->ranks[r]->placed && m->ranks[r]->last_begun < version)
            m->ranks[r]->given_up_until = version;
}

void ws_session_record_missed(const struct ws_agent_model *m, struct ws_session *c,
                              const struct ws_version_id *given_up)
{
    if (c->last_begun && c->last_begun < given_up->version &&
        strcmp(given_up->lineage, m->group_lineage) == 0)
        c->given_up_until = given_up->version;
}

int ws_session_check_late(struct ws_session *c, uint64_t version, struct ws_error *err)
{
    if (version <= c->last_begun || version > c->given_up_until)
        return 0;
    c->last_begun = version;
    c->given_up_until = 0;
    return ws_error_set(err, ECANCELED,
                        "rank %u came too late with version %" PRIu64
                        " of %s: %s; the next version may be offloaded",
                        c->rank, version, c->model->name, c->model->why);
}

int ws_session_check_version(const struct ws_agent_model *m, uint64_t version, const char *lineage,
                             struct ws_error *err)
{
    if (m->has_published && strcmp(lineage, m->lineage) == 0 && version <= m->newest)
        return ws_error_set(
            err, EEXIST,
            "version %" PRIu64 " of %s is not higher than the newest, %" PRIu64
            " (run %s); a trainer that resumes from an older step opens a new lineage (new_run, --new-run)",
            version, m->name, m->newest, m->lineage);
    if (strcmp(lineage, m->reserved.lineage) == 0 && version <= m->reserved.version)
        return ws_error_set(err, EEXIST,
                            "version %" PRIu64
                            " of %s was being announced when the agent before this one ended, "
                            "and a mount may have it: go on with a number above %" PRIu64
                            ", or open a new lineage (new_run, --new-run)",
                            version, m->name, m->reserved.version);
    return 0;
}

int ws_session_check(struct ws_session *c, struct ws_error *err)
{
    if (!c->model)
        return ws_error_set(err, EINVAL, "this rank is not registered");
    const struct ws_placement *l = ws_agent_model_local_placement(c->model);
    if (c->lost && l && !c->stale) {
        c->lost = false;
        return ws_error_set(err, ECANCELED, "%s; the next version may be offloaded", c->model->why);
    }
    if (!c->model->ranks || c->rank >= c->model->world_size || c->model->ranks[c->rank] != c || !l ||
        c->stale)
        return ws_error_set(err, ESTALE, "the group of ranks of %s has changed: register again",
                            c->model->name);
    return 0;
}
