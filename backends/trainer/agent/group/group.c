/* What both sides of a group do: the placement, and the life of a version. The primary's side of the
 * conversation is primary.c, the others' secondary.c. */
#include "backends/trainer/agent/group/group.h"
#include "backends/trainer/agent/audit/audit.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/sessions.h"
#include "backends/trainer/tensor/node_placement.h"
#include "transports/base/clock.h"
#include "transports/base/text.h"
#include "transports/base/workers.h"
#include "transports/format/node_part.h"
#include "transports/simd/copy.h"
#include "transports/transport.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAR_NS (2 * WS_SECOND_NS)

int ws_group_have(struct ws_agent_model *m, struct ws_error *err)
{
    if (m->group)
        return 0;
    struct ws_group *g = calloc(1, sizeof(*g));
    if (g)
        g->remotes = calloc(m->world_size ? m->world_size : 1, sizeof(*g->remotes));
    if (!g || !g->remotes) {
        free(g);
        return ws_error_set(err, ENOMEM, "no memory for the nodes of %s", m->name);
    }
    g->round = 1;
    m->group = g;
    return 0;
}

int ws_group_set_world(struct ws_agent_model *m, unsigned world_size, struct ws_error *err)
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

static void free_group(struct ws_agent_model *m)
{
    struct ws_group *g = m->group;
    for (unsigned r = 0; g && r < m->world_size; r++)
        ws_registration_free(g->remotes[r].registration);
    for (unsigned i = 0; g && i < WS_MAX_PARTS; i++)
        ws_audit_clear(&g->nodes[i].audit);
    if (g) {
        free(g->remotes);
        free(g->node_of);
        json_decref(g->names);
        json_decref(g->need);
    }
    free(g);
}

unsigned ws_group_n_here(const struct ws_agent_model *m)
{
    const struct ws_group *g = m->group;
    unsigned n = m->n_registered + (g ? g->n_remotes : 0);
    return g && g->n_here > n ? g->n_here : n;
}

bool ws_group_is_whole(const struct ws_agent *a, const struct ws_agent_model *m)
{
    if (!m->placement || m->n_registered > m->world_size)
        return false;
    if (a->primary)
        return m->group->whole && m->n_registered == m->n_local;
    return m->n_registered + (m->group ? m->group->n_remotes : 0) == m->world_size &&
           !(m->group && m->group->stale);
}

const struct ws_group_node *ws_group_holder(const struct ws_agent_model *m, unsigned rank)
{
    return m->group && m->group->remotes[rank].registration ? m->group->remotes[rank].node : NULL;
}

uint64_t ws_group_places(const struct ws_agent_model *m, const struct ws_registration *r)
{
    const struct ws_placement *l = ws_agent_layout(m);
    uint64_t h = ws_hash(l->id, sizeof(l->id));
    for (size_t i = 0; i < r->n_entries + r->n_base; i++) {
        const struct ws_entry *e = i < r->n_entries ? &r->entries[i] : &r->base[i - r->n_entries];
        const uint64_t place[] = {h, e->file_index, e->tensor.begin, e->writes};
        h = ws_hash(place, sizeof(place));
    }
    return h ? h : 1;
}

bool ws_group_register_again(const struct ws_agent_model *m)
{
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->ranks[r] && m->ranks[r]->told && (!m->placement || m->ranks[r]->stale))
            return true;
    return false;
}

static bool is_missing(const struct ws_agent_model *m, unsigned r, bool writing)
{
    const struct ws_session *c = m->ranks[r];
    if (!c)
        return !ws_group_holder(m, r);
    return writing ? c->committed != m->writing : c->stale || (!m->placement && c->told);
}

void ws_group_missing(const struct ws_agent *a, const struct ws_agent_model *m, bool writing, char *out,
                      size_t cap)
{
    const struct ws_group *g = m->group;
    size_t n = 0;
    out[0] = '\0';
    if (a->primary && g && g->away[0]) {
        snprintf(out, cap, "; the primary agent does not answer: %s", g->away);
        return;
    }
    if (a->primary) {
        snprintf(out, cap, " (says the primary agent, %s)", a->primary->url);
        return;
    }
    for (unsigned r = 0; r < m->world_size && n + 32 < cap; r++)
        if (is_missing(m, r, writing))
            n += (size_t)snprintf(out + n, cap - n, "%s%u", n ? ", " : "; missing: rank ", r);
    for (unsigned i = 0; g && i < WS_MAX_PARTS && n + 16 < cap; i++)
        if (g->nodes[i].id && g->nodes[i].member && g->nodes[i].round == g->round && !g->nodes[i].committed)
            n += (size_t)snprintf(out + n, cap - n, "; waiting for %s", g->nodes[i].name);
    if (n >= cap)
        out[cap - 1] = '\0';
}

void ws_group_wake(struct ws_agent *a, struct ws_agent_model *m)
{
    if (m->group)
        m->group->dirty = true;
    pthread_cond_signal(&a->group_changed);
}

void ws_group_say_why(struct ws_group *g, const char *who, const char *why)
{
    snprintf(g->why, sizeof(g->why), "%s%s%s", who ? who : "", who ? ": " : "", why);
    ws_text_clean(g->why); /* what is cut within a letter is no JSON, and would not be sent at all */
}

/* --- the placement --- */

void ws_group_refuse(struct ws_agent *a, struct ws_agent_model *m, int code, const char *why)
{
    for (unsigned r = 0; r < m->world_size; r++) {
        struct ws_session *c = m->ranks[r];
        if (!c || c->placed)
            continue;
        c->refused = code;
        snprintf(c->refusal, sizeof(c->refusal), "%s", why);
    }
    pthread_cond_broadcast(&a->changed);
}

/* The model whose slots hold this node's part. */
static int settle_owner(struct ws_agent *a, struct ws_agent_model *m, unsigned index, unsigned count,
                        json_t *names, struct ws_error *err)
{
    char name[WS_MAX_NAME + 1];
    m->owner = m;
    if (count == 1)
        return 0;
    int rc = ws_part_model(name, m->name, index, count, err);
    if (rc < 0)
        return rc;
    m->owner = ws_agent_find_or_add(a, name);
    char *text = json_dumps(names, JSON_COMPACT);
    if (!m->owner || !text) {
        free(text);
        m->owner = m;
        return ws_error_set(err, ENOMEM, "no room for the part of %s; at most %d models", m->name,
                            WS_MAX_MODELS);
    }
    free(m->owner->nodes);
    m->owner->nodes = text;
    return 0;
}

int ws_group_place(struct ws_agent *a, struct ws_agent_model *m, struct ws_registration *const *regs,
                   const unsigned *node_of, unsigned index, unsigned count, json_t *names,
                   struct ws_error *err)
{
    struct ws_placement *whole = NULL, *share = NULL;
    assert(!m->preparing);
    int rc = ws_placement_make(regs, m->world_size, m->shard_bytes, &whole, err);
    if (rc == 0 && count > 1 && index < count)
        rc = ws_share_make(whole, regs, m->world_size, node_of, index, count, &share, err);
    if (rc == 0 && index < count)
        rc = settle_owner(a, m, index, count, names, err);
    if (rc < 0) {
        ws_placement_free(whole);
        ws_placement_free(share);
        return rc;
    }
    ws_placement_free(m->placement);
    ws_placement_free(m->share);
    m->placement = whole;
    m->share = share;
    m->epoch++;
    ws_replicas_locate(&whole->replicas, regs, m->world_size, count > 1 ? node_of : NULL, index);
    ws_agent_audit_placed(m);
    m->n_local = 0;
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->ranks[r]) {
            struct ws_session *c = m->ranks[r];
            c->placed = true;
            c->stale = c->told && c->told != ws_group_places(m, c->registration);
            m->n_local++;
        }
    if (!m->owner)
        m->owner = m;
    if (m->group)
        m->group->stale = m->group->tried = false;
    if (m->group)
        m->spans_nodes = count > 1 || index >= count || a->primary;
    pthread_cond_broadcast(&a->changed);
    return 0;
}

/* Alone, as most are: the last rank is there. A version that others are writing goes on if it fits, and is
 * not one that this rank has committed before it ended. */
static void place_alone(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *last)
{
    struct ws_error err = {0};
    struct ws_registration **regs = calloc(m->world_size, sizeof(struct ws_registration *));
    unsigned committed = 0;
    char why[96];
    for (unsigned r = 0; regs && r < m->world_size; r++)
        regs[r] = m->ranks[r]->registration;
    int rc = regs ? ws_group_place(a, m, regs, NULL, 0, 1, NULL, &err)
                  : ws_error_set(&err, ENOMEM, "no memory for %u ranks", m->world_size);
    free(regs);
    for (unsigned r = 0; m->writing && r < m->world_size; r++)
        committed += m->ranks[r]->committed == m->writing;
    snprintf(why, sizeof(why), "rank %u (process %d) came back, and it has to be written anew", last->rank,
             (int)last->pid);
    if (m->writing && (rc < 0 || ws_group_register_again(m) || committed != m->n_committed ||
                       strcmp(m->writing->placement_id, m->placement->id) != 0 ||
                       strcmp(m->writing->base_id, m->placement->base_id) != 0))
        ws_agent_abandon(a, m, why);
    if (rc == 0)
        return;
    ws_placement_free(m->placement); /* it is of other registrations */
    m->placement = NULL;
    for (unsigned r = 0; r < m->world_size; r++)
        m->ranks[r]->placed = false;
    ws_group_refuse(a, m, err.code, err.text);
}

void ws_group_joined(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *last)
{
    if (m->group && (a->primary || m->group->n_remotes || m->spans_nodes)) {
        m->group->stale = true;
        ws_group_wake(a, m);
        if (!a->primary)
            ws_primary_joined(a, m);
        return;
    }
    if (m->n_registered == m->world_size)
        place_alone(a, m, last);
}

static void left(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_group *g = m->group;
    if (g && m->spans_nodes && !a->primary &&
        m->why[0]) /* what the others are told where they write for a round that is over */
        ws_group_say_why(g, a->node, m->why);
    ws_group_wake(a, m);
}

/* --- a version --- */

bool ws_group_is_busy(const struct ws_agent *a, const struct ws_agent_model *m)
{
    const struct ws_group *g = m->group;
    if (!g || !m->spans_nodes)
        return false;
    if (!ws_group_is_whole(a, m))
        return true; /* a rank on another node may just be coming back */
    return a->primary ? g->gave_up == g->round : g->hashing;
}

void ws_group_hear(struct ws_agent *a, struct ws_agent_model *m, uint64_t deadline_ns)
{
    const uint64_t since_ns = ws_clock_ns(), until_ns = since_ns + HEAR_NS;
    if (!a->primary || !m->spans_nodes)
        return;
    while (!m->writing && m->group->asked_ns < since_ns && !m->group->away[0]) {
        ws_group_wake(a, m);
        if (!ws_agent_wait(a, until_ns < deadline_ns ? until_ns : deadline_ns))
            return;
    }
}

void ws_group_begun(struct ws_agent_model *m)
{
    struct ws_group *g = m->group;
    if (!g)
        return;
    g->writing_round = g->round;
    g->committed = g->sealed = g->drop = false;
}

bool ws_group_is_over(const struct ws_agent *a, const struct ws_agent_model *m, char *why, size_t cap)
{
    char missing[WS_ERROR_TEXT / 2];
    if (!m->spans_nodes)
        return false;
    if (!ws_group_is_whole(a, m)) {
        ws_group_missing(a, m, false, missing, sizeof(missing));
        snprintf(why, cap, "not all ranks are there any more%s%s%.400s", missing, m->why[0] ? "; " : "",
                 m->why);
        return true;
    }
    snprintf(why, cap, "%s", m->why[0] ? m->why : "another node gave it up");
    return m->group->writing_round != m->group->round;
}

void ws_group_committed(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_group *g = m->group;
    if (!g || !m->spans_nodes) {
        m->writing->state = WS_SLOT_HASHING;
        return;
    }
    g->committed = true;
    ws_group_wake(a, m);
    if (!a->primary)
        (void)ws_primary_advance(a, m); /* nothing can be announced before our own part is sealed */
}

bool ws_group_sealed(struct ws_agent *a, struct ws_agent_model *m, const char *failed, bool *tell)
{
    struct ws_group *g = m->group;
    if (!g || !m->spans_nodes)
        return true;
    if (failed || g->drop) {
        bool abandoned = g->drop;
        ws_agent_discard(a, m);
        if (!abandoned)
            ws_group_abandoned(a, m, failed);
        return false;
    }
    g->sealed = true;
    ws_group_wake(a, m);
    if (!a->primary)
        *tell = ws_primary_advance(a, m);
    return false;
}

void ws_group_given_up(struct ws_agent_model *m, const struct ws_mark *version, uint64_t round)
{
    struct ws_group *g = m->group;
    if (round == g->given_up_round && ws_mark_is(version, &g->given_up))
        return;
    g->given_up = *version;
    g->given_up_round = round;
    if (g->writing_round != round) /* no version of ours was in it */
        m->given_up = *version;
    if (strcmp(version->run, m->group_run) == 0)
        ws_session_note_late(m, version->version);
}

/* What was dropped while it was hashed all ranks had begun, and later ones may have been given up since. */
static void discarded(struct ws_agent_model *m)
{
    if (m->group && m->spans_nodes && m->n_begun && !m->group->drop)
        ws_group_given_up(m, &m->given_up, m->group->writing_round);
}

void ws_group_abandoned(struct ws_agent *a, struct ws_agent_model *m, const char *why)
{
    struct ws_group *g = m->group;
    if (!g || !m->spans_nodes || g->writing_round != g->round) /* of a round that is over */
        return;
    if (!a->primary) {
        g->round++;
        g->hashing = false;
        ws_group_say_why(g, a->node, why);
    } else {
        g->gave_up = g->round;
        ws_group_say_why(g, NULL, why);
    }
    ws_group_wake(a, m);
}

void ws_group_drop(struct ws_agent *a, struct ws_agent_model *m, const char *why)
{
    if (!m->writing)
        return;
    if (m->writing->state == WS_SLOT_WRITING) {
        ws_agent_abandon(a, m, why);
    } else {
        ws_agent_say_why(m, why);
        if (m->writing->state == WS_SLOT_SEALED)
            ws_agent_discard(a, m);
        else
            m->group->drop = true;
    }
}

static json_t *nodes_json(const struct ws_agent *a, const struct ws_agent_model *m)
{
    const struct ws_group *g = m->group;
    json_t *nodes = json_array();
    for (unsigned i = 0; i < WS_MAX_PARTS; i++)
        if (g->nodes[i].id)
            json_array_append_new(nodes,
                                  json_pack("{s:s,s:b,s:I}", "name", g->nodes[i].name, "member",
                                            (int)g->nodes[i].member, "round", (json_int_t)g->nodes[i].round));
    return json_pack("{s:s,s:s,s:b,s:I,s:I,s:b,s:s,s:s,s:o}", "node", a->node, "primary",
                     a->primary ? a->primary->url : "", "whole", (int)ws_group_is_whole(a, m), "epoch",
                     (json_int_t)g->epoch, "round", (json_int_t)g->round, "hashing", (int)g->hashing, "away",
                     g->away, "abandoned", g->why, "others", nodes);
}

/* --- the thread of either side --- */

static void *group_main(void *arg)
{
    struct ws_agent *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->stop)) {
        uint64_t wait_ns = a->primary ? ws_secondary_turn(a) : ws_primary_turn(a);
        uint64_t until = ws_clock_ns() + wait_ns;
        if (wait_ns && !atomic_load(&a->stop))
            (void)ws_cond_wait_until(&a->group_changed, &a->lock, until);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static int start(struct ws_agent *a, struct ws_error *err)
{
    struct ws_source_options access = a->options.primary_access;
    access.connect_timeout_ms = WS_CONNECT_TIMEOUT_MS;
    access.reply_timeout_ms = WS_NODE_CALL_MS;
    access.stop = &a->stop;
    if (!a->options.primary)
        return 0;
    if (strncmp(a->options.primary, "http://", 7) != 0 && strncmp(a->options.primary, "https://", 8) != 0)
        return ws_error_set(err, EINVAL, "--primary is the http:// or https:// URL of an agent, not '%.200s'",
                            a->options.primary);
    return ws_source_open(a->options.primary, &access, &a->primary, err);
}

static int serve(struct ws_agent *a, struct ws_error *err)
{
    pthread_mutex_lock(&a->lock);
    ws_node_name(a);
    pthread_mutex_unlock(&a->lock);
    a->has_grouper = ws_thread_start(&a->grouper, group_main, a) == 0;
    return a->has_grouper ? 0 : ws_error_set(err, EAGAIN, "cannot start the agent's threads");
}

static void stop(struct ws_agent *a)
{
    if (a->has_grouper)
        pthread_join(a->grouper, NULL);
}

/* Requests were forwarded until now. */
static void end(struct ws_agent *a)
{
    ws_source_close(a->primary);
    a->primary = NULL;
}

/* --- what is asked and shown --- */

static int route(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply, struct ws_error *err)
{
    const struct ws_api_request *q = r->q;
    if (strcmp(r->method, "POST") == 0 && q->model[0] && !q->has_version && strcmp(q->verb, "node") == 0)
        return ws_primary_node_route(a, q, r->body, reply, err);
    return ws_secondary_forwards(a, r) ? ws_secondary_forward(a, r, reply, err) : WS_ROUTE_NOT_MINE;
}

static void put_status(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out)
{
    if (m->group)
        json_object_set_new(out, "nodes", nodes_json(a, m));
}

const struct ws_agent_feature ws_feature_group = {
    .start = start,
    .serve = serve,
    .stop = stop,
    .end = end,
    .free = free_group,
    .discarded = discarded,
    .abandoned = ws_group_abandoned,
    .left = left,
    .model_status = put_status,
    .route = route,
};
