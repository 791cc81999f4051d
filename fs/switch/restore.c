#include "fs/switch/restore.h"
#include "fs/engines/job.h"
#include "fs/switch/follow.h"
#include "fs/switch/kept.h"
#include "fs/switch/presence.h"
#include "fs/switch/reconcile.h"
#include "fs/switch/settings.h"
#include "fs/switch/switch.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PULL_S        86400
#define FIRST_WAIT_NS (2 * WS_SECOND_NS) /* before a pull that failed is tried again */
#define LAST_WAIT_NS  (60 * WS_SECOND_NS)
#define GONE_NS       (4 * WS_SECOND_NS) /* until what no source lists is called gone: they come one by one */
#define RESTORE       "restore the current version"

static bool restore_engine(void *arg, struct ws_controller *ctl, const char *line)
{
    struct ws_control *c = arg;
    struct ws_error err = {0};
    char shown[WS_MAX_COMMAND + 1];
    struct ws_command *q = calloc(1, sizeof(*q));
    if (!q)
        ws_error_set(&err, ENOMEM, "no memory");
    bool good = q && ws_command_parse(WS_SCOPE_MODEL, line, strlen(line), q, &err) == 0 &&
                q->verb == WS_VERB_ENGINE_ADD && ws_engine_add(c, ctl, q, false, &err) == 0;
    ws_command_show(line, strlen(line), shown);
    if (!good)
        ws_log(WS_LOG_ERROR, "control", "an engine could not be brought back: %s: %s", shown, err.text);
    free(q);
    return good;
}

void ws_restore_settings(struct ws_control *c)
{
    struct ws_error why;
    atomic_store(&c->restoring, true);
    if (ws_settings_load(c, restore_engine, c, &why) < 0)
        (void)ws_controller_fail(c, &c->root, "read the settings", &why);
    atomic_store(&c->restoring, false);
}

struct current {
    struct ws_control *control;
    struct ws_switch_item item; /* references */
};

/* One try. What fails is tried again when the reconciler looks, more and more seldom, until the version is here
 * or an operator has switched to another one. */
static void record_try(struct ws_control *c, struct ws_controller *ctl, int rc)
{
    pthread_mutex_lock(&c->lock);
    if (rc == 0)
        ws_backoff_reset(&ctl->restore_backoff);
    else
        ws_backoff_failed(&ctl->restore_backoff, FIRST_WAIT_NS, LAST_WAIT_NS);
    ctl->restoring = false;
    pthread_mutex_unlock(&c->lock);
}

static void make_current(void *arg)
{
    struct current *restored = arg;
    struct ws_control *c = restored->control;
    struct ws_switch_item *p = &restored->item;
    struct ws_error err = {0};
    const struct ws_switch_options o = {.deadline_s = PULL_S};
    int rc = ws_version_direct(p->version, &err);
    if (rc == 0)
        rc = ws_switch_pull(c, p->version, WS_PRIORITY_SWITCH, &o, &err);
    if (rc == 0)
        rc = ws_switch_restore(c, p, &err);
    if (rc == 0) {
        ws_controller_event(c, p->controller, "restored model=%s version=%" PRIu64, p->controller->name,
                            ws_version_number(p->version));
        pthread_mutex_lock(&c->lock);
        ws_controller_clear_error(p->controller, RESTORE);
        pthread_mutex_unlock(&c->lock);
        ws_settings_save(c);
        ws_presence_post(c, p->controller, p->model);
    } else if (rc != -EEXIST && rc != -EBUSY && !atomic_load(&c->stop)) {
        (void)ws_controller_fail(c, p->controller, RESTORE, &err);
    }
    record_try(c, p->controller, rc == -EEXIST ? 0 : rc);
    if (rc == 0)
        ws_reconciler_wake(c->reconciler);
    ws_follow_check(c, p->model);
    ws_switch_item_release(p);
    free(restored);
}

static void restore_current(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                            struct ws_version *v)
{
    const struct ws_version_id id = ws_version_id(v);
    pthread_mutex_lock(&c->lock);
    /* it stays the target until it is current: the daemon may end before */
    bool due = ws_version_id_equal(&ctl->target, &id) && !ctl->restoring && !ctl->switching &&
               ws_backoff_is_over(&ctl->restore_backoff);
    ctl->restoring = ctl->restoring || due;
    pthread_mutex_unlock(&c->lock);
    if (!due)
        return;
    struct current *restored = malloc(sizeof(*restored));
    if (restored)
        *restored =
            (struct current){c, {.controller = ctl, .model = ws_model_get(m), .version = ws_version_get(v)}};
    int rc = restored ? ws_job_start(c, make_current, restored) : -ENOMEM;
    if (rc == 0)
        return;
    if (restored) {
        ws_switch_item_release(&restored->item);
        free(restored);
    }
    record_try(c, ctl, rc);
    if (rc != -ESHUTDOWN) {
        struct ws_error err;
        ws_error_set(&err, -rc, "no memory or thread for it just now: %s", strerror(-rc));
        (void)ws_controller_fail(c, ctl, RESTORE, &err);
    }
}

void ws_restore_version(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                        struct ws_version *v)
{
    const struct ws_version_id id = ws_version_id(v);
    struct ws_error err;
    bool pin = false;
    pthread_mutex_lock(&c->lock);
    for (size_t i = ctl->pins.len; i-- > 0;)
        if (ws_version_id_equal(&ctl->pins.ptr[i], &id)) {
            ws_pins_remove(&ctl->pins, i);
            pin = true;
        }
    pthread_mutex_unlock(&c->lock);
    if (pin && ws_version_pin(v, true, &err) < 0)
        (void)ws_controller_fail(c, ctl, "restore a pin", &err);
    ws_kept_restore(c, ctl, v);
    restore_current(c, ctl, m, v);
}

/* Reports once that it is gone. Engines that were left in a switch to it, or had served it, are not
 * reconciled: the operator has to decide. */
static void report_gone(struct ws_control *c, struct ws_controller *ctl, const struct ws_version_id *wanted)
{
    struct ws_error err;
    const uint64_t now = ws_clock_ns();
    pthread_mutex_lock(&c->lock);
    if (!ctl->gone_ns)
        ctl->gone_ns = now;
    const bool due = !ctl->gone_reported && !ctl->switching && now - ctl->gone_ns >= GONE_NS;
    ctl->gone_reported = ctl->gone_reported || due;
    pthread_mutex_unlock(&c->lock);
    if (!due)
        return;
    ws_error_set(
        &err, ESTALE,
        "version %" PRIu64 " (run %s) of %s, which its engines served or were to serve when the daemon "
        "before ended, is neither here nor at a source that answers: an engine that was left in a switch "
        "stays as `engines` says, and is not resumed before it has loaded another; write one that is "
        "there to `version`",
        wanted->version, wanted->lineage, ctl->name);
    (void)ws_controller_fail(c, ctl, RESTORE, &err);
}

bool ws_restore_is_due(struct ws_control *c, struct ws_controller *ctl)
{
    pthread_mutex_lock(&c->lock);
    const struct ws_version_id wanted = ctl->target;
    const bool tries = wanted.lineage[0] && ws_backoff_is_over(&ctl->restore_backoff);
    pthread_mutex_unlock(&c->lock);
    struct ws_model *m = tries ? ws_store_find(c->store, ctl->name) : NULL;
    struct ws_version *v = m ? ws_version_at(m, wanted.version, wanted.lineage) : NULL;
    if (v)
        ws_version_put(v);
    if (m)
        ws_model_put(m);
    return v != NULL;
}

void ws_restore_again(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m)
{
    pthread_mutex_lock(&c->lock);
    const struct ws_version_id wanted = ctl->target;
    pthread_mutex_unlock(&c->lock);
    struct ws_version *v = wanted.lineage[0] ? ws_version_at(m, wanted.version, wanted.lineage) : NULL;
    if (v) {
        restore_current(c, ctl, m, v);
        ws_version_put(v);
    } else if (wanted.lineage[0] && (v = ws_model_latest(m))) {
        report_gone(c, ctl, &wanted);
        ws_version_put(v);
    }
}
