/* What an operator has the agent forget: models that no rank writes any more, and mounts that are silent.
 *
 *   POST /v1/{model}/remove            {}: the model is listed no longer, and its memory is freed
 *   POST /v1/{model}/mounts/remove     {"mount": ID, "identity"?: NAME} */
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/journal.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/group/group.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Under lock. A part of a model that spans nodes has no ranks of its own: the model has them. */
static int remove_model(struct ws_agent *a, struct ws_agent_model *m, json_t **reply, struct ws_error *err)
{
    for (struct ws_agent_model *o = a->models; o; o = o->next)
        if ((o == m || o->slot_owner == m) && ws_group_n_present(o) > 0)
            return ws_error_set(err, EBUSY, "%u ranks of %s are registered: end the trainer first",
                                ws_group_n_present(o), o->name);
    const int rc = ws_agent_model_remove(a, m, err);
    if (rc == 0)
        *reply = json_pack("{s:i}", "slots_left", (int)m->n_slots);
    return rc;
}

/* Under lock. */
static int remove_mount(struct ws_agent_model *m, const json_t *body, struct ws_error *err)
{
    const char *mount = json_string_value(json_object_get(body, "mount"));
    const char *owner = json_string_value(json_object_get(body, "identity"));
    if (!mount || !*mount)
        return ws_error_set(err, EINVAL, "which mount? {\"mount\": \"HOST:MOUNTPOINT\"}");
    return ws_fleet_forget(&m->fleet, owner, mount, ws_clock_ns(), err);
}

static int route(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply, struct ws_error *err)
{
    const struct ws_api_request *q = r->q;
    const char *mount = json_string_value(json_object_get(r->body, "mount"));
    const bool of_mount = strcmp(q->verb, "mounts/remove") == 0;
    char to[2 * WS_MAX_NAME];
    if (strcmp(r->method, "POST") != 0 || q->has_version || (!of_mount && strcmp(q->verb, "remove") != 0))
        return WS_ROUTE_OTHER;
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = ws_agent_model_find(a, q->model);
    int rc = m && (m->has_published || m->n_slots || of_mount)
                 ? 0
                 : ws_error_set(err, ENOENT,
                                "there is no model '%.100s' here; /v1/models lists what there is", q->model);
    if (rc == 0)
        rc = of_mount ? remove_mount(m, r->body, err) : remove_model(a, m, reply, err);
    pthread_mutex_unlock(&a->lock);
    snprintf(to, sizeof(to), "%.200s%s%.250s", q->model, of_mount ? " mount " : "",
             of_mount && mount ? mount : "");
    ws_journal_request(r->who, "remove", to, rc, err);
    if (rc == 0)
        ws_agent_announce(a);
    return rc;
}

static const struct ws_api_route routes[] = {
    WS_API_ROUTE("POST", "/v1/{model}/remove", ADMIN),
    WS_API_ROUTE("POST", "/v1/{model}/mounts/remove", ADMIN),
    {0},
};

const struct ws_agent_feature ws_feature_admin = {.routes = routes, .route = route};
