#include "fs/switch/follow.h"
#include "fs/engines/job.h"
#include "fs/switch/preflight.h"
#include "fs/switch/presence.h"
#include "fs/switch/settings.h"
#include "fs/switch/switch.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/protocol/source.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_AGAIN_NS 3000000000UL   /* before a version that could not be switched to is tried again */
#define LAST_AGAIN_NS  300000000000UL /* ... and at most */
#define PREPARE_S      86400          /* the agent's deadline is shorter */

/* --- what is to be done, with references of its own --- */

struct errand {
    struct ws_control *control;
    uint64_t release; /* 0: a published version is followed */
    size_t n;
    struct ws_switch_part parts[];
};

static struct errand *errand_new(struct ws_control *c, size_t room)
{
    struct errand *e = calloc(1, sizeof(*e) + room * sizeof(e->parts[0]));
    if (e)
        e->control = c;
    return e;
}

/* Takes the reference of v over. */
static void errand_add(struct errand *e, struct ws_desk *d, struct ws_model *m, struct ws_version *v)
{
    e->parts[e->n++] = (struct ws_switch_part){.desk = d, .model = ws_model_get(m), .version = v};
}

static void errand_free(struct errand *e)
{
    for (size_t i = 0; e && i < e->n; i++) {
        ws_version_put(e->parts[i].version);
        ws_model_put(e->parts[i].model);
    }
    free(e);
}

static void start(struct errand *e, void (*fn)(void *errand))
{
    if (e->n == 0 || ws_job_start(e->control, fn, e) < 0)
        errand_free(e);
}

static struct ws_version *find(struct ws_model *m, const struct ws_mark *to, struct ws_error *err)
{
    char name[WS_MAX_NAME + 1];
    snprintf(name, sizeof(name), "%" PRIu64, to->version);
    struct ws_version *v = ws_version_find(m, name, err);
    if (v && strcmp(ws_version_run(v), to->run) != 0) {
        ws_version_put(v);
        v = NULL;
    }
    if (!v) {
        snprintf(name, sizeof(name), "%" PRIu64 "@%s", to->version, to->run);
        v = ws_version_find(m, name, err);
    }
    return v;
}

static bool is_policy(struct ws_control *c, const struct ws_desk *d, enum ws_policy policy)
{
    pthread_mutex_lock(&c->lock);
    bool is = d->policy == policy;
    pthread_mutex_unlock(&c->lock);
    return is;
}

/* --- switching --- */

/* What following has come to the end of, well or not, is not begun again by itself. */
static void note_done(struct ws_control *c, const struct ws_switch_part *p, uint64_t release)
{
    pthread_mutex_lock(&c->lock);
    p->desk->refused_id = ws_version_id(p->version);
    p->desk->refused_by = release;
    pthread_mutex_unlock(&c->lock);
}

/* The keeper looks again. What was released is tried again until it is served, more and more seldom. */
static void note_later(struct ws_control *c, const struct ws_switch_part *p)
{
    pthread_mutex_lock(&c->lock);
    uint64_t wait = p->desk->again_ns ? p->desk->again_ns * 2 : FIRST_AGAIN_NS;
    p->desk->again_ns = wait < LAST_AGAIN_NS ? wait : LAST_AGAIN_NS;
    p->desk->not_before_ns = ws_clock_ns() + p->desk->again_ns;
    pthread_mutex_unlock(&c->lock);
}

/* It has come to an end with that release, which the next daemon, too, goes on from. */
static void answer(struct ws_control *c, struct ws_desk *d, struct ws_model *m, uint64_t release)
{
    ws_standing_answer(c, d, m, release);
    ws_settings_save(c);
}

static int muster_all(struct errand *e, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < e->n; i++)
        rc = ws_muster(e->control, e->parts[i].desk, err);
    return rc;
}

static bool is_external(struct ws_control *c, const struct errand *e)
{
    bool external = false;
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < e->n; i++)
        external = external || ws_desk_is_external(e->parts[i].desk);
    pthread_mutex_unlock(&c->lock);
    return external;
}

/* Engines that their framework drives: the version is made ready for it. */
static int stage_all(struct errand *e, const struct ws_switch_options *o, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < e->n; i++) {
        const struct ws_switch_part *p = &e->parts[i];
        rc = ws_switch_prepare(e->control, p, o, err);
        if (rc == 0) {
            note_done(e->control, p, e->release);
            ws_desk_event(e->control, p->desk, "staged model=%s version=%" PRIu64, p->desk->name,
                          ws_version_number(p->version));
        }
    }
    return rc;
}

/* Has it only not come yet? With the source that is away nothing is wrong with it. */
static bool may_come(int rc, const struct errand *e)
{
    for (size_t i = 0; ws_source_is_away(rc) && i < e->n; i++) {
        struct ws_version_info info;
        ws_version_info(e->parts[i].version, &info);
        if (info.at_source && (info.state == WS_FAILED || info.state == WS_PULLING))
            return true;
    }
    return false;
}

static void switch_all(void *arg)
{
    struct errand *e = arg;
    struct ws_control *c = e->control;
    const struct ws_switch_options o = {0};
    struct ws_error err = {0};
    int rc = e->release ? muster_all(e, &err) : 0;
    if (rc == 0)
        rc = is_external(c, e) ? stage_all(e, &o, &err) : ws_switch_run(c, e->parts, e->n, &o, &err);
    for (size_t i = 0; rc < 0 && rc != -EBUSY && i < e->n; i++) {
        const struct ws_switch_part *p = &e->parts[i];
        const struct ws_mark to = ws_version_mark(p->version);
        if (may_come(rc, e) || (e->release && rc != -EPROTO))
            note_later(c, p);
        else
            note_done(c, p, e->release);
        (void)ws_desk_fail(c, p->desk, "follow", &err);
        ws_standing_report(c, p->desk, p->model, &to, "failed", err.text);
        if (e->release)
            answer(c, p->desk, p->model, e->release);
    }
    for (size_t i = 0; i < e->n; i++) /* a version may have come meanwhile */
        ws_follow_look(c, e->parts[i].model);
    errand_free(e);
}

struct gather {
    struct ws_control *control;
    struct errand *errand;
    bool busy; /* one of its models is switching: all of them later */
};

/* Is it current in a moment, since the settings say so? Under the control's lock. */
static bool is_coming_back(const struct ws_desk *d, const struct ws_version *v)
{
    const struct ws_mark mark = ws_version_mark(v);
    return ws_mark_is(&d->wanted, &mark);
}

/* Once: the daemon that held it was killed, or this mount came too late. */
static void tell_of_missing(struct ws_control *c, struct ws_desk *d, struct ws_model *m,
                            const struct ws_orders *o)
{
    struct ws_error err;
    pthread_mutex_lock(&c->lock);
    bool told = d->missed_by == o->released_by;
    d->missed_by = o->released_by;
    pthread_mutex_unlock(&c->lock);
    if (told)
        return;
    ws_error_set(&err, ESTALE,
                 "version %" PRIu64
                 " of %s, which was released last, is neither here nor at a source any more: release "
                 "a newer one%s",
                 o->released.version, d->name,
                 o->kept ? ", or set the policy to manual and then to follow for what is published" : "");
    (void)ws_desk_fail(c, d, "follow", &err);
    ws_standing_report(c, d, m, &o->released, "failed", err.text);
    answer(c, d, m, o->released_by);
}

/* A model that the release names, when it is followed and is not there yet. Where nothing is to be done, or
 * no more, that is said once: an agent cannot see whether the mount has heard of the release. */
static void add_released(void *arg, struct ws_model *m)
{
    struct gather *g = arg;
    struct ws_orders o;
    struct ws_desk *d = ws_desk_of(g->control, ws_model_name(m));
    ws_model_orders(m, &o);
    if (!d || o.released_by != g->errand->release || !is_policy(g->control, d, WS_POLICY_FOLLOW))
        return;
    struct ws_version *v = find(m, &o.released, NULL);
    pthread_mutex_lock(&g->control->lock);
    const uint64_t turns = d->turns;
    pthread_mutex_unlock(&g->control->lock);
    struct ws_version *current = ws_model_current(m);
    pthread_mutex_lock(&g->control->lock);
    bool refused = v && d->refused_id == ws_version_id(v) && d->refused_by == g->errand->release;
    refused = refused || (v && is_coming_back(d, v));
    g->busy = g->busy || d->switching || ws_clock_ns() < d->not_before_ns;
    bool served = v && v == current && !d->switching && ws_desk_is_settled(d) && d->turns == turns &&
                  d->answered_by != o.released_by;
    pthread_mutex_unlock(&g->control->lock);
    if (!v)
        tell_of_missing(g->control, d, m, &o);
    if (served)
        answer(g->control, d, m, o.released_by);
    if (v && v != current && !refused)
        errand_add(g->errand, d, m, v);
    else if (v)
        ws_version_put(v);
    if (current)
        ws_version_put(current);
}

static void follow_release(struct ws_control *c, uint64_t release)
{
    struct errand *e = errand_new(c, WS_MAX_MODELS);
    if (!e)
        return;
    e->release = release;
    struct gather g = {.control = c, .errand = e};
    ws_store_each(c->store, add_released, &g);
    if (g.busy)
        errand_free(e);
    else
        start(e, switch_all);
}

/* Is a published version far enough ahead, and the last switch long enough ago? Under the control's lock. */
static bool is_due(const struct ws_desk *d, const struct ws_version *latest, const struct ws_version *current)
{
    if (d->switching || ws_clock_ns() < d->not_before_ns || d->refused_id == ws_version_id(latest) ||
        is_coming_back(d, latest))
        return false;
    if (!current || strcmp(ws_version_run(latest), ws_version_run(current)) != 0)
        return true;
    if (d->follow_interval_s &&
        ws_clock_ns() - d->followed_ns < (uint64_t)d->follow_interval_s * WS_SECOND_NS)
        return false;
    return ws_version_number(latest) >= ws_version_number(current) + d->follow_every;
}

static void follow_published(struct ws_control *c, struct ws_desk *d, struct ws_model *m)
{
    struct ws_version *latest = ws_model_latest(m), *current = latest ? ws_model_current(m) : NULL;
    struct errand *e = NULL;
    if (latest && latest != current) {
        pthread_mutex_lock(&c->lock);
        enum ws_policy policy = d->policy;
        bool due = policy == WS_POLICY_FOLLOW && is_due(d, latest, current);
        if (due)
            d->followed_ns = ws_clock_ns();
        pthread_mutex_unlock(&c->lock);
        /* One after the other: on a slow link two at once would both come too late; what the first leaves is
         * the base of the next. */
        if (policy == WS_POLICY_PULL && ws_version_state(latest) == WS_KNOWN && !ws_model_is_pulling(m))
            ws_version_start(latest, WS_PRIORITY_BACKGROUND);
        e = due ? errand_new(c, 1) : NULL;
    }
    if (e)
        errand_add(e, d, m, latest);
    else if (latest)
        ws_version_put(latest);
    if (current)
        ws_version_put(current);
    if (e)
        start(e, switch_all);
}

/* What a daemon before followed last is the model's, now that it is known. In one go: what is forgotten later
 * does not come back. */
static void hand_over_kept(struct ws_control *c, struct ws_desk *d, struct ws_model *m)
{
    pthread_mutex_lock(&c->lock);
    if (d->kept_by)
        ws_model_keep_released(m, d->kept_by, &d->kept);
    d->kept_by = 0;
    pthread_mutex_unlock(&c->lock);
}

void ws_follow_forget(struct ws_control *c, struct ws_desk *d, struct ws_model *m)
{
    hand_over_kept(c, d, m);
    ws_model_forget_kept(m);
}

void ws_follow_look(struct ws_control *c, struct ws_model *m)
{
    struct ws_desk *d = ws_desk_of(c, ws_model_name(m));
    struct ws_orders o;
    if (!d || atomic_load(&c->stop))
        return;
    hand_over_kept(c, d, m);
    ws_model_orders(m, &o);
    if (o.released_by && is_policy(c, d, WS_POLICY_FOLLOW))
        follow_release(c, o.released_by);
    else
        follow_published(c, d, m);
}

/* --- the first phase of a release, and what other mounts' engines need --- */

static void note_prepared(struct ws_control *c, struct ws_desk *d, uint64_t release)
{
    pthread_mutex_lock(&c->lock);
    d->prepared_by = release;
    pthread_mutex_unlock(&c->lock);
}

static int prepare_release(struct ws_control *c, const struct ws_switch_part *p,
                           const struct ws_switch_options *o, struct ws_error *err)
{
    int rc = ws_muster(c, p->desk, err);
    return rc < 0 ? rc : ws_switch_prepare(c, p, o, err);
}

static void prepare(void *arg)
{
    struct errand *e = arg;
    struct ws_control *c = e->control;
    const struct ws_switch_part *p = &e->parts[0];
    const struct ws_switch_options o = {.deadline_s = PREPARE_S};
    struct ws_error err = {0};
    int rc = e->release ? prepare_release(c, p, &o, &err)
                        : ws_pull_and_wait(c, p->version, WS_PRIORITY_SWITCH, &o, &err);
    if (rc < 0)
        (void)ws_desk_fail(c, p->desk, e->release ? "prepare a release" : "fetch for another mount", &err);
    ws_desk_event(c, p->desk, "%s model=%s version=%" PRIu64 " result=%s",
                  e->release ? "prepared" : "fetched", p->desk->name, ws_version_number(p->version),
                  rc < 0 ? ws_errno_name(-rc) : "ok");
    const struct ws_mark to = ws_version_mark(p->version);
    if (e->release)
        note_prepared(c, p->desk, e->release);
    ws_standing_report(c, p->desk, p->model, &to,
                       rc < 0       ? "failed"
                       : e->release ? "prepared"
                                    : "fetched",
                       rc < 0 ? err.text : NULL);
    errand_free(e);
}

static void start_preparing(struct ws_control *c, struct ws_desk *d, struct ws_model *m,
                            const struct ws_mark *to, uint64_t release)
{
    struct ws_error err = {0};
    struct ws_version *v = find(m, to, &err);
    struct errand *e = v ? errand_new(c, 1) : NULL;
    if (e) {
        e->release = release;
        errand_add(e, d, m, v);
        start(e, prepare);
    } else if (v) {
        ws_version_put(v);
    } else { /* it went before we heard of it: nobody should wait for us */
        if (release)
            note_prepared(c, d, release);
        ws_standing_report(c, d, m, to, "failed", err.text);
    }
}

void ws_follow_orders(struct ws_control *c, struct ws_model *m)
{
    struct ws_desk *d = ws_desk_of(c, ws_model_name(m));
    struct ws_orders o;
    if (!d)
        return;
    hand_over_kept(c, d, m);
    ws_model_orders(m, &o);
    pthread_mutex_lock(&c->lock);
    bool asked = o.phase == WS_ORDER_PREPARING && d->policy == WS_POLICY_FOLLOW && d->asked_by != o.release;
    struct ws_orders before = d->orders;
    if (asked) {
        d->asked_by = o.release;
        d->not_before_ns = d->again_ns = 0;
    }
    d->orders = o;
    pthread_mutex_unlock(&c->lock);
    if (asked)
        start_preparing(c, d, m, &o.to, o.release);
    if (o.kept && !before.kept)
        ws_desk_event(c, d, "release-kept model=%s version=%" PRIu64 " run=%s", d->name, o.released.version,
                      o.released.run);
    for (size_t i = 0; i < o.n_wanted; i++)
        if (!ws_orders_want(&before, o.wanted[i].id))
            start_preparing(c, d, m, &o.wanted[i].version, 0);
    ws_follow_look(c, m);
}

void ws_follow_again(struct ws_control *c, struct ws_model *m)
{
    struct ws_desk *d = ws_desk_of(c, ws_model_name(m));
    if (!d)
        return;
    pthread_mutex_lock(&c->lock);
    if (d->asked_by == d->prepared_by) /* else the answer is still to come */
        d->asked_by = 0;
    d->orders.n_wanted = 0;
    pthread_mutex_unlock(&c->lock);
    ws_follow_orders(c, m);
}

int ws_follow_allows(struct ws_control *c, struct ws_desk *d, struct ws_model *m, struct ws_version *v,
                     struct ws_error *err)
{
    struct ws_orders o;
    struct ws_version *latest = ws_model_latest(m);
    struct ws_mark aim = {0};
    const struct ws_mark to = ws_version_mark(v);
    ws_model_orders(m, &o);
    pthread_mutex_lock(&c->lock);
    bool undone = d->policy == WS_POLICY_FOLLOW;
    if (!o.released_by && d->follow_every > 1) /* it stays until the next one is far enough ahead */
        undone = false;
    pthread_mutex_unlock(&c->lock);
    if (o.released_by)
        aim = o.released;
    else if (latest)
        aim = ws_version_mark(latest);
    if (latest)
        ws_version_put(latest);
    if (!undone || !aim.run[0] || ws_mark_is(&aim, &to))
        return 0;
    return ws_error_set(err, EPERM,
                        "%s follows what is %s, %" PRIu64
                        ", and would go back to it at once: %sset the policy to manual "
                        "first",
                        d->name, o.released_by ? "released" : "published", aim.version,
                        o.released_by ? "release the version you want, or " : "");
}
