#include "fs/switch/follow.h"
#include "fs/switch/catch_up.h"
#include "fs/switch/follow_job.h"
#include "fs/switch/preflight.h"
#include "fs/switch/prepare.h"
#include "fs/switch/presence.h"
#include "fs/switch/reconcile.h"
#include "fs/switch/set.h"
#include "fs/switch/settings.h"
#include "fs/switch/switch.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/protocol/source.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_AGAIN_NS (3 * WS_SECOND_NS) /* before a version that could not be switched to is tried again */
#define LAST_AGAIN_NS  (300 * WS_SECOND_NS) /* ... and at most */

static bool follows_releases(struct ws_control *c, const struct ws_controller *ctl)
{
    return ws_policy_follows_releases(ws_controller_policy(c, ctl));
}

/* Something was released: what the word follow means is no longer open. */
static void resolve_policy(struct ws_control *c, struct ws_controller *ctl)
{
    pthread_mutex_lock(&c->lock);
    const bool was_open = ctl->policy == WS_POLICY_FOLLOW_UNTIL_RELEASE;
    if (was_open) {
        ctl->policy = WS_POLICY_FOLLOW_RELEASED;
        ctl->follow_every = 1;
        ctl->follow_interval_s = 0;
    }
    pthread_mutex_unlock(&c->lock);
    if (!was_open)
        return;
    ws_controller_event(c, ctl, "policy model=%s policy=follow-released why=released", ctl->name);
    ws_settings_save(c);
}

/* --- switching --- */

/* Following has finished with this version, successfully or not, and does not try it again by itself. */
static void record_done(struct ws_control *c, const struct ws_switch_item *p, uint64_t release)
{
    pthread_mutex_lock(&c->lock);
    p->controller->refused_id = ws_version_origin(p->version);
    p->controller->refused_release = release;
    pthread_mutex_unlock(&c->lock);
}

/* The reconciler looks again. A released version is tried again until it is served, more and more seldom. */
static void record_retry(struct ws_control *c, const struct ws_switch_item *p)
{
    pthread_mutex_lock(&c->lock);
    ws_backoff_failed(&p->controller->follow_backoff, FIRST_AGAIN_NS, LAST_AGAIN_NS);
    pthread_mutex_unlock(&c->lock);
}

/* The mount has finished with that release; the next daemon continues from there, too. */
static void answer(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m, uint64_t release)
{
    ws_presence_post_answered(c, ctl, m, release);
    ws_settings_save(c);
}

static int preflight_all(struct ws_follow_job *job, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < job->n; i++)
        rc = ws_preflight(job->control, job->items[i].controller, err);
    return rc;
}

static bool is_external(struct ws_control *c, const struct ws_follow_job *job)
{
    bool external = false;
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < job->n; i++)
        external = external || ws_controller_is_external(job->items[i].controller);
    pthread_mutex_unlock(&c->lock);
    return external;
}

/* External engines: the version is made ready for their framework. */
static int stage_all(struct ws_follow_job *job, const struct ws_switch_options *o, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < job->n; i++) {
        const struct ws_switch_item *p = &job->items[i];
        rc = ws_switch_prepare(job->control, p, o, err);
        if (rc == 0) {
            record_done(job->control, p, job->release);
            ws_controller_event(job->control, p->controller, "staged model=%s version=%" PRIu64,
                                p->controller->name, ws_version_number(p->version));
        }
    }
    return rc;
}

/* Did the pull fail only because a source is away? Then the version may still come. */
static bool may_come(int rc, const struct ws_follow_job *job)
{
    for (size_t i = 0; ws_source_is_away(rc) && i < job->n; i++) {
        struct ws_version_info info;
        ws_version_info(job->items[i].version, &info);
        if (info.at_source && (info.state == WS_FAILED || info.state == WS_PULLING))
            return true;
    }
    return false;
}

/* The engines of a model that a release with a quorum leaves behind stop serving what is older: before a version is
 * fetched that others serve already, and after a switch to it has failed. */
static void hold(struct ws_control *c, const struct ws_switch_item *p, const char *why)
{
    struct ws_error err = {0};
    const int rc = ws_switch_hold(c, p->controller, p->model, why, &err);
    if (rc < 0 && rc != -ENOENT && rc != -EBUSY)
        (void)ws_controller_fail(c, p->controller, "quarantine", &err);
}

/* The release whose version is meant may have been followed by another one. */
static bool quarantines(const struct ws_switch_item *p, uint64_t release)
{
    struct ws_desired o;
    ws_model_desired(p->model, &o);
    return release && o.released_by == release && o.quarantines;
}

static void hold_those_behind(struct ws_follow_job *job)
{
    for (size_t i = 0; i < job->n; i++) {
        const enum ws_version_state s = ws_version_state(job->items[i].version);
        if (s != WS_READY && s != WS_ACTIVE && quarantines(&job->items[i], job->release))
            hold(job->control, &job->items[i], "the released version is not here yet");
    }
}

static void switch_all(void *arg)
{
    struct ws_follow_job *job = arg;
    struct ws_control *c = job->control;
    const struct ws_switch_options o = {.by = job->release ? "release" : "policy:follow-published",
                                        .is_followed = true,
                                        .holds_back = quarantines(&job->items[0], job->release)};
    struct ws_error err = {0};
    hold_those_behind(job);
    int rc = job->release ? preflight_all(job, &err) : 0;
    if (rc == 0)
        rc = is_external(c, job) ? stage_all(job, &o, &err) : ws_switch_run(c, job->items, job->n, &o, &err);
    for (size_t i = 0; rc < 0 && rc != -EBUSY && i < job->n; i++) {
        const struct ws_switch_item *p = &job->items[i];
        const struct ws_version_id to = ws_version_id(p->version);
        if (may_come(rc, job) || (job->release && rc != -EPROTO && rc != -EPERM))
            record_retry(c, p);
        else
            record_done(c, p, job->release);
        (void)ws_controller_fail(c, p->controller, "follow", &err);
        ws_presence_report(c, p->controller, p->model, &to, "failed", job->release, err.text);
        if (quarantines(p, job->release))
            hold(c, p, "it could not be switched to what was released");
        if (job->release)
            answer(c, p->controller, p->model, job->release);
    }
    for (size_t i = 0; i < job->n; i++) /* a version may have come meanwhile */
        ws_follow_check(c, job->items[i].model);
    ws_follow_job_free(job);
}

struct gather {
    struct ws_control *control;
    struct ws_follow_job *job;
    bool busy; /* one of its models is switching: all of them later */
};

/* Is it about to become current again, as the settings say? Under the control's lock. */
static bool is_coming_back(const struct ws_controller *ctl, const struct ws_version *v)
{
    const struct ws_version_id id = ws_version_id(v);
    return ws_version_id_equal(&ctl->target, &id);
}

/* Reports once that a released version is gone: the agent that served it ended, or this mount came too late. */
static void report_missing(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                           const struct ws_desired *o)
{
    struct ws_error err;
    pthread_mutex_lock(&c->lock);
    bool told = ctl->missing_release == o->released_by;
    ctl->missing_release = o->released_by;
    pthread_mutex_unlock(&c->lock);
    if (told)
        return;
    ws_error_set(&err, ESTALE,
                 "version %" PRIu64
                 " of %s, which was released last, is neither here nor at a source any more: release "
                 "a newer one%s",
                 o->released.version, ctl->name,
                 o->inherited ? ", or set the policy to follow-published for what is published" : "");
    (void)ws_controller_fail(c, ctl, "follow", &err);
    ws_presence_report(c, ctl, m, &o->released, "failed", o->released_by, err.text);
    answer(c, ctl, m, o->released_by);
}

/* Was the release committed while its version is still on its way into the one copy, so that it cannot be switched to yet?
 * Under the control's lock. */
static bool is_left_behind(const struct ws_controller *ctl, const struct ws_desired *o)
{
    return ctl->preparing && o->quarantines && ctl->prepared_release != o->released_by;
}

/* Adds a model that the release names, if it follows and does not serve the release yet. If nothing is left to do
 * the mount reports that once, since the agent cannot see whether the mount knows of the release. */
static void add_released(void *arg, struct ws_model *m)
{
    struct gather *g = arg;
    struct ws_desired o;
    struct ws_controller *ctl = ws_controller_get(g->control, ws_model_name(m));
    ws_model_desired(m, &o);
    if (!ctl || o.released_by != g->job->release || !follows_releases(g->control, ctl))
        return;
    struct ws_version *v = ws_follow_find(m, &o.released, NULL);
    pthread_mutex_lock(&g->control->lock);
    const uint64_t generation = ctl->generation;
    pthread_mutex_unlock(&g->control->lock);
    struct ws_version *current = ws_model_current(m);
    pthread_mutex_lock(&g->control->lock);
    bool refused = v && ctl->refused_id == ws_version_origin(v) && ctl->refused_release == g->job->release;
    refused = refused || (v && is_coming_back(ctl, v));
    g->busy = g->busy || ctl->switching || ctl->preparing || !ws_backoff_is_over(&ctl->follow_backoff);
    bool served = v && v == current && !ctl->switching && ws_controller_is_certain(ctl) &&
                  ctl->generation == generation && ctl->answered_release != o.released_by;
    const bool is_left = is_left_behind(ctl, &o) && ctl->left_release != o.released_by;
    if (is_left)
        ctl->left_release = o.released_by;
    pthread_mutex_unlock(&g->control->lock);
    if (is_left) /* it holds the engines */
        ws_reconciler_wake(g->control->reconciler);
    if (!v && !ws_follow_lacks_parts(m)) /* else it is found when the last of them is listed */
        report_missing(g->control, ctl, m, &o);
    if (served)
        answer(g->control, ctl, m, o.released_by);
    if (v && v != current && !refused)
        ws_follow_job_add(g->job, ctl, m, v);
    else if (v)
        ws_version_put(v);
    if (current)
        ws_version_put(current);
}

static void follow_release(struct ws_control *c, uint64_t release)
{
    struct ws_follow_job *job = ws_follow_job_new(c, WS_MAX_MODELS);
    if (!job)
        return;
    job->release = release;
    struct gather g = {.control = c, .job = job};
    ws_store_each(c->store, add_released, &g);
    if (g.busy)
        ws_follow_job_free(job);
    else
        ws_follow_job_start(job, switch_all);
}

/* Is a published version far enough ahead, and the last switch long enough ago? Under the control's lock. */
static bool is_due(const struct ws_controller *ctl, const struct ws_version *latest,
                   const struct ws_version *current)
{
    if (ctl->switching || !ws_backoff_is_over(&ctl->follow_backoff) ||
        ctl->refused_id == ws_version_origin(latest) || is_coming_back(ctl, latest))
        return false;
    if (!current || strcmp(ws_version_lineage(latest), ws_version_lineage(current)) != 0)
        return true;
    if (ctl->follow_interval_s &&
        ws_clock_ns() - ctl->followed_ns < (uint64_t)ctl->follow_interval_s * WS_SECOND_NS)
        return false;
    return ws_version_number(latest) >= ws_version_number(current) + ctl->follow_every;
}

static void follow_published(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m)
{
    struct ws_version *latest = ws_model_latest(m), *current = latest ? ws_model_current(m) : NULL;
    struct ws_follow_job *job = NULL;
    if (latest && latest != current) {
        const bool goes_along = ws_set_is_taken_along(c, ctl);
        pthread_mutex_lock(&c->lock);
        enum ws_policy policy = ctl->policy;
        bool due = !goes_along && ws_policy_follows(policy) && policy != WS_POLICY_FOLLOW_RELEASED &&
                   is_due(ctl, latest, current);
        pthread_mutex_unlock(&c->lock);
        /* One after the other: on a slow link two pulls at once would both come too late, and the first one is
         * the delta base of the next. */
        if (policy == WS_POLICY_PULL && ws_version_state(latest) == WS_KNOWN && !ws_model_is_pulling(m))
            ws_version_start(latest, WS_PRIORITY_BACKGROUND);
        job = due ? ws_follow_job_new(c, 1 + WS_MAX_SET_DRAFTS) : NULL;
    }
    if (job)
        ws_follow_job_add(job, ctl, m, latest);
    else if (latest)
        ws_version_put(latest);
    if (current)
        ws_version_put(current);
    if (!job || !ws_set_add_drafts(c, job->items, &job->n)) {
        ws_follow_job_free(job);
        return;
    }
    pthread_mutex_lock(&c->lock);
    ctl->followed_ns = ws_clock_ns();
    pthread_mutex_unlock(&c->lock);
    ws_follow_job_start(job, switch_all);
}

/* Gives the model, now that it is known, the release that a daemon before followed last. Under one lock: what is
 * forgotten later does not come back. */
static void hand_over_inherited(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m)
{
    pthread_mutex_lock(&c->lock);
    if (ctl->inherited_release)
        ws_model_inherit_release(m, ctl->inherited_release, &ctl->inherited, ctl->inherited_quarantine);
    if (ctl->inherited_release && ctl->inherited_quarantine)
        ctl->answered_release = ctl->inherited_release; /* it was tried */
    ctl->inherited_release = 0;
    pthread_mutex_unlock(&c->lock);
}

void ws_follow_forget(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m)
{
    hand_over_inherited(c, ctl, m);
    ws_model_forget_inherited(m);
}

static void check_model(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m)
{
    struct ws_desired o;
    hand_over_inherited(c, ctl, m);
    ws_model_desired(m, &o);
    if (o.released_by)
        resolve_policy(c, ctl);
    if (o.released_by && follows_releases(c, ctl))
        follow_release(c, o.released_by);
    else
        follow_published(c, ctl, m);
}

void ws_follow_check(struct ws_control *c, struct ws_model *m)
{
    struct ws_controller *ctl = ws_controller_get(c, ws_model_name(m));
    if (!ctl || atomic_load(&c->stop))
        return;
    struct ws_controller *targets[WS_MAX_SET_DRAFTS]; /* what was published may be what they wait for */
    check_model(c, ctl, m);
    for (size_t i = 0, n = ws_set_find_targets(c, ctl->name, targets); i < n; i++) {
        struct ws_model *target = ws_store_find(c->store, targets[i]->name);
        if (!target)
            continue;
        check_model(c, targets[i], target);
        ws_model_put(target);
    }
}

void ws_follow_desired(struct ws_control *c, struct ws_model *m)
{
    struct ws_controller *ctl = ws_controller_get(c, ws_model_name(m));
    struct ws_desired o;
    if (!ctl)
        return;
    hand_over_inherited(c, ctl, m);
    ws_model_desired(m, &o);
    pthread_mutex_lock(&c->lock);
    bool asked = o.phase == WS_DESIRED_PREPARING && ws_policy_follows_releases(ctl->policy) &&
                 ctl->preparing_release != o.release;
    struct ws_desired before = ctl->desired;
    if (asked) {
        ctl->preparing_release = o.release;
        ws_backoff_reset(&ctl->follow_backoff);
    }
    ctl->desired = o;
    pthread_mutex_unlock(&c->lock);
    if (asked)
        ws_prepare_start(c, ctl, m, &o.to, o.release);
    if (o.inherited && !before.inherited)
        ws_controller_event(c, ctl, "release-kept model=%s version=%" PRIu64 " run=%s", ctl->name,
                            o.released.version, o.released.lineage);
    for (size_t i = 0; i < o.n_wanted; i++)
        if (!ws_desired_wants(&before, o.wanted[i].id))
            ws_prepare_start(c, ctl, m, &o.wanted[i].version, 0);
    ws_follow_check(c, m);
}

void ws_follow_resume(struct ws_control *c, struct ws_model *m)
{
    struct ws_controller *ctl = ws_controller_get(c, ws_model_name(m));
    if (!ctl)
        return;
    pthread_mutex_lock(&c->lock);
    if (ctl->preparing_release == ctl->prepared_release) /* else the answer is still to come */
        ctl->preparing_release = 0;
    ctl->desired.n_wanted = 0;
    pthread_mutex_unlock(&c->lock);
    ws_follow_desired(c, m);
}

int ws_follow_allows(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                     struct ws_version *v, struct ws_error *err)
{
    struct ws_desired o;
    struct ws_version *latest = ws_model_latest(m);
    struct ws_version_id aim = {0};
    const struct ws_version_id to = ws_version_id(v);
    ws_model_desired(m, &o);
    pthread_mutex_lock(&c->lock);
    const bool by_release = o.released_by && ws_policy_follows_releases(ctl->policy);
    bool undone = by_release || (ws_policy_follows(ctl->policy) && ctl->policy != WS_POLICY_FOLLOW_RELEASED);
    if (!by_release && ctl->follow_every > 1) /* it stays until the next one is far enough ahead */
        undone = false;
    pthread_mutex_unlock(&c->lock);
    if (by_release)
        aim = o.released;
    else if (latest)
        aim = ws_version_id(latest);
    if (latest)
        ws_version_put(latest);
    if (!undone || !aim.lineage[0] || ws_version_id_equal(&aim, &to))
        return 0;
    return ws_error_set(err, EPERM,
                        "%s follows what is %s, %" PRIu64
                        ", and would go back to it at once: %sset the policy to manual "
                        "first",
                        ctl->name, by_release ? "released" : "published", aim.version,
                        by_release ? "release the version you want, or " : "");
}
