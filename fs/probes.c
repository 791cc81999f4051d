#include "fs/probes.h"
#include "fs/engines/control.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include "transports/http/door.h"
#include "transports/http/server.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONNECTIONS 512U
#define IDLE_SECONDS    5U   /* also of a request that does not come to its end */
#define ANSWER_MS       2000 /* of an engine; a probe's own patience is seldom longer */

struct ws_probes {
    struct ws_control *control;
    struct ws_http_door *door;
};

/* --- is it ready --- */

/* "42@RUN": how far behind the mark it is; UINT64_MAX: of another lineage, or not a version of ours. */
static uint64_t behind_of(const char *served, const struct ws_mark *aim)
{
    uint64_t number;
    if (ws_text_digits(&served, &number) || *served != '@' || strcmp(served + 1, aim->run) != 0)
        return UINT64_MAX;
    return aim->version > number ? aim->version - number : 0;
}

/* What one engine is asked, or is known to be where it cannot say. */
static json_t *look(struct ws_control *c, struct ws_engine *e, const struct ws_mark *aim,
                    uint64_t most_behind, bool *ready)
{
    struct ws_engine_serving now = {0};
    struct ws_error err = {0};
    struct ws_engine_call call;
    int rc = 0;
    if (!e->ops->external && (rc = ws_engine_ready(e, c, &err)) == 0) {
        ws_engine_call_of(e, c, &call);
        call.target.timeout_ms = call.target.timeout_ms < ANSWER_MS ? call.target.timeout_ms : ANSWER_MS;
        call.target.short_ms = call.target.timeout_ms;
        rc = e->ops->serving(&call.target, &now, &err);
    }
    pthread_mutex_lock(&c->lock);
    const enum ws_engine_state state = e->condition.state;
    const bool gone = ws_condition_is_broken(&e->condition);
    if (!e->condition.tells.version)
        snprintf(now.version, sizeof(now.version), "%s", e->condition.version);
    pthread_mutex_unlock(&c->lock);
    uint64_t behind = aim->run[0] ? behind_of(now.version, aim) : UINT64_MAX;
    const char *why = rc < 0                                            ? err.text
                      : now.paused                                      ? "it is paused"
                      : now.sleeping                                    ? "it sleeps"
                      : gone                                            ? "it has no good weights"
                      : !now.tells_paused && state != WS_ENGINE_SERVING ? ws_engine_state_name(state)
                      : !aim->run[0]                                    ? "no version is current"
                      : behind == UINT64_MAX ? "it serves something else than the current version"
                      : behind > most_behind ? "it is too far behind the current version"
                                             : NULL;
    *ready = !why;
    json_t *out = json_pack("{s:s,s:b,s:s,s:s,s:s}", "engine", e->name, "ready", (int)*ready, "state",
                            ws_engine_state_name(state), "serves", now.version, "why", why ? why : "");
    if (out && behind != UINT64_MAX)
        json_object_set_new(out, "behind", json_integer((json_int_t)behind));
    return out;
}

static unsigned look_at_model(struct ws_control *c, const char *model, const char *engine,
                              const uint64_t *most_behind, json_t **out)
{
    struct ws_model *m = ws_store_find(c->store, model);
    struct ws_desk *d = m ? ws_desk_of(c, model) : NULL;
    struct ws_version *v = m ? ws_model_current(m) : NULL, *latest = m ? ws_model_latest(m) : NULL;
    struct ws_mark aim = {0};
    struct ws_orders orders = {0};
    json_t *engines = json_array();
    size_t n = 0, asked = 0;
    bool all = true;
    if (v)
        aim = ws_version_mark(v);
    if (m)
        ws_model_orders(m, &orders);
    if (most_behind && orders.released_by)
        aim = orders.released;
    else if (most_behind && latest)
        aim = ws_version_mark(latest);
    struct ws_engine **held = d ? ws_engine_hold_all(c, d, &n) : NULL;
    for (size_t i = 0; held && i < n; i++) {
        bool ready;
        if (engine && strcmp(held[i]->name, engine) != 0)
            continue;
        json_array_append_new(engines, look(c, held[i], &aim, most_behind ? *most_behind : 0, &ready));
        all = all && ready;
        asked++;
    }
    if (held)
        ws_engine_release_all(c, held, n);
    unsigned status = asked == 0 ? MHD_HTTP_NOT_FOUND : all ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
    *out = json_pack("{s:b,s:s,s:I,s:o}", "ready", (int)(status == MHD_HTTP_OK), "model", model, "current",
                     (json_int_t)(v ? ws_version_number(v) : 0), "engines", engines);
    if (asked == 0)
        json_object_set_new(*out, "error",
                            json_string(!m       ? "there is no such model"
                                        : engine ? "the model has no such engine"
                                                 : "the model has no engines"));
    if (v)
        ws_version_put(v);
    if (latest)
        ws_version_put(latest);
    if (m)
        ws_model_put(m);
    return status;
}

/* --- HTTP --- */

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned status, char *text, const char *type)
{
    struct MHD_Response *r =
        text ? MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE) : NULL;
    if (!r) {
        free(text);
        return MHD_NO;
    }
    (void)MHD_add_response_header(r, "Content-Type", type);
    (void)MHD_add_response_header(r, "Cache-Control", "no-store");
    enum MHD_Result ok = MHD_queue_response(connection, status, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result reply_json(struct MHD_Connection *connection, unsigned status, json_t *json)
{
    char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    return reply(connection, status, text, "application/json");
}

static enum MHD_Result reply_ready(struct ws_probes *p, struct MHD_Connection *connection, const char *path)
{
    char model[WS_MAX_NAME + 1];
    const char *slash = strchr(path, '/');
    const char *word = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "behind");
    size_t n = slash ? (size_t)(slash - path) : strlen(path);
    uint64_t behind = 0;
    json_t *out;
    if (n == 0 || n > WS_MAX_NAME || (word && ws_text_u64(word, &behind)))
        return reply_json(connection, MHD_HTTP_BAD_REQUEST,
                          json_pack("{s:s}", "error", "ask for /ready/MODEL[/ENGINE][?behind=N]"));
    snprintf(model, sizeof(model), "%.*s", (int)n, path);
    unsigned status =
        look_at_model(p->control, model, slash && slash[1] ? slash + 1 : NULL, word ? &behind : NULL, &out);
    return reply_json(connection, status, out);
}

static enum MHD_Result on_request(void *self, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data, size_t *size,
                                  void **state)
{
    struct ws_probes *p = self;
    char *text;
    size_t n;
    (void)version;
    (void)data;
    if (!*state) { /* the headers alone: there is more to come */
        *state = p;
        return MHD_YES;
    }
    if (*size > 0) {
        *size = 0;
        return MHD_YES;
    }
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return reply_json(connection, MHD_HTTP_METHOD_NOT_ALLOWED,
                          json_pack("{s:s}", "error", "probes are only read: GET"));
    if (strcmp(url, "/healthz") == 0)
        return reply_json(connection, MHD_HTTP_OK, json_pack("{s:b}", "ok", 1));
    if (strcmp(url, "/metrics") == 0)
        return ws_control_read(p->control, WS_VIEW_METRICS, NULL, NULL, &text, &n) < 0
                   ? MHD_NO
                   : reply(connection, MHD_HTTP_OK, text, "text/plain; version=0.0.4; charset=utf-8");
    if (strncmp(url, "/ready/", 7) == 0)
        return reply_ready(p, connection, url + 7);
    return reply_json(
        connection, MHD_HTTP_NOT_FOUND,
        json_pack("{s:s}", "error", "there is /healthz, /metrics and /ready/MODEL[/ENGINE][?behind=N]"));
}

int ws_probes_new(struct ws_probes **out, const char *listen, struct ws_control *c, struct ws_error *err)
{
    struct ws_probes *p = calloc(1, sizeof(*p));
    unsigned port;
    int rc = p ? ws_http_door_new(&p->door, listen, true, MAX_CONNECTIONS, &port, err)
               : ws_error_set(err, ENOMEM, "no memory");
    if (rc < 0) {
        free(p);
        return rc;
    }
    p->control = c;
    struct MHD_Daemon *daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | WS_HTTP_DOOR_FLAGS,
        0, NULL, NULL, on_request, p, WS_HTTP_DOOR_OPTIONS(p->door), MHD_OPTION_CONNECTION_TIMEOUT,
        IDLE_SECONDS, MHD_OPTION_END);
    rc = daemon ? ws_http_door_open(p->door, daemon, err)
                : ws_error_set(err, EIO, "the server for probes on %s did not start", listen);
    if (rc < 0) {
        ws_probes_free(p);
        return rc;
    }
    ws_log(WS_LOG_INFO, "mount", "probes are answered at=%s port=%u", listen, port);
    *out = p;
    return 0;
}

void ws_probes_free(struct ws_probes *p)
{
    if (!p)
        return;
    ws_http_door_free(p->door);
    free(p);
}
