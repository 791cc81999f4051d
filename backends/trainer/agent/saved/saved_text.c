#include "backends/trainer/agent/saved/saved_text.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/fleet/release.h"
#include "transports/base/clock.h"
#include "transports/base/name.h"
#include "transports/base/state_file.h"
#include "transports/base/text.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD      "wsync-agent-state "
#define FORMAT    1
#define END_CHARS 21 /* "end ", 16 digits, newline */

/* --- writing --- */

static json_t *id_json(const struct ws_version_id *id)
{
    return json_pack("{s:I,s:s}", "version", (json_int_t)id->version, "run", id->lineage);
}

/* The number that may be announced before the next write: of what is being hashed. */
static struct ws_version_id reserved_of(const struct ws_agent_model *m)
{
    const struct ws_slot *s = m->writing;
    if (s && (s->state == WS_SLOT_HASHING || s->state == WS_SLOT_SEALED))
        return ws_version_id_make(m->writing_version, s->lineage);
    return m->reserved;
}

static json_t *mounts_json(const struct ws_fleet *f)
{
    json_t *all = json_array();
    for (const struct ws_fleet_mount *i = f->mounts; i; i = i->next) {
        json_t *one = json_pack("{s:s,s:s,s:b,s:I}", "mount", i->mount_id, "identity", i->owner, "follows",
                                (int)i->follows, "engines", (json_int_t)i->engines);
        if (i->quarantined_by)
            json_object_set_new(one, "quarantined_by", json_integer((json_int_t)i->quarantined_by));
        json_array_append_new(all, one);
    }
    return all;
}

static json_t *model_json(struct ws_agent_model *m, bool mounts)
{
    const struct ws_version_id reserved = reserved_of(m);
    struct ws_version_id to;
    bool quarantines;
    const uint64_t release = m->fleet.recording = ws_fleet_newest_release(&m->fleet, &to, &quarantines);
    json_t *o = json_pack("{s:s}", "name", m->name);
    if (m->has_published) {
        json_object_set_new(o, "run", json_string(m->lineage));
        json_object_set_new(o, "newest", json_integer((json_int_t)m->newest));
    }
    if (reserved.lineage[0])
        json_object_set_new(o, "reserved", id_json(&reserved));
    if (m->derived.lineage[0]) {
        json_t *derived = id_json(&m->derived);
        json_object_set_new(derived, "digest", json_string(m->derived_digest));
        json_object_set_new(o, "derived", derived);
    }
    if (m->nodes)
        json_object_set_new(o, "nodes", json_loads(m->nodes, 0, NULL));
    if (release) {
        json_t *released = id_json(&to);
        json_object_set_new(released, "by", json_integer((json_int_t)release));
        if (quarantines)
            json_object_set_new(released, "quarantine", json_true());
        json_object_set_new(o, "released", released);
    }
    if (mounts && m->fleet.mounts)
        json_object_set_new(o, "mounts", mounts_json(&m->fleet));
    return o;
}

/* A decided one is committed before any mount hears of it, or by the agent that reads this. */
static const char *phase_name(enum ws_release_phase p)
{
    return p == WS_RELEASE_PREPARING ? "preparing" : p == WS_RELEASE_ABORTED ? "aborted" : "committed";
}

static json_t *release_json(const struct ws_release *r)
{
    json_t *items = json_array();
    for (size_t i = 0; i < r->n_items; i++) {
        json_t *item = id_json(&r->items[i].target);
        json_object_set_new(item, "model", json_string(r->items[i].model));
        json_array_append_new(items, item);
    }
    return json_pack("{s:I,s:s,s:s,s:s,s:s,s:I,s:I,s:o}", "id", (json_int_t)r->id, "phase",
                     phase_name(r->phase), "why", r->why, "who", r->who, "from", r->from, "min_engines",
                     (json_int_t)r->terms.min_engines, "quorum_permille",
                     (json_int_t)r->terms.quorum_permille, "items", items);
}

static char *text_of(struct ws_agent *a, bool mounts, size_t *n)
{
    json_t *models = json_array(), *releases = json_array();
    for (const struct ws_release *r = a->releases; r; r = r->next)
        json_array_append_new(releases, release_json(r));
    for (struct ws_agent_model *m = a->models; m; m = m->next)
        json_array_append_new(models, model_json(m, mounts));
    json_t *root = json_pack("{s:s,s:o,s:o}", "release", WS_VERSION, "models", models, "releases", releases);
    char *body = root ? json_dumps(root, JSON_COMPACT) : NULL, *head = NULL, *whole = NULL;
    int k = body ? asprintf(&head, HEAD "%d\n%s\n", FORMAT, body) : -1;
    if (k >= 0)
        k = asprintf(&whole, "%send %016" PRIx64 "\n", head, ws_hash(head, (size_t)k));
    free(head);
    free(body);
    json_decref(root);
    *n = k < 0 ? 0 : (size_t)k;
    return k < 0 ? NULL : whole;
}

char *ws_saved_text(struct ws_agent *a, size_t *n)
{
    char *text = text_of(a, true, n);
    if (text && *n > WS_MAX_STATE_FILE_BYTES) {
        free(text);
        text = text_of(a, false, n);
    }
    return text;
}

/* --- reading --- */

static int damaged(const char *why, struct ws_error *err)
{
    return ws_error_set(err, EBADMSG, "%s", why);
}

/* Head, end and hash are right; the text is cut before its end. */
static int check(char *text, size_t n, char **body, struct ws_error *err)
{
    char hex[17];
    const char *at = text + strlen(HEAD);
    uint64_t format;
    if (strlen(text) != n || strncmp(text, HEAD, strlen(HEAD)) != 0 || ws_text_digits(&at, &format) < 0 ||
        *at != '\n')
        return damaged("it is not the state of a wsync agent", err);
    if (format > FORMAT)
        return ws_error_set(err, EPROTO,
                            "it is of format %" PRIu64 ", and this agent, of release %s, reads up to %d",
                            format, WS_VERSION, FORMAT);
    char *end = n > (size_t)(at - text) + END_CHARS ? text + n - END_CHARS : NULL;
    if (!end || strncmp(end, "end ", 4) != 0 || text[n - 1] != '\n' || end[-1] != '\n')
        return damaged("it is cut off", err);
    snprintf(hex, sizeof(hex), "%016" PRIx64, ws_hash(text, n - END_CHARS));
    if (memcmp(hex, end + 4, 16) != 0)
        return damaged("its hash is wrong", err);
    *end = 0;
    *body = text + (at - text) + 1;
    return 0;
}

/* json NULL: there is none, which is fine. */
static bool read_id(const json_t *json, struct ws_version_id *out)
{
    const char *run = json_string_value(json_object_get(json, "run"));
    uint64_t version;
    if (!json)
        return true;
    if (!run || !ws_lineage_is_safe(run) || ws_number_read(json_object_get(json, "version"), &version) < 0)
        return false;
    *out = ws_version_id_make(version, run);
    return true;
}

/* It counts as present until it would be silent: a release that begins now waits for its word. */
static bool read_mount(struct ws_fleet *f, const json_t *json)
{
    const char *id = json_string_value(json_object_get(json, "mount"));
    const char *owner = json_string_value(json_object_get(json, "identity"));
    struct ws_fleet_mount *m;
    struct ws_error err;
    if (!id || !*id || strlen(id) > WS_MOUNT_ID_CHARS || !owner || strlen(owner) > WS_IDENTITY_CHARS)
        return false;
    if (ws_fleet_find_or_add(f, owner, id, ws_clock_ns(), &m, &err) < 0)
        return false;
    m->follows = json_is_true(json_object_get(json, "follows"));
    (void)ws_number_read(json_object_get(json, "engines"), &m->engines);
    (void)ws_number_read(json_object_get(json, "quarantined_by"), &m->quarantined_by);
    m->names_release = true;
    return true;
}

static bool read_nodes(struct ws_agent_model *m, const json_t *nodes)
{
    free(m->nodes);
    m->nodes = nodes ? json_dumps(nodes, JSON_COMPACT) : NULL;
    return !nodes || (json_is_array(nodes) && m->nodes);
}

static bool read_derived(struct ws_agent_model *m, const json_t *json)
{
    const char *digest = json_string_value(json_object_get(json, "digest"));
    if (!json)
        return true;
    if (!digest || strlen(digest) + 1 != sizeof(m->derived_digest))
        return false;
    memcpy(m->derived_digest, digest, sizeof(m->derived_digest));
    return read_id(json, &m->derived);
}

static bool read_model(struct ws_agent *a, const json_t *json)
{
    const char *name = json_string_value(json_object_get(json, "name"));
    const char *run = json_string_value(json_object_get(json, "run"));
    const json_t *released = json_object_get(json, "released"), *mount;
    size_t i;
    if (!name || !(ws_name_is_model(name) || ws_name_is_node_part(name, NULL, NULL, NULL)))
        return false;
    struct ws_agent_model *m = ws_agent_model_find_or_add(a, name);
    if (!m || (run && !ws_lineage_is_safe(run)) ||
        !read_id(json_object_get(json, "reserved"), &m->reserved) ||
        !read_derived(m, json_object_get(json, "derived")) || !read_nodes(m, json_object_get(json, "nodes")))
        return false;
    if (run) {
        if (ws_number_read(json_object_get(json, "newest"), &m->newest) < 0)
            return false;
        snprintf(m->lineage, sizeof(m->lineage), "%s", run);
        m->has_published = true;
    }
    if (released) {
        if (!read_id(released, &m->fleet.released) ||
            ws_number_read(json_object_get(released, "by"), &m->fleet.release) < 0)
            return false;
        m->fleet.quarantines = json_is_true(json_object_get(released, "quarantine"));
        m->fleet.decided = m->fleet.recorded = m->fleet.release;
        m->fleet.decided_to = m->fleet.released;
    }
    json_array_foreach(json_object_get(json, "mounts"), i, mount)
    {
        if (!read_mount(&m->fleet, mount))
            return false;
    }
    return true;
}

static bool read_items(struct ws_agent *a, const json_t *json, struct ws_release_item *out)
{
    const json_t *item;
    size_t i;
    json_array_foreach(json, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "model"));
        struct ws_agent_model *m = name ? ws_agent_model_find(a, name) : NULL;
        out[i] = (struct ws_release_item){.model = m ? m->name : NULL, .fleet = m ? &m->fleet : NULL};
        if (!m || !read_id(item, &out[i].target))
            return false;
    }
    return true;
}

static void copy_text(const json_t *json, const char *key, char *out, size_t cap)
{
    const char *text = json_string_value(json_object_get(json, key));
    snprintf(out, cap, "%s", text ? text : "");
}

/* Into *at, behind newer ones. */
static bool read_release(struct ws_agent *a, const json_t *json, struct ws_release **at)
{
    const json_t *items = json_object_get(json, "items");
    const char *phase = json_string_value(json_object_get(json, "phase"));
    struct ws_release_item parts[WS_MAX_MODELS];
    struct ws_release_terms terms = {0};
    const size_t n = json_array_size(items);
    uint64_t id, permille;
    if (!phase || n == 0 || n > WS_MAX_MODELS || ws_number_read(json_object_get(json, "id"), &id) < 0 ||
        ws_number_read(json_object_get(json, "min_engines"), &terms.min_engines) < 0 ||
        ws_number_read(json_object_get(json, "quorum_permille"), &permille) < 0 || permille > 1000 ||
        !read_items(a, items, parts))
        return false;
    terms.quorum_permille = (unsigned)permille;
    enum ws_release_phase p = WS_RELEASE_PREPARING;
    while (p <= WS_RELEASE_ABORTED && (p == WS_RELEASE_DECIDED || strcmp(phase, phase_name(p)) != 0))
        p++;
    struct ws_release *r = p <= WS_RELEASE_ABORTED ? ws_release_new(id, parts, n, &terms, 0) : NULL;
    if (!r)
        return false;
    r->phase = p;
    copy_text(json, "why", r->why, sizeof(r->why));
    copy_text(json, "who", r->who, sizeof(r->who));
    copy_text(json, "from", r->from, sizeof(r->from));
    *at = r;
    return true;
}

static bool read_releases(struct ws_agent *a, const json_t *releases)
{
    struct ws_release **at = &a->releases;
    const json_t *release;
    size_t i;
    json_array_foreach(releases, i, release)
    {
        if (!read_release(a, release, at))
            return false;
        at = &(*at)->next;
    }
    return true;
}

int ws_saved_read(struct ws_agent *a, char *text, size_t n, struct ws_error *err)
{
    char *body = NULL;
    const json_t *model;
    size_t i;
    const int rc = check(text, n, &body, err);
    if (rc < 0)
        return rc;
    json_t *root = json_loads(body, 0, NULL), *models = json_object_get(root, "models");
    bool good = json_is_array(models);
    json_array_foreach(models, i, model)
    {
        good = good && read_model(a, model);
    }
    const json_t *releases = json_object_get(root, "releases"); /* an agent before 0.2 wrote none */
    good = good && (!releases || json_is_array(releases)) && read_releases(a, releases);
    json_decref(root);
    return good ? 0 : damaged("a model or release in it makes no sense", err);
}
