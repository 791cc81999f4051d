#include "backends/trainer/agent/fleet/fleet.h"
#include "transports/base/clock.h"
#include "transports/base/name.h"
#include "transports/base/text.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MOUNTS 4096 /* of a model */
#define FORGET_NS  600000000000UL
#define MS         WS_MS_NS

const char *ws_progress_name(enum ws_progress p)
{
    static const char *const names[] = {"waiting", "prepared", "loaded", "failed", "silent"};
    return names[p];
}

static struct ws_fleet_mount *find(const struct ws_fleet *f, const char *who)
{
    struct ws_fleet_mount *m = f->mounts;
    while (m && strcmp(m->who, who) != 0)
        m = m->next;
    return m;
}

static void extend(struct ws_fleet_mount *m, uint64_t now_ns, unsigned ms)
{
    uint64_t until = now_ns + (ms + WS_LEASE_GRACE_MS) * MS;
    if (until > m->lease_ns)
        m->lease_ns = until;
}

int ws_fleet_meet(struct ws_fleet *f, const char *who, uint64_t now_ns, struct ws_fleet_mount **out,
                  struct ws_error *err)
{
    struct ws_fleet_mount *m = find(f, who);
    if (!m) {
        ws_fleet_forget(f, now_ns);
        if (f->n >= MAX_MOUNTS)
            return ws_error_set(err, E2BIG, "more than %d mounts are registered", MAX_MOUNTS);
        m = calloc(1, sizeof(*m));
        if (!m || !(m->who = strdup(who))) {
            free(m);
            return ws_error_set(err, ENOMEM, "no memory for a mount");
        }
        struct ws_fleet_mount **at = &f->mounts;
        while (*at && strcmp((*at)->who, who) < 0)
            at = &(*at)->next;
        m->next = *at;
        *at = m;
        f->n++;
    }
    extend(m, now_ns, WS_POLL_MS);
    *out = m;
    return 0;
}

void ws_fleet_seen(struct ws_fleet *f, const char *who, uint64_t now_ns, unsigned ms)
{
    struct ws_fleet_mount *m = find(f, who);
    if (m)
        extend(m, now_ns, ms);
}

static void remove_at(struct ws_fleet *f, struct ws_fleet_mount **at)
{
    struct ws_fleet_mount *m = *at;
    *at = m->next;
    f->n--;
    free(m->who);
    free(m);
}

void ws_fleet_leave(struct ws_fleet *f, const char *who)
{
    for (struct ws_fleet_mount **at = &f->mounts; *at; at = &(*at)->next) {
        if (strcmp((*at)->who, who) == 0) {
            remove_at(f, at);
            return;
        }
    }
}

void ws_fleet_forget(struct ws_fleet *f, uint64_t now_ns)
{
    for (struct ws_fleet_mount **at = &f->mounts; *at;) {
        if ((*at)->lease_ns + FORGET_NS > now_ns)
            at = &(*at)->next;
        else
            remove_at(f, at);
    }
}

/* --- marks --- */

void ws_fleet_ask_anew(struct ws_fleet *f, const struct ws_mark *to, const char *name)
{
    for (struct ws_fleet_mount *m = f->mounts; m; m = m->next) {
        if (name && !ws_name_means_mount(name, m->who))
            continue;
        if (ws_mark_is(&m->failed, to))
            m->failed.run[0] = 0;
        struct ws_mark *marks = name ? m->fetched : m->prepared;
        for (size_t i = 0; i < WS_PREPARED_MARKS; i++)
            if (ws_mark_is(&marks[i], to))
                marks[i].run[0] = 0;
    }
}

void ws_fleet_commit(struct ws_fleet *f, uint64_t release, const struct ws_mark *to)
{
    bool again = !f->release || ws_mark_is(&f->released, to);
    f->release = release;
    f->released = *to;
    for (struct ws_fleet_mount *m = f->mounts; m; m = m->next)
        m->moves = m->follows && (m->moves || !again || !ws_mark_is(&m->loaded, to));
}

static bool is_under_way(const struct ws_fleet *f, const struct ws_fleet_mount *m)
{
    return f->release && m->follows && (m->answers ? m->answered != f->release : m->moves);
}

void ws_fleet_note_stand(const struct ws_fleet *f, struct ws_fleet_mount *m, const struct ws_mark *serves,
                         const uint64_t *answered)
{
    m->loaded = serves ? *serves : (struct ws_mark){0};
    if (serves && ws_mark_is(&m->failed, serves))
        m->failed.run[0] = 0;
    m->answers = answered != NULL;
    m->answered = answered ? *answered : 0;
    m->moves = m->follows && (m->moves || (f->release && !ws_mark_is(&m->loaded, &f->released)));
}

/* With what was released last. */
static void note_end(const struct ws_fleet *f, struct ws_fleet_mount *m, const struct ws_mark *to)
{
    if (f->release && ws_mark_is(&f->released, to))
        m->moves = false;
}

void ws_fleet_note_prepared(struct ws_fleet_mount *m, const struct ws_mark *to)
{
    if (ws_mark_is(&m->failed, to))
        m->failed.run[0] = 0;
    m->prepared[m->next_prepared++ % WS_PREPARED_MARKS] = *to;
}

void ws_fleet_note_fetched(struct ws_fleet_mount *m, const struct ws_mark *to)
{
    if (ws_mark_is(&m->failed, to))
        m->failed.run[0] = 0;
    m->fetched[m->next_fetched++ % WS_PREPARED_MARKS] = *to;
}

void ws_fleet_note_loaded(const struct ws_fleet *f, struct ws_fleet_mount *m, const struct ws_mark *to)
{
    m->loaded = *to;
    if (ws_mark_is(&m->failed, to))
        m->failed.run[0] = 0;
    note_end(f, m, to);
}

void ws_fleet_note_failed(const struct ws_fleet *f, struct ws_fleet_mount *m, const struct ws_mark *to,
                          const char *why)
{
    m->failed = *to;
    snprintf(m->error, sizeof(m->error), "%s", why);
    note_end(f, m, to);
}

enum ws_progress ws_fleet_progress(const struct ws_fleet *f, const struct ws_fleet_mount *m, uint64_t release,
                                   const struct ws_mark *to, uint64_t now_ns)
{
    if (m->lease_ns < now_ns)
        return WS_FLEET_SILENT;
    if (ws_mark_is(&m->failed, to))
        return WS_FLEET_FAILED;
    if (f->release == release && ws_mark_is(&m->loaded, to) && !is_under_way(f, m))
        return WS_FLEET_LOADED;
    for (size_t i = 0; i < WS_PREPARED_MARKS; i++)
        if (ws_mark_is(&m->prepared[i], to))
            return WS_FLEET_PREPARED;
    return WS_FLEET_WAITING;
}

/* --- who serves what --- */

bool ws_fleet_serves(const struct ws_fleet *f, const struct ws_mark *to, const char *who, uint64_t now_ns,
                     char *text, size_t cap)
{
    uint64_t least = 1, serving = 0, missing = 0;
    const char *name = NULL;
    bool all = strcmp(who, "all") == 0, number = !all && ws_text_u64(who, &least) == 0;
    if (!all && !number)
        name = who;
    for (const struct ws_fleet_mount *m = f->mounts; m; m = m->next) {
        bool counts = name ? ws_name_means_mount(name, m->who) : m->follows || m->engines > 0;
        if (!counts || (m->lease_ns < now_ns && !name))
            continue;
        bool serves =
            strcmp(m->loaded.run, to->run) == 0 && m->loaded.version >= to->version && !is_under_way(f, m);
        serving += serves;
        if (!serves && missing++ == 0 && text)
            snprintf(text, cap, "%s does not serve it", m->who);
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

static json_t *mark_json(const struct ws_mark *m)
{
    return m->run[0] ? json_pack("{s:I,s:s}", "version", (json_int_t)m->version, "run", m->run) : json_null();
}

static json_t *marks_json(const struct ws_mark marks[WS_PREPARED_MARKS])
{
    json_t *all = json_array();
    for (size_t i = 0; i < WS_PREPARED_MARKS; i++)
        if (marks[i].run[0])
            json_array_append_new(all, mark_json(&marks[i]));
    return all;
}

json_t *ws_fleet_json(const struct ws_fleet *f, uint64_t now_ns)
{
    json_t *all = json_array();
    for (const struct ws_fleet_mount *m = f->mounts; m; m = m->next)
        json_array_append_new(all,
                              json_pack("{s:s,s:b,s:b,s:b,s:I,s:o,s:o,s:o,s:o,s:s}", "mount", m->who,
                                        "silent", (int)(m->lease_ns < now_ns), "follows", (int)m->follows,
                                        "under_way", (int)is_under_way(f, m), "engines",
                                        (json_int_t)m->engines, "loaded", mark_json(&m->loaded), "prepared",
                                        marks_json(m->prepared), "fetched", marks_json(m->fetched), "failed",
                                        mark_json(&m->failed), "error", m->failed.run[0] ? m->error : ""));
    return all;
}

void ws_fleet_clear(struct ws_fleet *f)
{
    while (f->mounts) {
        struct ws_fleet_mount *m = f->mounts;
        f->mounts = m->next;
        free(m->who);
        free(m);
    }
    f->n = 0;
}
