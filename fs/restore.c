#include "fs/restore.h"
#include "fs/follow.h"
#include "fs/job.h"
#include "fs/keeper.h"
#include "fs/settings.h"
#include "fs/standing.h"
#include "fs/switch.h"
#include "transports/log.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PULL_S 86400

static void restore_engine(void *arg, struct ws_desk *d, const char *line)
{
    struct ws_control *c = arg;
    struct ws_error err;
    struct ws_command *q = calloc(1, sizeof(*q));
    if (!q || ws_command_parse(WS_SCOPE_MODEL, line, strlen(line), q, &err) < 0 ||
        q->verb != WS_VERB_ENGINE_ADD || ws_engine_add(c, d, q, line, false, &err) < 0)
        ws_log(WS_LOG_WARN, "control", "an engine could not be brought back: %s: %s", line,
               q ? err.text : "no memory");
    free(q);
}

void ws_restore_settings(struct ws_control *c)
{
    struct ws_error why;
    atomic_store(&c->restoring, true);
    if (ws_settings_load(c, restore_engine, c, &why) < 0)
        (void)ws_desk_fail(c, &c->root, "read the settings", &why);
    for (struct ws_desk *d = c->desks; d; d = d->next)
        for (struct ws_engine *e = d->engines; e; e = e->next)
            e->doubted = e->doubted || d->touching;
    atomic_store(&c->restoring, false);
}

struct current {
    struct ws_control *control;
    struct ws_desk *desk;
    struct ws_model *model; /* references */
    struct ws_version *version;
};

static void make_current(void *arg)
{
    struct current *w = arg;
    struct ws_control *c = w->control;
    struct ws_error err = {0};
    struct ws_version *current = ws_model_current(w->model);
    const struct ws_switch_options o = {.deadline_s = PULL_S};
    int rc = ws_pull_and_wait(c, w->version, WS_PRIORITY_SWITCH, &o, &err);
    if (rc == 0 && !current) {
        ws_model_set_current(w->model, w->version);
        ws_desk_event(c, w->desk, "restored model=%s version=%" PRIu64, w->desk->name,
                      ws_version_number(w->version));
    } else if (rc < 0) {
        (void)ws_desk_fail(c, w->desk, "restore the current version", &err);
    }
    pthread_mutex_lock(&c->lock);
    w->desk->wanted.run[0] = 0;
    pthread_mutex_unlock(&c->lock);
    if (rc == 0 && !current) {
        ws_settings_save(c);
        ws_standing_tell(c, w->desk, w->model);
        ws_keeper_wake(c->keeper);
    }
    ws_follow_look(c, w->model);
    if (current)
        ws_version_put(current);
    ws_version_put(w->version);
    ws_model_put(w->model);
    free(w);
}

void ws_restore_version(struct ws_control *c, struct ws_desk *d, struct ws_model *m, struct ws_version *v)
{
    const struct ws_mark mark = ws_version_mark(v);
    struct ws_error err;
    bool pin = false;
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < d->n_pins; i++) {
        if (ws_mark_is(&d->pins[i], &mark)) {
            d->pins[i--] = d->pins[--d->n_pins];
            pin = true;
        }
    }
    /* a wish until it is fulfilled: the daemon may end before */
    bool current = ws_mark_is(&d->wanted, &mark);
    pthread_mutex_unlock(&c->lock);
    if (pin && ws_version_pin(v, true, &err) < 0)
        ws_log(WS_LOG_WARN, "control", "%s", err.text);
    struct current *w = current ? malloc(sizeof(*w)) : NULL;
    if (!w)
        return;
    *w = (struct current){c, d, ws_model_get(m), ws_version_get(v)};
    if (ws_job_start(c, make_current, w) < 0) {
        ws_version_put(v);
        ws_model_put(m);
        free(w);
    }
}
