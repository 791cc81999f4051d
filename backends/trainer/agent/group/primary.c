/* The primary of a group: it knows all ranks, by reports of the trainer's other agents (reports.c), and decides how far a
 * version is (group.h). */
#include "backends/trainer/agent/audit/audit.h"
#include "backends/trainer/agent/core/journal.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/sessions.h"
#include "backends/trainer/agent/group/group.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SILENT_NS ((WS_LEASE_GRACE_MS + 3000) * WS_MS_NS) /* a call may take WS_NODE_CALL_MS */
#define TURN_NS   500000000UL
#define SOON_NS   20000000UL

/* --- a round --- */

/* The highest version that ranks are known to write in this round; 0: none is. */
static uint64_t highest(const struct ws_agent_model *m)
{
    const struct ws_group *g = m->group;
    uint64_t version = m->writing && m->n_begun && g->writing_round == g->round ? m->writing_version : 0;
    for (unsigned i = 0; i < WS_MAX_NODE_PARTS; i++) {
        const struct ws_group_node *n = &g->nodes[i];
        if (n->id && n->round == g->round && n->version > version &&
            strcmp(n->lineage, m->group_lineage) == 0)
            version = n->version;
    }
    return version;
}

/* What nodes wait for: their held requests are answered by the group's thread. */
static void change_phase(struct ws_agent *a)
{
    ws_group_thread_of(a)->phase_changed = true;
    pthread_cond_signal(&ws_group_thread_of(a)->wake);
}

void ws_primary_end_round(struct ws_agent *a, struct ws_group *g)
{
    g->round++;
    g->hashing = false;
    change_phase(a);
}

void ws_primary_abandon(struct ws_agent *a, struct ws_agent_model *m, const char *why)
{
    struct ws_group *g = m->group;
    const uint64_t before = g->round;
    const struct ws_version_id given_up = ws_version_id_make(highest(m), m->group_lineage);
    if (m->writing)
        ws_group_abandon_here(a, m, why); /* may end the round itself */
    else
        ws_agent_model_record_why(m, why);
    if (!m->n_local)
        ws_agent_audit_discarded(m);
    if (g->round == before)
        ws_primary_end_round(a, g);
    g->hashing = false;
    ws_group_record_why(g, NULL, why);
    if (given_up.version)
        ws_group_given_up(m, &given_up, before);
    pthread_cond_broadcast(&a->changed);
}

/* The first that is in this round and has another version than the one given; NULL: none. */
static const struct ws_group_node *other_version(const struct ws_group *g, uint64_t version,
                                                 const char *lineage)
{
    for (unsigned i = 0; i < WS_MAX_NODE_PARTS; i++) {
        const struct ws_group_node *n = &g->nodes[i];
        if (n->id && n->member && (n->version != version || strcmp(n->lineage, lineage) != 0))
            return n;
    }
    return NULL;
}

static const struct ws_group_node *first_member(const struct ws_group *g)
{
    for (unsigned i = 0; i < WS_MAX_NODE_PARTS; i++)
        if (g->nodes[i].id && g->nodes[i].member)
            return &g->nodes[i];
    return NULL;
}

/* Have all that write in this epoch gone so far? Each node is looked at once a phase, and the first that has not. */
static bool have_all(struct ws_agent_model *m, bool sealed)
{
    struct ws_group *g = m->group;
    struct ws_group_seen *seen = &g->seen;
    if (m->n_local && !(m->writing && g->writing_round == g->round && (sealed ? g->sealed : g->committed)))
        return false;
    if (seen->round != g->round || seen->epoch != g->epoch || seen->sealed != sealed)
        *seen = (struct ws_group_seen){.round = g->round, .epoch = g->epoch, .sealed = sealed};
    for (; seen->n < WS_MAX_NODE_PARTS; seen->n++) {
        const struct ws_group_node *n = &g->nodes[seen->n];
        if (n->id && n->member &&
            !(n->round == g->round && n->epoch == g->epoch && (sealed ? n->sealed : n->committed)))
            return false;
    }
    return true;
}

/* Compares the replicas of all nodes' ranks. */
static int audit(struct ws_agent_model *m, uint64_t version, char *why, size_t cap)
{
    const struct ws_group *g = m->group;
    struct ws_audit all_hashes = {0};
    struct ws_error err = {0};
    if (!m->n_local) /* nothing is begun here */
        ws_agent_audit_begin(m);
    const struct ws_audit *here = ws_agent_audit_local_hashes(m);
    int rc = ws_audit_add(&all_hashes, here->ptr, here->len, &err);
    for (unsigned k = 0; rc == 0 && k < WS_MAX_NODE_PARTS; k++)
        if (g->nodes[k].audit_round == g->round)
            rc = ws_audit_add(&all_hashes, g->nodes[k].audit.ptr, g->nodes[k].audit.len, &err);
    if (rc == 0)
        rc = ws_agent_audit_check(m, &all_hashes, version, &err);
    ws_audit_reset(&all_hashes);
    snprintf(why, cap, "%s", err.text);
    return rc;
}

static void begin_hashing(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_group *g = m->group;
    const struct ws_group_node *one = first_member(g), *other;
    const uint64_t version = m->n_local ? m->writing_version : one->version;
    const char *lineage = m->n_local ? m->writing->lineage : one->lineage;
    char why[WS_ERROR_TEXT];
    other = other_version(g, version, lineage);
    if (other) {
        snprintf(why, sizeof(why),
                 "the nodes wrote different versions: %s %" PRIu64 " of run %s, %s %" PRIu64
                 " of run %s; every rank offloads the same step",
                 m->n_local ? a->node_name : one->name, version, lineage, other->name, other->version,
                 other->lineage);
        ws_log(WS_LOG_ERROR, "agent", "version refused model=%s: %s", m->name, why);
        ws_primary_abandon(a, m, why);
        return;
    }
    if (audit(m, version, why, sizeof(why)) < 0) {
        ws_primary_abandon(a, m, why);
        return;
    }
    g->hashing = true;
    g->announced = ws_version_id_make(version, lineage); /* once it is: announced_round says so */
    if (m->n_local)
        m->writing->state = WS_SLOT_HASHING;
    pthread_cond_broadcast(&a->changed);
    change_phase(a);
}

static void announce(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_group *g = m->group;
    g->announced_round = g->round;
    ws_primary_end_round(a, g);
    if (m->n_local) {
        ws_agent_model_publish(a, m);
    } else {
        memcpy(m->lineage, g->announced.lineage, sizeof(m->lineage));
        m->newest = g->announced.version;
        m->has_published = true;
        m->published++;
        ws_agent_audit_published(m);
        ws_journal_version(m, "publish", m->name, m->newest, NULL);
    }
    ws_log(WS_LOG_INFO, "agent", "all parts are there model=%s version=%" PRIu64 " parts=%u", m->name,
           g->announced.version, g->count);
    pthread_cond_broadcast(&a->changed);
}

static void try_place(struct ws_agent *a, struct ws_agent_model *m);

bool ws_primary_advance(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_group *g = m->group;
    bool announced = false;
    if (m->spans_nodes && !g->hashing && !g->stale && (m->n_local || first_member(g)) && have_all(m, false))
        begin_hashing(a, m);
    if (m->spans_nodes && g->hashing && have_all(m, true)) {
        announce(a, m);
        announced = true;
    }
    try_place(a, m);
    return announced;
}

/* --- ranks and nodes that are present --- */

unsigned ws_primary_n_here(const struct ws_agent_model *m)
{
    return m->n_registered + m->group->n_remotes;
}

/* Nodes are numbered by their lowest rank. Returns how many; names: those of them. */
static unsigned number_nodes(const struct ws_agent *a, const struct ws_agent_model *m, unsigned *node_of,
                             unsigned *own, json_t *names)
{
    struct ws_group *g = m->group;
    unsigned count = 0;
    *own = WS_MAX_NODE_PARTS + 1;
    for (unsigned i = 0; i < WS_MAX_NODE_PARTS; i++)
        g->nodes[i].index = WS_MAX_NODE_PARTS + 1;
    for (unsigned r = 0; r < m->world_size; r++) {
        unsigned *index = m->ranks[r] ? own : &g->remotes[r].node->index;
        if (*index > WS_MAX_NODE_PARTS) {
            *index = count++;
            json_array_append_new(names, json_string(m->ranks[r] ? a->node_name : g->remotes[r].node->name));
        }
        node_of[r] = *index;
    }
    return count;
}

static int place(struct ws_agent *a, struct ws_agent_model *m, struct ws_error *err)
{
    struct ws_group *g = m->group;
    struct ws_registration **regs = calloc(m->world_size, sizeof(struct ws_registration *));
    unsigned *node_of = calloc(m->world_size, sizeof(*node_of)), own;
    json_t *names = json_array();
    if (!regs || !node_of || !names) {
        free(regs);
        free(node_of);
        json_decref(names);
        return ws_error_set(err, ENOMEM, "no memory for %u ranks", m->world_size);
    }
    for (unsigned r = 0; r < m->world_size; r++)
        regs[r] = m->ranks[r] ? m->ranks[r]->registration : g->remotes[r].registration;
    unsigned count = number_nodes(a, m, node_of, &own, names);
    int rc = count > WS_MAX_NODE_PARTS
                 ? ws_error_set(err, E2BIG, "the ranks are on %u nodes; at most %d", count, WS_MAX_NODE_PARTS)
                 : ws_group_place(a, m, regs, node_of, own, count, names, err);
    free(regs);
    if (rc < 0) {
        free(node_of);
        json_decref(names);
        return rc;
    }
    free(g->node_of);
    json_decref(g->names);
    g->node_of = node_of;
    g->names = names;
    g->count = count;
    g->own = own;
    g->epoch++;
    for (unsigned i = 0; i < WS_MAX_NODE_PARTS; i++)
        g->nodes[i].member = false;
    for (unsigned r = 0; r < m->world_size; r++)
        if (!m->ranks[r])
            g->remotes[r].node->member = true;
    ws_log(WS_LOG_INFO, "agent", "all ranks are there model=%s ranks=%u nodes=%u epoch=%" PRIu64, m->name,
           m->world_size, count, g->epoch);
    return 0;
}

static void try_place(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_group *g = m->group;
    struct ws_error err = {0};
    if (!g->stale || g->tried || g->hashing || m->preparing || ws_primary_n_here(m) != m->world_size)
        return;
    g->tried = true;
    g->failed_code = 0;
    if (place(a, m, &err) == 0)
        return;
    g->failed_code = err.code;
    snprintf(g->failed_text, sizeof(g->failed_text), "%s", err.text);
    ws_group_refuse(a, m, err.code, err.text);
}

void ws_primary_placement_changed(struct ws_agent *a, struct ws_agent_model *m, const char *why)
{
    struct ws_group *g = m->group;
    g->stale = true;
    g->tried = false;
    g->failed_code = 0;
    if (g->hashing)
        return;
    if (m->writing || highest(m))
        ws_primary_abandon(a, m, why);
    else
        ws_primary_end_round(a, g); /* for ranks whose begin is not reported yet; g->why keeps the reason */
}

void ws_primary_skip_until(struct ws_agent *a, struct ws_agent_model *m, unsigned rank, const char *node_name,
                           uint64_t from)
{
    struct ws_group *g = m->group;
    const bool is_same_lineage = strcmp(g->given_up.lineage, m->group_lineage) == 0;
    const uint64_t newest = m->has_published && strcmp(m->lineage, m->group_lineage) == 0 ? m->newest : 0;
    const uint64_t version = highest(m);
    char why[WS_ERROR_TEXT];
    if (!from || g->hashing)
        return;
    snprintf(why, sizeof(why), "rank %u on %.200s came back, and goes on with version %" PRIu64, rank,
             node_name, from);
    if (version && version < from)
        ws_primary_abandon(a, m, why);
    const struct ws_version_id before = ws_version_id_make(from - 1, m->group_lineage);
    if (before.version <= newest || (is_same_lineage && before.version <= g->given_up.version) ||
        g->round < 2)
        return;
    if (!m->writing)
        ws_agent_model_record_why(m, why);
    ws_group_record_why(g, NULL, why);
    ws_group_given_up(m, &before, g->round - 1);
    pthread_cond_broadcast(&a->changed);
}

void ws_primary_joined(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *last)
{
    ws_primary_placement_changed(a, m, "a rank joined: the placement is about to change");
    ws_primary_skip_until(a, m, last->rank, a->node_name, last->from);
    try_place(a, m);
}

void ws_primary_drop_rank(struct ws_agent *a, struct ws_agent_model *m, unsigned rank, const char *how)
{
    struct ws_group *g = m->group;
    struct ws_group_remote *r = &g->remotes[rank];
    const struct ws_group_node *n = r->node;
    char why[WS_ERROR_TEXT];
    ws_registration_free(r->registration);
    snprintf(why, sizeof(why), "rank %u on %.200s %s", rank, n->name, how);
    *r = (struct ws_group_remote){0};
    g->n_remotes--;
    g->nodes[n - g->nodes].n_ranks--;
    /* One that has committed is not needed any more. */
    if (!g->hashing && !(n->committed && n->round == g->round))
        ws_primary_abandon(a, m, why);
    pthread_cond_broadcast(&a->changed);
}

static void drop_node(struct ws_agent *a, struct ws_agent_model *m, struct ws_group_node *n)
{
    struct ws_group *g = m->group;
    char why[WS_ERROR_TEXT];
    unsigned n_ranks = 0;
    for (unsigned r = 0; r < m->world_size; r++)
        n_ranks += g->remotes[r].node == n;
    if (n_ranks) /* else its ranks have ended, and the node has no more to report */
        ws_log(WS_LOG_WARN, "agent", "a node is silent model=%s node=%s ranks=%u", m->name, n->name, n_ranks);
    for (unsigned r = 0; r < m->world_size; r++)
        if (g->remotes[r].node == n)
            ws_primary_drop_rank(a, m, r, "is out of reach: its node's agent is silent");
    snprintf(why, sizeof(why), "the agent of the node %.200s is silent: start it again", n->name);
    if (n->member && (g->hashing || (n->round == g->round && n->committed)))
        ws_primary_abandon(a, m, why);
    if (n->member)
        g->stale = true;
    ws_audit_reset(&n->audit);
    *n = (struct ws_group_node){0};
}

/* Ranks that have not come back to an agent that was started anew, in as long as an agent may be silent. */
static void drop_away(struct ws_agent *a, struct ws_agent_model *m, struct ws_group_node *n)
{
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->group->remotes[r].node == n && m->group->remotes[r].away)
            ws_primary_drop_rank(a, m, r, "has not registered again since its node's agent was started anew");
    n->renewed_ns = 0;
}

uint64_t ws_primary_step(struct ws_agent *a)
{
    struct ws_group_thread *t = ws_group_thread_of(a);
    uint64_t now = ws_clock_ns(), wait = 10 * TURN_NS;
    /* If this thread was late, messages of other agents may be late, too: a large placement takes seconds. */
    bool late = now - t->stepped_ns > 12 * TURN_NS;
    t->stepped_ns = now;
    for (struct ws_agent_model *m = a->models; m; m = m->next) {
        struct ws_group *g = m->group;
        for (unsigned i = 0; g && i < WS_MAX_NODE_PARTS; i++) {
            if (!g->nodes[i].id)
                continue;
            wait = wait > TURN_NS ? TURN_NS : wait;
            struct ws_group_node *n = &g->nodes[i];
            if (late)
                n->heard_ns = now;
            if (late && n->renewed_ns)
                n->renewed_ns = now;
            if (n->renewed_ns && now > n->renewed_ns && now - n->renewed_ns > SILENT_NS)
                drop_away(a, m, n);
            if (now > n->heard_ns && now - n->heard_ns > SILENT_NS)
                drop_node(a, m, n);
        }
        if (g)
            try_place(a, m);
        if (g && g->stale && !g->tried && ws_primary_n_here(m) == m->world_size)
            wait = SOON_NS; /* a slot is being prepared */
    }
    return wait;
}
