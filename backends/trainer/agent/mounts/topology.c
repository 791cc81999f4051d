/* The agent's routes for trees of mounts.
 *
 *   POST /v1/{model}/topology      where a mount is, and in reply whom it asks first: fleet/topology.h
 *   GET  /v1/{model}/topology      all of them
 *
 * Of a trainer that spans nodes the primary answers; the others name it. They do not pass the report on, because the
 * address that it comes from would be theirs. */
#include "backends/trainer/agent/fleet/topology.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/mounts/routes.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <string.h>

static struct ws_topology *topology_of(const struct ws_agent_model *m)
{
    return m->feature_state[WS_FEATURE_topology];
}

static void free_topology(struct ws_agent_model *m)
{
    ws_topology_clear(topology_of(m));
}

static int route(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply, struct ws_error *err)
{
    const struct ws_api_request *q = r->q;
    const bool post = strcmp(r->method, "POST") == 0;
    char mount_id[WS_MOUNT_ID_CHARS + 1];
    int rc;
    if (!q->model[0] || q->has_version || strcmp(q->verb, "topology") != 0)
        return WS_ROUTE_OTHER;
    if (a->primary)
        return ws_error_set(err, ENOTSUP,
                            "this is one node's agent of several: the primary, %s, has the trees",
                            a->primary->url);
    rc = post ? ws_mounts_parse_id(r->body, mount_id, err) : 0;
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = ws_agent_model_find(a, q->model);
    if (!m || !m->has_published)
        rc = ws_error_set(err, ENOENT, "there is no model '%.100s' here; /v1/models lists what there is",
                          q->model);
    else if (post)
        rc = ws_topology_report(topology_of(m), r->who, mount_id, r->body, ws_clock_ns(), reply, err);
    else if (!(*reply = ws_topology_json(topology_of(m), ws_clock_ns())))
        rc = ws_error_set(err, ENOMEM, "no memory for a reply");
    pthread_mutex_unlock(&a->lock);
    return rc;
}

static const struct ws_api_route routes[] = {
    WS_API_ROUTE("POST", "/v1/{model}/topology", REPORT),
    WS_API_ROUTE("GET", "/v1/{model}/topology", READ),
    {0},
};

const struct ws_agent_feature ws_feature_topology = {
    .model_bytes = sizeof(struct ws_topology),
    .free = free_topology,
    .routes = routes,
    .route = route,
};
