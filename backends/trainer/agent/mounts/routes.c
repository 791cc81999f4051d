/* clang-format off */
/* The agent's routes for mounts and releases, and the thread that sees leases and deadlines end.
 *
 *   POST /v1/{model}/mounts                where a mount stands: {"mount","follows","engines","version","run",
 *                                          "release": the one that it has come to an end with, 0: none}
 *   GET  /v1/{model}/mounts                where all of them stand
 *   POST /v1/{model}/{version}/prepared, fetched, loaded, failed[?run=R]     {"mount","engines","error"}
 *   GET  /v1/{model}/{version}/loaded?who=all|N|NAME     is it, or a later one, served there
 *   POST /v1/{model}/{version}/wanted[?run=R]            {"mounts":["host",...]}: those fetch it, and report it
 *   POST /v1/{model}/{version}/release[?run=R]           {"prepare_s"}
 *   POST /v1/release                       {"models":{"actor":42,...},"prepare_s"}
 *   GET  /v1/releases, /v1/releases/{id};  POST /v1/releases/{id}/abort */
/* clang-format on */
#include "backends/trainer/agent/mounts/routes.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/journal.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/fleet/release.h"
#include "transports/base/audit_log.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TICK_NS       200000000UL
#define PREPARE_S     600
#define MAX_PREPARE_S 86400
#define MAX_RELEASES  64
#define WANTED_NS     60000000000UL /* a version is wanted no longer without a request for so long */
#define MAX_WANTED    8             /* versions of a model at a time */
#define MAX_NAMED     64            /* mounts */

/* A version that a client needs on certain mounts. */
struct ws_wanted_version {
    struct ws_wanted_version *next;
    uint64_t id;
    struct ws_version_id target;
    json_t *mounts; /* array of names; ours alone, as jansson does not count references for several threads */
    uint64_t until_ns;
};

/* The agent's. Releases and ids are guarded by its lock. */
struct releases {
    pthread_t clock;
    bool has_clock;
    struct ws_release *list; /* newest first */
    uint64_t last_id;        /* of releases and of wanted versions */
};

/* A model's. Under lock. */
struct wanted {
    struct ws_wanted_version *versions;
};

static struct releases *releases_of(const struct ws_agent *a)
{
    return a->feature_state[WS_FEATURE_fleet];
}

static struct ws_wanted_version **wanted_of(const struct ws_agent_model *m)
{
    return &((struct wanted *)m->feature_state[WS_FEATURE_fleet])->versions;
}

static int parse_mount_id(const json_t *body, char out[WS_MOUNT_ID_CHARS + 1], struct ws_error *err)
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

/* "actor/42,critic/17" */
static void print_items(const struct ws_release_item *items, size_t n, char *out, size_t cap)
{
    size_t used = 0;
    *out = 0;
    for (size_t i = 0; i < n && used < cap; i++)
        used += (size_t)snprintf(out + used, cap - used, "%s%s/%" PRIu64, i ? "," : "", items[i].model,
                                 items[i].target.version);
}

/* A release begins, or has come to its end. by: its identity; NULL: the one that began it. */
static void record_phase(const struct ws_release *r, const char *what, const struct ws_identity *by)
{
    char to[512];
    print_items(r->items, r->n_items, to, sizeof(to));
    ws_audit_log_write(
        &(struct ws_audit_entry){.what = what,
                                 .who = by ? by->name : r->who,
                                 .from = by ? by->from : r->from,
                                 .to = to,
                                 .outcome = r->phase == WS_RELEASE_ABORTED ? WS_AUDIT_FAILED : WS_AUDIT_DONE,
                                 .error = r->why[0] ? r->why : NULL,
                                 .is_logged = true});
}

/* Under lock. Records releases with a new phase; they are notified once the lock is free. */
static bool advance(struct ws_agent *a)
{
    bool changed = false;
    uint64_t now = ws_clock_ns();
    for (struct ws_release *r = releases_of(a)->list; r; r = r->next) {
        if (!ws_release_advance(r, now))
            continue;
        changed = true;
        ws_log(WS_LOG_INFO, "agent", "release %s id=%" PRIu64 " model=%s version=%" PRIu64 "%s%s",
               r->phase == WS_RELEASE_COMMITTED ? "committed" : "aborted", r->id, r->items[0].model,
               r->items[0].target.version, r->why[0] ? " why=" : "", r->why);
        record_phase(r, r->phase == WS_RELEASE_COMMITTED ? "release committed" : "release aborted", NULL);
    }
    return changed;
}

static bool has_pending(const struct ws_agent *a)
{
    for (const struct ws_release *r = releases_of(a)->list; r; r = r->next)
        if (r->phase == WS_RELEASE_PREPARING)
            return true;
    return false;
}

static void *run_clock(void *arg)
{
    struct ws_agent *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->stop)) {
        if (!has_pending(a)) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        (void)ws_agent_wait(a, ws_clock_ns() + TICK_NS);
        if (advance(a)) {
            pthread_mutex_unlock(&a->lock);
            ws_agent_announce(a);
            pthread_mutex_lock(&a->lock);
        }
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static int start(struct ws_agent *a, struct ws_error *err)
{
    struct releases *r = releases_of(a);
    r->has_clock = ws_thread_start(&r->clock, run_clock, a) == 0;
    return r->has_clock ? 0 : ws_error_set(err, EAGAIN, "cannot start the agent's threads");
}

static void free_wanted_version(struct ws_wanted_version *w)
{
    json_decref(w->mounts);
    free(w);
}

static void stop(struct ws_agent *a)
{
    const struct releases *r = releases_of(a);
    if (r->has_clock)
        pthread_join(r->clock, NULL);
}

static void end(struct ws_agent *a)
{
    for (struct ws_release *r = releases_of(a)->list, *next; r; r = next) {
        next = r->next;
        free(r);
    }
}

static void free_wanted(struct ws_agent_model *m)
{
    for (struct ws_wanted_version *w = *wanted_of(m), *next; w; w = next) {
        next = w->next;
        free_wanted_version(w);
    }
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
    const struct ws_release *last = releases_of(a)->list;
    uint64_t now = ws_clock_ns();
    json_t *wanted = json_array();
    while (last && !ws_release_has_model(last, m->name))
        last = last->next;
    if (last)
        json_object_set_new(out, "release", ws_release_desired_json(last, m->name));
    if (m->fleet.release)
        json_object_set_new(out, "released",
                            json_pack("{s:I,s:s,s:I}", "version", (json_int_t)m->fleet.released.version,
                                      "run", m->fleet.released.lineage, "by", (json_int_t)m->fleet.release));
    for (const struct ws_wanted_version *w = *wanted_of(m); w; w = w->next)
        if (w->until_ns > now)
            json_array_append_new(wanted, json_pack("{s:I,s:I,s:s,s:o}", "id", (json_int_t)w->id, "version",
                                                    (json_int_t)w->target.version, "run", w->target.lineage,
                                                    "mounts", json_deep_copy(w->mounts)));
    if (json_array_size(wanted))
        json_object_set(out, "wanted", wanted);
    json_decref(wanted);
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

static int record_presence(struct ws_agent_model *m, const char *owner, const json_t *body,
                           struct ws_error *err)
{
    char mount_id[WS_MOUNT_ID_CHARS + 1];
    struct ws_fleet_mount *mount;
    const char *lineage = json_string_value(json_object_get(body, "run"));
    int rc = parse_mount_id(body, mount_id, err);
    if (rc == 0 && json_is_true(json_object_get(body, "gone"))) {
        ws_fleet_remove(&m->fleet, owner, mount_id);
        return 0;
    }
    if (rc == 0)
        rc = ws_fleet_find_or_add(&m->fleet, owner, mount_id, ws_clock_ns(), &mount, err);
    if (rc < 0)
        return rc;
    mount->follows = json_is_true(json_object_get(body, "follows"));
    mount->engines = (uint64_t)json_integer_value(json_object_get(body, "engines"));
    struct ws_version_id serves = ws_version_id_make(
        (uint64_t)json_integer_value(json_object_get(body, "version")), lineage ? lineage : "");
    const json_t *release = json_object_get(body, "release");
    uint64_t answered = (uint64_t)json_integer_value(release);
    ws_fleet_record_presence(&m->fleet, mount, lineage && *lineage ? &serves : NULL,
                             json_is_integer(release) ? &answered : NULL);
    return 0;
}

static int record_report(struct ws_agent_model *m, const char *owner, const struct ws_api_request *q,
                         const json_t *body, struct ws_error *err)
{
    char mount_id[WS_MOUNT_ID_CHARS + 1];
    struct ws_fleet_mount *mount;
    const char *why = json_string_value(json_object_get(body, "error"));
    const struct ws_version_id to = ws_version_id_make(q->version, q->lineage[0] ? q->lineage : m->lineage);
    int rc = parse_mount_id(body, mount_id, err);
    if (rc == 0)
        rc = ws_fleet_find_or_add(&m->fleet, owner, mount_id, ws_clock_ns(), &mount, err);
    if (rc < 0)
        return rc;
    const json_t *engines = json_object_get(body, "engines");
    if (json_is_integer(engines))
        mount->engines = (uint64_t)json_integer_value(engines);
    if (strcmp(q->verb, "prepared") == 0)
        ws_fleet_record_prepared(mount, &to);
    else if (strcmp(q->verb, "fetched") == 0)
        ws_fleet_record_fetched(mount, &to);
    else if (strcmp(q->verb, "loaded") == 0)
        ws_fleet_record_loaded(&m->fleet, mount, &to);
    else
        ws_fleet_record_failed(&m->fleet, mount, &to, why ? why : "it did not say why");
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

/* No other has it, of an agent before neither. */
static uint64_t new_id(struct ws_agent *a)
{
    uint64_t *last = &releases_of(a)->last_id;
    const uint64_t id = ws_clock_day_ns();
    return *last = id > *last ? id : *last + 1;
}

static int want(struct ws_agent *a, struct ws_agent_model *m, const struct ws_api_request *q,
                const json_t *body, bool *listing_changed, struct ws_error *err)
{
    json_t *names = json_object_get(body, "mounts");
    const json_t *name;
    struct ws_version_id to;
    uint64_t now = ws_clock_ns();
    size_t i, n = 0;
    int rc = find_version_id(m, q->version, q->lineage, &to, err);
    if (rc < 0)
        return rc;
    if (!json_is_array(names) || json_array_size(names) == 0 || json_array_size(names) > MAX_NAMED)
        return ws_error_set(err, EINVAL, "mounts is a list of 1 to %d names", MAX_NAMED);
    json_array_foreach(names, i, name)
    {
        if (!json_is_string(name) || json_string_length(name) > WS_MOUNT_ID_CHARS)
            return ws_error_set(err, EINVAL, "mounts is a list of names");
    }
    for (struct ws_wanted_version **at = wanted_of(m), *w; (w = *at);) {
        bool same = w->target.version == to.version && strcmp(w->target.lineage, to.lineage) == 0 &&
                    json_equal(w->mounts, names);
        if (same && w->until_ns > now) {
            w->until_ns = now + WANTED_NS;
            return 0;
        }
        if (w->until_ns > now) {
            n++;
            at = &w->next;
            continue;
        }
        *at = w->next;
        free_wanted_version(w);
    }
    struct ws_wanted_version *w = n < MAX_WANTED ? calloc(1, sizeof(*w)) : NULL;
    if (!w)
        return ws_error_set(err, EAGAIN, "%d versions of %s are wanted already", MAX_WANTED, m->name);
    *w = (struct ws_wanted_version){.next = *wanted_of(m),
                                    .id = new_id(a),
                                    .target = to,
                                    .mounts = json_deep_copy(names),
                                    .until_ns = now + WANTED_NS};
    *wanted_of(m) = w;
    json_array_foreach(names, i, name)
    { /* others are not asked again, and would never say it again */
        ws_fleet_reset_reports(&m->fleet, &to, json_string_value(name));
    }
    *listing_changed = true;
    return 0;
}

/* Drops the oldest releases, which no client asks for any more. */
static void drop_old_releases(struct ws_agent *a)
{
    size_t n = 0;
    for (struct ws_release **at = &releases_of(a)->list; *at;) {
        struct ws_release *r = *at;
        if (++n < MAX_RELEASES || r->phase == WS_RELEASE_PREPARING) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        free(r);
    }
}

/* A newer release takes the place of those that are being prepared. */
/* A release that is under way is aborted by a newer one of a model of its; who began that one has to be allowed to use
 * all of its models. */
static int check_superseded(const struct ws_agent *a, const struct ws_release_item *item,
                            const struct ws_identity *who, struct ws_error *err)
{
    for (const struct ws_release *r = releases_of(a)->list; r; r = r->next)
        for (size_t i = 0;
             r->phase == WS_RELEASE_PREPARING && ws_release_has_model(r, item->model) && i < r->n_items; i++)
            if (!ws_identity_may_use(who, r->items[i].model))
                return ws_error_set(
                    err, EPERM,
                    "a release of %s would end one that is under way with models that %s may not "
                    "use: wait until that is over",
                    item->model, who->name);
    return 0;
}

static void supersede(struct ws_agent *a, const struct ws_release_item *item, const struct ws_identity *who)
{
    char why[128];
    snprintf(why, sizeof(why), "a newer release, of version %" PRIu64 ", took its place",
             item->target.version);
    for (struct ws_release *r = releases_of(a)->list; r; r = r->next)
        if (r->phase == WS_RELEASE_PREPARING && ws_release_has_model(r, item->model)) {
            ws_release_abort(r, why);
            record_phase(r, "release aborted", who);
        }
}

static int start_release(struct ws_agent *a, const struct ws_identity *who,
                         const struct ws_release_item *parts, size_t n, const json_t *body, json_t **reply,
                         struct ws_error *err)
{
    const json_t *s = json_object_get(body, "prepare_s");
    json_int_t seconds = json_is_integer(s) ? json_integer_value(s) : PREPARE_S;
    uint64_t now = ws_clock_ns();
    if (seconds < 1 || seconds > MAX_PREPARE_S)
        return ws_error_set(err, EINVAL, "prepare_s is a number of seconds from 1 to %d", MAX_PREPARE_S);
    for (size_t i = 0; i < n; i++) {
        const int rc = check_superseded(a, &parts[i], who, err);
        if (rc < 0)
            return rc;
    }
    uint64_t id = new_id(a);
    for (size_t i = 0; i < n; i++)
        supersede(a, &parts[i], who);
    drop_old_releases(a);
    for (size_t i = 0; i < n; i++)
        ws_fleet_expire(parts[i].fleet, now);
    struct ws_release *r = ws_release_new(id, parts, n, now, now + (uint64_t)seconds * WS_SECOND_NS);
    if (!r)
        return ws_error_set(err, ENOMEM, "no memory for a release");
    r->next = releases_of(a)->list;
    releases_of(a)->list = r;
    ws_log(WS_LOG_INFO, "agent",
           "release begins id=%" PRIu64 " model=%s version=%" PRIu64 " models=%zu who=%s from=%s", id,
           parts[0].model, parts[0].target.version, n, who->name, who->from);
    snprintf(r->who, sizeof(r->who), "%s", who->name);
    snprintf(r->from, sizeof(r->from), "%s", who->from);
    record_phase(r, "release begins", NULL);
    if (r->phase == WS_RELEASE_COMMITTED) /* no mount had to prepare */
        record_phase(r, "release committed", NULL);
    (void)advance(a);
    *reply = ws_release_json(r, now);
    return 0;
}

static int release_one(struct ws_agent *a, struct ws_agent_model *m, const struct ws_agent_request *request,
                       json_t **reply, struct ws_error *err)
{
    const struct ws_api_request *q = request->q;
    struct ws_release_item part = {.model = m->name, .fleet = &m->fleet};
    int rc = find_version_id(m, q->version, q->lineage, &part.target, err);
    return rc < 0 ? rc : start_release(a, request->who, &part, 1, request->body, reply, err);
}

static int release_many(struct ws_agent *a, const struct ws_agent_request *request, json_t **reply,
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
        rc = start_release(a, request->who, parts, n, request->body, reply, err);
    free(parts);
    return rc;
}

/* /v1/releases, /v1/releases/ID, /v1/releases/ID/abort */
static int route_releases(struct ws_agent *a, const struct ws_identity *who, const char *rest, bool post,
                          json_t **reply, bool *listing_changed, struct ws_error *err)
{
    uint64_t id, now = ws_clock_ns();
    if (!*rest && !post) {
        *reply = json_array();
        for (const struct ws_release *r = releases_of(a)->list; r; r = r->next)
            json_array_append_new(*reply, ws_release_json(r, now));
        return 0;
    }
    rest += *rest == '/';
    struct ws_release *r = ws_text_digits(&rest, &id) == 0 ? releases_of(a)->list : NULL;
    while (r && r->id != id)
        r = r->next;
    if (!r || strcmp(rest, post ? "/abort" : "") != 0)
        return ws_error_set(err, ENOENT, "there is no such release; /v1/releases lists the last ones");
    if (post && r->phase == WS_RELEASE_PREPARING) {
        ws_release_abort(r, "a person ended it");
        record_phase(r, "release aborted", who);
        *listing_changed = true;
    } else if (post) {
        return ws_error_set(err, EBUSY, "the release is committed: release the version before instead");
    }
    *reply = ws_release_json(r, now);
    return 0;
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
                       bool *listing_changed, struct ws_error *err)
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
        if (post)
            return record_presence(m, owner, body, err);
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
        rc = release_one(a, m, r, reply, err);
        *listing_changed = rc == 0;
        return rc;
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
    int rc = WS_ROUTE_OTHER;
    pthread_mutex_lock(&a->lock);
    if (strncmp(path, "/v1/releases", 12) == 0 && (!path[12] || path[12] == '/')) {
        rc = route_releases(a, r->who, path + 12, post, reply, &listing_changed, err);
    } else if (post && strcmp(path, "/v1/release") == 0) {
        rc = release_many(a, r, reply, err);
        listing_changed = rc == 0;
    } else if (r->q->verb[0]) {
        rc = route_model(a, r, post, reply, &listing_changed, err);
    }
    if (rc == 0 && post) {
        listing_changed = advance(a) || listing_changed;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
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
    .start = start,
    .stop = stop,
    .end = end,
    .agent_bytes = sizeof(struct releases),
    .model_bytes = sizeof(struct wanted),
    .free = free_wanted,
    .list = list_desired,
    .model_status = put_status,
    .routes = routes,
    .route = route,
};
