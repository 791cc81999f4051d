#include "fs/engines/control.h"
#include "fs/engines/added.h"
#include "fs/engines/controller.h"
#include "fs/engines/job.h"
#include "fs/switch/external_loaded.h"
#include "fs/switch/follow.h"
#include "fs/switch/gate.h"
#include "fs/switch/presence.h"
#include "fs/switch/reconcile.h"
#include "fs/switch/restore.h"
#include "fs/switch/settings.h"
#include "fs/switch/switch.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/text.h"
#include "transports/http/client.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* A command on its way. */
struct job {
    struct ws_control *control;
    struct ws_desk *desk;
    struct ws_model *model; /* a reference; NULL at the root */
    struct ws_command command;
    char shown[WS_MAX_COMMAND + 1];
    size_t bytes; /* of it as it was written */
    bool any_file;
    const atomic_bool *cancel;
    void (*done)(void *arg, int result); /* NULL once called */
    void *arg;
};

#define END_NS     (30 * WS_SECOND_NS) /* for the way back of switches that the mount's end interrupts */
#define NEWS_TRIES 25                  /* half a second */
#define NEWS_MS    20

/* --- the commands --- */

static int version_of(struct ws_model *m, const char *word, struct ws_version **out, struct ws_error *err)
{
    uint64_t number;
    const char *at = word;
    const bool is_link =
        strcmp(word, "latest") == 0 || strcmp(word, "current") == 0 || strcmp(word, "previous") == 0;
    *out = NULL;
    if (!is_link && (ws_text_digits(&at, &number) || (*at && *at != '@')))
        return ws_error_set(
            err, EINVAL, "'%.100s' is no version: a number, NUMBER@RUN, latest, current or previous", word);
    /* What was published a moment ago may not have been heard of yet. */
    for (int tries = 0; !(*out = ws_version_find(m, word, err)) && !is_link && tries < NEWS_TRIES; tries++)
        (void)poll(NULL, 0, NEWS_MS);
    return *out ? 0 : -err->code;
}

static int switch_options(const struct job *j, struct ws_switch_options *o, struct ws_error *err)
{
    const char *deadline = j->command.options[WS_OPTION_DEADLINE];
    uint64_t seconds = 0;
    if (deadline && (ws_word_number(deadline, 86400, &seconds) || seconds == 0))
        return ws_error_set(err, EINVAL, "deadline=%.100s is no number of seconds from 1 to 86400", deadline);
    *o = (struct ws_switch_options){.force_layout = j->command.force_layout,
                                    .wait = j->command.wait,
                                    .deadline_s = (unsigned)seconds,
                                    .cancel = j->cancel};
    return 0;
}

static int run_load(struct job *j, struct ws_error *err)
{
    struct ws_switch_options o;
    struct ws_switch_part part = {.desk = j->desk, .model = j->model};
    int rc = version_of(j->model, j->command.args[0], &part.version, err);
    if (rc < 0)
        return rc;
    rc = switch_options(j, &o, err);
    if (rc == 0 && j->command.verb == WS_VERB_LOAD)
        rc = ws_follow_allows(j->control, j->desk, j->model, part.version, err);
    if (rc == 0)
        rc = j->command.verb == WS_VERB_LOAD ? ws_switch_run(j->control, &part, 1, &o, err)
             : j->command.verb == WS_VERB_STAGE
                 ? ws_switch_prepare(j->control, &part, &o, err)
                 : ws_gate_pass(&(struct ws_gate){.model = part.model, .version = part.version}, j->control,
                                part.desk, err);
    ws_version_put(part.version);
    return rc;
}

static int run_load_all(struct job *j, struct ws_error *err)
{
    struct ws_switch_part *parts = calloc(j->command.n_args, sizeof(*parts));
    struct ws_switch_options o;
    size_t n = 0;
    int rc = parts ? switch_options(j, &o, err) : ws_error_set(err, ENOMEM, "no memory for a switch");
    for (; rc == 0 && n < j->command.n_args; n++) {
        char *value;
        rc = ws_word_split(j->command.args[n], &value, err);
        if (rc == 0 && !(parts[n].model = ws_store_find(j->control->store, j->command.args[n])))
            rc = ws_error_set(err, ENOENT, "there is no model '%s' here", j->command.args[n]);
        for (size_t i = 0; rc == 0 && i < n; i++)
            if (parts[i].model == parts[n].model)
                rc = ws_error_set(err, EINVAL, "%s is named twice", j->command.args[n]);
        if (rc == 0)
            rc = version_of(parts[n].model, value, &parts[n].version, err);
        if (rc == 0 && !(parts[n].desk = ws_desk_of(j->control, ws_model_name(parts[n].model))))
            rc = ws_error_set(err, ENOMEM, "no memory for a switch");
        if (rc == 0)
            rc = ws_follow_allows(j->control, parts[n].desk, parts[n].model, parts[n].version, err);
    }
    if (rc == 0)
        rc = ws_switch_run(j->control, parts, n, &o, err);
    for (size_t i = 0; parts && i < n; i++) {
        if (parts[i].version)
            ws_version_put(parts[i].version);
        if (parts[i].model)
            ws_model_put(parts[i].model);
    }
    free(parts);
    return rc;
}

static int run_version(struct job *j, struct ws_error *err)
{
    struct ws_version *v;
    int rc = version_of(j->model, j->command.args[0], &v, err);
    if (rc < 0)
        return rc;
    switch (j->command.verb) {
    case WS_VERB_PULL:
        rc = ws_pull_and_wait(j->control, v, WS_PRIORITY_BACKGROUND,
                              &(struct ws_switch_options){.cancel = j->cancel, .deadline_s = 86400}, err);
        break;
    case WS_VERB_DROP:
        rc = ws_version_drop(v, err);
        break;
    case WS_VERB_VERIFY:
        rc = ws_version_verify(v, (const atomic_bool *const[]){&j->control->stop, j->cancel}, err);
        break;
    case WS_VERB_LOADED:
        rc = ws_external_loaded(j->control, j->desk, j->model, v, j->command.options[WS_OPTION_ENGINE], err);
        break;
    default:
        rc = ws_version_pin(v, j->command.verb == WS_VERB_PIN, err);
    }
    ws_version_put(v);
    return rc;
}

/* A desk is made for a name that may be a model's, and is kept. */
static int check_model(const char *name, struct ws_error *err)
{
    return ws_name_is_model(name)
               ? 0
               : ws_error_set(err, EINVAL, "'%.100s' is no model's name: %s", name, WS_MODEL_NAME_RULE);
}

/* What is kept of the engine says the folder, too: its files are read again later. */
static int run_engine_add(struct job *j, struct ws_error *err)
{
    const char **o = j->command.options, *below = j->control->options.files;
    struct ws_words *w = &j->command.words;
    char files[WS_MAX_COMMAND + 1];
    if (!j->any_file && o[WS_OPTION_FILES])
        return ws_error_set(err, EPERM, "files= is for root to give");
    if (!j->any_file && (o[WS_OPTION_TOKEN_FILE] || o[WS_OPTION_ADMIN_TOKEN_FILE] || o[WS_OPTION_CA_FILE])) {
        if (!below)
            return ws_error_set(err, EPERM,
                                "who is not root names no files to this mount: have root add the engine, or "
                                "mount with -o files=DIR for those below that folder");
        assert(w->n < WS_MAX_WORDS); /* a command has no more than its options */
        snprintf(files, sizeof(files), "files=%s", below);
        w->word[w->n++] = files;
        o[WS_OPTION_FILES] = below;
    }
    return ws_engine_add(j->control, j->desk, &j->command, true, err);
}

static int run_add(struct job *j, struct ws_error *err)
{
    const char *policy = j->command.options[WS_OPTION_POLICY];
    if (check_model(j->command.args[0], err) < 0 ||
        ws_added_check(j->control, j->command.args[1], !j->any_file, err) < 0)
        return -err->code;
    struct ws_desk *d = ws_desk_of(j->control, j->command.args[0]);
    int rc = d ? 0 : ws_error_set(err, ENOMEM, "no memory for a model");
    if (rc == 0 && policy)
        rc = ws_desk_set_policy(j->control, d, policy, NULL, NULL, err);
    return rc < 0 ? rc : ws_added_add(j->control, d, j->command.args[1], !j->any_file, err);
}

/* Not while engines are driven by it, nor in a switch, as which it counts meanwhile. */
static int run_remove(struct job *j, struct ws_error *err)
{
    struct ws_control *c = j->control;
    const char *model = j->command.args[0];
    if (check_model(model, err) < 0)
        return -err->code;
    struct ws_desk *d = ws_desk_of(c, model);
    int rc = d ? 0 : ws_error_set(err, ENOMEM, "no memory for a model");
    pthread_mutex_lock(&c->lock);
    if (rc == 0 && d->switching)
        rc = ws_error_set(err, EBUSY,
                          "a switch of %s is running: write cancel to its ctl, or wait for its end", model);
    else if (rc == 0 && d->n_engines > 0)
        rc = ws_error_set(err, EBUSY, "%s has %u engines, %s%s: remove them first", model, d->n_engines,
                          d->engines->name, d->n_engines > 1 ? " and others" : "");
    else if (rc == 0)
        d->switching = true;
    pthread_mutex_unlock(&c->lock);
    if (rc < 0)
        return rc;
    rc = ws_added_remove(c, d, err);
    pthread_mutex_lock(&c->lock);
    d->switching = false;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static int cancel_switch(struct job *j, struct ws_error *err)
{
    struct ws_control *c = j->control;
    pthread_mutex_lock(&c->lock);
    bool running = j->desk->switching;
    if (running)
        atomic_store(&j->desk->cancel, true);
    pthread_mutex_unlock(&c->lock);
    return running ? 0 : ws_error_set(err, ENOENT, "no switch of %s is running", j->desk->name);
}

static int run_policy(struct job *j, struct ws_error *err)
{
    const char *const *o = j->command.options;
    int rc = ws_desk_set_policy(j->control, j->desk, j->command.args[0], o[WS_OPTION_EVERY],
                                o[WS_OPTION_MIN_INTERVAL], err);
    if (rc < 0)
        return rc;
    if (strcmp(j->command.args[0], "follow") != 0)
        ws_follow_forget(j->control, j->desk, j->model);
    ws_follow_orders(j->control, j->model); /* a release may be under way */
    return 0;
}

static int run_strategy(struct job *j, struct ws_error *err)
{
    struct ws_strategies s;
    int rc = ws_strategies_parse(j->command.args[0], &s, err);
    if (rc == 0)
        rc = ws_strategies_set(j->control->store, j->desk->name, &s, err);
    if (rc == 0)
        ws_desk_event(j->control, j->desk, "strategy model=%s strategy=%s", j->desk->name,
                      j->command.args[0]);
    return rc;
}

static int run_command(struct job *j, struct ws_error *err)
{
    switch (j->command.verb) {
    case WS_VERB_LOAD:
    case WS_VERB_STAGE:
    case WS_VERB_CHECK:
        return run_load(j, err);
    case WS_VERB_CANCEL:
        return cancel_switch(j, err);
    case WS_VERB_COMMIT:
        return ws_desk_set_commit(j->control, j->desk, j->command.args[0], err);
    case WS_VERB_ENGINE_SYNC:
        return ws_switch_catch_up(j->control, j->desk, j->model, (const char *const[]){j->command.args[0]}, 1,
                                  NULL, err);
    case WS_VERB_LOAD_ALL:
        return run_load_all(j, err);
    case WS_VERB_PULL:
    case WS_VERB_DROP:
    case WS_VERB_PIN:
    case WS_VERB_UNPIN:
    case WS_VERB_VERIFY:
    case WS_VERB_LOADED:
        return run_version(j, err);
    case WS_VERB_ENGINE_ADD:
        return run_engine_add(j, err);
    case WS_VERB_ENGINE_REMOVE:
        return ws_engine_remove(j->control, j->desk, j->command.args[0], err);
    case WS_VERB_ADD:
        return run_add(j, err);
    case WS_VERB_REMOVE:
        return run_remove(j, err);
    case WS_VERB_POLICY:
        return run_policy(j, err);
    case WS_VERB_STRATEGY:
        return run_strategy(j, err);
    default:
        return ws_error_set(err, EINVAL, "the command is not known");
    }
}

/* --- jobs --- */

static void free_job(struct job *j)
{
    if (j->model)
        ws_model_put(j->model);
    free(j);
}

static const bool changes_settings[WS_VERB_COUNT] = {
    [WS_VERB_PIN] = true,           [WS_VERB_UNPIN] = true,    [WS_VERB_ENGINE_ADD] = true,
    [WS_VERB_ENGINE_REMOVE] = true, [WS_VERB_POLICY] = true,   [WS_VERB_COMMIT] = true,
    [WS_VERB_ADD] = true,           [WS_VERB_STRATEGY] = true, [WS_VERB_REMOVE] = true,
};

static const bool lengthens_settings[WS_VERB_COUNT] = {
    [WS_VERB_PIN] = true, [WS_VERB_ENGINE_ADD] = true, [WS_VERB_ADD] = true};

/* A model that no source lists any more and of which nothing is here leaves, where no engine is driven by it.
 * An engine that is added just now is kept for when it is listed again. */
static void forget_gone(struct ws_control *c, struct ws_desk *d, struct ws_model *m)
{
    if (!ws_model_is_gone(m))
        return;
    pthread_mutex_lock(&c->lock);
    const bool idle = !d->switching && d->n_engines == 0;
    pthread_mutex_unlock(&c->lock);
    if (idle)
        ws_model_forget(m);
}

static void run_job(void *arg)
{
    struct job *j = arg;
    struct ws_error err = {0};
    int rc = 0;
    if (lengthens_settings[j->command.verb]) /* quotes may be doubled, and names said again */
        rc = ws_settings_fit(j->control, 4 * j->bytes + WS_MARK_TEXT, &err);
    if (rc == 0)
        rc = run_command(j, &err);
    if (rc < 0) {
        rc = ws_desk_fail(j->control, j->desk, j->shown, &err);
    } else {
        pthread_mutex_lock(&j->control->lock);
        ws_desk_settle(j->desk, j->shown);
        pthread_mutex_unlock(&j->control->lock);
    }
    if (rc == 0 && changes_settings[j->command.verb]) {
        if (ws_settings_keep(j->control, &err) < 0)
            rc = ws_desk_fail(j->control, j->desk, j->shown, &err);
        if (j->model)
            ws_standing_tell(j->control, j->desk, j->model);
    }
    if (j->done)
        j->done(j->arg, rc);
    if (j->model && j->command.verb == WS_VERB_ENGINE_REMOVE)
        forget_gone(j->control, j->desk, j->model);
    if (j->model && (j->command.verb == WS_VERB_LOAD || j->command.verb == WS_VERB_LOADED))
        ws_follow_look(j->control, j->model); /* a version may have come meanwhile, a release have ended */
    free_job(j);
}

void ws_control_write(struct ws_control *c, enum ws_view view, struct ws_model *model, const char *text,
                      size_t len, bool any_file, const atomic_bool *cancel,
                      void (*done)(void *arg, int result), void *arg)
{
    static const enum ws_scope scopes[WS_VIEW_COUNT] = {
        [WS_VIEW_VERSION] = WS_SCOPE_VERSION, [WS_VIEW_POLICY] = WS_SCOPE_POLICY};
    struct ws_error err = {0};
    struct ws_desk *d = ws_desk_of(c, model ? ws_model_name(model) : NULL);
    struct job *j = calloc(1, sizeof(*j));
    enum ws_scope scope = view != WS_VIEW_CTL ? scopes[view] : model ? WS_SCOPE_MODEL : WS_SCOPE_ROOT;
    if (!d || !j) {
        free(j);
        done(arg, -ENOMEM);
        return;
    }
    *j = (struct job){.control = c,
                      .desk = d,
                      .bytes = len,
                      .any_file = any_file,
                      .cancel = cancel,
                      .done = done,
                      .arg = arg};
    ws_command_show(text, len, j->shown);
    int rc = scope ? ws_command_parse(scope, text, len, &j->command, &err)
                   : ws_error_set(&err, EPERM, "this file is only read");
    if (rc == 0) {
        j->model = model ? ws_model_get(model) : NULL;
        bool async = j->command.async;
        if (async) { /* the writer does not wait, and cannot cancel */
            j->done = NULL;
            j->cancel = NULL;
        }
        rc = ws_job_start(c, run_job, j);
        if (rc == 0) {
            if (async)
                done(arg, 0);
            return;
        }
        ws_error_set(&err, -rc, "the command could not be started: %s",
                     rc == -ESHUTDOWN ? "the mount is ending, or is not at its path any more"
                                      : strerror(-rc));
        if (j->model)
            ws_model_put(j->model);
    }
    rc = ws_desk_fail(c, d, j->shown, &err);
    free(j);
    done(arg, rc);
}

/* Readers that open a file start pulls, too: why one failed is found where a command's failure is. False: it
 * is there already. */
static bool note_failed_pull(struct ws_control *c, struct ws_desk *d, const struct ws_version_info *info)
{
    struct ws_last_error e = {.real_ns = ws_clock_day_ns(),
                              .code = info->error_code ? info->error_code : EIO};
    snprintf(e.command, sizeof(e.command), "pull %" PRIu64, info->number);
    snprintf(e.text, sizeof(e.text), "%s", info->error);
    pthread_mutex_lock(&c->lock);
    const struct ws_last_error *old = &d->last_error;
    bool is_new = !old->real_ns || old->code != e.code || strcmp(old->command, e.command) != 0;
    d->last_error = e;
    pthread_mutex_unlock(&c->lock);
    return is_new;
}

static void on_change(void *arg, enum ws_change change, struct ws_model *m, struct ws_version *v)
{
    struct ws_control *c = arg;
    struct ws_desk *d = ws_desk_of(c, ws_model_name(m));
    struct ws_version_info info = {0};
    char why[WS_ERROR_TEXT];
    if (!d || atomic_load(&c->stop))
        return;
    if (v)
        ws_version_info(v, &info);
    switch (change) {
    case WS_MODEL_ADDED:
        ws_desk_event(c, d, "model-added model=%s", d->name);
        break;
    case WS_MODEL_REMOVED:
        ws_desk_event(c, d, "model-removed model=%s", d->name);
        break;
    case WS_MODEL_LISTED:
        ws_standing_tell(c, d, m);
        ws_follow_again(c, m);
        return;
    case WS_MODEL_ORDERS:
        ws_follow_orders(c, m);
        return;
    case WS_MODEL_OFFERS:
        forget_gone(c, d, m);
        return;
    case WS_VERSION_KNOWN:
        ws_desk_event(c, d, "known model=%s version=%" PRIu64 " run=%s bytes=%" PRIu64, d->name, info.number,
                      info.run, info.total_bytes);
        break;
    case WS_VERSION_STATE:
        ws_desk_event(c, d, "%s model=%s version=%" PRIu64 " how=\"%s\" seconds=%.3f%s%s%s",
                      ws_state_name(info.state), d->name, info.number, info.how, info.pull_seconds,
                      info.error[0] ? " why=\"" : "", ws_desk_quotable(info.error, why),
                      info.error[0] ? "\"" : "");
        if (info.state == WS_FAILED)
            note_failed_pull(c, d, &info);
        if (info.state == WS_READY || info.state == WS_ACTIVE) {
            pthread_mutex_lock(&c->lock);
            ws_desk_settle(d, "pull");
            pthread_mutex_unlock(&c->lock);
        }
        break;
    case WS_VERSION_UNREAD:
        if (note_failed_pull(c, d, &info)) /* readers ask again and again */
            ws_desk_event(c, d, "unread model=%s version=%" PRIu64 " errno=%s why=\"%s\"", d->name,
                          info.number, ws_errno_name(info.error_code), ws_desk_quotable(info.error, why));
        return;
    case WS_VERSION_RENAMED:
        ws_desk_event(c, d, "superseded model=%s version=%" PRIu64 " run=%s", d->name, info.number, info.run);
        break;
    case WS_VERSION_GONE:
        ws_desk_event(c, d, "gone model=%s version=%" PRIu64 " run=%s", d->name, info.number, info.run);
        return;
    }
    if (change == WS_VERSION_KNOWN)
        ws_restore_version(c, d, m, v);
    if (change == WS_VERSION_KNOWN || info.state == WS_READY || info.state == WS_FAILED)
        ws_follow_look(c, m); /* a pull that has ended makes way for the next */
}

uint64_t ws_control_events_size(struct ws_control *c, struct ws_model *m)
{
    struct ws_desk *d = ws_desk_of(c, m ? ws_model_name(m) : NULL);
    return d ? ws_events_size(d->events) : 0;
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
    if (!c || !(c->root.events = ws_events_new())) {
        free(c);
        return ws_error_set(err, ENOMEM, "no memory for the control files");
    }
    c->store = store;
    c->options = *options;
    pthread_mutex_init(&c->lock, NULL);
    ws_cond_init(&c->idle);
    pthread_mutex_init(&c->saving, NULL);
    pthread_mutex_init(&c->adding, NULL);
    c->settings_path = ws_settings_path(options->state, options->mountpoint);
    snprintf(c->who, sizeof(c->who), "%s", options->who);
    int rc = ws_http_client_new(&c->http, err);
    if (rc < 0) {
        ws_control_free(c);
        return rc;
    }
    ws_restore_settings(c);
    rc = ws_keeper_start(c, &c->keeper); /* looks at once */
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
        atomic_store(&c->lacks_sources, true); /* the keeper opens them */
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

void ws_control_stop(struct ws_control *c)
{
    if (!c || atomic_load(&c->stop))
        return;
    c->end_by_ns = ws_clock_ns() + END_NS;
    atomic_store(&c->stop, true);
    ws_jobs_wait(c); /* before the keeper, which they wake */
    ws_keeper_stop(c->keeper);
    c->keeper = NULL;
    ws_standing_leave(c);
    ws_settings_give_up(c);
}

void ws_control_free(struct ws_control *c)
{
    if (!c)
        return;
    while (c->desks) {
        struct ws_desk *d = c->desks;
        c->desks = d->next;
        ws_desk_release(d);
        free(d);
    }
    ws_desk_release(&c->root);
    ws_http_client_free(c->http);
    free(c->settings_path);
    pthread_mutex_destroy(&c->adding);
    pthread_mutex_destroy(&c->saving);
    pthread_cond_destroy(&c->idle);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
