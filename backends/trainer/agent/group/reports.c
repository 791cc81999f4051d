/* Reports: the messages of a trainer's other agents, at the primary. Each is checked, recorded, and answered with the state
 * of the group (group.h). */
#include "backends/trainer/agent/audit/audit.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/sessions.h"
#include "backends/trainer/agent/group/group.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/protocol/catalog.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a node's agent may claim: it has a role, and may still be wrong. */
#define MOST_CLAIMED_MODELS 32 /* models that no version and no rank of this node vouches for */
#define MOST_VERSION_JUMP   (1ULL << 30)

/* --- messages of a node --- */

/* The node of that name that has one of these ranks, as another instance of its agent. NULL: there is none. */
static struct ws_group_node *other_instance(const struct ws_agent_model *m, const char *name,
                                            const json_t *ranks)
{
    const json_t *one;
    size_t i;
    json_array_foreach(ranks, i, one)
    {
        const json_int_t r = json_integer_value(json_array_get(one, 0));
        struct ws_group_node *n = r >= 0 && r < (json_int_t)m->world_size ? m->group->remotes[r].node : NULL;
        if (n && strcmp(n->name, name) == 0)
            return n;
    }
    return NULL;
}

/* What was written there is lost. Its ranks keep their places until they are back. */
static void renew_node(struct ws_agent *a, struct ws_agent_model *m, struct ws_group_node *n, uint64_t id)
{
    struct ws_group *g = m->group;
    const uint64_t version = n->round == g->round ? n->version : 0;
    const bool lost = n->member && (g->hashing || version);
    char why[WS_ERROR_TEXT];
    ws_log(WS_LOG_WARN, "agent", "a node's agent was started anew model=%s node=%s", m->name, n->name);
    if (lost) {
        snprintf(why, sizeof(why),
                 "the agent of the node %.200s was started anew: what its ranks had written is lost",
                 n->name);
        ws_primary_abandon(a, m, why);
    }
    ws_audit_reset(&n->audit);
    n->id = id;
    n->epoch = n->round = n->version = n->audit_round = 0;
    n->committed = n->sealed = false;
    n->renewed_ns = ws_clock_ns();
    for (unsigned r = 0; r < m->world_size; r++)
        if (g->remotes[r].node == n)
            g->remotes[r].away = true;
}

static struct ws_group_node *node_of(struct ws_agent *a, struct ws_agent_model *m, uint64_t id,
                                     const char *name, const json_t *ranks, struct ws_error *err)
{
    struct ws_group *g = m->group;
    struct ws_group_node *place_ = NULL;
    for (unsigned i = 0; i < WS_MAX_NODE_PARTS; i++) {
        if (g->nodes[i].id == id)
            return &g->nodes[i];
        if (!g->nodes[i].id && !place_)
            place_ = &g->nodes[i];
    }
    struct ws_group_node *other = other_instance(m, name, ranks);
    if (other && other->id > id) { /* a request that was held still, and would take a place for nobody */
        ws_error_set(err, ESTALE, "the agent of the node %.200s was started anew since", name);
        return NULL;
    }
    if (other) {
        renew_node(a, m, other, id);
        return other;
    }
    if (!place_) {
        ws_error_set(err, E2BIG, "%.200s is one node more than %d", name, WS_MAX_NODE_PARTS);
        return NULL;
    }
    *place_ = (struct ws_group_node){.id = id};
    snprintf(place_->name, sizeof(place_->name), "%s", name);
    return place_;
}

/* Is that a rank that is registered at the node, by the registration that its message names? *rank: its number. */
static bool is_registered(const struct ws_agent_model *m, const struct ws_group_node *n, const json_t *one,
                          unsigned *rank)
{
    const json_int_t r = json_integer_value(json_array_get(one, 0));
    if (r < 0 || r >= (json_int_t)m->world_size)
        return false;
    *rank = (unsigned)r;
    return m->group->remotes[r].node == n &&
           m->group->remotes[r].ticket == (uint64_t)json_integer_value(json_array_get(one, 1));
}

/* Drops the ranks of the node that its message does not name; mostly there is none. */
static void drop_ended(struct ws_agent *a, struct ws_agent_model *m, struct ws_group_node *n,
                       const json_t *ranks)
{
    const struct ws_group *g = m->group;
    const json_t *one;
    unsigned found = 0, rank;
    size_t i;
    json_array_foreach(ranks, i, one) found += is_registered(m, n, one, &rank);
    if (found == n->n_ranks)
        return;
    bool *listed = calloc(m->world_size, sizeof(*listed));
    if (!listed) /* its next message does */
        return;
    json_array_foreach(ranks, i, one) if (is_registered(m, n, one, &rank)) listed[rank] = true;
    for (unsigned r = 0; r < m->world_size; r++)
        if (g->remotes[r].node == n && !g->remotes[r].away && !listed[r])
            ws_primary_drop_rank(a, m, r, "ended, or registered anew");
    free(listed);
}

/* Takes away the registration of a rank that was away, for the new one. Returns whether its places stay. */
static bool take_back(struct ws_agent_model *m, unsigned rank, const struct ws_registration *now,
                      bool knows_from)
{
    struct ws_group *g = m->group;
    struct ws_group_remote *before = &g->remotes[rank];
    struct ws_group_node *n = before->node;
    bool any_away = false;
    if (!before->away)
        return false;
    const bool same = knows_from && !g->stale && ws_registration_repeats(now, before->registration);
    ws_registration_free(before->registration);
    *before = (struct ws_group_remote){0};
    g->n_remotes--;
    n->n_ranks--;
    for (unsigned r = 0; r < m->world_size; r++)
        any_away = any_away || (g->remotes[r].node == n && g->remotes[r].away);
    if (!any_away)
        n->renewed_ns = 0;
    return same;
}

static int add_rank(struct ws_agent *a, struct ws_agent_model *m, struct ws_group_node *n, unsigned rank,
                    uint64_t ticket, uint64_t from, const json_t *body, const json_t *registration,
                    struct ws_error *err)
{
    struct ws_group *g = m->group;
    struct ws_registration *r = NULL;
    int rc = ws_session_set_lineage(m, json_string_value(json_object_get(body, "run")),
                                    json_is_true(json_object_get(body, "new_run")), ws_primary_n_here(m) == 0,
                                    err);
    if (rc == 0)
        rc = ws_registration_from_json(registration, rank, &r, err);
    if (rc < 0)
        return rc;
    const bool keeps_places =
        take_back(m, rank, r, from && m->shard_bytes == ws_agent_number(body, "shard_bytes", 0));
    g->remotes[rank] = (struct ws_group_remote){.registration = r, .node = n, .ticket = ticket};
    g->n_remotes++;
    n->n_ranks++;
    if (keeps_places) {
        ws_primary_skip_until(a, m, rank, n->name, from);
        return 0;
    }
    m->spans_nodes = true; /* until a placement says otherwise: this node alone announces nothing */
    m->shard_bytes = ws_agent_number(body, "shard_bytes", 0);
    if (m->n_registered == 0)
        m->max_slots = a->options.max_slots;
    ws_primary_placement_changed(a, m, "a rank joined: the placement is about to change");
    ws_primary_skip_until(a, m, rank, n->name, from);
    return 0;
}

static json_t *refusal_json(unsigned rank, int code, const char *why)
{
    return json_pack("[i,i,s]", (int)rank, code, why);
}

/* Records the ranks that the node has now. need, refused: what the reply says of them. */
static void record_ranks(struct ws_agent *a, struct ws_agent_model *m, struct ws_group_node *n,
                         const json_t *body, json_t *need, json_t *refused)
{
    struct ws_group *g = m->group;
    const json_t *ranks = json_object_get(body, "ranks"), *one;
    const uint64_t world = ws_agent_number(body, "world_size", 0);
    size_t i;
    drop_ended(a, m, n, ranks);
    json_array_foreach(ranks, i, one)
    {
        unsigned rank = (unsigned)json_integer_value(json_array_get(one, 0));
        uint64_t ticket = (uint64_t)json_integer_value(json_array_get(one, 1));
        const uint64_t from = (uint64_t)json_integer_value(json_array_get(one, 2));
        struct ws_error err = {0};
        char key[16];
        if (world != m->world_size &&
            (ws_primary_n_here(m) > 0 || m->preparing || world == 0 || world > WS_MAX_RANKS ||
             ws_group_set_world_size(m, (unsigned)world, &err) < 0)) {
            snprintf(err.text, sizeof(err.text),
                     "%u of %u ranks of %s are registered, this one is of %" PRIu64, ws_primary_n_here(m),
                     m->world_size, m->name, world);
            json_array_append_new(refused, refusal_json(rank, EBUSY, err.text));
            continue;
        }
        if (rank >= m->world_size || (g->remotes[rank].node == n && !g->remotes[rank].away))
            continue;
        const bool returns = g->remotes[rank].node == n;
        if (m->ranks[rank] || (g->remotes[rank].registration && !returns)) {
            snprintf(err.text, sizeof(err.text),
                     "rank %u of %s is registered on the node %.200s; it did not end in time", rank, m->name,
                     m->ranks[rank] ? a->node_name : g->remotes[rank].node->name);
            json_array_append_new(refused, refusal_json(rank, EBUSY, err.text));
            continue;
        }
        snprintf(key, sizeof(key), "%u", rank);
        const json_t *registration = json_object_get(json_object_get(body, "registrations"), key);
        if (!registration)
            json_array_append_new(need, json_integer((json_int_t)rank));
        else if (add_rank(a, m, n, rank, ticket, from, body, registration, &err) < 0)
            json_array_append_new(refused, refusal_json(rank, err.code, err.text));
    }
}

/* Once a round. Malformed hashes count as missing, and the audit reports them so. */
static void record_audit(struct ws_group_node *n, const json_t *all_hashes)
{
    struct ws_error err = {0};
    if (!json_is_array(all_hashes) || n->audit_round == n->round)
        return;
    ws_audit_reset(&n->audit);
    if (ws_audit_from_json(&n->audit, all_hashes, &err) < 0) {
        ws_log(WS_LOG_WARN, "agent", "a node's audit is left out node=%s error=\"%s\"", n->name, err.text);
        ws_audit_reset(&n->audit);
    }
    n->audit_round = n->round;
}

/* The versions that the node wrote in this round, and gave up; an agent of 0.1.0 does not send them. */
static void record_given_up(struct ws_group_node *n, const json_t *all_hashes, uint64_t round)
{
    const char *lineage = json_string_value(json_object_get(all_hashes, "run"));
    n->round = round;
    n->version = ws_agent_number(all_hashes, "version", 0);
    snprintf(n->lineage, sizeof(n->lineage), "%s", lineage ? lineage : "");
}

/* Could the trainer be at that version? Versions of one lineage are steps, or times: neither grows by more than it
 * has, or than a long training has steps. What this node's own ranks write is no claim. */
static bool is_plausible(const struct ws_agent_model *m, const struct ws_version_id *v)
{
    const uint64_t most = m->newest > MOST_VERSION_JUMP ? m->newest : MOST_VERSION_JUMP;
    if (!m->has_published || strcmp(v->lineage, m->lineage) != 0 || v->version <= m->newest)
        return v->version <= INT64_MAX;
    return v->version - m->newest <= most || (m->writing && m->writing_version == v->version);
}

static int check_claim(const struct ws_agent_model *m, const struct ws_version_id *claimed,
                       struct ws_error *err)
{
    return is_plausible(m, claimed)
               ? 0
               : ws_error_set(err, EINVAL,
                              "a node has version %" PRIu64 " of %s, whose newest is %" PRIu64
                              ": no trainer is so far ahead; open another lineage for such a jump (new_run)",
                              claimed->version, m->name, m->newest);
}

/* The lineage that the ranks of a message write, which is the group's unless they begin it (ws_session_set_lineage). */
static const char *lineage_of_ranks(const struct ws_agent_model *m, const json_t *body)
{
    const char *named = json_string_value(json_object_get(body, "run"));
    if (ws_primary_n_here(m) > 0)
        return m->group_lineage;
    if (named)
        return named;
    return json_is_true(json_object_get(body, "new_run")) ? "" : m->lineage;
}

static int check_claims(const struct ws_agent_model *m, const json_t *body, struct ws_error *err)
{
    const json_t *given_up = json_object_get(body, "given_up");
    const char *lineage = json_string_value(json_object_get(body, "version_run"));
    const char *abandoned = json_string_value(json_object_get(given_up, "run"));
    const struct ws_version_id claims[] = {
        ws_version_id_make(ws_agent_number(body, "version", 0), lineage ? lineage : ""),
        ws_version_id_make(ws_agent_number(given_up, "version", 0), abandoned ? abandoned : "")};
    const json_t *one;
    size_t i;
    int rc = 0;
    for (i = 0; rc == 0 && i < sizeof(claims) / sizeof(claims[0]); i++)
        rc = check_claim(m, &claims[i], err);
    json_array_foreach(json_object_get(body, "ranks"), i, one)
    {
        const struct ws_version_id from = ws_version_id_make(
            (uint64_t)json_integer_value(json_array_get(one, 2)), lineage_of_ranks(m, body));
        if (rc == 0)
            rc = check_claim(m, &from, err);
    }
    return rc;
}

/* The model that a node's message names. One that is not known here is made for ranks that the message registers, and
 * not for any number of names. */
static struct ws_agent_model *claimed_model(struct ws_agent *a, const char *name, const json_t *body,
                                            struct ws_error *err)
{
    struct ws_agent_model *m = ws_agent_model_find(a, name);
    unsigned claimed = 0;
    if (m)
        return m;
    for (m = a->models; m; m = m->next)
        claimed += !m->has_published && m->n_registered == 0 && m->n_slots == 0 && !m->nodes;
    if (json_array_size(json_object_get(body, "ranks")) == 0)
        (void)ws_error_set(err, ENOENT,
                           "there is no model '%.100s' here, and the message names no rank of it", name);
    else if (claimed >= MOST_CLAIMED_MODELS)
        (void)ws_error_set(err, E2BIG,
                           "nodes name %u models of which nothing was published: no room for %.100s", claimed,
                           name);
    else if (!(m = ws_agent_model_find_or_add(a, name)))
        (void)ws_error_set(err, ENOMEM, "no room for the model %s; at most %d", name, WS_MAX_MODELS);
    return m;
}

static void record_version(struct ws_agent *a, struct ws_agent_model *m, struct ws_group_node *n,
                           const json_t *body)
{
    struct ws_group *g = m->group;
    const char *lineage = json_string_value(json_object_get(body, "version_run"));
    const char *why = json_string_value(json_object_get(body, "why"));
    char text[WS_ERROR_TEXT];
    n->epoch = ws_agent_number(body, "epoch", 0);
    n->round = ws_agent_number(body, "round", 0);
    n->version = ws_agent_number(body, "version", 0);
    snprintf(n->lineage, sizeof(n->lineage), "%s", lineage ? lineage : "");
    n->committed = json_is_true(json_object_get(body, "committed"));
    n->sealed = json_is_true(json_object_get(body, "sealed"));
    record_audit(n, json_object_get(body, "audit"));
    if (ws_agent_number(body, "gave_up", 0) != g->round)
        return;
    record_given_up(n, json_object_get(body, "given_up"), g->round);
    snprintf(text, sizeof(text), "%.200s: %s", n->name, why ? why : "it did not say why");
    ws_primary_abandon(a, m, text);
}

/* --- replies to a node --- */

static int by_id_and_rank(const void *x, const void *y)
{
    const struct ws_registration *a = *(struct ws_registration *const *)x,
                                 *b = *(struct ws_registration *const *)y;
    for (size_t i = 0; i < 2; i++)
        if (a->id[i] != b->id[i])
            return a->id[i] < b->id[i] ? -1 : 1;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Of all ranks that are not the node's. What a rank repeats is told once, where the node's agent understands that: of
 * the others with the same there is the number of the first. NULL: no memory. */
static json_t *registrations_but(const struct ws_agent_model *m, const struct ws_group_node *n, bool repeats)
{
    assert(m->world_size > 0); /* a placement was made */
    const struct ws_registration **theirs = calloc(m->world_size, sizeof(*theirs)), *first = NULL;
    json_t *all = theirs ? json_object() : NULL;
    size_t n_theirs = 0;
    for (unsigned r = 0; all && r < m->world_size; r++)
        if (m->ranks[r] || m->group->remotes[r].node != n)
            theirs[n_theirs++] = m->ranks[r] ? m->ranks[r]->registration : m->group->remotes[r].registration;
    if (repeats && n_theirs > 1)
        qsort(theirs, n_theirs, sizeof(theirs[0]), by_id_and_rank);
    for (size_t i = 0; i < n_theirs; i++) {
        const bool is_told = repeats && first && ws_registration_repeats(theirs[i], first);
        char key[16];
        first = is_told ? first : theirs[i];
        snprintf(key, sizeof(key), "%u", theirs[i]->rank);
        json_object_set_new(
            all, key, is_told ? json_integer((json_int_t)first->rank) : ws_registration_to_json(theirs[i]));
    }
    free(theirs);
    return all;
}

static json_t *group_json(const struct ws_agent_model *m, const struct ws_group_node *n, bool repeats)
{
    const struct ws_group *g = m->group;
    json_t *nodes = json_array(), *tickets = json_array();
    unsigned index = 0;
    for (unsigned r = 0; r < m->world_size; r++) {
        json_array_append_new(nodes, json_integer((json_int_t)g->node_of[r]));
        if (m->ranks[r] || g->remotes[r].node != n)
            continue;
        index = g->node_of[r];
        json_array_append_new(tickets, json_pack("[i,I]", (int)r, (json_int_t)g->remotes[r].ticket));
    }
    return json_pack("{s:s,s:I,s:i,s:i,s:o,s:o,s:o,s:o}", "placement", m->placement->id, "shard_bytes",
                     (json_int_t)m->shard_bytes, "index", (int)index, "count", (int)g->count, "node_of",
                     nodes, "nodes", json_deep_copy(g->names), "tickets", tickets, "registrations",
                     registrations_but(m, n, repeats));
}

static json_t *reply_json(const struct ws_agent *a, const struct ws_agent_model *m,
                          const struct ws_group_node *n, bool repeats, json_t *need, json_t *refused)
{
    const struct ws_group *g = m->group;
    bool whole = ws_group_is_complete(a, m);
    for (unsigned r = 0; g->failed_code && r < m->world_size; r++)
        if (g->remotes[r].node == n)
            json_array_append_new(refused, refusal_json(r, g->failed_code, g->failed_text));
    json_t *o = json_pack("{s:I,s:I,s:b,s:b,s:I,s:i,s:s,s:s,s:o,s:o}", "primary", (json_int_t)a->instance,
                          "round", (json_int_t)g->round, "hashing", (int)g->hashing, "whole", (int)whole,
                          "epoch", (json_int_t)g->epoch, "here", (int)ws_primary_n_here(m), "run",
                          m->group_lineage, "why", g->why, "need", need, "refused", refused);
    json_object_set_new(o, "announced_round", json_integer((json_int_t)g->announced_round));
    json_object_set_new(o, "audit_round", json_integer((json_int_t)n->audit_round));
    if (g->given_up.version)
        json_object_set_new(o, "given_up",
                            json_pack("{s:I,s:s,s:I}", "version", (json_int_t)g->given_up.version, "run",
                                      g->given_up.lineage, "round", (json_int_t)g->given_up_round));
    if (whole && n->member && n->epoch != g->epoch && !n->renewed_ns)
        json_object_set_new(o, "group", group_json(m, n, repeats));
    return o;
}

/* A node that waits for others is answered when it can go on: hundreds of nodes that ask every few milliseconds would
 * take more of this machine than all that they wait for. */
static bool waits_for_others(const struct ws_group *g, const struct ws_group_node *n)
{
    return n->round == g->round && n->epoch == g->epoch && n->committed && !(g->hashing && !n->sealed);
}

static int check_sender(const struct ws_agent *a, const char *model, const char *name, uint64_t id,
                        struct ws_error *err)
{
    if (a->primary)
        return ws_error_set(err, EINVAL, "this agent has a primary itself, %s: name that one",
                            a->primary->url);
    if (ws_name_is_view(model, NULL, NULL))
        return ws_error_set(
            err, EINVAL,
            "'%.100s' is the name of a quantised view, which no rank publishes: no node has ranks "
            "of it",
            model);
    if (!name || !*name || strlen(name) > WS_MOUNT_ID_CHARS || !id || !ws_name_is_model(model))
        return ws_error_set(err, EINVAL, "a node's message has no id of its agent, or names no model");
    return 0;
}

int ws_primary_node_route(struct ws_agent *a, const struct ws_api_request *q, const json_t *body,
                          json_t **reply, struct ws_error *err)
{
    const char *name = json_string_value(json_object_get(body, "node"));
    const uint64_t id = ws_agent_number(body, "id", 0);
    bool announced = false;
    int rc = check_sender(a, q->model, name, id, err);
    if (rc < 0)
        return rc;
    json_t *need = json_array(), *refused = json_array();
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = claimed_model(a, q->model, body, err);
    struct ws_group_node *n = NULL;
    rc = m ? ws_group_make(m, err) : -err->code;
    if (rc == 0)
        rc = check_claims(m, body, err);
    if (rc == 0 && !(n = node_of(a, m, id, name, json_object_get(body, "ranks"), err)))
        rc = -err->code;
    if (rc == 0) {
        n->heard_ns = ws_clock_ns();
        record_version(a, m, n, body); /* first: a rank may end once its node has committed */
        record_ranks(a, m, n, body, need, refused);
        announced = ws_primary_advance(a, m);
        pthread_cond_broadcast(&a->changed);
        if (ws_agent_number(body, "hold_ms", 0) && waits_for_others(m->group, n) &&
            json_array_size(need) == 0 && json_array_size(refused) == 0)
            rc = WS_ROUTE_HELD;
        else
            *reply = reply_json(a, m, n, json_is_true(json_object_get(body, "repeats")), need, refused);
        n->heard_ns = ws_clock_ns();
    }
    if (rc != 0) {
        json_decref(need);
        json_decref(refused);
    }
    pthread_mutex_unlock(&a->lock);
    if (announced)
        ws_agent_announce(a);
    return rc;
}
