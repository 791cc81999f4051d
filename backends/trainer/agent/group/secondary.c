/* The other agents of a group: each sends the state of its node to the primary, and acts on the reply
 * (group.h). */
#include "backends/trainer/agent/audit/audit.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/group/group.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/protocol/source.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEAT_NS    WS_SECOND_NS /* where nothing happens */
#define SOON_NS    10000000UL   /* while a version waits for other nodes */
#define HASHING_NS 200000000UL  /* while this node hashes: what it waits for comes from itself */
#define HOLD_MS    250          /* a request may be held while the version waits for other nodes */
#define RANKS_NS   50000000UL   /* while ranks wait for others */
#define AGAIN_NS   200000000UL  /* after a failure */
#define SILENT_NS  (WS_LEASE_GRACE_MS * WS_MS_NS)

/* --- messages to the primary; under lock --- */

static json_t *registrations_json(const struct ws_agent_model *m)
{
    json_t *all = json_object();
    const json_t *one;
    size_t i;
    json_array_foreach(m->group->wanted_ranks, i, one)
    {
        char key[16];
        json_int_t r = json_integer_value(one);
        if (r < 0 || r >= (json_int_t)m->world_size || !m->ranks[r])
            continue;
        snprintf(key, sizeof(key), "%u", (unsigned)r);
        json_object_set_new(all, key, ws_registration_to_json(m->ranks[r]->registration));
    }
    return all;
}

/* from: the rank comes back, and writes no version before that one. */
static json_t *rank_json(const struct ws_session *c)
{
    return c->from ? json_pack("[i,I,I]", (int)c->rank, (json_int_t)c->ticket, (json_int_t)c->from)
                   : json_pack("[i,I]", (int)c->rank, (json_int_t)c->ticket);
}

static json_t *report_json(const struct ws_agent *a, struct ws_agent_model *m)
{
    const struct ws_group *g = m->group;
    json_t *ranks = json_array();
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->ranks[r])
            json_array_append_new(ranks, rank_json(m->ranks[r]));
    json_t *o = json_pack("{s:s,s:b,s:I,s:I,s:I,s:b,s:I,s:o,s:o,s:I,s:s}", "node", a->node_name, "repeats", 1,
                          "id", (json_int_t)a->instance, "world_size", (json_int_t)m->world_size,
                          "shard_bytes", (json_int_t)m->shard_bytes, "new_run", (int)g->opens_lineage,
                          "epoch", (json_int_t)g->epoch, "ranks", ranks, "registrations",
                          registrations_json(m), "gave_up", (json_int_t)g->gave_up, "why", g->why);
    if (o && g->requested_lineage[0])
        json_object_set_new(o, "run", json_string(g->requested_lineage));
    if (o && g->gave_up && g->gave_up == g->given_up_round)
        json_object_set_new(
            o, "given_up",
            json_pack("{s:I,s:s}", "version", (json_int_t)g->given_up.version, "run", g->given_up.lineage));
    if (o && m->writing) {
        json_object_set_new(o, "round", json_integer((json_int_t)g->writing_round));
        json_object_set_new(o, "version", json_integer((json_int_t)m->writing_version));
        json_object_set_new(o, "version_run", json_string(m->writing->lineage));
        json_object_set_new(o, "committed", json_boolean(g->committed));
        json_object_set_new(o, "sealed", json_boolean(g->sealed));
        if (g->committed && ws_agent_audit_is_running(m) && m->placement &&
            g->audit_round != g->writing_round)
            json_object_set_new(o, "audit",
                                ws_audit_to_json(ws_agent_audit_local_hashes(m), &m->placement->replicas));
    }
    return o;
}

/* --- replies of the primary; under lock --- */

static void forget_primary(struct ws_agent *a, struct ws_agent_model *m, uint64_t primary)
{
    struct ws_group *g = m->group;
    if (g->primary_id) {
        ws_log(WS_LOG_WARN, "agent", "the primary agent was started anew model=%s", m->name);
        g->round = 0; /* the version being written belongs to no round any more */
        ws_group_abandon_here(a, m, "the primary agent was started anew");
    }
    g->primary_id = primary;
    g->epoch = g->round = g->gave_up = g->audit_round = g->given_up_round = 0;
    g->is_complete = false;
}

/* Our version, by the primary's round: it is announced, abandoned, or goes on. */
static bool apply_round(struct ws_agent *a, struct ws_agent_model *m, const json_t *reply)
{
    struct ws_group *g = m->group;
    const char *why = json_string_value(json_object_get(reply, "why"));
    char text[WS_ERROR_TEXT];
    g->round = ws_agent_number(reply, "round", 0);
    g->audit_round = ws_agent_number(reply, "audit_round", 0);
    if (!m->writing || m->preparing)
        return false;
    if (ws_agent_number(reply, "announced_round", 0) == g->writing_round && g->sealed) {
        ws_agent_model_publish(a, m);
        return true;
    }
    if (g->round != g->writing_round) {
        snprintf(text, sizeof(text), "%s", why && *why ? why : "another node gave it up");
        ws_group_abandon_here(a, m, text);
    } else if (json_is_true(json_object_get(reply, "hashing")) && g->committed &&
               m->writing->state == WS_SLOT_WRITING) {
        m->writing->state = WS_SLOT_HASHING;
        pthread_cond_broadcast(&a->changed);
    }
    return false;
}

/* The last version that was given up on any node: a rank of this node that begins it is late. A reply that
 * the primary made before it knew what this node gave up has older ones only. */
static void apply_given_up(struct ws_agent_model *m, const json_t *reply)
{
    struct ws_group *g = m->group;
    const json_t *o = json_object_get(reply, "given_up");
    const char *lineage = json_string_value(json_object_get(o, "run"));
    const char *why = json_string_value(json_object_get(reply, "why"));
    const struct ws_version_id version =
        ws_version_id_make(ws_agent_number(o, "version", 0), lineage ? lineage : "");
    const uint64_t round = ws_agent_number(o, "round", 0);
    if ((g->gave_up && g->gave_up == g->round) || !version.version || !round ||
        (round == g->given_up_round && ws_version_id_equal(&version, &g->given_up)))
        return;
    if (!m->writing && g->writing_round != round &&
        strcmp(version.lineage, m->group_lineage) == 0) /* of another lineage */
        snprintf(m->why, sizeof(m->why), "version %" PRIu64 " of %s was abandoned: %.800s", version.version,
                 m->name, why && *why ? why : "another node gave it up");
    ws_group_given_up(m, &version, round);
}

static void apply_refusals(struct ws_agent *a, struct ws_agent_model *m, const json_t *reply)
{
    const json_t *one;
    size_t i;
    json_array_foreach(json_object_get(reply, "refused"), i, one)
    {
        json_int_t r = json_integer_value(json_array_get(one, 0));
        const char *why = json_string_value(json_array_get(one, 2));
        struct ws_session *c = r >= 0 && r < (json_int_t)m->world_size ? m->ranks[r] : NULL;
        if (!c || c->placed || !why)
            continue;
        c->refused = (int)json_integer_value(json_array_get(one, 1));
        snprintf(c->refusal, sizeof(c->refusal), "%s", why);
        pthread_cond_broadcast(&a->changed);
    }
}

/* Is the placement of the ranks that are registered here now? */
static bool is_ours(const struct ws_agent_model *m, const json_t *tickets)
{
    const json_t *one;
    size_t i;
    json_array_foreach(tickets, i, one)
    {
        json_int_t r = json_integer_value(json_array_get(one, 0));
        if (r < 0 || r >= (json_int_t)m->world_size || !m->ranks[r] ||
            m->ranks[r]->ticket != (uint64_t)json_integer_value(json_array_get(one, 1)))
            return false;
    }
    return json_array_size(tickets) == m->n_registered;
}

/* What a rank of another node registered; NULL: it is not in the message. Of ranks that say the same the primary tells it
 * once, and of the others the number of that one (report_json: repeats). */
static const json_t *registration_of(const json_t *all, unsigned rank)
{
    const json_t *body = NULL;
    char key[16];
    for (int i = 0; i < 2 && (i == 0 || json_is_integer(body)); i++) {
        snprintf(key, sizeof(key), "%u", i ? (unsigned)json_integer_value(body) : rank);
        body = json_object_get(all, key);
    }
    return json_is_object(body) ? body : NULL;
}

/* Computes the placement from the registrations of all ranks, as the primary did, and compares. */
static int place(struct ws_agent *a, struct ws_agent_model *m, const json_t *group,
                 struct ws_registration **regs, struct ws_registration **theirs, unsigned *node_of,
                 struct ws_error *err)
{
    const json_t *nodes = json_object_get(group, "node_of"), *all = json_object_get(group, "registrations");
    const char *id = json_string_value(json_object_get(group, "placement"));
    const uint64_t count = ws_agent_number(group, "count", 0), index = ws_agent_number(group, "index", 0);
    int rc = 0;
    if (!id || count == 0 || count > WS_MAX_NODE_PARTS || index >= count ||
        json_array_size(nodes) != m->world_size || json_array_size(json_object_get(group, "nodes")) != count)
        return ws_error_set(err, EPROTO,
                            "the primary agent's placement is not understood: is it of another release?");
    for (unsigned r = 0; rc == 0 && r < m->world_size; r++) {
        node_of[r] = (unsigned)json_integer_value(json_array_get(nodes, r));
        const json_t *body = registration_of(all, r);
        if (node_of[r] >= count || !body != (m->ranks[r] != NULL) ||
            (node_of[r] == index) != (m->ranks[r] != NULL))
            return ws_error_set(err, EPROTO, "the primary agent has rank %u on another node than it is", r);
        if (body)
            rc = ws_registration_from_json(body, r, &theirs[r], err);
        regs[r] = body ? theirs[r] : m->ranks[r]->registration;
    }
    m->shard_bytes = ws_agent_number(group, "shard_bytes", 0);
    if (rc == 0)
        rc = ws_group_place(a, m, regs, node_of, (unsigned)index, (unsigned)count,
                            json_object_get(group, "nodes"), err);
    if (rc == 0 && strcmp(m->placement->id, id) != 0)
        rc = ws_error_set(
            err, EPROTO,
            "the agents of %s and %s lay the model out differently: run the same release of wsync on all "
            "nodes",
            a->node_name, a->primary->url);
    return rc;
}

static void adopt(struct ws_agent *a, struct ws_agent_model *m, const json_t *group, uint64_t epoch)
{
    struct ws_group *g = m->group;
    struct ws_registration **regs = calloc(m->world_size, sizeof(struct ws_registration *));
    struct ws_registration **theirs = calloc(m->world_size, sizeof(struct ws_registration *));
    unsigned *node_of = calloc(m->world_size, sizeof(*node_of));
    struct ws_error err = {0};
    int rc = regs && theirs && node_of ? place(a, m, group, regs, theirs, node_of, &err)
                                       : ws_error_set(&err, ENOMEM, "no memory for %u ranks", m->world_size);
    for (unsigned r = 0; theirs && r < m->world_size; r++)
        ws_registration_free(theirs[r]);
    free(regs);
    free(theirs);
    free(node_of);
    if (rc < 0) {
        ws_log(WS_LOG_ERROR, "agent", "no placement model=%s error=\"%s\"", m->name, err.text);
        for (unsigned r = 0; r < m->world_size; r++)
            if (m->ranks[r])
                m->ranks[r]->placed = false;
        ws_group_refuse(a, m, err.code, err.text);
        return;
    }
    g->epoch = epoch;
    ws_log(WS_LOG_INFO, "agent", "all ranks are there model=%s ranks=%u here=%u epoch=%" PRIu64, m->name,
           m->world_size, m->n_local, epoch);
}

/* true: a version was announced. */
static bool apply_reply(struct ws_agent *a, struct ws_agent_model *m, const json_t *reply)
{
    struct ws_group *g = m->group;
    const json_t *group = json_object_get(reply, "group");
    const char *lineage = json_string_value(json_object_get(reply, "run"));
    const uint64_t primary = ws_agent_number(reply, "primary", 0);
    g->unreachable[0] = '\0';
    g->reply_ns = ws_clock_ns();
    if (primary != g->primary_id)
        forget_primary(a, m, primary);
    bool announced = apply_round(a, m, reply);
    bool is_whole = json_is_true(json_object_get(reply, "whole"));
    const bool adopts =
        is_whole && group && !m->preparing && !m->writing && is_ours(m, json_object_get(group, "tickets"));
    if (adopts && lineage && *lineage)
        snprintf(m->group_lineage, sizeof(m->group_lineage), "%s", lineage);
    apply_given_up(m, reply);
    json_decref(g->wanted_ranks);
    g->wanted_ranks = json_deep_copy(json_object_get(reply, "need"));
    g->send_now = g->send_now || json_array_size(g->wanted_ranks) > 0;
    g->n_present = (unsigned)ws_agent_number(reply, "here", 0);
    apply_refusals(a, m, reply);
    if (adopts)
        adopt(a, m, group, ws_agent_number(reply, "epoch", 0));
    const char *why = json_string_value(json_object_get(reply, "why"));
    if (!is_whole && why && *why)
        snprintf(m->why, sizeof(m->why), "%s", why);
    const bool was = g->is_complete;
    g->is_complete = is_whole && g->epoch == ws_agent_number(reply, "epoch", 0);
    if (was != g->is_complete)
        pthread_cond_broadcast(&a->changed);
    return announced;
}

/* --- the exchange --- */

static void record_silence(struct ws_agent *a, struct ws_agent_model *m, const struct ws_error *err)
{
    struct ws_group *g = m->group;
    char why[WS_ERROR_TEXT];
    if (!g->unreachable[0])
        ws_log(WS_LOG_WARN, "agent", "the primary agent does not answer model=%s url=%s error=\"%s\"",
               m->name, a->primary->url, err->text);
    snprintf(g->unreachable, sizeof(g->unreachable), "%s", err->text);
    if (ws_clock_ns() - g->reply_ns < SILENT_NS)
        return;
    g->is_complete = false;
    /* A sealed version may have been announced: only the primary knows. */
    if (m->writing && m->writing->state == WS_SLOT_WRITING && !m->preparing) {
        snprintf(why, sizeof(why), "the primary agent, %.200s, does not answer: %.400s", a->primary->url,
                 err->text);
        ws_agent_model_abandon(a, m, why);
    }
}

static bool needs_exchange(const struct ws_agent_model *m)
{
    const struct ws_group *g = m->group;
    return g && (m->n_registered || g->n_sent || m->writing || g->gave_up == g->round);
}

/* A held request delays what this node has to say of other models: then none is held. */
static bool may_hold(const struct ws_agent *a, const struct ws_agent_model *m)
{
    const struct ws_group *g = m->group;
    unsigned n = 0;
    for (const struct ws_agent_model *o = a->models; o; o = o->next)
        n += needs_exchange(o);
    return n == 1 && m->writing && m->writing->state != WS_SLOT_HASHING && (g->committed || g->sealed) &&
           g->gave_up != g->round && !g->send_now;
}

/* Under lock, which is given up meanwhile. */
static void exchange(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_group *g = m->group;
    char path[WS_API_PATH_BYTES];
    struct ws_error err = {0};
    const uint64_t asked_ns = ws_clock_ns();
    json_t *body = report_json(a, m), *reply = NULL;
    bool announced = false;
    g->send_now = false;
    if (body && may_hold(a, m))
        json_object_set_new(body, "hold_ms", json_integer(HOLD_MS));
    g->n_sent = m->n_registered;
    if (!g->reply_ns)
        g->reply_ns = ws_clock_ns();
    ws_api_model_path(path, "node", m->name);
    pthread_mutex_unlock(&a->lock);
    int rc = body ? ws_source_call(a->primary, "POST", path, body, &reply, &err)
                  : ws_error_set(&err, ENOMEM, "no memory for a request");
    json_decref(body);
    pthread_mutex_lock(&a->lock);
    if (rc == 0) {
        announced = apply_reply(a, m, reply);
        g->request_ns = asked_ns;
    } else if (!atomic_load(&a->stop)) {
        record_silence(a, m, &err);
    }
    pthread_cond_broadcast(&a->changed); /* a rank may wait for it (ws_group_refresh) */
    json_decref(reply);
    if (announced) {
        pthread_mutex_unlock(&a->lock);
        ws_agent_announce(a);
        pthread_mutex_lock(&a->lock);
    }
}

static uint64_t pause_ns(const struct ws_agent_model *m)
{
    const struct ws_group *g = m->group;
    if (g->unreachable[0])
        return AGAIN_NS;
    if (g->send_now)
        return 0;
    if (m->writing && m->writing->state == WS_SLOT_HASHING && g->gave_up != g->round)
        return HASHING_NS;
    if ((m->writing && (g->committed || g->sealed)) || (g->gave_up && g->gave_up == g->round))
        return SOON_NS;
    return m->n_registered && !g->is_complete ? RANKS_NS : BEAT_NS;
}

uint64_t ws_secondary_step(struct ws_agent *a)
{
    uint64_t wait = 10 * BEAT_NS;
    for (struct ws_agent_model *m = a->models; m && !atomic_load(&a->stop); m = m->next) {
        if (!needs_exchange(m))
            continue;
        exchange(a, m);
        const uint64_t pause = pause_ns(m);
        wait = pause < wait ? pause : wait;
    }
    return wait;
}

/* --- requests that are forwarded to the primary --- */

bool ws_secondary_forwards(struct ws_agent *a, const struct ws_agent_request *r)
{
    const struct ws_api_request *q = r->q;
    if (!a->primary)
        return false;
    if (strncmp(r->path, "/v1/release", 11) == 0)
        return true;
    if (!q->model[0] || !q->verb[0])
        return false;
    pthread_mutex_lock(&a->lock);
    const struct ws_agent_model *m = ws_agent_model_find(a, q->model);
    bool is = !ws_name_is_node_part(q->model, NULL, NULL, NULL) && (!m || m->slot_owner != m);
    pthread_mutex_unlock(&a->lock);
    return is;
}

/* What is passed on is made of what was understood here, so that nothing in the request's own text can say on whose
 * behalf it comes. */
int ws_secondary_forward(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply,
                         struct ws_error *err)
{
    const struct ws_api_request *q = r->q;
    const struct {
        const char *key, *value;
    } arguments[] = {{"as", ws_identity_owner(r->who)}, {"run", q->lineage}, {"who", q->mount_id}};
    char full[2 * WS_API_PATH_BYTES];
    int rc = strpbrk(r->path, "?#") ? -EINVAL : 0;
    if (snprintf(full, sizeof(full), "%s", r->path) >= (int)sizeof(full))
        rc = -ENAMETOOLONG;
    for (size_t i = 0; rc == 0 && i < sizeof(arguments) / sizeof(arguments[0]); i++)
        if (arguments[i].value[0])
            rc = ws_api_add_argument(full, sizeof(full), arguments[i].key, arguments[i].value);
    if (rc < 0)
        return ws_error_set(err, EINVAL, "the path of this request cannot be passed on to the primary agent");
    rc = ws_source_call(a->primary, r->method, full, r->body, reply, err);
    if (rc < 0)
        ws_error_prefix(err, "asked the primary agent");
    return rc;
}
