#include "fs/switch/drift.h"
#include "backends/engine/patch.h"
#include "fs/engines/job.h"
#include "fs/switch/reconcile.h"
#include "fs/switch/settings.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <stdlib.h>

#define IS_RUNNING UINT64_MAX /* of verify_at_ns */
#define DRIFTED    "drift"    /* the matter of an engine that holds something else */

struct comparison {
    struct ws_control *control;
    struct ws_controller *controller;
    struct ws_engine **engine; /* one, held */
    uint64_t generation;       /* of the controller: a switch that came meanwhile makes the answer old */
};

/* Under the lock. */
static bool is_due(const struct ws_controller *ctl, struct ws_engine *e)
{
    struct ws_patching *p = &e->patching;
    const uint64_t now = ws_clock_ns();
    if (!p->verify_s || !e->ops->patch || !(e->facts.patches || p->update == WS_UPDATE_PATCH) ||
        ctl->switching || e->removed || e->condition.state != WS_ENGINE_SERVING ||
        ws_condition_is_uncertain(&e->condition))
        return false;
    if (p->verify_at_ns == 0)
        p->verify_at_ns = now + p->verify_s * WS_SECOND_NS;
    return p->verify_at_ns <= now;
}

static void alarm_of(const struct comparison *x, const char *why)
{
    const struct ws_engine *e = x->engine[0];
    char text[WS_ERROR_TEXT];
    struct ws_error err;
    ws_controller_event(x->control, x->controller, "drifted model=%s engine=%s why=\"%.300s\"",
                        x->controller->name, e->name, ws_controller_quotable(why, text));
    ws_error_set(&err, EILSEQ,
                 "engine %s (%s) holds weights that are not those of the version that it serves: %.500s; it "
                 "loads the whole version now",
                 e->name, e->url, why);
    (void)ws_controller_fail(x->control, x->controller, DRIFTED, &err);
    ws_settings_save(x->control);
    ws_reconciler_wake(x->control->reconciler);
}

static void end(struct comparison *x)
{
    ws_engine_put_all(x->control, x->engine, 1);
    free(x);
}

static void compare(void *arg)
{
    struct comparison *x = arg;
    struct ws_control *c = x->control;
    struct ws_engine *e = x->engine[0];
    const struct ws_engine_patch q = {.stage = WS_PATCH_VERIFY};
    struct ws_engine_patch_reply reply = {0};
    struct ws_engine_call call;
    ws_engine_call_init(e, c, &call);
    const int rc = e->ops->patch(&call.target, &q, &reply, NULL);
    pthread_mutex_lock(&c->lock);
    struct ws_patching *p = &e->patching;
    bool drifted = false;
    if (p->verify_at_ns == IS_RUNNING) /* else a version has come */
        p->verify_at_ns = ws_clock_ns() + p->verify_s * WS_SECOND_NS;
    if (rc == 0 && !x->controller->switching && x->controller->generation == x->generation) {
        drifted = reply.differs && ws_condition_drifted(&e->condition, reply.why);
        p->verified += reply.ok;
        p->drifted += drifted;
    }
    pthread_mutex_unlock(&c->lock);
    if (drifted)
        alarm_of(x, reply.why);
    end(x);
}

static void begin(struct ws_control *c, struct ws_controller *ctl, struct ws_engine *e)
{
    struct comparison *x = malloc(sizeof(*x));
    if (!x)
        return;
    *x = (struct comparison){.control = c, .controller = ctl, .engine = malloc(sizeof(struct ws_engine *))};
    pthread_mutex_lock(&c->lock);
    const bool due = x->engine && is_due(ctl, e);
    if (due) {
        x->engine[0] = e;
        x->generation = ctl->generation;
        e->refs++;
        e->patching.verify_at_ns = IS_RUNNING;
    }
    pthread_mutex_unlock(&c->lock);
    if (!due) {
        free(x->engine);
        free(x);
    } else if (ws_job_start(c, compare, x) < 0) {
        pthread_mutex_lock(&c->lock);
        e->patching.verify_at_ns = 0;
        pthread_mutex_unlock(&c->lock);
        end(x);
    }
}

void ws_drift_look(struct ws_control *c, struct ws_controller *ctl, struct ws_engine *const *engines,
                   const bool *runs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (runs[i] && engines[i]->patching.verify_s)
            begin(c, ctl, engines[i]);
}
