/* Retired versions: those that the trainer's side has no use for any more, as their framework has deleted its folder
 * (wsync share). The listing names the last WS_MAX_RETIRED of each model. Mounts hide what is named, and keep what somebody
 * still needs; the agent serves it as before, for as long as a slot has it, as a mount may need it for the next one.
 *
 *   POST /v1/{model}/{version}/retire[?run=R]     {}
 *
 * Of a trainer that spans nodes each agent names what was deleted on its node, beside its part: deleted on one is
 * deleted. So the request is not for the primary alone.
 *
 * The agent that takes slots over from one that died (kept/) learns it from their records: those of the version, and of its parts and views. */
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/journal.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/slot_record.h"
#include "backends/trainer/agent/core/slots.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct retired {
    struct ws_version_id ids[WS_MAX_RETIRED]; /* the oldest gives way; no run: none */
    unsigned next;
};

static struct retired *retired_of(const struct ws_agent_model *m)
{
    return m->feature_state[WS_FEATURE_retired];
}

static bool has(const struct ws_agent_model *m, const struct ws_version_id *id)
{
    for (unsigned i = 0; i < WS_MAX_RETIRED; i++)
        if (ws_version_id_equal(&retired_of(m)->ids[i], id))
            return true;
    return false;
}

/* What a model is a part or a view of, or its own name. */
static void find_whole(const char *model, char out[WS_MAX_NAME + 1])
{
    if (!ws_name_is_node_part(model, out, NULL, NULL) && !ws_name_is_view(model, out, NULL))
        snprintf(out, WS_MAX_NAME + 1, "%s", model);
}

static void add(struct ws_agent_model *m, const struct ws_version_id *id)
{
    if (!has(m, id))
        retired_of(m)->ids[retired_of(m)->next++ % WS_MAX_RETIRED] = *id;
}

/* Under lock. */
static void mark_slots(const struct ws_agent *a, const struct ws_agent_model *m,
                       const struct ws_version_id *id)
{
    char whole[WS_MAX_NAME + 1];
    for (struct ws_agent_model *i = a->models; i; i = i->next) {
        find_whole(i->name, whole);
        struct ws_slot *s = strcmp(whole, m->name) == 0 ? ws_slots_find(i, id) : NULL;
        if (s)
            ws_slot_record_delete(s);
    }
}

/* Of a version that was taken over its record says it; that of a view that is made later has to be told. */
static void filled(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s)
{
    const struct ws_version_id id = ws_version_id_make(s->version, s->lineage);
    char whole[WS_MAX_NAME + 1];
    find_whole(m->name, whole);
    const bool is_deleted = ws_slot_record_is_deleted(s);
    struct ws_agent_model *of =
        is_deleted ? ws_agent_model_find_or_add(a, whole) : ws_agent_model_find(a, whole);
    if (of && is_deleted)
        add(of, &id);
    else if (of && has(of, &id))
        ws_slot_record_delete(s);
}

/* Under lock. Of a run that this agent does not know it may be told, too: the agent before it announced that. */
static int check(const struct ws_agent_model *m, const struct ws_version_id *id, struct ws_error *err)
{
    if (!id->lineage[0])
        return ws_error_set(err, ENOENT, "%s has no run yet: say which with ?run=", m->name);
    if (strcmp(id->lineage, m->lineage) == 0 && id->version > m->newest)
        return ws_error_set(err, ENOENT, "%s has no version %" PRIu64 ": the newest of run %s is %" PRIu64,
                            m->name, id->version, m->lineage, m->newest);
    return 0;
}

/* Under lock. */
static int retire(struct ws_agent *a, const struct ws_api_request *q, bool *is_new, struct ws_error *err)
{
    struct ws_agent_model *m = ws_name_is_model(q->model) ? ws_agent_model_find_or_add(a, q->model) : NULL;
    if (!m)
        return ws_error_set(err, ENOENT, "there is no model '%.100s' here", q->model);
    const struct ws_version_id id = ws_version_id_make(q->version, q->lineage[0] ? q->lineage : m->lineage);
    const int rc = check(m, &id, err);
    *is_new = rc == 0 && !has(m, &id);
    if (!*is_new)
        return rc;
    add(m, &id);
    mark_slots(a, m, &id);
    ws_log(WS_LOG_INFO, "agent", "retired model=%s version=%" PRIu64 " run=%s", m->name, id.version,
           id.lineage);
    return 0;
}

static int route(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply, struct ws_error *err)
{
    const struct ws_api_request *q = r->q;
    char to[2 * WS_MAX_NAME];
    bool is_new = false;
    (void)reply;
    if (strcmp(r->method, "POST") != 0 || !q->has_version || strcmp(q->verb, "retire") != 0)
        return WS_ROUTE_OTHER;
    pthread_mutex_lock(&a->lock);
    const int rc = retire(a, q, &is_new, err);
    pthread_mutex_unlock(&a->lock);
    snprintf(to, sizeof(to), "%.200s/%" PRIu64, q->model, q->version);
    ws_journal_request(r->who, "retire", to, rc, err);
    if (is_new)
        ws_agent_announce(a);
    return rc;
}

static const struct ws_agent_model *find(const struct ws_agent *a, const char *name)
{
    const struct ws_agent_model *m = a->models;
    while (m && strcmp(m->name, name) != 0)
        m = m->next;
    return m;
}

/* A part's entry has what was said of its model: a secondary lists no other. */
static void list(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out)
{
    char base[WS_MAX_NAME + 1];
    const struct ws_agent_model *of = ws_name_is_node_part(m->name, base, NULL, NULL) ? find(a, base) : m;
    json_t *all = json_array();
    for (unsigned i = 0; of && i < WS_MAX_RETIRED; i++) {
        const struct ws_version_id *id = &retired_of(of)->ids[i];
        if (id->lineage[0])
            json_array_append_new(
                all, json_pack("{s:I,s:s}", "version", (json_int_t)id->version, "run", id->lineage));
    }
    if (json_array_size(all))
        json_object_set(out, "retired", all);
    json_decref(all);
}

static const struct ws_api_route routes[] = {WS_API_ROUTE("POST", "/v1/{model}/{version}/retire", PUBLISH),
                                             {0}};

const struct ws_agent_feature ws_feature_retired = {
    .model_bytes = sizeof(struct retired),
    .filled = filled,
    .list = list,
    .routes = routes,
    .route = route,
};
