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

struct ws_release *ws_release_new(uint64_t id, const struct ws_release_part *parts, size_t n, uint64_t now_ns,
                                  uint64_t deadline_ns)
{
    struct ws_release *r = calloc(1, sizeof(*r) + n * sizeof(parts[0]));
    if (!r)
        return NULL;
    r->id = id;
    r->deadline_ns = deadline_ns;
    r->n_parts = n;
    memcpy(r->parts, parts, n * sizeof(parts[0]));
    for (size_t i = 0; i < n; i++)
        ws_fleet_ask_anew(parts[i].fleet, &parts[i].to, NULL);
    (void)ws_release_advance(r, now_ns);
    return r;
}

bool ws_release_names(const struct ws_release *r, const char *model)
{
    for (size_t i = 0; i < r->n_parts; i++)
        if (strcmp(r->parts[i].model, model) == 0)
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

bool ws_release_is_passed(const struct ws_release *r)
{
    bool passed = false;
    for (size_t i = 0; r->phase == WS_RELEASE_COMMITTED && i < r->n_parts; i++)
        passed = passed || r->parts[i].fleet->release != r->id;
    return passed;
}

static void commit(struct ws_release *r)
{
    r->phase = WS_RELEASE_COMMITTED;
    for (size_t i = 0; i < r->n_parts; i++)
        ws_fleet_commit(r->parts[i].fleet, r->id, &r->parts[i].to);
}

bool ws_release_advance(struct ws_release *r, uint64_t now_ns)
{
    char why[WS_ERROR_TEXT];
    const struct ws_fleet_mount *waiting = NULL, *silent = NULL;
    size_t ready = 0;
    if (r->phase != WS_RELEASE_PREPARING)
        return false;
    for (size_t i = 0; i < r->n_parts; i++) {
        const struct ws_release_part *p = &r->parts[i];
        for (const struct ws_fleet_mount *m = p->fleet->mounts; m; m = m->next) {
            enum ws_progress at = ws_fleet_progress(p->fleet, m, r->id, &p->to, now_ns);
            if (!m->follows)
                continue;
            if (at == WS_FLEET_FAILED) {
                snprintf(why, sizeof(why), "%.300s cannot take %s/%" PRIu64 ": %.600s", m->who, p->model,
                         p->to.version, m->error);
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
        waiting = silent; /* our own link may be the one that is cut: nothing is committed with nobody */
    if (waiting && now_ns > r->deadline_ns) {
        snprintf(why, sizeof(why), "%.300s %s", waiting->who,
                 waiting == silent ? "and all others are not heard of" : "had not prepared it in time");
        ws_release_abort(r, why);
        return true;
    }
    if (waiting)
        return false;
    commit(r);
    return true;
}

bool ws_release_is_settled(const struct ws_release *r, uint64_t now_ns)
{
    if (r->phase != WS_RELEASE_COMMITTED)
        return r->phase == WS_RELEASE_ABORTED;
    for (size_t i = 0; i < r->n_parts && !ws_release_is_passed(r); i++)
        for (const struct ws_fleet_mount *m = r->parts[i].fleet->mounts; m; m = m->next) {
            enum ws_progress at = ws_fleet_progress(r->parts[i].fleet, m, r->id, &r->parts[i].to, now_ns);
            if (m->follows && (at == WS_FLEET_WAITING || at == WS_FLEET_PREPARED))
                return false;
        }
    return true;
}

json_t *ws_release_order(const struct ws_release *r, const char *model)
{
    json_t *models = json_array(), *out = NULL;
    for (size_t i = 0; i < r->n_parts; i++) {
        const struct ws_release_part *p = &r->parts[i];
        json_array_append_new(models, json_string(p->model));
        if (strcmp(p->model, model) == 0)
            out = json_pack("{s:I,s:s,s:I,s:s}", "id", (json_int_t)r->id, "phase", phase_name(r->phase),
                            "version", (json_int_t)p->to.version, "run", p->to.run);
    }
    json_object_set_new(out, "models", models);
    return out;
}

json_t *ws_release_json(const struct ws_release *r, uint64_t now_ns)
{
    json_t *models = json_object(), *mounts = json_array();
    for (size_t i = 0; i < r->n_parts; i++) {
        const struct ws_release_part *p = &r->parts[i];
        json_object_set_new(models, p->model,
                            json_pack("{s:I,s:s}", "version", (json_int_t)p->to.version, "run", p->to.run));
        for (const struct ws_fleet_mount *m = p->fleet->mounts; m; m = m->next) {
            enum ws_progress at = ws_fleet_progress(p->fleet, m, r->id, &p->to, now_ns);
            if (m->follows)
                json_array_append_new(mounts, json_pack("{s:s,s:s,s:s,s:I,s:s}", "mount", m->who, "model",
                                                        p->model, "state", ws_progress_name(at), "engines",
                                                        (json_int_t)m->engines, "error",
                                                        at == WS_FLEET_FAILED ? m->error : ""));
        }
    }
    return json_pack("{s:I,s:s,s:b,s:b,s:s,s:o,s:o}", "id", (json_int_t)r->id, "phase", phase_name(r->phase),
                     "settled", (int)ws_release_is_settled(r, now_ns), "passed", (int)ws_release_is_passed(r),
                     "why", r->why, "models", models, "mounts", mounts);
}
