#include "fs/probes.h"
#include "fs/control/status_json.h"
#include "fs/engines/control.h"
#include "fs/switch/adapter_steps.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/text.h"
#include "transports/http/page/page.h"
#include "transports/http/server.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONNECTIONS 512U
#define IDLE_SECONDS    5U   /* also of a request that does not come to its end */
#define ANSWER_MS       2000 /* of an engine; a probe's own patience is seldom longer */

struct ws_probes {
    struct ws_control *control;
    struct ws_http_server *http;
};

/* --- is it ready --- */

/* "42@RUN": how far behind the mark it is; UINT64_MAX: of another lineage, or not a version of ours. */
static uint64_t versions_behind(const char *served, const struct ws_version_id *aim)
{
    uint64_t number;
    if (ws_text_digits(&served, &number) || *served != '@' || strcmp(served + 1, aim->lineage) != 0)
        return UINT64_MAX;
    return aim->version > number ? aim->version - number : 0;
}

/* "lora@7,lora@6" as an array; a new reference. */
static json_t *list_names(const char *listed)
{
    json_t *out = json_array();
    for (const char *at = listed; at && *at; at += strcspn(at, ","), at += *at == ',')
        json_array_append_new(out, json_stringn(at, strcspn(at, ",")));
    return out;
}

/* What it serves beside its target. */
static void add_members(struct ws_control *c, const struct ws_engine *e, json_t *out)
{
    const struct ws_member *draft = ws_members_draft(&e->members);
    char version[WS_VERSION_ID_TEXT];
    pthread_mutex_lock(&c->lock);
    if (e->members.n > (draft != NULL))
        json_object_set_new(out, "adapters", list_names(e->listed));
    if (draft)
        json_object_set_new(out, "draft", json_string(ws_draft_text(&e->draft, version)));
    pthread_mutex_unlock(&c->lock);
}

/* An engine of another model, which is to list the adapter of that name. */
static json_t *check_adapter(struct ws_control *c, const struct ws_controller *of, struct ws_engine *e,
                             const char *name, const struct ws_version_id *id, bool *ready)
{
    struct ws_engine_serving now = {0};
    struct ws_error err = {0};
    struct ws_engine_call call;
    struct ws_engine_adapters *listed = NULL;
    int rc = ws_engine_ready(e, c, &err);
    ws_engine_call_init(e, c, &call);
    ws_engine_call_limit(&call, ANSWER_MS);
    call.target.short_ms = call.target.timeout_ms;
    if (rc == 0)
        rc = e->ops->serving(&call.target, &now, &err);
    if (rc == 0)
        listed = ws_adapters_ask(c, e, &call.target, &err);
    pthread_mutex_lock(&c->lock);
    const enum ws_engine_state state = e->condition.state;
    const bool gone = ws_condition_is_broken(&e->condition);
    pthread_mutex_unlock(&c->lock);
    const char *why = !listed        ? err.text
                      : now.sleeping ? "it sleeps"
                      : now.paused   ? "it is paused"
                      : gone         ? "it has no good weights"
                      : !name[0]     ? "no version is current"
                      : !ws_adapter_is_listed(c, of, e, listed, name, id)
                          ? "it does not list the adapter with its path"
                          : NULL;
    free(listed);
    *ready = !why;
    json_t *out = json_pack("{s:s,s:b,s:s,s:s,s:s}", "engine", e->name, "ready", (int)*ready, "state",
                            ws_engine_state_name(state), "serves", why ? "" : name, "why", why ? why : "");
    if (out)
        add_members(c, e, out);
    return out;
}

/* What one engine answers now; where it cannot say, what is known of it. */
static json_t *check_engine(struct ws_control *c, struct ws_engine *e, const struct ws_version_id *aim,
                            uint64_t most_behind, bool *ready)
{
    struct ws_engine_serving now = {0};
    struct ws_error err = {0};
    struct ws_engine_call call;
    int rc = 0;
    if (!e->ops->external && (rc = ws_engine_ready(e, c, &err)) == 0) {
        ws_engine_call_init(e, c, &call);
        ws_engine_call_limit(&call, ANSWER_MS);
        call.target.short_ms = call.target.timeout_ms;
        rc = e->ops->serving(&call.target, &now, &err);
    }
    pthread_mutex_lock(&c->lock);
    const enum ws_engine_state state = e->condition.state;
    const bool gone = ws_condition_is_broken(&e->condition);
    if (!e->condition.reports.version)
        snprintf(now.version, sizeof(now.version), "%s", e->condition.version);
    pthread_mutex_unlock(&c->lock);
    uint64_t behind = aim->lineage[0] ? versions_behind(now.version, aim) : UINT64_MAX;
    const char *why = rc < 0                                              ? err.text
                      : now.sleeping                                      ? "it sleeps"
                      : now.paused                                        ? "it is paused"
                      : gone                                              ? "it has no good weights"
                      : !now.reports_paused && state != WS_ENGINE_SERVING ? ws_engine_state_name(state)
                      : !aim->lineage[0]                                  ? "no version is current"
                      : behind == UINT64_MAX ? "it serves something else than the current version"
                      : behind > most_behind ? "it is too far behind the current version"
                                             : NULL;
    *ready = !why;
    json_t *out = json_pack("{s:s,s:b,s:s,s:s,s:s}", "engine", e->name, "ready", (int)*ready, "state",
                            ws_engine_state_name(state), "serves", now.version, "why", why ? why : "");
    if (out && behind != UINT64_MAX)
        json_object_set_new(out, "behind", json_integer((json_int_t)behind));
    if (out)
        add_members(c, e, out);
    return out;
}

/* An engine of another model whose draft it is. The target's own probe says whether it answers requests. */
static json_t *check_draft(struct ws_control *c, const struct ws_engine *e, struct ws_version *current,
                           bool *ready)
{
    const struct ws_version_id wanted = current ? ws_version_id(current) : (struct ws_version_id){0};
    char text[WS_VERSION_ID_TEXT];
    pthread_mutex_lock(&c->lock);
    const enum ws_engine_state state = e->condition.state;
    const struct ws_draft draft = e->draft;
    pthread_mutex_unlock(&c->lock);
    const bool has = ws_version_id_equal(&draft.id, &wanted);
    *ready = has && state == WS_ENGINE_SERVING;
    return json_pack("{s:s,s:b,s:s,s:s,s:s}", "engine", e->name, "ready", (int)*ready, "state",
                     ws_engine_state_name(state), "serves", ws_draft_text(&draft, text), "why",
                     *ready     ? ""
                     : !current ? "no version is current"
                     : !has     ? "its draft model is not known to be the current version"
                                : ws_engine_state_name(state));
}

static unsigned check_model(struct ws_control *c, const char *model, const char *engine,
                            const uint64_t *most_behind, json_t **out)
{
    struct ws_model *m = ws_store_find(c->store, model);
    struct ws_controller *ctl = m ? ws_controller_get(c, model) : NULL;
    struct ws_version *v = m ? ws_model_current(m) : NULL, *latest = m ? ws_model_latest(m) : NULL;
    struct ws_version_id aim = {0}, current = {0};
    struct ws_desired desired = {0};
    json_t *engines = json_array();
    size_t n = 0, n_engines = 0;
    bool all = true, is_adapter = false;
    ws_adapter_name name = "";
    if (v)
        aim = current = ws_version_id(v);
    if (v && ctl) {
        pthread_mutex_lock(&c->lock);
        ws_adapters_name(&ctl->adapters, model, &aim, name);
        pthread_mutex_unlock(&c->lock);
    }
    if (m)
        ws_model_desired(m, &desired);
    if (most_behind && desired.released_by)
        aim = desired.released;
    else if (most_behind && latest)
        aim = ws_version_id(latest);
    struct ws_engine **held = ctl ? ws_engine_get_all(c, ctl, true, &n) : NULL;
    for (size_t i = 0; held && i < n; i++) {
        bool ready;
        if (engine && strcmp(held[i]->name, engine) != 0)
            continue;
        const struct ws_member *member = ws_members_find(&held[i]->members, model);
        is_adapter = is_adapter || (member && member->role == WS_MEMBER_ADAPTER);
        json_array_append_new(
            engines, member && member->role == WS_MEMBER_ADAPTER
                         ? check_adapter(c, ctl, held[i], name, &current, &ready)
                     : member ? check_draft(c, held[i], v, &ready)
                              : check_engine(c, held[i], &aim, most_behind ? *most_behind : 0, &ready));
        all = all && ready;
        n_engines++;
    }
    if (held)
        ws_engine_put_all(c, held, n);
    unsigned status = n_engines == 0 ? 404 : all ? 200 : 503;
    *out = json_pack("{s:b,s:s,s:I,s:o}", "ready", (int)(status == 200), "model", model, "current",
                     (json_int_t)(v ? ws_version_number(v) : 0), "engines", engines);
    if (is_adapter && name[0])
        json_object_set_new(*out, "adapter", json_string(name)); /* what requests name */
    if (n_engines == 0)
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

static void serve_health(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    (void)self;
    (void)in;
    a->json = json_pack("{s:b}", "ok", 1);
}

static void serve_metrics(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_probes *p = self;
    size_t n;
    (void)in;
    a->type = "text/plain; version=0.0.4; charset=utf-8";
    if (ws_control_read(p->control, WS_VIEW_METRICS, NULL, NULL, &a->text, &n) < 0)
        a->text = NULL;
}

static void serve_status(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_probes *p = self;
    (void)in;
    a->json = ws_status_json(p->control);
}

static void serve_ready(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_probes *p = self;
    const char *path = in->path + strlen("/ready/"), *slash = strchr(path, '/');
    const char *word = ws_http_argument(in, "behind");
    const size_t n = slash ? (size_t)(slash - path) : strlen(path);
    char model[WS_MAX_NAME + 1];
    uint64_t behind = 0;
    snprintf(model, sizeof(model), "%.*s", (int)n, path);
    if (n > WS_MAX_NAME || !ws_name_is_offered(model) || (word && ws_text_u64(word, &behind))) {
        a->status = 400;
        a->json = json_pack("{s:s}", "error", "ask for /ready/MODEL[/ENGINE][?behind=N]");
        return;
    }
    a->status =
        check_model(p->control, model, slash && slash[1] ? slash + 1 : NULL, word ? &behind : NULL, &a->json);
}

static void serve_nothing(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    (void)self;
    (void)in;
    a->status = 404;
    a->json = json_pack("{s:s}", "error",
                        "there is /, /healthz, /metrics, /v1/status and /ready/MODEL[/ENGINE][?behind=N]");
}

/* By a method that is none of theirs; or metrics or status, where tokens are asked for. */
static void refuse(void *self, const struct ws_http_incoming *in, struct ws_http_answer *a)
{
    (void)self;
    (void)in;
    a->json =
        json_pack("{s:s}", "error",
                  a->status == 405 ? "probes are only read: GET"
                                   : "metrics and status ask for the role read: Authorization: Bearer TOKEN");
}

/* They are of all models. */
static void need_all_models(void *self, struct ws_http_incoming *in, struct ws_http_need *need)
{
    (void)self;
    (void)in;
    need->is_of_models = true;
}

static const struct ws_http_route routes[] = {
    WS_HTTP_ROUTE(WS_HTTP_READ, "/healthz", OPEN, serve_health),
    {WS_HTTP_READ, "/metrics", WS_ROLE_READ, serve_metrics, need_all_models},
    {WS_HTTP_READ, "/v1/status", WS_ROLE_READ, serve_status, need_all_models},
    WS_HTTP_ROUTE(WS_HTTP_READ, "/", OPEN, ws_page_serve),
    WS_HTTP_ROUTE(WS_HTTP_READ, "/ready/*", OPEN, serve_ready),
    WS_HTTP_ROUTE(WS_HTTP_READ, "*", OPEN, serve_nothing),
    {0},
};

int ws_probes_new(struct ws_probes **out, const char *listen, const char *tokens_file, struct ws_control *c,
                  struct ws_error *err)
{
    struct ws_probes *p = calloc(1, sizeof(*p));
    if (!p)
        return ws_error_set(err, ENOMEM, "no memory for the server for probes");
    p->control = c;
    const int rc = ws_http_server_new(
        &p->http,
        &(struct ws_http_server_options){.listen = listen,
                                         .access = {.tokens_file = tokens_file, .insecure = true},
                                         .routes = routes,
                                         .self = p,
                                         .max_connections = MAX_CONNECTIONS,
                                         .idle_seconds = IDLE_SECONDS,
                                         .refuse = refuse},
        err);
    if (rc < 0) {
        free(p);
        return rc;
    }
    ws_log(WS_LOG_INFO, "mount", "probes are answered at=%s port=%u", listen, ws_http_server_port(p->http));
    *out = p;
    return 0;
}

void ws_probes_free(struct ws_probes *p)
{
    if (!p)
        return;
    ws_http_server_free(p->http);
    free(p);
}
