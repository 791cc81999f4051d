/* Release: when its phase changes (release.h). */
#include "backends/trainer/agent/fleet/release.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *phase_name(enum ws_release_phase p)
{
    static const char *const names[] = {"preparing", "committed", "aborted"};
    return names[p];
}

struct ws_release *ws_release_new(uint64_t id, const struct ws_release_item *parts, size_t n, uint64_t now_ns,
                                  uint64_t deadline_ns)
{
    struct ws_release *r = calloc(1, sizeof(*r) + n * sizeof(parts[0]));
    if (!r)
        return NULL;
    r->id = id;
    r->deadline_ns = deadline_ns;
    r->n_items = n;
    memcpy(r->items, parts, n * sizeof(parts[0]));
    for (size_t i = 0; i < n; i++)
        ws_fleet_reset_reports(parts[i].fleet, &parts[i].target, NULL);
    (void)ws_release_advance(r, now_ns);
    return r;
}

bool ws_release_has_model(const struct ws_release *r, const char *model)
{
    for (size_t i = 0; i < r->n_items; i++)
        if (strcmp(r->items[i].model, model) == 0)
            return true;
    return false;
}

void ws_release_abort(struct ws_release *r, const char *why)
{
    if (r->phase != WS_RELEASE_PREPARING)
        return;
    r->phase = WS_RELEASE_ABORTED;
    snprintf(r->why, sizeof(r->why), "%s", why);
}

bool ws_release_is_superseded(const struct ws_release *r)
{
    bool passed = false;
    for (size_t i = 0; r->phase == WS_RELEASE_COMMITTED && i < r->n_items; i++)
        passed = passed || r->items[i].fleet->release != r->id;
    return passed;
}

static void commit(struct ws_release *r)
{
    r->phase = WS_RELEASE_COMMITTED;
    for (size_t i = 0; i < r->n_items; i++)
        ws_fleet_commit(r->items[i].fleet, r->id, &r->items[i].target);
}

/* A mount's own words may say another host's name: its identity stands beside them. */
static const char *name_of(const struct ws_fleet_mount *m,
                           char out[WS_MOUNT_ID_CHARS + WS_IDENTITY_CHARS + 16])
{
    snprintf(out, WS_MOUNT_ID_CHARS + WS_IDENTITY_CHARS + 16,
             m->owner[0] ? "%.300s (identity %s)" : "%.300s%s", m->mount_id, m->owner);
    return out;
}

bool ws_release_advance(struct ws_release *r, uint64_t now_ns)
{
    char name[WS_MOUNT_ID_CHARS + WS_IDENTITY_CHARS + 16];
    char why[WS_ERROR_TEXT];
    const struct ws_fleet_mount *waiting = NULL, *silent = NULL;
    size_t ready = 0;
    if (r->phase != WS_RELEASE_PREPARING)
        return false;
    for (size_t i = 0; i < r->n_items; i++) {
        const struct ws_release_item *p = &r->items[i];
        for (const struct ws_fleet_mount *m = p->fleet->mounts; m; m = m->next) {
            enum ws_fleet_progress at = ws_fleet_mount_progress(p->fleet, m, r->id, &p->target, now_ns);
            if (!m->follows)
                continue;
            if (at == WS_FLEET_FAILED) {
                snprintf(why, sizeof(why), "%.440s cannot take %s/%" PRIu64 ": %.500s", name_of(m, name),
                         p->model, p->target.version, m->error);
                ws_release_abort(r, why);
                return true;
            }
            if (at == WS_FLEET_WAITING && !waiting)
                waiting = m;
            if (at == WS_FLEET_SILENT)
                silent = m;
            ready += at == WS_FLEET_PREPARED;
        }
    }
    if (ready == 0 && !waiting)
        waiting =
            silent; /* the agent's own link may be cut: a release is never committed without any mount */
    if (waiting && now_ns > r->deadline_ns) {
        snprintf(why, sizeof(why), "%.440s %s", name_of(waiting, name),
                 waiting == silent ? "and all others are not heard of" : "had not prepared it in time");
        ws_release_abort(r, why);
        return true;
    }
    if (waiting)
        return false;
    commit(r);
    return true;
}

bool ws_release_is_finished(const struct ws_release *r, uint64_t now_ns)
{
    if (r->phase != WS_RELEASE_COMMITTED)
        return r->phase == WS_RELEASE_ABORTED;
    for (size_t i = 0; i < r->n_items && !ws_release_is_superseded(r); i++)
        for (const struct ws_fleet_mount *m = r->items[i].fleet->mounts; m; m = m->next) {
            enum ws_fleet_progress at =
                ws_fleet_mount_progress(r->items[i].fleet, m, r->id, &r->items[i].target, now_ns);
            if (m->follows && (at == WS_FLEET_WAITING || at == WS_FLEET_PREPARED))
                return false;
        }
    return true;
}

json_t *ws_release_desired_json(const struct ws_release *r, const char *model)
{
    json_t *models = json_array(), *out = NULL;
    for (size_t i = 0; i < r->n_items; i++) {
        const struct ws_release_item *p = &r->items[i];
        json_array_append_new(models, json_string(p->model));
        if (strcmp(p->model, model) == 0)
            out = json_pack("{s:I,s:s,s:I,s:s}", "id", (json_int_t)r->id, "phase", phase_name(r->phase),
                            "version", (json_int_t)p->target.version, "run", p->target.lineage);
    }
    json_object_set_new(out, "models", models);
    return out;
}

json_t *ws_release_json(const struct ws_release *r, uint64_t now_ns)
{
    json_t *models = json_object(), *mounts = json_array();
    for (size_t i = 0; i < r->n_items; i++) {
        const struct ws_release_item *p = &r->items[i];
        json_object_set_new(
            models, p->model,
            json_pack("{s:I,s:s}", "version", (json_int_t)p->target.version, "run", p->target.lineage));
        for (const struct ws_fleet_mount *m = p->fleet->mounts; m; m = m->next) {
            enum ws_fleet_progress at = ws_fleet_mount_progress(p->fleet, m, r->id, &p->target, now_ns);
            if (m->follows)
                json_array_append_new(mounts, json_pack("{s:s,s:s*,s:s,s:s,s:I,s:s}", "mount", m->mount_id,
                                                        "identity", m->owner[0] ? m->owner : NULL, "model",
                                                        p->model, "state", ws_fleet_progress_name(at),
                                                        "engines", (json_int_t)m->engines, "error",
                                                        at == WS_FLEET_FAILED ? m->error : ""));
        }
    }
    return json_pack("{s:I,s:s,s:b,s:b,s:s,s:o,s:o}", "id", (json_int_t)r->id, "phase", phase_name(r->phase),
                     "settled", (int)ws_release_is_finished(r, now_ns), "passed",
                     (int)ws_release_is_superseded(r), "why", r->why, "models", models, "mounts", mounts);
}
