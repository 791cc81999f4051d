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
#include <unistd.h>

#define HEAR_NS (2 * WS_SECOND_NS)

int ws_group_make(struct ws_agent_model *m, struct ws_error *err)
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

int ws_group_set_world_size(struct ws_agent_model *m, unsigned world_size, struct ws_error *err)
{
    if (m->world_size == world_size)
        return 0;
    struct ws_session **ranks = calloc(world_size, sizeof(struct ws_session *));
    struct ws_group_remote *remotes = m->group ? calloc(world_size, sizeof(*remotes)) : NULL;
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
    ws_placement_free(m->node_placement);
    m->placement = m->node_placement = NULL;
    return 0;
}

static void free_group(struct ws_agent_model *m)
{
    struct ws_group *g = m->group;
    for (unsigned r = 0; g && r < m->world_size; r++)
        ws_registration_free(g->remotes[r].registration);
    for (unsigned i = 0; g && i < WS_MAX_NODE_PARTS; i++)
        ws_audit_reset(&g->nodes[i].audit);
    if (g) {
        free(g->remotes);
        free(g->node_of);
        json_decref(g->names);
        json_decref(g->wanted_ranks);
    }
    free(g);
}

unsigned ws_group_n_present(const struct ws_agent_model *m)
{
    const struct ws_group *g = m->group;
    unsigned n = m->n_registered + (g ? g->n_remotes : 0);
    return g && g->n_present > n ? g->n_present : n;
}

bool ws_group_is_complete(const struct ws_agent *a, const struct ws_agent_model *m)
{
    if (!m->placement || m->n_registered > m->world_size)
        return false;
    if (a->primary)
        return m->group->is_complete && m->n_registered == m->n_local;
    return m->n_registered + (m->group ? m->group->n_remotes : 0) == m->world_size &&
           !(m->group && m->group->stale);
}

const struct ws_group_node *ws_group_remote_node(const struct ws_agent_model *m, unsigned rank)
{
    return m->group && m->group->remotes[rank].registration ? m->group->remotes[rank].node : NULL;
}

uint64_t ws_group_places_hash(const struct ws_agent_model *m, const struct ws_registration *r)
{
    const struct ws_placement *l = ws_agent_model_local_placement(m);
    uint64_t h = ws_hash(l->id, sizeof(l->id));
    for (size_t i = 0; i < r->n_entries + r->n_base; i++) {
        const struct ws_entry *e = i < r->n_entries ? &r->entries[i] : &r->base[i - r->n_entries];
        const uint64_t place[] = {h, e->file_index, e->tensor.begin, e->writes};
        h = ws_hash(place, sizeof(place));
    }
    return h ? h : 1;
}

bool ws_group_must_register_again(const struct ws_agent_model *m)
{
    return m->n_stale > 0 || (!m->placement && m->n_told > 0);
}

static bool is_missing(const struct ws_agent_model *m, unsigned r, bool writing)
{
    const struct ws_session *c = m->ranks[r];
    if (!c)
        return !ws_group_remote_node(m, r) || m->group->remotes[r].away;
    return writing ? c->committed != m->writing : c->stale || (!m->placement && c->placed_hash);
}

void ws_group_describe_missing(const struct ws_agent *a, const struct ws_agent_model *m, bool writing,
                               char *out, size_t cap)
{
    const struct ws_group *g = m->group;
    size_t n = 0;
    out[0] = '\0';
    if (a->primary && g && g->unreachable[0]) {
        snprintf(out, cap, "; the primary agent does not answer: %s", g->unreachable);
        return;
    }
    if (a->primary) {
        snprintf(out, cap, " (says the primary agent, %s)", a->primary->url);
        return;
    }
    for (unsigned r = 0; r < m->world_size && n + 32 < cap; r++)
        if (is_missing(m, r, writing))
            n += (size_t)snprintf(out + n, cap - n, "%s%u", n ? ", " : "; missing: rank ", r);
    for (unsigned i = 0; g && i < WS_MAX_NODE_PARTS && n + 16 < cap; i++)
        if (g->nodes[i].id && g->nodes[i].member && g->nodes[i].round == g->round && !g->nodes[i].committed)
            n += (size_t)snprintf(out + n, cap - n, "; waiting for %s", g->nodes[i].name);
    if (n >= cap)
        out[cap - 1] = '\0';
}

void ws_group_wake(struct ws_agent *a, struct ws_agent_model *m)
{
    if (m->group)
        m->group->send_now = true;
    pthread_cond_signal(&ws_group_thread_of(a)->wake);
}

void ws_group_record_why(struct ws_group *g, const char *node_name, const char *why)
{
    snprintf(g->why, sizeof(g->why), "%s%s%s", node_name ? node_name : "", node_name ? ": " : "", why);
    ws_text_clean(g->why); /* a text cut within a character is no JSON, and could not be sent */
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

/* The model that owns the slots of this node's part. */
static int set_slot_owner(struct ws_agent *a, struct ws_agent_model *m, unsigned index, unsigned count,
                          json_t *names, struct ws_error *err)
{
    char name[WS_MAX_NAME + 1];
    m->slot_owner = m;
    if (count == 1)
        return 0;
    int rc = ws_node_part_model(name, m->name, index, count, err);
    if (rc < 0)
        return rc;
    m->slot_owner = ws_agent_model_find_or_add(a, name);
    char *text = json_dumps(names, JSON_COMPACT);
    if (!m->slot_owner || !text) {
        free(text);
        m->slot_owner = m;
        return ws_error_set(err, ENOMEM, "no room for the part of %s; at most %d models", m->name,
                            WS_MAX_MODELS);
    }
    free(m->slot_owner->nodes);
    m->slot_owner->nodes = text;
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
        rc = ws_node_placement_make(whole, regs, m->world_size, node_of, index, count, &share, err);
    if (rc == 0 && index < count)
        rc = set_slot_owner(a, m, index, count, names, err);
    if (rc < 0) {
        ws_placement_free(whole);
        ws_placement_free(share);
        return rc;
    }
    ws_placement_free(m->placement);
    ws_placement_free(m->node_placement);
    m->placement = whole;
    m->node_placement = share;
    m->epoch++;
    ws_replicas_locate(&whole->replicas, regs, m->world_size, count > 1 ? node_of : NULL, index);
    ws_agent_audit_placed(m);
    m->n_local = m->n_stale = 0;
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->ranks[r]) {
            struct ws_session *c = m->ranks[r];
            if (!c->placed && m->group)
                ws_session_record_missed(m, c, &m->group->given_up);
            c->placed = true;
            c->stale = c->placed_hash && c->placed_hash != ws_group_places_hash(m, c->registration);
            m->n_stale += c->stale;
            m->n_local++;
        }
    if (!m->slot_owner)
        m->slot_owner = m;
    if (m->group)
        m->group->stale = m->group->tried = false;
    if (m->group)
        m->spans_nodes = count > 1 || index >= count || a->primary;
    pthread_cond_broadcast(&a->changed);
    return 0;
}

/* For a node without a group, which is the usual case: its last rank has joined. A version that other ranks
 * are writing goes on if it fits the placement and this rank had not committed it before it ended. */
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
    if (m->writing && (rc < 0 || ws_group_must_register_again(m) || committed != m->n_committed ||
                       strcmp(m->writing->placement_id, m->placement->id) != 0 ||
                       strcmp(m->writing->base_id, m->placement->base_id) != 0))
        ws_agent_model_abandon(a, m, why);
    if (rc == 0)
        return;
    ws_placement_free(m->placement); /* it was made from older registrations */
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
            ws_primary_joined(a, m, last);
        return;
    }
    if (m->n_registered == m->world_size)
        place_alone(a, m, last);
}

static void left(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_group *g = m->group;
    if (g && m->spans_nodes && !a->primary &&
        m->why[0]) /* the reason for ranks that write for a round that is over */
        ws_group_record_why(g, a->node_name, m->why);
    ws_group_wake(a, m);
}

/* --- a version --- */

bool ws_group_is_busy(const struct ws_agent *a, const struct ws_agent_model *m)
{
    const struct ws_group *g = m->group;
    if (!g || !m->spans_nodes)
        return false;
    if (!ws_group_is_complete(a, m))
        return true; /* a rank on another node may just be coming back */
    return a->primary ? g->gave_up == g->round : g->hashing;
}

void ws_group_refresh(struct ws_agent *a, struct ws_agent_model *m, uint64_t deadline_ns)
{
    const uint64_t since_ns = ws_clock_ns(), until_ns = since_ns + HEAR_NS;
    if (!a->primary || !m->spans_nodes)
        return;
    while (!m->writing && m->group->request_ns < since_ns && !m->group->unreachable[0]) {
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
    g->committed = g->sealed = g->abandon_pending = false;
}

bool ws_group_is_over(const struct ws_agent *a, const struct ws_agent_model *m, char *why, size_t cap)
{
    char missing[WS_ERROR_TEXT / 2];
    if (!m->spans_nodes)
        return false;
    if (!ws_group_is_complete(a, m)) {
        ws_group_describe_missing(a, m, false, missing, sizeof(missing));
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

bool ws_group_sealed(struct ws_agent *a, struct ws_agent_model *m, const char *failed, bool *announced)
{
    struct ws_group *g = m->group;
    if (!g || !m->spans_nodes)
        return true;
    if (failed || g->abandon_pending) {
        bool abandoned = g->abandon_pending;
        ws_agent_model_discard(a, m);
        if (!abandoned)
            ws_group_abandoned(a, m, failed);
        return false;
    }
    g->sealed = true;
    ws_group_wake(a, m);
    if (!a->primary)
        *announced = ws_primary_advance(a, m);
    return false;
}

void ws_group_given_up(struct ws_agent_model *m, const struct ws_version_id *version, uint64_t round)
{
    struct ws_group *g = m->group;
    if (round == g->given_up_round && ws_version_id_equal(version, &g->given_up))
        return;
    g->given_up = *version;
    g->given_up_round = round;
    if (g->writing_round != round) /* no version of ours was in it */
        m->given_up = *version;
    if (strcmp(version->lineage, m->group_lineage) == 0)
        ws_session_record_late(m, version->version);
}

/* All ranks had begun a version that was dropped while it was hashed; later ones may be given up since. */
static void discarded(struct ws_agent_model *m)
{
    if (m->group && m->spans_nodes && m->n_begun && !m->group->abandon_pending)
        ws_group_given_up(m, &m->given_up, m->group->writing_round);
}

void ws_group_abandoned(struct ws_agent *a, struct ws_agent_model *m, const char *why)
{
    struct ws_group *g = m->group;
    if (!g || !m->spans_nodes || g->writing_round != g->round) /* its round is over */
        return;
    if (!a->primary) {
        ws_primary_end_round(a, g);
        ws_group_record_why(g, a->node_name, why);
    } else {
        g->gave_up = g->round;
        ws_group_record_why(g, NULL, why);
    }
    ws_group_wake(a, m);
}

void ws_group_abandon_here(struct ws_agent *a, struct ws_agent_model *m, const char *why)
{
    if (!m->writing)
        return;
    if (m->writing->state == WS_SLOT_WRITING) {
        ws_agent_model_abandon(a, m, why);
    } else {
        ws_agent_model_record_why(m, why);
        if (m->writing->state == WS_SLOT_SEALED)
            ws_agent_model_discard(a, m);
        else
            m->group->abandon_pending = true;
    }
}

static json_t *nodes_json(const struct ws_agent *a, const struct ws_agent_model *m)
{
    const struct ws_group *g = m->group;
    json_t *nodes = json_array();
    for (unsigned i = 0; i < WS_MAX_NODE_PARTS; i++)
        if (g->nodes[i].id)
            json_array_append_new(nodes,
                                  json_pack("{s:s,s:b,s:I}", "name", g->nodes[i].name, "member",
                                            (int)g->nodes[i].member, "round", (json_int_t)g->nodes[i].round));
    return json_pack("{s:s,s:s,s:b,s:I,s:I,s:b,s:s,s:s,s:o}", "node", a->node_name, "primary",
                     a->primary ? a->primary->url : "", "whole", (int)ws_group_is_complete(a, m), "epoch",
                     (json_int_t)g->epoch, "round", (json_int_t)g->round, "hashing", (int)g->hashing, "away",
                     g->unreachable, "abandoned", g->why, "others", nodes);
}

/* --- the thread of either side --- */

/* Under lock, which is given up meanwhile. */
static void answer_held(struct ws_agent *a)
{
    struct ws_group_thread *t = ws_group_thread_of(a);
    struct ws_tcp_server *tcp = atomic_load(&a->tcp);
    if (!t->phase_changed)
        return;
    t->phase_changed = false;
    pthread_mutex_unlock(&a->lock);
    if (tcp)
        ws_tcp_server_wake_held(tcp);
    pthread_mutex_lock(&a->lock);
}

static void *group_main(void *arg)
{
    struct ws_agent *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->stop)) {
        answer_held(a);
        uint64_t wait_ns = a->primary ? ws_secondary_step(a) : ws_primary_step(a);
        uint64_t until = ws_clock_ns() + wait_ns;
        if (wait_ns && !atomic_load(&a->stop) && !ws_group_thread_of(a)->phase_changed)
            (void)ws_cond_wait_until(&ws_group_thread_of(a)->wake, &a->lock, until);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* The address of this agent as other nodes use it. */
static void set_node_name(struct ws_agent *a)
{
    const char *listen = a->options.tcp.listen ? a->options.tcp.listen : "";
    const struct ws_tcp_server *tcp = atomic_load(&a->tcp);
    const unsigned port = tcp ? ws_tcp_server_port(tcp) : 0;
    char host[256] = "";
    const char *colon = strrchr(listen, ':');
    (void)gethostname(host, sizeof(host) - 1);
    if (!*listen)
        snprintf(a->node_name, sizeof(a->node_name), "%s", host);
    else if (strncmp(listen, "0.0.0.0:", 8) == 0 || strncmp(listen, "[::]:", 5) == 0)
        snprintf(a->node_name, sizeof(a->node_name), "%s:%u", host, port);
    else
        snprintf(a->node_name, sizeof(a->node_name), "%.*s:%u", (int)(colon ? colon - listen : 0), listen,
                 port);
}

static int start(struct ws_agent *a, struct ws_error *err)
{
    struct ws_source_options access = a->options.primary_access;
    access.connect_timeout_ms = WS_CONNECT_TIMEOUT_MS;
    access.reply_timeout_ms = WS_NODE_CALL_MS;
    access.stop = &a->stop;
    ws_cond_init(&ws_group_thread_of(a)->wake);
    ws_group_thread_of(a)->has_wake = true;
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
    set_node_name(a);
    pthread_mutex_unlock(&a->lock);
    struct ws_group_thread *t = ws_group_thread_of(a);
    t->runs = ws_thread_start(&t->thread, group_main, a) == 0;
    return t->runs ? 0 : ws_error_set(err, EAGAIN, "cannot start the agent's threads");
}

static void stop(struct ws_agent *a)
{
    struct ws_group_thread *t = ws_group_thread_of(a);
    if (!t->runs)
        return;
    pthread_mutex_lock(&a->lock);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&a->lock);
    pthread_join(t->thread, NULL);
}

/* Until here requests were forwarded to the primary. */
static void end(struct ws_agent *a)
{
    struct ws_group_thread *t = ws_group_thread_of(a);
    ws_source_close(a->primary);
    a->primary = NULL;
    if (t->has_wake)
        pthread_cond_destroy(&t->wake);
}

/* --- status --- */

static int route(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply, struct ws_error *err)
{
    const struct ws_api_request *q = r->q;
    if (strcmp(r->method, "POST") == 0 && q->model[0] && !q->has_version && strcmp(q->verb, "node") == 0)
        return ws_primary_node_route(a, q, r->body, reply, err);
    return ws_secondary_forwards(a, r) ? ws_secondary_forward(a, r, reply, err) : WS_ROUTE_OTHER;
}

/* A secondary also passes on to its primary what other features serve. */
static const struct ws_api_route routes[] = {
    WS_API_ROUTE_BODY("POST", "/v1/{model}/node", NODE, WS_MAX_REPLY_BYTES), {0}};

static void put_status(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out)
{
    if (m->group)
        json_object_set_new(out, "nodes", nodes_json(a, m));
}

const struct ws_agent_feature ws_feature_group = {
    .agent_bytes = sizeof(struct ws_group_thread),
    .start = start,
    .serve = serve,
    .stop = stop,
    .end = end,
    .free = free_group,
    .discarded = discarded,
    .abandoned = ws_group_abandoned,
    .left = left,
    .model_status = put_status,
    .routes = routes,
    .route = route,
};
