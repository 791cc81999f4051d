/* Releases: how one begins, goes on and ends (releases.h). */
#include "backends/trainer/agent/mounts/releases.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/saved/saved.h"
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
#define MAX_ENGINES   1000000

static struct ws_releases *releases_of(const struct ws_agent *a)
{
    return a->feature_state[WS_FEATURE_fleet];
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

static void record_end(const struct ws_release *r)
{
    const bool committed = r->phase == WS_RELEASE_COMMITTED;
    ws_log(WS_LOG_INFO, "agent", "release %s id=%" PRIu64 " model=%s version=%" PRIu64 "%s%s",
           committed ? "committed" : "aborted", r->id, r->items[0].model, r->items[0].target.version,
           r->why[0] ? " why=" : "", r->why);
    record_phase(r, committed ? "release committed" : "release aborted", NULL);
}

bool ws_releases_advance(struct ws_agent *a)
{
    bool changed = false;
    uint64_t now = ws_clock_ns();
    for (struct ws_release *r = a->releases; r; r = r->next) {
        if (!ws_release_advance(r, now))
            continue;
        changed = true;
        if (r->phase == WS_RELEASE_ABORTED)
            record_end(r);
    }
    if (changed)
        ws_saved_mark(a);
    return changed;
}

static struct ws_release *oldest_decided(const struct ws_agent *a)
{
    struct ws_release *oldest = NULL;
    for (struct ws_release *r = a->releases; r; r = r->next)
        if (r->phase == WS_RELEASE_DECIDED)
            oldest = r;
    return oldest;
}

bool ws_releases_commit(struct ws_agent *a)
{
    struct ws_error err = {0};
    struct ws_release *r;
    bool changed = false;
    char why[WS_ERROR_TEXT];
    pthread_mutex_lock(&a->lock);
    r = oldest_decided(a);
    pthread_mutex_unlock(&a->lock);
    if (!r)
        return false;
    const int rc = ws_saved_write(a, &err);
    snprintf(why, sizeof(why), "the agent cannot record it: %.900s", err.text);
    pthread_mutex_lock(&a->lock);
    for (r = oldest_decided(a); r; r = oldest_decided(a)) {
        if (rc < 0)
            ws_release_revoke(r, why);
        else if (!ws_release_commit(r))
            break; /* it was decided meanwhile, and that thread records it */
        record_end(r);
        changed = true;
    }
    if (changed)
        ws_saved_mark(a);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return changed;
}

static bool has_pending(const struct ws_agent *a)
{
    for (const struct ws_release *r = a->releases; r; r = r->next)
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
        if (ws_releases_advance(a)) {
            pthread_mutex_unlock(&a->lock);
            (void)ws_releases_commit(a);
            ws_agent_announce(a);
            pthread_mutex_lock(&a->lock);
        }
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* Mounts that have prepared one for an agent before do not say so again. Under lock. */
static void abort_interrupted(struct ws_agent *a)
{
    for (struct ws_release *r = a->releases; r; r = r->next) {
        if (r->phase != WS_RELEASE_PREPARING)
            continue;
        ws_release_abort(r, "the agent ended while it was being prepared: begin it again");
        record_end(r);
        ws_saved_mark(a);
    }
}

int ws_releases_start(struct ws_agent *a, struct ws_error *err)
{
    struct ws_releases *r = releases_of(a);
    pthread_mutex_lock(&a->lock);
    abort_interrupted(a);
    pthread_mutex_unlock(&a->lock);
    r->has_clock = ws_thread_start(&r->clock, run_clock, a) == 0;
    return r->has_clock ? 0 : ws_error_set(err, EAGAIN, "cannot start the agent's threads");
}

void ws_releases_stop(struct ws_agent *a)
{
    const struct ws_releases *r = releases_of(a);
    if (r->has_clock)
        pthread_join(r->clock, NULL);
}

void ws_releases_end(struct ws_agent *a)
{
    for (struct ws_release *r = a->releases, *next; r; r = next) {
        next = r->next;
        free(r);
    }
}

const struct ws_release *ws_releases_last(const struct ws_agent *a, const char *model)
{
    const struct ws_release *last = a->releases;
    while (last && !ws_release_has_model(last, model))
        last = last->next;
    return last;
}

uint64_t ws_releases_new_id(struct ws_agent *a)
{
    uint64_t *last = &releases_of(a)->last_id;
    const uint64_t id = ws_clock_day_ns();
    if (a->releases && a->releases->id > *last)
        *last = a->releases->id;
    for (const struct ws_agent_model *m = a->models; m; m = m->next) /* the clock may have been set back */
        *last = m->fleet.release > *last ? m->fleet.release : *last;
    return *last = id > *last ? id : *last + 1;
}

/* Drops the oldest releases, which no client asks for any more. */
static void drop_old_releases(struct ws_agent *a)
{
    size_t n = 0;
    for (struct ws_release **at = &a->releases; *at;) {
        struct ws_release *r = *at;
        if (++n < MAX_RELEASES || r->phase < WS_RELEASE_COMMITTED) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        free(r);
    }
}

/* A release that is under way is aborted by a newer one of a model of its; who began that one has to be allowed to use
 * all of its models. */
static int check_superseded(const struct ws_agent *a, const struct ws_release_item *item,
                            const struct ws_identity *who, struct ws_error *err)
{
    for (const struct ws_release *r = a->releases; r; r = r->next)
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
    for (struct ws_release *r = a->releases; r; r = r->next)
        if (r->phase == WS_RELEASE_PREPARING && ws_release_has_model(r, item->model)) {
            ws_release_abort(r, why);
            record_phase(r, "release aborted", who);
        }
}

static int read_terms(const json_t *body, struct ws_release_terms *out, struct ws_error *err)
{
    const json_t *min = json_object_get(body, "min_engines"), *quorum = json_object_get(body, "quorum");
    const double share = json_is_number(quorum) ? json_number_value(quorum) : 0;
    if (min && (ws_number_read(min, &out->min_engines) < 0 || out->min_engines > MAX_ENGINES))
        return ws_error_set(err, EINVAL, "min_engines is a number of engines up to %d", MAX_ENGINES);
    if (quorum && !(share >= 0.1 && share <= 100))
        return ws_error_set(err, EINVAL, "quorum is a share in percent, from 0.1 to 100");
    out->quorum_permille = (unsigned)(share * 10 + 0.5);
    return 0;
}

int ws_releases_begin(struct ws_agent *a, const struct ws_identity *who, const struct ws_release_item *parts,
                      size_t n, const json_t *body, uint64_t *begun, struct ws_error *err)
{
    struct ws_release_terms terms = {0};
    const json_t *s = json_object_get(body, "prepare_s");
    json_int_t seconds = json_is_integer(s) ? json_integer_value(s) : PREPARE_S;
    uint64_t now = ws_clock_ns();
    if (seconds < 1 || seconds > MAX_PREPARE_S)
        return ws_error_set(err, EINVAL, "prepare_s is a number of seconds from 1 to %d", MAX_PREPARE_S);
    int rc = read_terms(body, &terms, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = check_superseded(a, &parts[i], who, err);
    if (rc < 0)
        return rc;
    uint64_t id = ws_releases_new_id(a);
    for (size_t i = 0; i < n; i++)
        supersede(a, &parts[i], who);
    drop_old_releases(a);
    for (size_t i = 0; i < n; i++)
        ws_fleet_expire(parts[i].fleet, now);
    struct ws_release *r = ws_release_new(id, parts, n, &terms, now + (uint64_t)seconds * WS_SECOND_NS);
    if (!r)
        return ws_error_set(err, ENOMEM, "no memory for a release");
    r->next = a->releases;
    a->releases = r;
    ws_log(WS_LOG_INFO, "agent",
           "release begins id=%" PRIu64 " model=%s version=%" PRIu64 " models=%zu who=%s from=%s", id,
           parts[0].model, parts[0].target.version, n, who->name, who->from);
    snprintf(r->who, sizeof(r->who), "%s", who->name);
    snprintf(r->from, sizeof(r->from), "%s", who->from);
    record_phase(r, "release begins", NULL);
    ws_saved_mark(a);
    *begun = id;
    return 0;
}

int ws_releases_route(struct ws_agent *a, const struct ws_identity *who, const char *rest, bool post,
                      json_t **reply, bool *listing_changed, struct ws_error *err)
{
    uint64_t id, now = ws_clock_ns();
    if (!*rest && !post) {
        *reply = json_array();
        for (const struct ws_release *r = a->releases; r; r = r->next)
            json_array_append_new(*reply, ws_release_json(r, now));
        return 0;
    }
    rest += *rest == '/';
    struct ws_release *r = ws_text_digits(&rest, &id) == 0 ? a->releases : NULL;
    while (r && r->id != id)
        r = r->next;
    if (!r || strcmp(rest, post ? "/abort" : "") != 0)
        return ws_error_set(err, ENOENT, "there is no such release; /v1/releases lists the last ones");
    if (post && r->phase == WS_RELEASE_PREPARING) {
        ws_release_abort(r, "a person ended it");
        record_phase(r, "release aborted", who);
        ws_saved_mark(a);
        *listing_changed = true;
    } else if (post) {
        return ws_error_set(err, EBUSY, "the release is committed: release the version before instead");
    }
    *reply = ws_release_json(r, now);
    return 0;
}

json_t *ws_releases_begun_json(struct ws_agent *a, uint64_t id)
{
    json_t *out = NULL;
    pthread_mutex_lock(&a->lock);
    for (const struct ws_release *r = a->releases; r && !out; r = r->next)
        if (r->id == id)
            out = ws_release_json(r, ws_clock_ns());
    pthread_mutex_unlock(&a->lock);
    return out;
}
