/* Release: when its phase changes (release.h). */
#include "backends/trainer/agent/fleet/release.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *phase_name(enum ws_release_phase p)
{
    static const char *const names[] = {"preparing", "preparing", "committed", "aborted"};
    return names[p];
}

struct ws_release *ws_release_new(uint64_t id, const struct ws_release_item *parts, size_t n,
                                  const struct ws_release_terms *terms, uint64_t deadline_ns)
{
    struct ws_release *r = calloc(1, sizeof(*r) + n * sizeof(parts[0]));
    if (!r)
        return NULL;
    r->id = id;
    r->terms = *terms;
    r->deadline_ns = deadline_ns;
    r->n_items = n;
    memcpy(r->items, parts, n * sizeof(parts[0]));
    for (size_t i = 0; i < n; i++)
        ws_fleet_reset_reports(parts[i].fleet, &parts[i].target, NULL);
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

static void decide(struct ws_release *r)
{
    r->phase = WS_RELEASE_DECIDED;
    for (size_t i = 0; i < r->n_items; i++) {
        r->items[i].fleet->decided = r->id;
        r->items[i].fleet->decided_to = r->items[i].target;
        r->items[i].fleet->decided_quarantines = r->terms.quorum_permille > 0;
    }
}

bool ws_release_commit(struct ws_release *r)
{
    bool recorded = r->phase == WS_RELEASE_DECIDED;
    for (size_t i = 0; i < r->n_items; i++)
        recorded = recorded && r->items[i].fleet->recorded >= r->id;
    if (!recorded)
        return false;
    r->phase = WS_RELEASE_COMMITTED;
    for (size_t i = 0; i < r->n_items; i++)
        ws_fleet_commit(r->items[i].fleet, r->id, &r->items[i].target, r->terms.quorum_permille > 0);
    return true;
}

void ws_release_revoke(struct ws_release *r, const char *why)
{
    if (r->phase != WS_RELEASE_DECIDED)
        return;
    r->phase = WS_RELEASE_ABORTED;
    snprintf(r->why, sizeof(r->why), "%s", why);
    for (size_t i = 0; i < r->n_items; i++)
        if (r->items[i].fleet->decided == r->id)
            r->items[i].fleet->decided = 0;
}

/* A mount's own words may say another host's name: its identity stands beside them. */
static const char *name_of(const struct ws_fleet_mount *m,
                           char out[WS_MOUNT_ID_CHARS + WS_IDENTITY_CHARS + 16])
{
    snprintf(out, WS_MOUNT_ID_CHARS + WS_IDENTITY_CHARS + 16,
             m->owner[0] ? "%.300s (identity %s)" : "%.300s%s", m->mount_id, m->owner);
    return out;
}

/* How far the mounts of all items are that follow. */
struct tally {
    const struct ws_fleet_mount *waiting, *silent, *failed; /* one of them; NULL: there is none */
    const struct ws_release_item *failed_item;
    size_t n_prepared;
    uint64_t engines; /* at mounts that have prepared */
    /* engines, and mounts: all, prepared, failed */
    uint64_t all[2], prepared[2], lost[2];
};

static void count_mounts(const struct ws_release *r, uint64_t now_ns, struct tally *t)
{
    *t = (struct tally){0};
    for (size_t i = 0; i < r->n_items; i++) {
        const struct ws_release_item *p = &r->items[i];
        for (const struct ws_fleet_mount *m = p->fleet->mounts; m; m = m->next) {
            if (!m->follows)
                continue;
            const enum ws_fleet_progress at = ws_fleet_mount_progress(p->fleet, m, r->id, &p->target, now_ns);
            const uint64_t weights[2] = {m->engines, 1};
            for (size_t k = 0; k < 2; k++) {
                t->all[k] += weights[k];
                t->prepared[k] += at == WS_FLEET_PREPARED ? weights[k] : 0;
                t->lost[k] += at == WS_FLEET_FAILED ? weights[k] : 0;
            }
            if (at == WS_FLEET_FAILED && !t->failed) {
                t->failed = m;
                t->failed_item = p;
            }
            if (at == WS_FLEET_WAITING && !t->waiting)
                t->waiting = m;
            if (at == WS_FLEET_SILENT)
                t->silent = m;
            t->n_prepared += at == WS_FLEET_PREPARED;
            t->engines += at == WS_FLEET_PREPARED ? m->engines : 0;
        }
    }
}

static bool abort_for_failed(struct ws_release *r, const struct tally *t, const char *more)
{
    char name[WS_MOUNT_ID_CHARS + WS_IDENTITY_CHARS + 16], why[WS_ERROR_TEXT];
    snprintf(why, sizeof(why), "%.400s cannot take %s/%" PRIu64 ": %.400s%.120s", name_of(t->failed, name),
             t->failed_item->model, t->failed_item->target.version, t->failed->error, more);
    ws_release_abort(r, why);
    return true;
}

static bool abort_for_engines(struct ws_release *r, const struct tally *t)
{
    char why[WS_ERROR_TEXT];
    snprintf(why, sizeof(why),
             "%" PRIu64 " engines are at the mounts that have prepared it, and %" PRIu64
             " are asked for (min_engines)",
             t->engines, r->terms.min_engines);
    ws_release_abort(r, why);
    return true;
}

/* Those that go on without it, from now on. */
static void quarantine_rest(const struct ws_release *r, uint64_t now_ns)
{
    for (size_t i = 0; i < r->n_items; i++) {
        const struct ws_release_item *p = &r->items[i];
        for (struct ws_fleet_mount *m = p->fleet->mounts; m; m = m->next)
            if (m->follows &&
                ws_fleet_mount_progress(p->fleet, m, r->id, &p->target, now_ns) != WS_FLEET_PREPARED)
                m->quarantined_by = r->id;
    }
}

static bool advance_by_quorum(struct ws_release *r, const struct tally *t, uint64_t now_ns)
{
    const size_t k = t->all[0] == 0; /* mounts, where no engine is there */
    const uint64_t need = (t->all[k] * r->terms.quorum_permille + 999) / 1000;
    const bool over = now_ns > r->deadline_ns;
    const struct ws_fleet_mount *late = t->waiting ? t->waiting : t->silent;
    char name[WS_MOUNT_ID_CHARS + WS_IDENTITY_CHARS + 16], why[WS_ERROR_TEXT];
    if (t->failed && t->all[k] - t->lost[k] < need)
        return abort_for_failed(r, t, ", and its share is more than may be left behind");
    if (t->waiting && !over)
        return false;
    if (t->n_prepared > 0 && t->prepared[k] >= need && t->engines >= r->terms.min_engines) {
        quarantine_rest(r, now_ns);
        decide(r);
        return true;
    }
    if (!over)
        return false;
    if (t->prepared[k] >= need && t->n_prepared > 0)
        return abort_for_engines(r, t);
    snprintf(why, sizeof(why),
             "%" PRIu64 " of %" PRIu64 " %s had prepared it in time, and %" PRIu64
             " are asked for (quorum)%s%.300s%s",
             t->prepared[k], t->all[k], k ? "mounts" : "engines", need, late ? "; " : "",
             late ? name_of(late, name) : "", late ? " had not" : "");
    ws_release_abort(r, why);
    return true;
}

bool ws_release_advance(struct ws_release *r, uint64_t now_ns)
{
    char name[WS_MOUNT_ID_CHARS + WS_IDENTITY_CHARS + 16];
    char why[WS_ERROR_TEXT];
    struct tally t;
    if (r->phase != WS_RELEASE_PREPARING)
        return false;
    count_mounts(r, now_ns, &t);
    if (r->terms.quorum_permille)
        return advance_by_quorum(r, &t, now_ns);
    if (t.failed)
        return abort_for_failed(r, &t, "");
    if (t.n_prepared == 0 && !t.waiting)
        t.waiting =
            t.silent; /* the agent's own link may be cut: a release is never committed without any mount */
    if (t.waiting && now_ns > r->deadline_ns) {
        snprintf(why, sizeof(why), "%.440s %s", name_of(t.waiting, name),
                 t.waiting == t.silent ? "and all others are not heard of" : "had not prepared it in time");
        ws_release_abort(r, why);
        return true;
    }
    if (t.engines < r->terms.min_engines && now_ns > r->deadline_ns)
        return abort_for_engines(r, &t);
    if (t.waiting || t.engines < r->terms.min_engines)
        return false;
    decide(r);
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
            if (m->follows && m->quarantined_by != r->id &&
                (at == WS_FLEET_WAITING || at == WS_FLEET_PREPARED))
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
                json_array_append_new(
                    mounts, json_pack("{s:s,s:s*,s:s,s:s,s:I,s:I,s:b,s:s}", "mount", m->mount_id, "identity",
                                      m->owner[0] ? m->owner : NULL, "model", p->model, "state",
                                      ws_fleet_progress_name(at), "engines", (json_int_t)m->engines,
                                      "serving", (json_int_t)(at == WS_FLEET_LOADED ? m->serving : 0),
                                      "quarantined", (int)(m->quarantined_by == r->id), "error",
                                      at == WS_FLEET_FAILED ? m->error : ""));
        }
    }
    return json_pack("{s:I,s:s,s:b,s:b,s:s,s:o,s:o}", "id", (json_int_t)r->id, "phase", phase_name(r->phase),
                     "settled", (int)ws_release_is_finished(r, now_ns), "passed",
                     (int)ws_release_is_superseded(r), "why", r->why, "models", models, "mounts", mounts);
}
