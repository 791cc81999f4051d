/* What is asked of the agent beside versions: status, metrics, and the features' routes. */
#include "backends/trainer/agent/status.h"
#include "backends/trainer/agent/core/features.h"
#include "transports/base/audit_log.h"
#include "transports/base/machine.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static json_t *slot_status(const struct ws_slot *s)
{
    char holders[512];
    ws_slot_holders(s, holders, sizeof(holders));
    return json_pack("{s:s,s:I,s:s,s:I,s:I,s:s}", "state", ws_slot_state_name(s->state), "version",
                     (json_int_t)s->version, "run", s->lineage, "bytes", (json_int_t)s->total_bytes, "leases",
                     (json_int_t)s->n_leases, "holders", s->state == WS_SLOT_WRITING ? "" : holders);
}

/* With when the certificate ends that its clients are shown. */
static json_t *own_machine(struct ws_agent *a)
{
    struct ws_tcp_server_stats tcp = {0};
    struct ws_tcp_server *server = atomic_load(&a->tcp);
    json_t *out = ws_machine_facts();
    if (server)
        ws_tcp_server_stats(server, &tcp);
    if (out && tcp.certificate_end)
        json_object_set_new(out, "certificate_end", json_integer((json_int_t)tcp.certificate_end));
    return out;
}

static int get_status(struct ws_agent *a, json_t **reply)
{
    json_t *machine = own_machine(a);
    json_t *models = json_array();
    pthread_mutex_lock(&a->lock);
    for (const struct ws_agent_model *m = a->models; m; m = m->next) {
        json_t *slots = json_array();
        for (unsigned i = 0; i < m->n_slots; i++)
            json_array_append_new(slots, slot_status(m->slots[i]));
        json_t *one =
            json_pack("{s:s,s:I,s:s,s:I,s:I,s:I,s:o}", "name", m->name, "newest", (json_int_t)m->newest,
                      "run", m->lineage, "ranks", (json_int_t)m->n_registered, "published",
                      (json_int_t)m->published, "abandoned", (json_int_t)m->abandoned, "slots", slots);
        if (m->how[0])
            json_object_set_new(one, "how", json_string(m->how));
        ws_features_model_status(a, m, one);
        json_array_append_new(models, one);
    }
    *reply = json_pack("{s:I,s:o}", "slot_bytes", (json_int_t)a->slot_bytes, "models", models);
    if (machine)
        json_object_set_new(*reply, "machine", machine);
    ws_features_status(a, *reply);
    pthread_mutex_unlock(&a->lock);
    return 0;
}

static int get_metrics(struct ws_agent *a, char **text, struct ws_error *err)
{
    size_t n = 0;
    struct ws_tcp_server_stats tcp = {0};
    FILE *f = open_memstream(text, &n);
    if (!f)
        return ws_error_set(err, ENOMEM, "no memory for the metrics");
    struct ws_tcp_server *server = atomic_load(&a->tcp);
    if (server)
        ws_tcp_server_stats(server, &tcp);
    fprintf(f,
            "# HELP wsync_agent_sent_bytes_total Bytes of bodies that were sent by HTTP.\n"
            "# TYPE wsync_agent_sent_bytes_total counter\nwsync_agent_sent_bytes_total %" PRIu64 "\n"
            "# HELP wsync_agent_requests_total Requests by HTTP.\n"
            "# TYPE wsync_agent_requests_total counter\nwsync_agent_requests_total %" PRIu64 "\n"
            "# HELP wsync_agent_connections Connections that are open.\n"
            "# TYPE wsync_agent_connections gauge\nwsync_agent_connections %u\n"
            "# HELP wsync_agent_refused_total Requests that were refused, by status.\n"
            "# TYPE wsync_agent_refused_total counter\nwsync_agent_refused_total{status=\"401\"} %" PRIu64
            "\n"
            "wsync_agent_refused_total{status=\"403\"} %" PRIu64 "\n",
            tcp.bytes_sent, tcp.requests, tcp.connections, tcp.unknown, tcp.forbidden);
    fprintf(f, "# HELP wsync_agent_ended_total Connections that the agent ended, by reason.\n"
               "# TYPE wsync_agent_ended_total counter\n");
    ws_tcp_server_print_ended(&tcp, "wsync_agent_ended_total", f);
    ws_tcp_server_print_certificate(&tcp, "wsync_agent_certificate_end_timestamp_seconds", f);
    fprintf(f,
            "# HELP wsync_agent_audit_lost_total Entries that the audit log had no room for.\n"
            "# TYPE wsync_agent_audit_lost_total counter\nwsync_agent_audit_lost_total %" PRIu64 "\n",
            ws_audit_log_lost());
    pthread_mutex_lock(&a->lock);
    fprintf(f,
            "# HELP wsync_agent_slot_bytes Memory of all slots, in bytes.\n"
            "# TYPE wsync_agent_slot_bytes gauge\nwsync_agent_slot_bytes %" PRIu64 "\n",
            a->slot_bytes);
    ws_features_metrics(a, f);
    static const char *const names[] = {"published", "abandoned"};
    for (size_t k = 0; k < 2; k++) {
        fprintf(f,
                "# HELP wsync_agent_versions_%s_total Versions that were %s.\n"
                "# TYPE wsync_agent_versions_%s_total counter\n",
                names[k], names[k], names[k]);
        for (const struct ws_agent_model *m = a->models; m; m = m->next)
            fprintf(f, "wsync_agent_versions_%s_total{model=\"%s\"} %" PRIu64 "\n", names[k], m->name,
                    k == 0 ? m->published : m->abandoned);
    }
    fprintf(f, "# HELP wsync_agent_newest_version The newest version of each model.\n"
               "# TYPE wsync_agent_newest_version gauge\n");
    for (const struct ws_agent_model *m = a->models; m; m = m->next)
        fprintf(f, "wsync_agent_newest_version{model=\"%s\"} %" PRIu64 "\n", m->name, m->newest);
    fprintf(f, "# HELP wsync_agent_leases Leases of each slot.\n"
               "# TYPE wsync_agent_leases gauge\n");
    for (const struct ws_agent_model *m = a->models; m; m = m->next)
        for (unsigned i = 0; i < m->n_slots; i++)
            fprintf(f, "wsync_agent_leases{model=\"%s\",slot=\"%u\",state=\"%s\"} %u\n", m->name, i,
                    ws_slot_state_name(m->slots[i]->state), m->slots[i]->n_leases);
    pthread_mutex_unlock(&a->lock);
    return fclose(f) == 0 ? 0 : ws_error_set(err, ENOMEM, "no memory for the metrics");
}

const struct ws_api_route ws_status_routes[] = {
    WS_API_ROUTE("GET", "/v1/status", READ),
    WS_API_ROUTE("GET", "/metrics", READ),
    {0},
};

/* A request whose body names its models. */
static int check_models(const struct ws_identity *who, const json_t *body, struct ws_error *err)
{
    json_t *models = json_object_get(body, "models"), *value;
    const char *name;
    json_object_foreach(models, name, value)
    {
        if (!ws_identity_may_use(who, name))
            return ws_error_set(err, EPERM, "a release of %.100s is not for %s, which may use %s only", name,
                                who->name, who->models);
    }
    return 0;
}

int ws_status_no_route(void *self, const char *method, const char *path, struct ws_error *err)
{
    (void)self;
    return ws_error_set(err, ENOENT, "there is no %s %.200s here; /v1/models lists what there is", method,
                        path);
}

int ws_status_route(void *self, const struct ws_identity *who, const char *method, const char *path,
                    const char *query, const json_t *body, json_t **reply, char **text, struct ws_error *err)
{
    struct ws_agent *a = self;
    struct ws_api_request q;
    int rc = ws_api_parse(path, query, &q, err);
    if (rc < 0)
        return rc;
    if (strcmp(method, "GET") == 0) {
        if (strcmp(path, "/v1/status") == 0)
            return get_status(a, reply);
        if (strcmp(path, "/metrics") == 0)
            return get_metrics(a, text, err);
    }
    struct ws_identity on_behalf = {0};
    if (q.on_behalf[0] && !(who->roles & WS_ROLE_NODE))
        return ws_error_set(err, EPERM, "only another node's agent speaks for others (as=), and %s is none",
                            who->name);
    if (q.on_behalf[0]) {
        on_behalf = *who;
        on_behalf.is_shared = false;
        snprintf(on_behalf.name, sizeof(on_behalf.name), "%s", q.on_behalf);
        who = &on_behalf;
    }
    if (strcmp(path, "/v1/release") == 0 && (rc = check_models(who, body, err)) < 0)
        return rc;
    const struct ws_agent_request r = {who, method, path, query, &q, body};
    rc = ws_features_route(a, &r, reply, err);
    return rc != WS_ROUTE_OTHER ? rc : ws_status_no_route(self, method, path, err);
}
