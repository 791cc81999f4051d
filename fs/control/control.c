/* Control's life, the commands that are written to its files, and what it does when the store reports a change. What
 * each command does is in commands.c, what each file shows in views.c. */
#include "fs/engines/control.h"
#include "fs/control/commands.h"
#include "fs/control/config.h"
#include "fs/engines/added.h"
#include "fs/engines/controller.h"
#include "fs/engines/job.h"
#include "fs/switch/follow.h"
#include "fs/switch/kept.h"
#include "fs/switch/learned_file.h"
#include "fs/switch/presence.h"
#include "fs/switch/reconcile.h"
#include "fs/switch/restore.h"
#include "fs/switch/settings.h"
#include "fs/switch/settings_lock.h"
#include "transports/base/audit_log.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/http/client.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PACE_CHARS      96
#define RESTORE_LOOK_NS 1000000L
#define IDLE_LOOK_NS    10000000L
#define END_NS          (30 * WS_SECOND_NS) /* for the rollback of switches that the mount's end interrupts */

/* --- requests --- */

static void free_request(struct ws_command_request *rq)
{
    if (rq->model)
        ws_model_put(rq->model);
    free(rq);
}

/* What was written by whom, and how it ended. The words are those that last_error shows: no secret is in them. */
static void record(const struct ws_command_request *rq, int rc, const struct ws_error *err)
{
    char to[WS_MAX_NAME + WS_MAX_COMMAND + 4];
    snprintf(to, sizeof(to), "%s: %s", rq->controller->name ? rq->controller->name : "/", rq->shown);
    ws_audit_log_write(&(struct ws_audit_entry){.what = "ctl",
                                                .who = rq->who,
                                                .from = rq->from,
                                                .to = to,
                                                .outcome = rc == -EPERM ? WS_AUDIT_REFUSED
                                                           : rc < 0     ? WS_AUDIT_FAILED
                                                                        : WS_AUDIT_DONE,
                                                .error = rc < 0 ? err->text : NULL});
}

/* A model that no source lists any more, of which nothing is here and which has no engines, is forgotten. An
 * engine that is added just now stays with the controller, for when the model is listed again. */
static void forget_gone(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m)
{
    if (!ws_model_is_gone(m))
        return;
    pthread_mutex_lock(&c->lock);
    const bool idle = !ctl->switching && ctl->n_engines == 0;
    pthread_mutex_unlock(&c->lock);
    if (idle)
        ws_model_forget(m);
}

static void run_request(void *arg)
{
    struct ws_command_request *rq = arg;
    struct ws_error err = {0};
    int rc = 0;
    if (ws_command_actions[rq->command.verb]
            .lengthens_settings) /* quotes may be doubled, and names said again */
        rc = ws_settings_fit(rq->control, 4 * rq->bytes + WS_VERSION_ID_TEXT, &err);
    if (rc == 0)
        rc = ws_command_actions[rq->command.verb].run(rq, &err);
    if (rc < 0) {
        rc = ws_controller_fail(rq->control, rq->controller, rq->shown, &err);
    } else {
        pthread_mutex_lock(&rq->control->lock);
        ws_controller_clear_error(rq->controller, rq->shown);
        pthread_mutex_unlock(&rq->control->lock);
    }
    if (rc == 0 && ws_command_actions[rq->command.verb].changes_settings) {
        if (ws_settings_write(rq->control, &err) < 0)
            rc = ws_controller_fail(rq->control, rq->controller, rq->shown, &err);
        if (rq->model)
            ws_presence_post(rq->control, rq->controller, rq->model);
    }
    record(rq, rc, &err);
    if (rq->done)
        rq->done(rq->arg, rc);
    if (rq->model && rq->command.verb == WS_VERB_ENGINE_REMOVE)
        forget_gone(rq->control, rq->controller, rq->model);
    if (rq->model && (rq->command.verb == WS_VERB_LOAD || rq->command.verb == WS_VERB_LOADED))
        ws_follow_check(rq->control, rq->model); /* a version may have come meanwhile, a release have ended */
    free_request(rq);
}

void ws_control_write(struct ws_control *c, enum ws_view view, struct ws_model *model, const char *text,
                      size_t len, const struct ws_writer *writer, const atomic_bool *cancel,
                      void (*done)(void *arg, int result), void *arg)
{
    static const enum ws_scope scopes[WS_VIEW_COUNT] = {
        [WS_VIEW_VERSION] = WS_SCOPE_VERSION, [WS_VIEW_POLICY] = WS_SCOPE_POLICY};
    struct ws_error err = {0};
    struct ws_controller *ctl = ws_controller_get(c, model ? ws_model_name(model) : NULL);
    struct ws_command_request *rq = calloc(1, sizeof(*rq));
    enum ws_scope scope = view != WS_VIEW_CTL ? scopes[view] : model ? WS_SCOPE_MODEL : WS_SCOPE_ROOT;
    if (!ctl || !rq) {
        free(rq);
        done(arg, -ENOMEM);
        return;
    }
    *rq = (struct ws_command_request){.control = c,
                                      .controller = ctl,
                                      .bytes = len,
                                      .any_file = writer->any_file,
                                      .cancel = cancel,
                                      .done = done,
                                      .arg = arg};
    snprintf(rq->who, sizeof(rq->who), "uid:%u", (unsigned)writer->uid);
    snprintf(rq->from, sizeof(rq->from), "pid %d uid %u", (int)writer->pid, (unsigned)writer->uid);
    ws_command_show(text, len, rq->shown);
    int rc = scope ? ws_command_parse(scope, text, len, &rq->command, &err)
                   : ws_error_set(&err, EPERM, "this file is only read");
    if (rc == 0) {
        rq->model = model ? ws_model_get(model) : NULL;
        bool async = rq->command.async;
        if (async) { /* the writer does not wait, and cannot cancel */
            rq->done = NULL;
            rq->cancel = NULL;
        }
        rc = ws_job_start(c, run_request, rq);
        if (rc == 0) {
            if (async)
                done(arg, 0);
            return;
        }
        ws_error_set(&err, -rc, "the command could not be started: %s",
                     rc == -ESHUTDOWN ? "the mount is ending, or is not at its path any more"
                                      : strerror(-rc));
        if (rq->model)
            ws_model_put(rq->model);
    }
    rc = ws_controller_fail(c, ctl, rq->shown, &err);
    record(rq, rc, &err);
    free(rq);
    done(arg, rc);
}

/* Readers that open a file start pulls, too: why one failed is shown where a command's failure is. False: it is
 * shown already. */
static bool record_failed_pull(struct ws_control *c, struct ws_controller *ctl,
                               const struct ws_version_info *info)
{
    struct ws_last_error e = {.real_ns = ws_clock_day_ns(),
                              .code = info->error_code ? info->error_code : EIO};
    snprintf(e.command, sizeof(e.command), "pull %" PRIu64, info->number);
    snprintf(e.text, sizeof(e.text), "%s", info->error);
    pthread_mutex_lock(&c->lock);
    const struct ws_last_error *old = &ctl->last_error;
    bool is_new = !old->real_ns || old->code != e.code || strcmp(old->command, e.command) != 0;
    ctl->last_error = e;
    pthread_mutex_unlock(&c->lock);
    return is_new;
}

void ws_control_record_absent(struct ws_control *c, struct ws_version *v, const struct ws_error *why)
{
    struct ws_controller *ctl = ws_controller_get(c, ws_model_name(ws_version_model(v)));
    char command[64];
    bool is_new = false;
    snprintf(command, sizeof(command), "read %" PRIu64, ws_version_number(v));
    if (!ctl)
        return;
    pthread_mutex_lock(&c->lock);
    is_new = !ctl->last_error.real_ns || strcmp(ctl->last_error.text, why->text) != 0;
    pthread_mutex_unlock(&c->lock);
    if (is_new)
        (void)ws_controller_fail(c, ctl, command, why);
}

/* Of a pull that has ended: when its first byte came, and how often and for how long none did. Empty: none came. */
static void print_pace(const struct ws_version_info *info, char out[PACE_CHARS])
{
    const bool has_ended = info->state == WS_READY || info->state == WS_ACTIVE || info->state == WS_FAILED;
    out[0] = 0;
    if (has_ended && info->first_seconds >= 0)
        snprintf(out, PACE_CHARS, " first=%.3f stalls=%u stalled=%.3f", info->first_seconds, info->stalls,
                 info->stalled_seconds);
}

static void on_change(void *arg, enum ws_store_event change, struct ws_model *m, struct ws_version *v)
{
    struct ws_control *c = arg;
    struct ws_controller *ctl = ws_controller_get(c, ws_model_name(m));
    struct ws_version_info info = {0};
    char why[WS_ERROR_TEXT], pace[PACE_CHARS];
    if (!ctl || atomic_load(&c->stop))
        return;
    if (v)
        ws_version_info(v, &info);
    switch (change) {
    case WS_MODEL_ADDED:
        ws_controller_event(c, ctl, "model-added model=%s", ctl->name);
        break;
    case WS_MODEL_REMOVED:
        ws_controller_event(c, ctl, "model-removed model=%s", ctl->name);
        break;
    case WS_MODEL_LISTED:
        ws_presence_post(c, ctl, m);
        ws_follow_resume(c, m);
        return;
    case WS_MODEL_DESIRED:
        ws_follow_desired(c, m);
        return;
    case WS_MODEL_PARENTS:
        ws_settings_save(c);
        return;
    case WS_MODEL_OFFERS:
        forget_gone(c, ctl, m);
        return;
    case WS_VERSION_KNOWN:
        ws_controller_event(c, ctl, "known model=%s version=%" PRIu64 " run=%s bytes=%" PRIu64, ctl->name,
                            info.number, info.lineage, info.total_bytes);
        break;
    case WS_VERSION_STATE:
        print_pace(&info, pace);
        ws_controller_event(c, ctl, "%s model=%s version=%" PRIu64 " how=\"%s\" seconds=%.3f%s%s%s%s",
                            ws_version_state_name(info.state), ctl->name, info.number, info.how,
                            info.pull_seconds, pace, info.error[0] ? " why=\"" : "",
                            ws_controller_quotable(info.error, why), info.error[0] ? "\"" : "");
        if (info.state == WS_FAILED)
            record_failed_pull(c, ctl, &info);
        if (info.state == WS_READY || info.state == WS_ACTIVE) {
            pthread_mutex_lock(&c->lock);
            ws_controller_clear_error(ctl, "pull");
            pthread_mutex_unlock(&c->lock);
        }
        break;
    case WS_VERSION_READ_FAILED:
        if (record_failed_pull(c, ctl, &info)) /* readers ask again and again */
            ws_controller_event(c, ctl, "unread model=%s version=%" PRIu64 " errno=%s why=\"%s\"", ctl->name,
                                info.number, ws_errno_name(info.error_code),
                                ws_controller_quotable(info.error, why));
        return;
    case WS_VERSION_RENAMED:
        ws_controller_event(c, ctl, "superseded model=%s version=%" PRIu64 " run=%s", ctl->name, info.number,
                            info.lineage);
        break;
    case WS_VERSION_RETIRED:
        ws_controller_event(c, ctl, "deleted model=%s version=%" PRIu64 " run=%s", ctl->name, info.number,
                            info.lineage);
        return;
    case WS_VERSION_GONE:
        ws_controller_event(c, ctl, "gone model=%s version=%" PRIu64 " run=%s", ctl->name, info.number,
                            info.lineage);
        return;
    }
    if (change == WS_VERSION_KNOWN) {
        ws_config_version_known(c, ctl, v);
        ws_restore_version(c, ctl, m, v);
    }
    if (change == WS_VERSION_KNOWN || info.state == WS_READY || info.state == WS_FAILED)
        ws_follow_check(c, m); /* a pull that has ended makes way for the next */
}

uint64_t ws_control_events_size(struct ws_control *c, struct ws_model *m)
{
    struct ws_controller *ctl = ws_controller_get(c, m ? ws_model_name(m) : NULL);
    return ctl ? ws_event_log_size(ctl->events) : 0;
}

void ws_control_on_event(struct ws_control *c, void (*listener)(void *arg, struct ws_model *model), void *arg)
{
    c->listener_arg = arg;
    c->listener = listener;
}

/* --- start and end --- */

int ws_control_new(struct ws_control **out, struct ws_store *store, const struct ws_control_options *options,
                   struct ws_error *err)
{
    struct ws_control *c = calloc(1, sizeof(*c));
    if (!c || !(c->root.events = ws_event_log_new())) {
        free(c);
        return ws_error_set(err, ENOMEM, "no memory for the control files");
    }
    c->store = store;
    c->options = *options;
    pthread_mutex_init(&c->lock, NULL);
    ws_cond_init(&c->idle);
    pthread_mutex_init(&c->saving, NULL);
    pthread_mutex_init(&c->adding, NULL);
    pthread_mutex_init(&c->configuring, NULL);
    pthread_mutex_init(&c->config_lock, NULL);
    c->settings_path = ws_settings_path(options->state, options->mountpoint);
    snprintf(c->mount_id, sizeof(c->mount_id), "%s", options->mount_id);
    int rc = ws_http_client_new(&c->http, err);
    if (rc < 0) {
        ws_control_free(c);
        return rc;
    }
    ws_restore_settings(c);
    ws_learned_file_read(c);
    rc = ws_config_start(c, err);
    if (rc < 0) {
        ws_control_free(c);
        return rc;
    }
    rc = ws_reconciler_start(c, &c->reconciler); /* looks at once */
    if (rc < 0) {
        ws_control_free(c);
        return ws_error_set(err, -rc, "cannot start a thread for the engines");
    }
    ws_store_listen(store, on_change, c);
    *out = c;
    return 0;
}

static void open_kept(void *arg)
{
    struct ws_control *c = arg;
    ws_added_open(c);
    pthread_mutex_lock(&c->lock);
    c->has_opened = true;
    pthread_cond_broadcast(&c->idle);
    pthread_mutex_unlock(&c->lock);
}

void ws_control_open_kept(struct ws_control *c)
{
    if (ws_job_start(c, open_kept, c) < 0)
        atomic_store(&c->lacks_sources, true); /* the reconciler opens them */
}

void ws_control_wait_kept(struct ws_control *c, unsigned timeout_ms)
{
    const uint64_t until = ws_clock_ns() + timeout_ms * WS_MS_NS;
    pthread_mutex_lock(&c->lock);
    while (!c->has_opened && !atomic_load(&c->stop) &&
           ws_cond_wait_until(&c->idle, &c->lock, until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&c->lock);
}

static bool is_restored(struct ws_control *c)
{
    bool all = true;
    pthread_mutex_lock(&c->lock);
    struct ws_controller *ctl = c->controllers;
    pthread_mutex_unlock(&c->lock);
    for (; ctl; ctl = ctl->next) /* of one that is in the list the next never changes */
        all = all && !ws_restore_is_due(c, ctl);
    return all;
}

void ws_control_wait_restored(struct ws_control *c, unsigned timeout_ms)
{
    const struct timespec wait = {.tv_nsec = RESTORE_LOOK_NS};
    const uint64_t until = ws_clock_ns() + timeout_ms * WS_MS_NS;
    while (!is_restored(c) && !atomic_load(&c->stop) && ws_clock_ns() < until)
        (void)nanosleep(&wait, NULL);
}

static bool is_idle(struct ws_control *c)
{
    pthread_mutex_lock(&c->lock);
    bool idle = c->n_jobs == 0;
    for (const struct ws_controller *ctl = c->controllers; ctl; ctl = ctl->next)
        idle = idle && !ctl->switching && !ctl->catching_up && ctl->preparing == 0;
    pthread_mutex_unlock(&c->lock);
    return idle;
}

bool ws_control_wait_idle(struct ws_control *c, unsigned timeout_ms)
{
    const struct timespec wait = {.tv_nsec = IDLE_LOOK_NS};
    const uint64_t until = ws_clock_ns() + timeout_ms * WS_MS_NS;
    bool idle;
    while (!(idle = is_idle(c)) && !atomic_load(&c->stop) && ws_clock_ns() < until)
        (void)nanosleep(&wait, NULL);
    return idle;
}

void ws_control_stop(struct ws_control *c)
{
    if (!c || atomic_load(&c->stop))
        return;
    c->end_by_ns = ws_clock_ns() + END_NS;
    atomic_store(&c->stop, true);
    ws_jobs_wait(c); /* before the reconciler, which they wake */
    ws_reconciler_stop(c->reconciler);
    c->reconciler = NULL;
    ws_learned_file_save(c, true);
    ws_kept_release_all(c);
    ws_presence_leave(c);
    ws_settings_close(c);
}

void ws_control_free(struct ws_control *c)
{
    if (!c)
        return;
    while (c->controllers) {
        struct ws_controller *ctl = c->controllers;
        c->controllers = ctl->next;
        ws_controller_release(ctl);
        free(ctl);
    }
    ws_controller_release(&c->root);
    ws_http_client_free(c->http);
    free(c->settings_path);
    ws_config_free(c);
    pthread_mutex_destroy(&c->config_lock);
    pthread_mutex_destroy(&c->configuring);
    pthread_mutex_destroy(&c->adding);
    pthread_mutex_destroy(&c->saving);
    pthread_cond_destroy(&c->idle);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
