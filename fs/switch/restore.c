#include "fs/switch/restore.h"
#include "fs/engines/job.h"
#include "fs/switch/follow.h"
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

static bool restore_engine(void *arg, struct ws_desk *d, const char *line)
{
    struct ws_control *c = arg;
    struct ws_error err = {0};
    char shown[WS_MAX_COMMAND + 1];
    struct ws_command *q = calloc(1, sizeof(*q));
    if (!q)
        ws_error_set(&err, ENOMEM, "no memory");
    bool good = q && ws_command_parse(WS_SCOPE_MODEL, line, strlen(line), q, &err) == 0 &&
                q->verb == WS_VERB_ENGINE_ADD && ws_engine_add(c, d, q, false, &err) == 0;
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
        (void)ws_desk_fail(c, &c->root, "read the settings", &why);
    atomic_store(&c->restoring, false);
}

struct current {
    struct ws_control *control;
    struct ws_switch_part part; /* references */
};

/* One try. What fails is tried again when the keeper looks, more and more seldom, until it is there or
 * somebody has switched to something else. */
static void note_try(struct ws_control *c, struct ws_desk *d, int rc)
{
    pthread_mutex_lock(&c->lock);
    uint64_t wait = d->restore_wait_ns ? d->restore_wait_ns * 2 : FIRST_WAIT_NS;
    d->restore_wait_ns = rc == 0 ? 0 : wait < LAST_WAIT_NS ? wait : LAST_WAIT_NS;
    d->restore_ns = ws_clock_ns() + d->restore_wait_ns;
    d->restoring = false;
    pthread_mutex_unlock(&c->lock);
}

static void make_current(void *arg)
{
    struct current *w = arg;
    struct ws_control *c = w->control;
    struct ws_switch_part *p = &w->part;
    struct ws_error err = {0};
    const struct ws_switch_options o = {.deadline_s = PULL_S};
    int rc = ws_pull_and_wait(c, p->version, WS_PRIORITY_SWITCH, &o, &err);
    if (rc == 0)
        rc = ws_switch_restore(c, p, &err);
    if (rc == 0) {
        ws_desk_event(c, p->desk, "restored model=%s version=%" PRIu64, p->desk->name,
                      ws_version_number(p->version));
        pthread_mutex_lock(&c->lock);
        ws_desk_settle(p->desk, RESTORE);
        pthread_mutex_unlock(&c->lock);
        ws_settings_save(c);
        ws_standing_tell(c, p->desk, p->model);
    } else if (rc != -EEXIST && rc != -EBUSY && !atomic_load(&c->stop)) {
        (void)ws_desk_fail(c, p->desk, RESTORE, &err);
    }
    note_try(c, p->desk, rc == -EEXIST ? 0 : rc);
    if (rc == 0)
        ws_keeper_wake(c->keeper);
    ws_follow_look(c, p->model);
    ws_version_put(p->version);
    ws_model_put(p->model);
    free(w);
}

static void restore_current(struct ws_control *c, struct ws_desk *d, struct ws_model *m, struct ws_version *v)
{
    const struct ws_mark mark = ws_version_mark(v);
    pthread_mutex_lock(&c->lock);
    /* a wish until it is fulfilled: the daemon may end before */
    bool due =
        ws_mark_is(&d->wanted, &mark) && !d->restoring && !d->switching && ws_clock_ns() >= d->restore_ns;
    d->restoring = d->restoring || due;
    pthread_mutex_unlock(&c->lock);
    if (!due)
        return;
    struct current *w = malloc(sizeof(*w));
    if (w)
        *w = (struct current){c, {.desk = d, .model = ws_model_get(m), .version = ws_version_get(v)}};
    int rc = w ? ws_job_start(c, make_current, w) : -ENOMEM;
    if (rc == 0)
        return;
    if (w) {
        ws_version_put(v);
        ws_model_put(m);
        free(w);
    }
    note_try(c, d, rc);
    if (rc != -ESHUTDOWN) {
        struct ws_error err;
        ws_error_set(&err, -rc, "no memory or thread for it just now: %s", strerror(-rc));
        (void)ws_desk_fail(c, d, RESTORE, &err);
    }
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
    pthread_mutex_unlock(&c->lock);
    if (pin && ws_version_pin(v, true, &err) < 0)
        (void)ws_desk_fail(c, d, "restore a pin", &err);
    restore_current(c, d, m, v);
}

/* Once. Engines that were left in a switch to it, or had served it, are brought nowhere: that is to be known.
 */
static void tell_of_gone(struct ws_control *c, struct ws_desk *d, const struct ws_mark *wanted)
{
    struct ws_error err;
    const uint64_t now = ws_clock_ns();
    pthread_mutex_lock(&c->lock);
    if (!d->gone_ns)
        d->gone_ns = now;
    const bool due = !d->gone_told && !d->switching && now - d->gone_ns >= GONE_NS;
    d->gone_told = d->gone_told || due;
    pthread_mutex_unlock(&c->lock);
    if (!due)
        return;
    ws_error_set(
        &err, ESTALE,
        "version %" PRIu64 " (run %s) of %s, which its engines served or were to serve when the daemon "
        "before ended, is neither here nor at a source that answers: an engine that was left in a switch "
        "stays as `engines` says, and is not resumed before it has loaded another; write one that is "
        "there to `version`",
        wanted->version, wanted->run, d->name);
    (void)ws_desk_fail(c, d, RESTORE, &err);
}

void ws_restore_again(struct ws_control *c, struct ws_desk *d, struct ws_model *m)
{
    pthread_mutex_lock(&c->lock);
    const struct ws_mark wanted = d->wanted;
    pthread_mutex_unlock(&c->lock);
    struct ws_version *v = wanted.run[0] ? ws_version_at(m, wanted.version, wanted.run) : NULL;
    if (v) {
        restore_current(c, d, m, v);
        ws_version_put(v);
    } else if (wanted.run[0] && (v = ws_model_latest(m))) {
        tell_of_gone(c, d, &wanted);
        ws_version_put(v);
    }
}
