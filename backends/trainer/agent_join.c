/* Who may be a rank of a model's group: as many as the first of them said, each number once, of one lineage.
 */
#include "backends/trainer/agent_group.h"
#include "backends/trainer/agent_state.h"
#include "transports/clock.h"
#include "transports/text.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANDOM_RUN_BYTES 8

static void random_run(char out[WS_RUN_CHARS + 1])
{
    if (ws_text_random(out, RANDOM_RUN_BYTES))
        snprintf(out, WS_RUN_CHARS + 1, "%016" PRIx64, ws_clock_ns() ^ ((uint64_t)getpid() << 40));
}

int ws_agent_set_run(struct ws_agent_model *m, const char *run, bool new_run, bool first,
                     struct ws_error *err)
{
    if (run && !ws_run_is_safe(run))
        return ws_error_set(err, EINVAL, "'%.80s' is no run id: 1 to %d of letters, digits, '.', '_', '-'",
                            run, WS_RUN_CHARS);
    if (run && m->any && strcmp(run, m->run) != 0 && !new_run && strcmp(run, m->opened_run) != 0)
        return ws_error_set(err, EEXIST, "%s has the lineage %s; to supersede it by %s say so (--new-run)",
                            m->name, m->run, run);
    if (run && m->any && strcmp(run, m->run) == 0 && new_run)
        return ws_error_set(err, EEXIST, "%s has the lineage %s already; a new one needs another id", m->name,
                            run);
    if (!first && run && strcmp(run, m->group_run) != 0)
        return ws_error_set(err, EPROTO,
                            "the ranks of %s name different runs, %s and %s: give all of them the same",
                            m->name, m->group_run, run);
    if (!first)
        return 0;
    if (run)
        snprintf(m->group_run, sizeof(m->group_run), "%s", run);
    else if (m->any && !new_run)
        memcpy(m->group_run, m->run, sizeof(m->group_run));
    else
        random_run(m->group_run);
    if (new_run)
        memcpy(m->opened_run, m->group_run, sizeof(m->opened_run));
    return 0;
}

/* On a node that is not the primary's the primary settles it. */
static int set_run(struct ws_agent *a, struct ws_agent_model *m, const json_t *body, struct ws_error *err)
{
    const char *run = json_string_value(json_object_get(body, "run"));
    bool new_run = json_is_true(json_object_get(body, "new_run"));
    struct ws_group *g = m->group;
    if (!a->primary)
        return ws_agent_set_run(m, run, new_run, ws_group_n_here(m) == 0, err);
    if (run && !ws_run_is_safe(run))
        return ws_agent_set_run(m, run, new_run, true, err);
    if (run && m->n_registered > 0 && g->asked_run[0] && strcmp(run, g->asked_run) != 0)
        return ws_error_set(err, EPROTO,
                            "the ranks of %s name different runs, %s and %s: give all of them the same",
                            m->name, g->asked_run, run);
    if (m->n_registered == 0)
        g->asked_run[0] = '\0';
    g->new_run = new_run;
    if (run)
        snprintf(g->asked_run, sizeof(g->asked_run), "%s", run);
    return 0;
}

/* Nobody of a group of another size is left. */
int ws_agent_set_world(struct ws_agent_model *m, unsigned world_size, struct ws_error *err)
{
    if (m->world_size == world_size)
        return 0;
    struct ws_session **ranks = calloc(world_size, sizeof(struct ws_session *));
    struct ws_remote *remotes = m->group ? calloc(world_size, sizeof(*remotes)) : NULL;
    if (!ranks || (m->group && !remotes)) {
        free(ranks);
        free(remotes);
        return ws_error_set(err, ENOMEM, "no memory for %u ranks", world_size);
    }
    free(m->ranks);
    m->ranks = ranks;
    if (m->group) {
        free(m->group->remotes);
        m->group->remotes = remotes;
    }
    m->world_size = world_size;
    m->n_registered = 0;
    ws_placement_free(m->placement);
    ws_placement_free(m->share);
    m->placement = m->share = NULL;
    return 0;
}

/* Who keeps a rank from joining: the one that has its number, or any of a group of another size. */
static const struct ws_session *in_the_way(const struct ws_agent_model *m, unsigned rank, unsigned world_size)
{
    if (m->world_size == world_size)
        return m->ranks[rank];
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->ranks[r])
            return m->ranks[r];
    return NULL;
}

/* The same of ranks on other nodes, at the primary. */
static const struct ws_node *other_node(const struct ws_agent_model *m, unsigned rank, unsigned world_size)
{
    if (m->world_size == world_size)
        return ws_group_holder(m, rank);
    for (unsigned r = 0; r < m->world_size; r++)
        if (ws_group_holder(m, r))
            return ws_group_holder(m, r);
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

/* Nobody is ever displaced: a publisher that runs is waited for, and so is one that was killed a moment ago
 * and whose end was not noticed yet. A group of another size begins when the old one is empty. */
int ws_agent_join(struct ws_agent *a, struct ws_agent_model *m, struct ws_session *c, unsigned world_size,
                  uint64_t deadline, const json_t *body, struct ws_error *err)
{
    const struct ws_node *node = NULL;
    for (const struct ws_session *other; (other = in_the_way(m, c->rank, world_size)) ||
                                         (node = other_node(m, c->rank, world_size)) || m->preparing;)
        if (other && other->pid > 0 && kill(other->pid, 0) < 0 && errno == ESRCH)
            ws_agent_forget(a, m->ranks[other->rank], "ended, and a child of it keeps its connection,");
        else if (!ws_agent_wait(a, deadline))
            return node ? ws_error_set(
                              err, EBUSY,
                              "the node %s publishes %s already, with rank %u or with another number of "
                              "ranks than %u; it did not end in time",
                              node->name, m->name, c->rank, world_size)
                   : !other ? ws_error_set(err, EBUSY, "a slot of %s is being prepared", m->name)
                            : refuse(m, c, other, world_size, err);
    if (ws_group_spans(m))
        ws_agent_abandon(a, m, "a rank joined: its placement is about to change");
    int rc = ws_agent_set_world(m, world_size, err);
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
