/* Fleet: what mounts report, and what follows from it for releases (fleet.h). */
#include "backends/trainer/agent/fleet/fleet.h"
#include "backends/trainer/agent/fleet/machine.h"
#include "backends/trainer/agent/fleet/said.h"
#include "transports/base/clock.h"
#include "transports/base/name.h"
#include "transports/base/text.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MOUNTS 4096 /* of a model */
#define MAX_OWNED  2048 /* of them under one name, which so leaves room for others */
#define FORGET_NS  600000000000UL
#define MS         WS_MS_NS

const char *ws_fleet_progress_name(enum ws_fleet_progress p)
{
    static const char *const names[] = {"waiting", "prepared", "loaded", "failed", "silent"};
    return names[p];
}

static bool is_mount(const struct ws_fleet_mount *m, const char *owner, const char *mount_id)
{
    return strcmp(m->mount_id, mount_id) == 0 && strcmp(m->owner, owner) == 0;
}

static struct ws_fleet_mount *find(const struct ws_fleet *f, const char *owner, const char *mount_id)
{
    struct ws_fleet_mount *m = f->mounts;
    while (m && !is_mount(m, owner, mount_id))
        m = m->next;
    return m;
}

static unsigned count_owned(const struct ws_fleet *f, const char *owner)
{
    unsigned n = 0;
    for (const struct ws_fleet_mount *m = f->mounts; m && *owner; m = m->next)
        n += strcmp(m->owner, owner) == 0;
    return n;
}

static void extend(struct ws_fleet_mount *m, uint64_t now_ns, unsigned ms)
{
    uint64_t until = now_ns + (ms + WS_LEASE_GRACE_MS) * MS;
    if (until > m->lease_ns)
        m->lease_ns = until;
}

int ws_fleet_find_or_add(struct ws_fleet *f, const char *owner, const char *mount_id, uint64_t now_ns,
                         struct ws_fleet_mount **out, struct ws_error *err)
{
    struct ws_fleet_mount *m = find(f, owner, mount_id);
    if (!m) {
        ws_fleet_expire(f, now_ns);
        if (f->n >= MAX_MOUNTS)
            return ws_error_set(err, E2BIG, "more than %d mounts are registered", MAX_MOUNTS);
        if (count_owned(f, owner) >= MAX_OWNED)
            return ws_error_set(err, E2BIG, "more than %d mounts are registered by %s", MAX_OWNED, owner);
        m = calloc(1, sizeof(*m));
        if (!m || !(m->mount_id = strdup(mount_id))) {
            free(m);
            return ws_error_set(err, ENOMEM, "no memory for a mount");
        }
        snprintf(m->owner, sizeof(m->owner), "%s", owner);
        struct ws_fleet_mount **at = &f->mounts;
        while (*at && strcmp((*at)->mount_id, mount_id) < 0)
            at = &(*at)->next;
        m->next = *at;
        *at = m;
        f->n++;
    }
    extend(m, now_ns, WS_POLL_MS);
    *out = m;
    return 0;
}

void ws_fleet_extend_lease(struct ws_fleet *f, const char *owner, const char *mount_id, uint64_t now_ns,
                           unsigned ms)
{
    struct ws_fleet_mount *m = find(f, owner, mount_id);
    if (m)
        extend(m, now_ns, ms);
}

static void free_mount(struct ws_fleet_mount *m)
{
    json_decref(m->machine);
    json_decref(m->came);
    json_decref(m->last_error);
    free(m->mount_id);
    free(m);
}

static void remove_at(struct ws_fleet *f, struct ws_fleet_mount **at)
{
    struct ws_fleet_mount *m = *at;
    *at = m->next;
    f->n--;
    free_mount(m);
}

void ws_fleet_remove(struct ws_fleet *f, const char *owner, const char *mount_id)
{
    for (struct ws_fleet_mount **at = &f->mounts; *at; at = &(*at)->next) {
        if (is_mount(*at, owner, mount_id)) {
            remove_at(f, at);
            return;
        }
    }
}

static const char *owner_name(const struct ws_fleet_mount *m)
{
    return m->owner[0] ? m->owner : "an identity that many share";
}

int ws_fleet_forget(struct ws_fleet *f, const char *owner, const char *mount_id, uint64_t now_ns,
                    struct ws_error *err)
{
    struct ws_fleet_mount **found = NULL;
    for (struct ws_fleet_mount **at = &f->mounts; *at; at = &(*at)->next) {
        if (strcmp((*at)->mount_id, mount_id) != 0 || (owner && strcmp((*at)->owner, owner) != 0))
            continue;
        if (found)
            return ws_error_set(
                err, EINVAL,
                "%s and %s both report a mount %.300s: say of which (\"identity\", wsync model "
                "forget --identity)",
                owner_name(*found), owner_name(*at), mount_id);
        found = at;
    }
    if (!found)
        return ws_error_set(err, ENOENT, "there is no mount %.300s%s%s", mount_id,
                            owner && *owner ? " of " : "", owner ? owner : "");
    if ((*found)->lease_ns >= now_ns)
        return ws_error_set(err, EBUSY, "the mount %.300s is not silent: it would register again; unmount it",
                            mount_id);
    remove_at(f, found);
    return 0;
}

void ws_fleet_expire(struct ws_fleet *f, uint64_t now_ns)
{
    for (struct ws_fleet_mount **at = &f->mounts; *at;) {
        if ((*at)->lease_ns + FORGET_NS > now_ns)
            at = &(*at)->next;
        else
            remove_at(f, at);
    }
}

/* --- versions --- */

void ws_fleet_reset_reports(struct ws_fleet *f, const struct ws_version_id *to, const char *name)
{
    for (struct ws_fleet_mount *m = f->mounts; m; m = m->next) {
        if (name && !ws_name_matches_mount(name, m->mount_id))
            continue;
        if (ws_version_id_equal(&m->failed, to))
            m->failed.lineage[0] = 0;
        struct ws_version_id *versions = name ? m->fetched : m->prepared;
        for (size_t i = 0; i < WS_FLEET_REPORTS; i++)
            if (ws_version_id_equal(&versions[i], to))
                versions[i].lineage[0] = 0;
    }
}

uint64_t ws_fleet_newest_release(const struct ws_fleet *f, struct ws_version_id *to, bool *quarantines)
{
    const bool decided = f->decided > f->release;
    *quarantines = decided ? f->decided_quarantines : f->quarantines;
    *to = decided ? f->decided_to : f->released;
    return decided ? f->decided : f->release;
}

void ws_fleet_commit(struct ws_fleet *f, uint64_t release, const struct ws_version_id *to, bool quarantines)
{
    bool again = !f->release || ws_version_id_equal(&f->released, to);
    f->release = release;
    f->released = *to;
    f->quarantines = quarantines;
    for (struct ws_fleet_mount *m = f->mounts; m; m = m->next)
        m->in_transition = m->follows && (m->in_transition || !again || !ws_version_id_equal(&m->loaded, to));
}

static bool is_under_way(const struct ws_fleet *f, const struct ws_fleet_mount *m)
{
    return f->release && m->follows &&
           (m->names_release ? m->finished_release != f->release : m->in_transition);
}

void ws_fleet_record_presence(const struct ws_fleet *f, struct ws_fleet_mount *m,
                              const struct ws_version_id *serves, const uint64_t *finished)
{
    m->loaded = serves ? *serves : (struct ws_version_id){0};
    if (serves && ws_version_id_equal(&m->failed, serves))
        m->failed.lineage[0] = 0;
    m->names_release = finished != NULL;
    m->finished_release = finished ? *finished : 0;
    m->in_transition =
        m->follows && (m->in_transition || (f->release && !ws_version_id_equal(&m->loaded, &f->released)));
}

/* With what was released last. */
static void record_end(const struct ws_fleet *f, struct ws_fleet_mount *m, const struct ws_version_id *to)
{
    if (f->release && ws_version_id_equal(&f->released, to))
        m->in_transition = false;
}

void ws_fleet_record_machine(struct ws_fleet_mount *m, const json_t *said, uint64_t now_ns, uint64_t day_ns)
{
    json_decref(m->machine);
    m->machine = ws_machine_take(said, day_ns);
    m->machine_ns = now_ns;
}

void ws_fleet_record_came(struct ws_fleet_mount *m, const json_t *said)
{
    json_decref(m->came);
    m->came = ws_said_take_came(said);
}

void ws_fleet_record_error(struct ws_fleet_mount *m, const json_t *said)
{
    json_decref(m->last_error);
    m->last_error = ws_said_take_error(said);
}

void ws_fleet_record_prepared(struct ws_fleet_mount *m, const struct ws_version_id *to)
{
    if (ws_version_id_equal(&m->failed, to))
        m->failed.lineage[0] = 0;
    m->prepared[m->next_prepared++ % WS_FLEET_REPORTS] = *to;
}

void ws_fleet_record_fetched(struct ws_fleet_mount *m, const struct ws_version_id *to)
{
    if (ws_version_id_equal(&m->failed, to))
        m->failed.lineage[0] = 0;
    m->fetched[m->next_fetched++ % WS_FLEET_REPORTS] = *to;
}

void ws_fleet_record_loaded(const struct ws_fleet *f, struct ws_fleet_mount *m,
                            const struct ws_version_id *to)
{
    m->loaded = *to;
    if (ws_version_id_equal(&m->failed, to))
        m->failed.lineage[0] = 0;
    record_end(f, m, to);
}

void ws_fleet_record_failed(const struct ws_fleet *f, struct ws_fleet_mount *m,
                            const struct ws_version_id *to, uint64_t release, const char *why)
{
    if (release && release < m->failed_release && ws_version_id_equal(&m->failed, to))
        return;
    m->failed = *to;
    m->failed_release = release;
    snprintf(m->error, sizeof(m->error), "%s", why);
    if (release && release != f->release)
        return; /* of what is current it says nothing */
    if (f->quarantines && ws_version_id_equal(&f->released, to))
        m->quarantined_by = f->release;
    record_end(f, m, to);
}

enum ws_fleet_progress ws_fleet_mount_progress(const struct ws_fleet *f, const struct ws_fleet_mount *m,
                                               uint64_t release, const struct ws_version_id *to,
                                               uint64_t now_ns)
{
    if (m->lease_ns < now_ns)
        return WS_FLEET_SILENT;
    if (ws_version_id_equal(&m->failed, to) && (!m->failed_release || m->failed_release == release))
        return WS_FLEET_FAILED;
    if (f->release == release && ws_version_id_equal(&m->loaded, to) && !is_under_way(f, m))
        return WS_FLEET_LOADED;
    for (size_t i = 0; i < WS_FLEET_REPORTS; i++)
        if (ws_version_id_equal(&m->prepared[i], to))
            return WS_FLEET_PREPARED;
    return WS_FLEET_WAITING;
}

/* --- versions that engines serve --- */

bool ws_fleet_serves(const struct ws_fleet *f, const struct ws_version_id *to, const char *which,
                     uint64_t now_ns, char *text, size_t cap)
{
    uint64_t least = 1, serving = 0, missing = 0;
    const char *name = NULL;
    bool all = strcmp(which, "all") == 0, number = !all && ws_text_u64(which, &least) == 0;
    if (!all && !number)
        name = which;
    for (const struct ws_fleet_mount *m = f->mounts; m; m = m->next) {
        bool counts = name ? ws_name_matches_mount(name, m->mount_id) : m->follows || m->engines > 0;
        if (!counts || (m->lease_ns < now_ns && !name))
            continue;
        bool serves = strcmp(m->loaded.lineage, to->lineage) == 0 && m->loaded.version >= to->version &&
                      !is_under_way(f, m);
        serving += serves;
        if (!serves && missing++ == 0 && text)
            snprintf(text, cap, "%s does not serve it", m->mount_id);
    }
    if (serving >= least && (number || missing == 0))
        return true;
    if (text && (number || missing == 0))
        snprintf(text, cap,
                 name ? "no mount of that name is known" : "%" PRIu64 " of %" PRIu64 " mounts serve it",
                 serving, least);
    else if (text && missing > 1)
        snprintf(text + strlen(text), cap - strlen(text), ", nor do %" PRIu64 " more", missing - 1);
    return false;
}

static json_t *version_id_json(const struct ws_version_id *m)
{
    return m->lineage[0] ? json_pack("{s:I,s:s}", "version", (json_int_t)m->version, "run", m->lineage)
                         : json_null();
}

static json_t *version_ids_json(const struct ws_version_id versions[WS_FLEET_REPORTS])
{
    json_t *all = json_array();
    for (size_t i = 0; i < WS_FLEET_REPORTS; i++)
        if (versions[i].lineage[0])
            json_array_append_new(all, version_id_json(&versions[i]));
    return all;
}

json_t *ws_fleet_json(const struct ws_fleet *f, uint64_t now_ns)
{
    json_t *all = json_array();
    for (const struct ws_fleet_mount *m = f->mounts; m; m = m->next) {
        json_t *one =
            json_pack("{s:s,s:b,s:b,s:b,s:I,s:I,s:o,s:o,s:o,s:o,s:s}", "mount", m->mount_id, "silent",
                      (int)(m->lease_ns < now_ns), "follows", (int)m->follows, "under_way",
                      (int)is_under_way(f, m), "engines", (json_int_t)m->engines, "serving",
                      (json_int_t)m->serving, "loaded", version_id_json(&m->loaded), "prepared",
                      version_ids_json(m->prepared), "fetched", version_ids_json(m->fetched), "failed",
                      version_id_json(&m->failed), "error", m->failed.lineage[0] ? m->error : "");
        if (m->owner[0])
            json_object_set_new(one, "identity", json_string(m->owner));
        if (m->came)
            json_object_set_new(one, "came", json_deep_copy(m->came));
        if (m->last_error)
            json_object_set_new(one, "last_error", json_deep_copy(m->last_error));
        if (m->machine)
            json_object_set_new(one, "machine", json_deep_copy(m->machine));
        if (m->machine)
            json_object_set_new(one, "machine_age",
                                json_integer((json_int_t)((now_ns - m->machine_ns) / WS_SECOND_NS)));
        json_array_append_new(all, one);
    }
    return all;
}

void ws_fleet_clear(struct ws_fleet *f)
{
    while (f->mounts) {
        struct ws_fleet_mount *m = f->mounts;
        f->mounts = m->next;
        free_mount(m);
    }
    f->n = 0;
}
