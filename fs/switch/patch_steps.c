#include "fs/switch/patch_steps.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include "transports/base/workers.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define DROP_MS 5000 /* the switch is over but for this */

static int refuse(struct ws_switch_engine *se, const char *why)
{
    snprintf(se->patch.why, sizeof(se->patch.why), "%s", why);
    return 0;
}

bool ws_patch_step_is_due(const struct ws_switch_engine *se)
{
    return !se->lost && se->target && se->engine->ops->patch &&
           se->engine->patching.update != WS_UPDATE_WHOLE;
}

/* --- what it goes from --- */

/* Is it "41@RUN"? */
static bool is_version_id(const char *text)
{
    const char *at = text + strspn(text, "0123456789");
    return at > text && at[0] == '@' && at[1];
}

/* The version of "41@RUN", by its identity: the name 41 may be another run's. NULL: it is none, or not known here. */
static struct ws_version *find_version(struct ws_model *m, const char *text)
{
    char *end = NULL;
    errno = 0;
    const unsigned long long number = strtoull(text, &end, 10);
    return is_version_id(text) && !errno ? ws_version_at(m, number, end + 1) : NULL;
}

/* What it holds: what it reports, or, where that is no version of this mount, as after a start or a load by hand, what its workers
 * say. */
static struct ws_version *find_held(const struct ws_switch_engine *se,
                                    const struct ws_engine_patch_served *served)
{
    const char *reported = se->patch.reported;
    return find_version(se->target->model, is_version_id(reported) ? reported : served->version);
}

/* Holds the base, and writes down where the engine sees it. NULL: done; else why not. */
static const char *hold_base(struct ws_switch_engine *se, const struct ws_engine_patch_served *served)
{
    struct ws_switch_patch *p = &se->patch;
    struct ws_version *v = find_held(se, served);
    const char *why = NULL;
    if (!v)
        return "what it serves is no version that is known here";
    if (v == se->target->version)
        why = "it serves this version already";
    else if (!ws_version_is_complete(v) &&
             !ws_model_has_one_copy(se->target->model)) /* its changes are kept */
        why = "the version that it serves is not here any more";
    else if (ws_version_begin_switch(v, NULL) < 0)
        why = "the version that it serves was dropped";
    if (why) {
        ws_version_put(v);
        return why;
    }
    const struct ws_version_id id = ws_version_id(v);
    const struct ws_manifest *m = ws_version_has_manifest(v) ? ws_version_manifest(v, NULL) : NULL;
    p->base = v;
    ws_version_id_text(&id, p->base_served.version);
    snprintf(p->base_served.digest, sizeof(p->base_served.digest), "%s", m ? m->digest : "");
    snprintf(p->base_path, sizeof(p->base_path), "%s/%s/%s", ws_engine_step_mountpoint(se),
             ws_model_name(se->target->model), p->base_served.version);
    return NULL;
}

/* By the digest: of a run that began anew a name is another version's. Where one of both is not known, they do not. */
static bool holds_base(const struct ws_switch_engine *se, const struct ws_engine_patch_served *served)
{
    const struct ws_engine_patch_served *base = &se->patch.base_served;
    return base->digest[0] && strcmp(base->version, served->version) == 0 &&
           strcmp(base->digest, served->digest) == 0;
}

/* --- stages --- */

static int ask(struct ws_switch_engine *se, const struct ws_engine_target *t,
               enum ws_engine_patch_stage stage, const char *plan, struct ws_engine_patch_reply *reply,
               struct ws_error *err)
{
    const struct ws_engine_patch q = {.stage = stage,
                                      .plan = plan,
                                      .target = se->to_path,
                                      .base = se->patch.base_path,
                                      .version = se->to_version_id,
                                      .path = se->to_path};
    *reply = (struct ws_engine_patch_reply){0};
    return se->engine->ops->patch(t, &q, reply, err);
}

/* It said that the package is there, and its workers do not know patches: it is not asked again before it is probed. */
static void forget_that_it_patches(struct ws_switch_engine *se)
{
    (void)ws_engine_step_lock(se);
    se->engine->facts.patches = false;
    ws_engine_step_unlock(se);
}

/* Can it, and does it hold what the mount takes it for? A plan that a daemon before has left is dropped. NULL: yes. */
static const char *check_state(struct ws_switch_engine *se, const struct ws_engine_target *t,
                               struct ws_engine_patch_reply *reply, struct ws_error *err)
{
    struct ws_engine_patch_reply dropped;
    const int rc = ask(se, t, WS_PATCH_STATE, NULL, reply, err);
    if (rc == -EPROTO)
        forget_that_it_patches(se);
    if (rc < 0)
        return err->text;
    if (reply->plan[0])
        (void)ask(se, t, WS_PATCH_DROP, reply->plan, &dropped, NULL);
    if (reply->plan[0] && reply->put)
        return "a patch of an earlier switch was left in it";
    if (!reply->ok)
        return reply->why;
    const char *why = hold_base(se, &reply->served);
    if (why)
        return why;
    if (!reply->served.version[0])
        return "its workers do not say which version they hold";
    return holds_base(se, &reply->served) ? NULL : "its workers hold another version than it reports";
}

static const char *prepare(struct ws_switch_engine *se, const struct ws_engine_target *t,
                           struct ws_engine_patch_reply *reply, struct ws_error *err)
{
    struct ws_switch_patch *p = &se->patch;
    const char *why = check_state(se, t, reply, err);
    if (why)
        return why;
    if (ws_text_random(p->plan, WS_PATCH_PLAN_DIGITS / 2) < 0) {
        p->plan[0] = 0;
        return "no random name for its plan";
    }
    if (ask(se, t, WS_PATCH_PREPARE, p->plan, reply, err) < 0)
        return err->text;
    if (!reply->ok)
        return reply->why;
    p->workers = reply->workers;
    return NULL;
}

static void post_prepared(struct ws_switch_engine *se, const struct ws_engine_patch_reply *reply,
                          uint64_t start_ns, const char *why)
{
    char text[WS_ERROR_TEXT], whole[WS_ERROR_TEXT];
    ws_controller_event(se->run->control, se->controller,
                        "patch-prepared model=%s version=%s base=%s engine=%s seconds=%.3f changed=%" PRIu64
                        " bytes=%" PRIu64 "%s%s%s result=%s%s%.300s%s",
                        se->controller->name, se->to_version,
                        se->patch.base ? se->patch.base_served.version : "none", se->engine->name,
                        (double)(ws_clock_ns() - start_ns) * 1e-9, reply->changed, reply->bytes,
                        reply->whole[0] ? " whole=\"" : "", ws_controller_quotable(reply->whole, whole),
                        reply->whole[0] ? "\"" : "", why ? "whole" : "ok", why ? " why=\"" : "",
                        why ? ws_controller_quotable(why, text) : "", why ? "\"" : "");
}

int ws_patch_step_prepare(struct ws_switch_engine *se)
{
    const uint64_t start = ws_clock_ns();
    struct ws_engine_patch_reply reply = {0};
    struct ws_engine_call call;
    struct ws_error err = {0};
    const struct ws_condition *c = ws_engine_step_lock(se);
    const bool says = se->engine->facts.patches, asked_for = se->engine->patching.update == WS_UPDATE_PATCH,
               may = ws_condition_may_be_patched(c);
    snprintf(se->patch.reported, sizeof(se->patch.reported), "%s", c->back_version);
    ws_engine_step_unlock(se);
    se->patch.tried = says || asked_for;
    if (!se->patch.tried)
        return 0;
    if (se->run->loads_whole)
        return refuse(se, "it is brought along");
    if (!may)
        return refuse(se, "it sleeps, or an earlier switch has left it in doubt");
    ws_engine_step_call(se, false, &call);
    const char *why = prepare(se, &call.target, &reply, &err);
    if (why)
        (void)refuse(se, why);
    post_prepared(se, &reply, start, why);
    return 0;
}

static void count(struct ws_switch_engine *se, const char *why)
{
    (void)ws_engine_step_lock(se);
    if (why)
        ws_patching_whole(&se->engine->patching, why);
    else
        ws_patching_patched(&se->engine->patching);
    ws_engine_step_unlock(se);
}

bool ws_patch_step_put(struct ws_switch_engine *se, int *rc)
{
    struct ws_switch_patch *p = &se->patch;
    const struct ws_engine_patch q = {
        .stage = WS_PATCH_PUT, .plan = p->plan, .version = se->to_version_id, .path = se->to_path};
    struct ws_engine_call call;
    struct ws_error err = {0};
    double seconds = 0;
    if (p->workers == 0)
        return false;
    ws_engine_step_call(se, false, &call);
    const bool begins = ws_condition_load_begins(ws_engine_step_lock(se), se->to_version_id);
    ws_engine_step_unlock(se);
    assert(begins); /* it was paused before */
    const enum ws_engine_patch_outcome o =
        ws_engine_patch_put(se->engine->ops, &call.target, &q, p->workers, &seconds, &err);
    ws_condition_load_ended(ws_engine_step_lock(se), se->to_path, o != WS_PATCH_NOTHING, o == WS_PATCH_DONE);
    ws_engine_step_unlock(se);
    if (o == WS_PATCH_NOTHING) {
        (void)refuse(se, err.text);
        return false;
    }
    p->put = true;
    snprintf(p->how, sizeof(p->how), "how=patch put=%.4f", seconds);
    *rc = o == WS_PATCH_DONE ? 0 : -(err.code ? err.code : EREMOTEIO);
    if (*rc < 0)
        se->err = err;
    else
        count(se, NULL);
    return true;
}

void ws_patch_step_whole(struct ws_switch_engine *se, int rc)
{
    struct ws_switch_patch *p = &se->patch;
    char text[WS_ERROR_TEXT];
    if (!p->tried)
        return;
    snprintf(p->how, sizeof(p->how), "how=whole why_whole=\"%.300s\"", ws_controller_quotable(p->why, text));
    if (rc < 0)
        return;
    count(se, p->why);
    if (se->engine->patching.update == WS_UPDATE_PATCH)
        ws_log(WS_LOG_WARN, "control",
               "engine %s of %s loaded the whole version %s, and was to be patched: %s", se->engine->name,
               se->controller->name, se->to_version, p->why);
}

/* A put that was given up may still be on its way, and be done after the undo: with the plan gone none can be. Then what
 * it holds is asked for. NULL: it is the version before. */
static const char *close_undone(struct ws_switch_engine *se, const struct ws_engine_target *t,
                                struct ws_error *err)
{
    struct ws_switch_patch *p = &se->patch;
    struct ws_engine_patch_reply reply;
    if (ask(se, t, WS_PATCH_DROP, p->plan, &reply, err) < 0)
        return err->text;
    p->plan[0] = 0;
    if (ask(se, t, WS_PATCH_STATE, NULL, &reply, err) < 0)
        return err->text;
    return holds_base(se, &reply.served) ? NULL
                                         : "after the undo its workers do not say that they hold the base";
}

bool ws_patch_step_undo(struct ws_switch_engine *se)
{
    struct ws_switch_patch *p = &se->patch;
    const char *reported = p->reported[0] ? p->reported : "default";
    const struct ws_engine_patch q = {
        .stage = WS_PATCH_UNDO, .plan = p->plan, .version = reported, .path = p->base_path};
    struct ws_engine_call call;
    struct ws_error err = {0};
    char why[WS_ERROR_TEXT];
    if (!p->put || !p->plan[0])
        return false;
    ws_engine_step_call(se, true, &call);
    const bool begins = ws_condition_load_begins(ws_engine_step_lock(se), reported);
    ws_engine_step_unlock(se);
    assert(begins);
    const char *not_done =
        ws_engine_patch_undo(se->engine->ops, &call.target, &q, p->workers, &err) == WS_PATCH_DONE
            ? close_undone(se, &call.target, &err)
            : err.text;
    const bool done = !not_done;
    struct ws_condition *c = ws_engine_step_lock(se);
    ws_condition_load_ended(c, p->base_path, true, done);
    se->engine->patching.undone += done;
    ws_engine_step_unlock(se);
    if (done)
        snprintf(p->how, sizeof(p->how), "how=undo");
    else
        snprintf(p->how, sizeof(p->how), "how=whole why_whole=\"%.300s\"",
                 ws_controller_quotable(not_done, why));
    return done;
}

/* --- at the end --- */

/* Its workers may have the plan yet, and memory for it. */
static void leave(struct ws_switch_engine *se)
{
    (void)ws_engine_step_lock(se);
    snprintf(se->engine->patching.left_plan, sizeof(se->engine->patching.left_plan), "%s", se->patch.plan);
    ws_engine_step_unlock(se);
}

static void drop(void *arg, size_t i)
{
    struct ws_switch_engine *se = ((struct ws_switch_engine **)arg)[i];
    struct ws_engine_patch_reply reply;
    struct ws_engine_call call;
    ws_engine_step_call(se, true, &call);
    ws_engine_call_limit(&call, DROP_MS);
    call.target.short_ms = 0;
    const int rc = ask(se, &call.target, WS_PATCH_DROP, se->patch.plan, &reply, NULL);
    if (rc < 0 && rc != -EPROTO)
        leave(se);
}

void ws_patch_step_drop_left(struct ws_control *c, struct ws_engine *e, const struct ws_engine_target *t)
{
    char plan[WS_PATCH_PLAN_DIGITS + 1];
    struct ws_engine_patch_reply reply;
    pthread_mutex_lock(&c->lock);
    const bool has_workers = e->facts.patches || e->patching.update == WS_UPDATE_PATCH;
    snprintf(plan, sizeof(plan), "%s", e->condition.in_switch ? "" : e->patching.left_plan);
    pthread_mutex_unlock(&c->lock);
    if (!plan[0])
        return;
    const struct ws_engine_patch q = {.stage = WS_PATCH_DROP, .plan = plan};
    const int rc = has_workers ? e->ops->patch(t, &q, &reply, NULL) : 0;
    pthread_mutex_lock(&c->lock);
    if ((rc == 0 || rc == -EPROTO) && strcmp(plan, e->patching.left_plan) == 0)
        e->patching.left_plan[0] = 0;
    pthread_mutex_unlock(&c->lock);
}

void ws_patch_steps_end(struct ws_switch_run *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++)
        if (r->engines[i].patch.plan[0])
            r->selected[n++] = &r->engines[i];
    ws_workers_run_at_once(drop, r->selected, n);
    for (size_t i = 0; i < r->n; i++) {
        struct ws_switch_patch *p = &r->engines[i].patch;
        p->plan[0] = 0;
        if (!p->base)
            continue;
        ws_version_end_switch(p->base);
        ws_version_put(p->base);
        p->base = NULL;
    }
}
