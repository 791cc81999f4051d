/* POST /v1/local/register: a rank says what it has, waits for the others, and is told where its tensors go.
 * The body and the reply: routes.c. */
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/sessions.h"
#include "backends/trainer/agent/group/group.h"
#include "backends/trainer/agent/ranks/routes.h"
#include "backends/trainer/tensor/keys.h"
#include "transports/base/clock.h"
#include "transports/base/text.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>

#define DEFAULT_WAIT_MS 60000
#define OF              "the registration"

uint64_t ws_rank_deadline(const json_t *body)
{
    return ws_clock_ns() + ws_agent_number(body, "timeout_ms", DEFAULT_WAIT_MS) * WS_MS_NS;
}

static json_t *places_json(const struct ws_entry *e, size_t n)
{
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(all, json_pack("[I,I,b]", (json_int_t)e[i].file_index,
                                             (json_int_t)e[i].tensor.begin, (int)e[i].writes));
    return all;
}

static json_t *placement_json(const struct ws_agent_model *m, const struct ws_session *c)
{
    const struct ws_placement *l = ws_agent_model_local_placement(m);
    const struct ws_registration *r = c->registration;
    json_t *files = json_array(), *sidecars = json_array();
    for (size_t i = 0; i < l->n_files; i++)
        json_array_append_new(files, json_pack("{s:s,s:I,s:I}", "name", l->files[i].name, "bytes",
                                               (json_int_t)l->files[i].size_bytes, "header_bytes",
                                               (json_int_t)l->files[i].header_bytes));
    for (size_t i = 0; i < r->n_sidecars; i++)
        for (size_t k = 0; k < l->n_files; k++)
            if (strcmp(l->files[k].name, r->sidecars[i].name) == 0)
                json_array_append_new(sidecars, json_integer((json_int_t)k));
    return json_pack("{s:i,s:s,s:I,s:b,s:o,s:o,s:o,s:o}", "api", WS_LOCAL_API, "run", m->group_lineage,
                     "epoch", (json_int_t)m->epoch, "part", (int)(m->node_placement != NULL), "files", files,
                     "places", places_json(r->entries, r->n_entries), "base", places_json(r->base, r->n_base),
                     "sidecars", sidecars);
}

/* Until all ranks are there, wherever, and none of them works by an older placement. */
static int wait_for_placement(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *c,
                              uint64_t deadline, struct ws_error *err)
{
    char missing[WS_ERROR_TEXT / 2];
    while (!c->placed || ws_group_must_register_again(m) ||
           (!m->spans_nodes && m->n_registered < m->world_size)) {
        /* Where all ranks had a placement before, those on other nodes may be about to register again, too.
         */
        bool may_change = ws_group_must_register_again(m) || (m->spans_nodes && m->placement);
        if (c->rank >= m->world_size || m->ranks[c->rank] != c)
            return ws_error_set(err, ESTALE, "rank %u of %s was registered again by another process", c->rank,
                                m->name);
        if (c->refused && c->refused != EBUSY && !may_change)
            return ws_error_set(err, c->refused, "%s", c->refusal);
        if (ws_session_wait(a, c, deadline))
            continue;
        if (c->refused)
            return ws_error_set(err, c->refused, "%s", c->refusal);
        ws_group_describe_missing(a, m, false, missing, sizeof(missing));
        return ws_error_set(
            err, ETIMEDOUT,
            "waited for the ranks of %s: %u of %u are here%s; all ranks have to offload within the "
            "timeout, with the same world_size, and to register again where tensors have changed",
            m->name, ws_group_n_present(m), m->world_size, missing);
    }
    return 0;
}

/* Of 2^63 and more, which is one file as 0 is, libwsync 0.1.0 makes a negative number. */
static int get_shard_bytes(const json_t *body, uint64_t *out, struct ws_error *err)
{
    const json_t *v = json_object_get(body, "shard_bytes");
    return json_is_integer(v) && json_integer_value(v) < 0
               ? 0
               : ws_key_number(body, "shard_bytes", OF, 0, INT64_MAX, out, err);
}

int ws_rank_register(struct ws_rank_call *q, struct ws_error *err)
{
    struct ws_agent *a = q->a;
    struct ws_session *c = q->session;
    const json_t *body = q->body;
    uint64_t api = 0, rank = 0, world = 1, shard_bytes = 0, slots = 0, wait_ms = DEFAULT_WAIT_MS, begun = 0,
             begins = 0;
    const char *name = NULL, *release = NULL, *lineage = NULL;
    bool new_run = false;
    struct ws_registration *r = NULL;
    atomic_store(&q->peer->ends_with_process, true);
    if (ws_key_number(body, "api", OF, 0, INT_MAX, &api, err) < 0 ||
        ws_key_text(body, "release", OF, &release, err) < 0 ||
        ws_key_number(body, "rank", OF, 0, UINT_MAX, &rank, err) < 0)
        return -err->code;
    if (api != WS_LOCAL_API)
        return ws_error_set(err, EPROTO,
                            "rank %" PRIu64
                            " has libwsync of release %s, and this agent is of release %s, which it cannot "
                            "work with: use agent and libwsync of one release",
                            rank, release ? release : "0.0", WS_VERSION);
    if (ws_key_text(body, "model", OF, &name, err) < 0 || ws_key_text(body, "run", OF, &lineage, err) < 0 ||
        ws_key_flag(body, "new_run", OF, &new_run, err) < 0 ||
        ws_key_number(body, "world_size", OF, 0, UINT_MAX, &world, err) < 0 ||
        get_shard_bytes(body, &shard_bytes, err) < 0 ||
        ws_key_number(body, "max_slots", OF, 0, UINT_MAX, &slots, err) < 0 ||
        ws_key_number(body, "begun", OF, 0, INT64_MAX, &begun, err) < 0 ||
        ws_key_number(body, "begins", OF, 0, INT64_MAX, &begins, err) < 0 ||
        ws_key_number(body, "timeout_ms", OF, 0, UINT_MAX, &wait_ms, err) < 0)
        return -err->code;
    const uint64_t deadline = ws_clock_ns() + wait_ms * WS_MS_NS;
    if (!name || !ws_name_is_model(name))
        return ws_error_set(err, EINVAL, "'%.100s' cannot be a model: %s", name ? name : "",
                            WS_MODEL_NAME_RULE);
    if (ws_name_is_view(name, NULL, NULL))
        return ws_error_set(
            err, EINVAL,
            "'%.100s' is the name of a quantised view, which no rank publishes: the agent makes "
            "it out of the model (wsync agent --derive %.100s)",
            name, name);
    if (world == 0 || world > WS_MAX_RANKS || rank >= world)
        return ws_error_set(err, EINVAL, "rank %" PRIu64 " of %" PRIu64 " makes no sense; at most %d ranks",
                            rank, world, WS_MAX_RANKS);
    int rc = ws_registration_from_json(body, (unsigned)rank, &r, err);
    if (rc == 0 && r->n_base > 0 && !r->base_id[0] && ws_text_random(r->base_id, WS_BASE_ID_CHARS / 2))
        rc = ws_error_set(err, EIO,
                          "the system gives no random numbers"); /* cannot tell: it is another base */
    if (rc < 0) {
        ws_registration_free(r);
        return rc;
    }
    json_object_del(q->body,
                    "params"); /* hundreds of bytes a piece, of which the registration has all by now */
    json_object_del(q->body, "base");
    pthread_mutex_lock(&a->lock);
    ws_session_end(a, c, "registered anew");
    struct ws_agent_model *m = ws_agent_model_find_or_add(a, name);
    c->rank = (unsigned)rank;
    c->registration = r;
    c->lost = false;
    c->refused = 0;
    c->last_begun = begun;
    if (json_object_get(body, "begun"))
        c->from = begins ? begins : begun + 1;
    if (!m)
        rc = ws_error_set(err, ENOMEM, "no room for the model %s; at most %d", name, WS_MAX_MODELS);
    if (rc == 0 && a->primary)
        rc = ws_group_make(m, err);
    if (rc == 0)
        rc = ws_rank_join(a, m, c, (unsigned)world, deadline, body, err);
    if (rc == 0) {
        m->shard_bytes = shard_bytes;
        m->max_slots = slots >= 2 && slots <= a->options.max_slots ? (unsigned)slots : a->options.max_slots;
        c->ticket = ++a->last_ticket;
        ws_group_joined(a, m, c);
        /* Of a group on this node alone nobody waits for a rank but the last one to come: thousands of ranks would wake
         * each other thousands of times. */
        if (m->group || m->n_registered + m->n_ended >= m->world_size)
            pthread_cond_broadcast(&a->changed);
        rc = wait_for_placement(a, m, c, deadline, err);
    }
    if (rc == 0) {
        c->placed_hash = ws_group_places_hash(m, c->registration);
        m->n_told++;
        *q->reply = placement_json(m, c);
        if (m->group)
            pthread_cond_broadcast(&a->changed);
    } else {
        ws_session_end(a, c, "could not register");
    }
    pthread_mutex_unlock(&a->lock);
    return rc;
}
