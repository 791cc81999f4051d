/* clang-format off */
/* The agent's routes for mounts and releases.
 *
 *   POST /v1/{model}/mounts                where a mount stands: {"mount","follows","engines","version","run",
 *                                          "release": the one that it has come to an end with, 0: none}
 *   GET  /v1/{model}/mounts                where all of them stand
 *   POST /v1/{model}/{version}/prepared, fetched, loaded, failed[?run=R]     {"mount","engines","error"}
 *   GET  /v1/{model}/{version}/loaded?who=all|N|NAME     is it, or a later one, served there
 *   POST /v1/{model}/{version}/wanted[?run=R]            {"mounts":["host",...]}: those fetch it, and report it
 *   POST /v1/{model}/{version}/release[?run=R]           {"prepare_s","min_engines","quorum"}
 *   POST /v1/release                       {"models":{"actor":42,...},"prepare_s","min_engines","quorum"}
 *   GET  /v1/releases, /v1/releases/{id};  POST /v1/releases/{id}/abort */
/* clang-format on */
#include "backends/trainer/agent/mounts/routes.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/journal.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/mounts/releases.h"
#include "backends/trainer/agent/mounts/wanted.h"
#include "backends/trainer/agent/saved/saved.h"
#include "backends/trainer/agent/story/story.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ws_mounts_parse_id(const json_t *body, char out[WS_MOUNT_ID_CHARS + 1], struct ws_error *err)
{
    const json_t *mount = json_object_get(body, "mount");
    size_t n = json_string_length(mount);
    if (n == 0 || n > WS_MOUNT_ID_CHARS)
        return ws_error_set(err, EINVAL,
                            "a mount's request needs \"mount\":\"HOST:MOUNTPOINT\", of up to %d bytes",
                            WS_MOUNT_ID_CHARS);
    memcpy(out, json_string_value(mount), n + 1);
    ws_text_clean(out);
    return 0;
}

void ws_mounts_seen(void *self, const struct ws_identity *who, const char *mount_id, unsigned ms)
{
    struct ws_agent *a = self;
    char name[WS_MOUNT_ID_CHARS + 1];
    uint64_t now = ws_clock_ns();
    snprintf(name, sizeof(name), "%s", mount_id);
    ws_text_clean(name); /* as it was registered */
    pthread_mutex_lock(&a->lock);
    for (struct ws_agent_model *m = a->models; m; m = m->next)
        ws_fleet_extend_lease(&m->fleet, ws_identity_owner(who), name, now, ms);
    pthread_mutex_unlock(&a->lock);
}

/* What mounts are asked to do with a model, put into its entry of the listing. */
static void list_desired(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out)
{
    const struct ws_release *last = ws_releases_last(a, m->name);
    if (last)
        json_object_set_new(out, "release", ws_release_desired_json(last, m->name));
    if (m->fleet.release) {
        json_t *released = json_pack("{s:I,s:s,s:I}", "version", (json_int_t)m->fleet.released.version, "run",
                                     m->fleet.released.lineage, "by", (json_int_t)m->fleet.release);
        if (m->fleet.quarantines)
            json_object_set_new(released, "quarantine", json_true());
        json_object_set_new(out, "released", released);
    }
    ws_wanted_list(m, out);
}

/* --- routes; each under lock; *tell: the listing has changed --- */

static int find_model(struct ws_agent *a, const char *name, struct ws_agent_model **out, struct ws_error *err)
{
    *out = ws_agent_model_find(a, name);
    if (!*out || !(*out)->has_published)
        return ws_error_set(err, ENOENT, "there is no model '%.100s' here; /v1/models lists what there is",
                            name);
    return 0;
}

/* Shares of a release are reckoned with them. */
static int check_engines(const json_t *body, struct ws_error *err)
{
    uint64_t n = 0;
    (void)ws_number_read(json_object_get(body, "engines"), &n);
    return n <= WS_MAX_ENGINES
               ? 0
               : ws_error_set(err, EINVAL, "a mount has at most %d engines of a model", WS_MAX_ENGINES);
}

/* A mount before 0.2 says how many engines it has, not how many serve. */
static void read_engines(struct ws_fleet_mount *m, const json_t *body)
{
    m->engines = m->serving = 0;
    (void)ws_number_read(json_object_get(body, "engines"), &m->engines);
    if (ws_number_read(json_object_get(body, "serving"), &m->serving) < 0 || m->serving > m->engines)
        m->serving = m->engines;
}

static int record_presence(struct ws_agent_model *m, const char *owner, const json_t *body,
                           struct ws_error *err)
{
    char mount_id[WS_MOUNT_ID_CHARS + 1];
    struct ws_fleet_mount *mount;
    const char *lineage = json_string_value(json_object_get(body, "run"));
    int rc = ws_mounts_parse_id(body, mount_id, err);
    if (rc == 0 && json_is_true(json_object_get(body, "gone"))) {
        ws_fleet_remove(&m->fleet, owner, mount_id);
        return 0;
    }
    if (rc == 0)
        rc = check_engines(body, err);
    if (rc == 0)
        rc = ws_fleet_find_or_add(&m->fleet, owner, mount_id, ws_clock_ns(), &mount, err);
    if (rc < 0)
        return rc;
    mount->follows = json_is_true(json_object_get(body, "follows"));
    read_engines(mount, body);
    ws_fleet_record_came(mount, json_object_get(body, "came"));
    ws_fleet_record_error(mount, json_object_get(body, "last_error"));
    ws_fleet_record_machine(mount, json_object_get(body, "machine"), ws_clock_ns(), ws_clock_day_ns());
    struct ws_version_id serves = ws_version_id_make(
        (uint64_t)json_integer_value(json_object_get(body, "version")), lineage ? lineage : "");
    const json_t *release = json_object_get(body, "release");
    uint64_t answered = (uint64_t)json_integer_value(release);
    ws_fleet_record_presence(&m->fleet, mount, lineage && *lineage ? &serves : NULL,
                             json_is_integer(release) ? &answered : NULL);
    return 0;
}

/* A mount that says it again, as after a switch to what it serves, is counted once. */
static void record_loaded(struct ws_agent_model *m, struct ws_fleet_mount *mount,
                          const struct ws_version_id *to, const json_t *body)
{
    if (!ws_version_id_equal(&mount->loaded, to))
        ws_story_loaded(m, to, json_object_get(body, "came"));
    ws_fleet_record_came(mount, json_object_get(body, "came"));
    ws_fleet_record_loaded(&m->fleet, mount, to);
}

static int record_report(struct ws_agent_model *m, const char *owner, const struct ws_api_request *q,
                         const json_t *body, struct ws_error *err)
{
    char mount_id[WS_MOUNT_ID_CHARS + 1];
    struct ws_fleet_mount *mount;
    const char *why = json_string_value(json_object_get(body, "error"));
    uint64_t release = 0;
    const struct ws_version_id to = ws_version_id_make(q->version, q->lineage[0] ? q->lineage : m->lineage);
    int rc = ws_mounts_parse_id(body, mount_id, err);
    if (rc == 0)
        rc = check_engines(body, err);
    if (rc == 0 && json_object_get(body, "release") &&
        ws_number_read(json_object_get(body, "release"), &release) < 0)
        rc = ws_error_set(err, EINVAL, "\"release\" is a release's number");
    if (rc == 0)
        rc = ws_fleet_find_or_add(&m->fleet, owner, mount_id, ws_clock_ns(), &mount, err);
    if (rc < 0)
        return rc;
    if (json_object_get(body, "engines"))
        read_engines(mount, body);
    if (strcmp(q->verb, "prepared") == 0)
        ws_fleet_record_prepared(mount, &to);
    else if (strcmp(q->verb, "fetched") == 0)
        ws_fleet_record_fetched(mount, &to);
    else if (strcmp(q->verb, "loaded") == 0)
        record_loaded(m, mount, &to, body);
    else
        ws_fleet_record_failed(&m->fleet, mount, &to, release, why ? why : "it did not say why");
    ws_log(WS_LOG_INFO, "agent", "%s model=%s version=%" PRIu64 " mount=%s%s%s", q->verb, q->model,
           q->version, mount_id, why ? " why=" : "", why ? why : "");
    return 0;
}

/* The version that is meant, of the live lineage where no run is given. */
static int find_version_id(const struct ws_agent_model *m, uint64_t version, const char *lineage,
                           struct ws_version_id *out, struct ws_error *err)
{
    if (!*lineage && version > m->newest)
        return ws_error_set(err, ENOENT, "%s has no version %" PRIu64 " yet; the newest is %" PRIu64, m->name,
                            version, m->newest);
    *out = ws_version_id_make(version, *lineage ? lineage : m->lineage);
    return 0;
}

static int want(struct ws_agent *a, struct ws_agent_model *m, const struct ws_api_request *q,
                const json_t *body, bool *listing_changed, struct ws_error *err)
{
    struct ws_version_id to;
    int rc = find_version_id(m, q->version, q->lineage, &to, err);
    return rc < 0 ? rc : ws_wanted_add(a, m, &to, body, listing_changed, err);
}

static int release_one(struct ws_agent *a, struct ws_agent_model *m, const struct ws_agent_request *request,
                       uint64_t *begun, struct ws_error *err)
{
    const struct ws_api_request *q = request->q;
    struct ws_release_item part = {.model = m->name, .fleet = &m->fleet};
    int rc = find_version_id(m, q->version, q->lineage, &part.target, err);
    return rc < 0 ? rc : ws_releases_begin(a, request->who, &part, 1, request->body, begun, err);
}

static int release_many(struct ws_agent *a, const struct ws_agent_request *request, uint64_t *begun,
                        struct ws_error *err)
{
    json_t *models = json_object_get(request->body, "models"), *value;
    size_t n = json_object_size(models), i = 0;
    const char *name;
    int rc = 0;
    if (n == 0 || n > WS_MAX_MODELS)
        return ws_error_set(err, EINVAL, "models is an object of 1 to %d, as {\"actor\":42,\"critic\":17}",
                            WS_MAX_MODELS);
    struct ws_release_item *parts = calloc(n, sizeof(*parts));
    if (!parts)
        return ws_error_set(err, ENOMEM, "no memory for a release");
    json_object_foreach(models, name, value)
    {
        struct ws_agent_model *m;
        uint64_t number;
        if (rc < 0)
            break;
        rc = find_model(a, name, &m, err);
        if (rc == 0 && ws_number_read(value, &number) < 0)
            rc = ws_error_set(err, EINVAL, "the version of %s is a number", name);
        if (rc < 0)
            break;
        parts[i] = (struct ws_release_item){.model = m->name, .fleet = &m->fleet};
        rc = find_version_id(m, number, "", &parts[i++].target, err);
    }
    if (rc == 0)
        rc = ws_releases_begin(a, request->who, parts, n, request->body, begun, err);
    free(parts);
    return rc;
}

static json_t *loaded_json(const struct ws_agent_model *m, const struct ws_api_request *q)
{
    const struct ws_version_id to = ws_version_id_make(q->version, q->lineage[0] ? q->lineage : m->lineage);
    char missing[WS_ERROR_TEXT] = "";
    bool loaded = ws_fleet_serves(&m->fleet, &to, q->mount_id[0] ? q->mount_id : "all", ws_clock_ns(),
                                  missing, sizeof(missing));
    json_t *silent = json_array();
    for (const struct ws_fleet_mount *i = m->fleet.mounts; i; i = i->next)
        if (i->lease_ns < ws_clock_ns() && (i->follows || i->engines))
            json_array_append_new(silent, json_string(i->mount_id));
    return json_pack("{s:b,s:s,s:o}", "loaded", (int)loaded, "missing", missing, "silent", silent);
}

/* /v1/{model}/VERB, /v1/{model}/{version}/VERB */
static int route_model(struct ws_agent *a, const struct ws_agent_request *r, bool post, json_t **reply,
                       uint64_t *begun, bool *listing_changed, struct ws_error *err)
{
    const struct ws_api_request *q = r->q;
    const json_t *body = r->body;
    const char *owner = ws_identity_owner(r->who);
    static const char *const reports[] = {"prepared", "fetched", "loaded", "failed"};
    const char *verb = q->verb;
    struct ws_agent_model *m;
    int rc = find_model(a, q->model, &m, err);
    if (rc < 0)
        return rc;
    if (!q->has_version && strcmp(verb, "mounts") == 0) {
        if (post) {
            ws_saved_mark(a);
            return record_presence(m, owner, body, err);
        }
        *reply = ws_fleet_json(&m->fleet, ws_clock_ns());
        return 0;
    }
    if (q->has_version && !post && strcmp(verb, "loaded") == 0) {
        *reply = loaded_json(m, q);
        return 0;
    }
    if (q->has_version && post && strcmp(verb, "wanted") == 0)
        return want(a, m, q, body, listing_changed, err);
    if (q->has_version && post && strcmp(verb, "release") == 0) {
        return release_one(a, m, r, begun, err);
    }
    for (size_t i = 0; q->has_version && post && i < sizeof(reports) / sizeof(reports[0]); i++)
        if (strcmp(verb, reports[i]) == 0)
            return record_report(m, owner, q, body, err);
    return WS_ROUTE_OTHER;
}

static bool is_release(const struct ws_agent_request *r)
{
    return strcmp(r->path, "/v1/release") == 0 || (r->q->has_version && strcmp(r->q->verb, "release") == 0);
}

static int route(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply, struct ws_error *err)
{
    const char *path = r->path;
    bool post = strcmp(r->method, "POST") == 0, listing_changed = false;
    uint64_t begun = 0; /* the release */
    int rc = WS_ROUTE_OTHER;
    pthread_mutex_lock(&a->lock);
    if (strncmp(path, "/v1/releases", 12) == 0 && (!path[12] || path[12] == '/')) {
        rc = ws_releases_route(a, r->who, path + 12, post, reply, &listing_changed, err);
    } else if (post && strcmp(path, "/v1/release") == 0) {
        rc = release_many(a, r, &begun, err);
    } else if (r->q->verb[0]) {
        rc = route_model(a, r, post, reply, &begun, &listing_changed, err);
    }
    if (rc == 0 && post) {
        listing_changed = ws_releases_advance(a) || listing_changed || begun;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    if (rc == 0 && post)
        listing_changed = ws_releases_commit(a) || listing_changed;
    if (begun)
        *reply = ws_releases_begun_json(a, begun);
    if (rc < 0 && post && is_release(r))
        ws_journal_request(r->who, "release begins", path, rc, err);
    if (listing_changed)
        ws_agent_announce(a);
    return rc;
}

/* --- what is shown --- */

static void put_status(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out)
{
    (void)a;
    json_object_set_new(out, "mounts", ws_fleet_json(&m->fleet, ws_clock_ns()));
}

static const struct ws_api_route routes[] = {
    WS_API_ROUTE("POST", "/v1/{model}/mounts", REPORT),
    WS_API_ROUTE("GET", "/v1/{model}/mounts", READ),
    WS_API_ROUTE("POST", "/v1/{model}/{version}/prepared", REPORT),
    WS_API_ROUTE("POST", "/v1/{model}/{version}/fetched", REPORT),
    WS_API_ROUTE("POST", "/v1/{model}/{version}/loaded", REPORT),
    WS_API_ROUTE("POST", "/v1/{model}/{version}/failed", REPORT),
    WS_API_ROUTE("GET", "/v1/{model}/{version}/loaded", READ),
    WS_API_ROUTE("POST", "/v1/{model}/{version}/wanted", RELEASE),
    WS_API_ROUTE("POST", "/v1/{model}/{version}/release", RELEASE),
    {"POST", "/v1/release", WS_ROLE_RELEASE, .filters = true, .max_body = WS_MAX_RELEASE_BYTES},
    WS_API_ROUTE("GET", "/v1/releases", READ),
    WS_API_ROUTE("GET", "/v1/releases/{id}", READ),
    WS_API_ROUTE("POST", "/v1/releases/{id}/abort", RELEASE),
    {0},
};

const struct ws_agent_feature ws_feature_fleet = {
    .start = ws_releases_start,
    .stop = ws_releases_stop,
    .end = ws_releases_end,
    .agent_bytes = sizeof(struct ws_releases),
    .model_bytes = sizeof(struct ws_wanted),
    .free = ws_wanted_free,
    .list = list_desired,
    .model_status = put_status,
    .routes = routes,
    .route = route,
};
