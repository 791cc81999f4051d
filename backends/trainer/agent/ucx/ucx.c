/* ucx: with --ucx the agent leases its versions to mounts that fetch them by UCX (transports/ucx). Not of its own
 * accord: who can send to a worker's ports is trusted by UCX, which wsync-security(7) spells out. */
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/leases.h"
#include "transports/base/log.h"
#include "transports/ucx/engine.h"
#include "transports/ucx/serve.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

static struct ws_ucx_server **server_of(const struct ws_agent *a)
{
    return a->feature_state[WS_FEATURE_ucx];
}

static int start(struct ws_agent *a, struct ws_error *err)
{
    static const struct ws_catalog_ops leases = {.lease = ws_agent_lease_acquire,
                                                 .release = ws_agent_lease_release};
    const struct ws_catalog catalog = {&leases, a};
    if (!a->options.ucx)
        return 0;
    const int rc = ws_ucx_server_new(server_of(a), &catalog, err);
    if (rc < 0)
        return ws_error_prefix(err, "cannot serve by UCX (--ucx)");
    ws_log(WS_LOG_INFO, "agent", "serving by UCX release=%s", ws_ucx_release());
    return 0;
}

static void stop(struct ws_agent *a)
{
    if (*server_of(a))
        ws_ucx_server_stop(*server_of(a));
}

static void end(struct ws_agent *a)
{
    ws_ucx_server_free(*server_of(a));
}

static void put_status(const struct ws_agent *a, json_t *out)
{
    struct ws_ucx_server_stats s;
    if (!*server_of(a))
        return;
    ws_ucx_server_stats(*server_of(a), &s);
    json_object_set_new(out, "ucx",
                        json_pack("{s:s,s:i,s:I,s:I,s:I}", "release", ws_ucx_release(), "leases",
                                  (int)s.leases, "pieces", (json_int_t)s.pieces, "bytes", (json_int_t)s.bytes,
                                  "refused", (json_int_t)s.refused));
}

static void put_metrics(const struct ws_agent *a, FILE *f)
{
    struct ws_ucx_server_stats s;
    if (!*server_of(a))
        return;
    ws_ucx_server_stats(*server_of(a), &s);
    fprintf(f,
            "# HELP wsync_agent_ucx_leases Readers that have a lease of memory.\n"
            "# TYPE wsync_agent_ucx_leases gauge\nwsync_agent_ucx_leases %u\n"
            "# HELP wsync_agent_ucx_bytes_total Bytes that were read by UCX.\n"
            "# TYPE wsync_agent_ucx_bytes_total counter\nwsync_agent_ucx_bytes_total %" PRIu64 "\n"
            "# HELP wsync_agent_ucx_refused_total Requests by UCX that were refused.\n"
            "# TYPE wsync_agent_ucx_refused_total counter\nwsync_agent_ucx_refused_total %" PRIu64 "\n",
            s.leases, s.bytes, s.refused);
}

static const struct ws_api_route routes[] = {WS_API_ROUTE("POST", "/v1/{model}/{version}/ucx", READ), {0}};

static int route(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply, struct ws_error *err)
{
    if (strcmp(r->method, "POST") != 0 || !r->q->model[0] || !r->q->has_version ||
        strcmp(r->q->verb, "ucx") != 0)
        return WS_ROUTE_OTHER;
    if (!*server_of(a))
        return ws_error_set(err, EOPNOTSUPP, "the agent serves nothing by UCX: start it with --ucx");
    return ws_ucx_server_offer(*server_of(a), ws_identity_owner(r->who), r->q, r->body, reply, err);
}

const struct ws_agent_feature ws_feature_ucx = {
    .agent_bytes = sizeof(struct ws_ucx_server *),
    .start = start,
    .stop = stop,
    .end = end,
    .status = put_status,
    .metrics = put_metrics,
    .routes = routes,
    .route = route,
};
