/* Joins a rank to its model's group: as many ranks as the first one said, each number once, one lineage. */
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/sessions.h"
#include "backends/trainer/agent/group/group.h"
#include "backends/trainer/agent/ranks/routes.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* On a node that is not the primary's the primary decides it. */
static int set_run(struct ws_agent *a, struct ws_agent_model *m, const json_t *body, struct ws_error *err)
{
    const char *lineage = json_string_value(json_object_get(body, "run"));
    bool new_run = json_is_true(json_object_get(body, "new_run"));
    struct ws_group *g = m->group;
    if (!a->primary)
        return ws_session_set_lineage(m, lineage, new_run, ws_group_n_present(m) == 0, err);
    if (lineage && !ws_lineage_is_safe(lineage))
        return ws_session_set_lineage(m, lineage, new_run, true, err);
    if (lineage && m->n_registered > 0 && g->requested_lineage[0] &&
        strcmp(lineage, g->requested_lineage) != 0)
        return ws_error_set(err, EPROTO,
                            "the ranks of %s name different runs, %s and %s: give all of them the same",
                            m->name, g->requested_lineage, lineage);
    if (m->n_registered == 0)
        g->requested_lineage[0] = '\0';
    g->opens_lineage = new_run;
    if (lineage)
        snprintf(g->requested_lineage, sizeof(g->requested_lineage), "%s", lineage);
    return 0;
}

/* The session that keeps a rank from joining: one with its number, or one of a group of another size. */
static const struct ws_session *blocking_session(const struct ws_agent_model *m, unsigned rank,
                                                 unsigned world_size)
{
    if (m->world_size == world_size)
        return m->ranks[rank];
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->ranks[r])
            return m->ranks[r];
    return NULL;
}

/* The same of ranks on other nodes, at the primary. */
static const struct ws_group_node *blocking_node(const struct ws_agent_model *m, unsigned rank,
                                                 unsigned world_size)
{
    if (m->world_size == world_size)
        return ws_group_remote_node(m, rank);
    for (unsigned r = 0; r < m->world_size; r++)
        if (ws_group_remote_node(m, r))
            return ws_group_remote_node(m, r);
    return NULL;
}

static int refuse(const struct ws_agent_model *m, const struct ws_session *c, const struct ws_session *other,
                  unsigned world_size, struct ws_error *err)
{
    if (m->world_size != world_size)
        return ws_error_set(err, EBUSY,
                            "rank %u says that %s has %u ranks, and process %d publishes it as rank %u of "
                            "%u; it did not end in time: give all ranks the same world_size, or end it",
                            c->rank, m->name, world_size, (int)other->pid, other->rank, m->world_size);
    return ws_error_set(err, EBUSY,
                        "process %d publishes %s already, as rank %u of %u; it did not end in time: "
                        "end it, or give each rank a number of its own",
                        (int)other->pid, m->name, other->rank, m->world_size);
}

/* No publisher is ever displaced. The rank waits for one that runs, and for one that was killed a moment ago
 * and whose end was not noticed yet. One whose connection has ended does not count, even while a call of it
 * still waits. A group of another size begins when the old one is empty. */
int ws_rank_join(struct ws_agent *a, struct ws_agent_model *m, struct ws_session *c, unsigned world_size,
                 uint64_t deadline, const json_t *body, struct ws_error *err)
{
    const struct ws_group_node *node = NULL;
    for (const struct ws_session *other; (other = blocking_session(m, c->rank, world_size)) ||
                                         (node = blocking_node(m, c->rank, world_size)) || m->preparing;)
        if (other && ws_ipc_peer_is_gone(other->peer))
            ws_session_end(a, m->ranks[other->rank], "ended");
        else if (!ws_session_wait(a, c, deadline))
            return node ? ws_error_set(
                              err, EBUSY,
                              "the node %s publishes %s already, with rank %u or with another number of "
                              "ranks than %u; it did not end in time",
                              node->name, m->name, c->rank, world_size)
                   : !other ? ws_error_set(err, EBUSY, "a slot of %s is being prepared", m->name)
                            : refuse(m, c, other, world_size, err);
    if (ws_ipc_peer_is_gone(c->peer))
        return ws_error_set(err, ECONNRESET, "rank %u of %s ended while it waited", c->rank, m->name);
    if (m->spans_nodes)
        ws_agent_model_abandon(a, m, "a rank joined: its placement is about to change");
    int rc = ws_group_set_world_size(m, world_size, err);
    if (rc == 0)
        rc = set_run(a, m, body, err);
    if (rc < 0)
        return rc;
    assert(m->ranks); /* world_size is at least 1 */
    m->ranks[c->rank] = c;
    m->n_registered++;
    c->model = m;
    return 0;
}
