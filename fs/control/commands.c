#include "fs/control/commands.h"
#include "fs/engines/added.h"
#include "fs/switch/adapter_gate.h"
#include "fs/switch/catch_up.h"
#include "fs/switch/external_loaded.h"
#include "fs/switch/follow.h"
#include "fs/switch/gate.h"
#include "fs/switch/reconcile.h"
#include "fs/switch/switch.h"
#include "transports/base/name.h"
#include "transports/base/text.h"
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define NEWS_TRIES 25 /* half a second */
#define NEWS_MS    20
#define PULL_S     86400

static int find_version(struct ws_model *m, const char *word, struct ws_version **out, struct ws_error *err)
{
    uint64_t number;
    const char *at = word;
    const bool is_link =
        strcmp(word, "latest") == 0 || strcmp(word, "current") == 0 || strcmp(word, "previous") == 0;
    *out = NULL;
    if (!is_link && (ws_text_digits(&at, &number) || (*at && *at != '@')))
        return ws_error_set(
            err, EINVAL, "'%.100s' is no version: a number, NUMBER@RUN, latest, current or previous", word);
    /* The poller may not have listed yet what was published a moment ago. */
    for (int tries = 0; !(*out = ws_version_find(m, word, err)) && !is_link && tries < NEWS_TRIES; tries++)
        (void)poll(NULL, 0, NEWS_MS);
    return *out ? 0 : -err->code;
}

static int switch_options(const struct ws_command_request *rq, struct ws_switch_options *o,
                          struct ws_error *err)
{
    unsigned seconds;
    int rc = ws_command_seconds(&rq->command, WS_OPTION_DEADLINE, 0, &seconds, err);
    if (rc < 0)
        return rc;
    *o = (struct ws_switch_options){.force_layout = rq->command.force_layout,
                                    .wait = rq->command.wait,
                                    .deadline_s = seconds,
                                    .by = rq->who,
                                    .from = rq->from,
                                    .cancel = rq->cancel};
    return 0;
}

/* May a version that is here be switched to? */
static int check(struct ws_command_request *rq, const struct ws_switch_item *item, struct ws_error *err)
{
    bool is_adapter;
    int rc = ws_adapter_gate_check(rq->control, item->controller, item->version, &is_adapter, err);
    if (rc == 0 && !is_adapter)
        rc = ws_gate_check(&(struct ws_gate){.model = item->model, .version = item->version}, rq->control,
                           item->controller, err);
    return rc;
}

static int run_load(struct ws_command_request *rq, struct ws_error *err)
{
    struct ws_switch_options o;
    struct ws_switch_item item = {.controller = rq->controller, .model = rq->model};
    int rc = find_version(rq->model, rq->command.args[0], &item.version, err);
    if (rc < 0)
        return rc;
    rc = switch_options(rq, &o, err);
    if (rc == 0 && rq->command.verb == WS_VERB_LOAD)
        rc = ws_follow_allows(rq->control, rq->controller, rq->model, item.version, err);
    if (rc == 0)
        rc = rq->command.verb == WS_VERB_LOAD    ? ws_switch_run(rq->control, &item, 1, &o, err)
             : rq->command.verb == WS_VERB_STAGE ? ws_switch_prepare(rq->control, &item, &o, err)
                                                 : check(rq, &item, err);
    ws_version_put(item.version);
    return rc;
}

static int run_load_all(struct ws_command_request *rq, struct ws_error *err)
{
    struct ws_switch_item *items = calloc(rq->command.n_args, sizeof(*items));
    struct ws_switch_options o;
    size_t n = 0;
    int rc = items ? switch_options(rq, &o, err) : ws_error_set(err, ENOMEM, "no memory for a switch");
    for (; rc == 0 && n < rq->command.n_args; n++) {
        char *value;
        rc = ws_word_split(rq->command.args[n], &value, err);
        if (rc == 0 && !(items[n].model = ws_store_find(rq->control->store, rq->command.args[n])))
            rc = ws_error_set(err, ENOENT, "there is no model '%s' here", rq->command.args[n]);
        for (size_t i = 0; rc == 0 && i < n; i++)
            if (items[i].model == items[n].model)
                rc = ws_error_set(err, EINVAL, "%s is named twice", rq->command.args[n]);
        if (rc == 0)
            rc = find_version(items[n].model, value, &items[n].version, err);
        if (rc == 0 && !(items[n].controller = ws_controller_get(rq->control, ws_model_name(items[n].model))))
            rc = ws_error_set(err, ENOMEM, "no memory for a switch");
        if (rc == 0)
            rc = ws_follow_allows(rq->control, items[n].controller, items[n].model, items[n].version, err);
    }
    if (rc == 0)
        rc = ws_switch_run(rq->control, items, n, &o, err);
    for (size_t i = 0; items && i < n; i++)
        ws_switch_item_release(&items[i]);
    free(items);
    return rc;
}

static int run_version(struct ws_command_request *rq, struct ws_error *err)
{
    struct ws_version *v;
    int rc = find_version(rq->model, rq->command.args[0], &v, err);
    if (rc < 0)
        return rc;
    switch (rq->command.verb) {
    case WS_VERB_PULL:
        rc = ws_version_direct(v, err);
        if (rc == 0)
            rc = ws_switch_pull(rq->control, v, WS_PRIORITY_BACKGROUND,
                                &(struct ws_switch_options){.cancel = rq->cancel, .deadline_s = PULL_S}, err);
        if (rc < 0 && rc != -EINTR)
            ws_version_turn_back(v);
        break;
    case WS_VERB_DROP:
        rc = ws_version_drop(v, err);
        break;
    case WS_VERB_VERIFY:
        rc = ws_version_verify(v, (const atomic_bool *const[]){&rq->control->stop, rq->cancel}, err);
        break;
    case WS_VERB_LOADED:
        rc = ws_external_loaded(rq->control, rq->controller, rq->model, v,
                                rq->command.options[WS_OPTION_ENGINE], err);
        break;
    default:
        rc = ws_version_pin(v, rq->command.verb == WS_VERB_PIN, err);
    }
    ws_version_put(v);
    return rc;
}

/* A controller is made for a name that may be a model's, and is kept until the mount ends. */
static int check_model(const char *name, struct ws_error *err)
{
    return ws_name_is_model(name)
               ? 0
               : ws_error_set(err, EINVAL, "'%.100s' is no model's name: %s", name, WS_MODEL_NAME_RULE);
}

/* The engine's line in the settings names the folder, too: its files are read again later. */
static int run_engine_add(struct ws_command_request *rq, struct ws_error *err)
{
    const char **o = rq->command.options, *below = rq->control->options.files;
    struct ws_words *w = &rq->command.words;
    char files[WS_MAX_COMMAND + 1];
    if (!rq->any_file && o[WS_OPTION_FILES])
        return ws_error_set(err, EPERM, "files= is for root to give");
    if (!rq->any_file && (o[WS_OPTION_TOKEN_FILE] || o[WS_OPTION_ADMIN_TOKEN_FILE] || o[WS_OPTION_CA_FILE])) {
        if (!below)
            return ws_error_set(err, EPERM,
                                "only root names any file to this mount: have root add the engine, or mount "
                                "with -o files=DIR for files below that folder");
        assert(w->n < WS_MAX_WORDS); /* a command has no more than its options */
        snprintf(files, sizeof(files), "files=%s", below);
        w->word[w->n++] = files;
        o[WS_OPTION_FILES] = below;
    }
    const int rc = ws_engine_add(rq->control, rq->controller, &rq->command, true, err);
    if (rc == 0 && o[WS_OPTION_ADAPTERS])
        ws_reconciler_wake(rq->control->reconciler); /* it lacks what is current */
    return rc;
}

/* The word follow, and nothing is released yet: the operator may have meant either. */
static void warn_if_unclear(struct ws_control *c, struct ws_controller *ctl, const char *word)
{
    if (strcmp(word, "follow") != 0 || ws_controller_policy(c, ctl) != WS_POLICY_FOLLOW_UNTIL_RELEASE)
        return;
    ws_controller_event(c, ctl,
                        "policy-unclear model=%s why=\"follow acts on what is published until something is "
                        "released: write follow-released or follow-published\"",
                        ctl->name);
}

static int run_add(struct ws_command_request *rq, struct ws_error *err)
{
    const char *policy = rq->command.options[WS_OPTION_POLICY];
    if (check_model(rq->command.args[0], err) < 0 ||
        ws_added_check(rq->control, rq->command.args[1], !rq->any_file, err) < 0)
        return -err->code;
    struct ws_controller *ctl = ws_controller_get(rq->control, rq->command.args[0]);
    int rc = ctl ? 0 : ws_error_set(err, ENOMEM, "no memory for a model");
    if (rc == 0 && policy)
        rc = ws_controller_set_policy(rq->control, ctl, policy, &(struct ws_policy_options){0}, err);
    if (rc == 0 && policy)
        warn_if_unclear(rq->control, ctl, policy);
    return rc < 0 ? rc : ws_added_add(rq->control, ctl, rq->command.args[1], !rq->any_file, err);
}

/* Under the lock: an engine of another model that serves this one beside it. */
static struct ws_engine_at find_served(struct ws_control *c, const char *model)
{
    for (struct ws_engine_at at = {0}; ws_engine_next_of(c, model, &at);)
        if (at.member)
            return at;
    return (struct ws_engine_at){0};
}

/* Not while the model has engines, nor in a switch. Removing counts as a switch meanwhile. */
static int run_remove(struct ws_command_request *rq, struct ws_error *err)
{
    struct ws_control *c = rq->control;
    const char *model = rq->command.args[0];
    if (check_model(model, err) < 0)
        return -err->code;
    struct ws_controller *ctl = ws_controller_get(c, model);
    struct ws_engine_at served;
    int rc = ctl ? 0 : ws_error_set(err, ENOMEM, "no memory for a model");
    pthread_mutex_lock(&c->lock);
    if (rc == 0 && ctl->switching)
        rc = ws_error_set(err, EBUSY,
                          "a switch of %s is running: write cancel to its ctl, or wait for its end", model);
    else if (rc == 0 && (served = find_served(c, model)).engine)
        rc = ws_error_set(err, EBUSY,
                          "engine %s of %s serves %s beside it (adapters= or draft=): remove it there first",
                          served.engine->name, served.controller->name, model);
    else if (rc == 0 && ctl->n_engines > 0)
        rc = ws_error_set(err, EBUSY, "%s has %u engines, %s%s: remove them first", model, ctl->n_engines,
                          ctl->engines->name, ctl->n_engines > 1 ? " and others" : "");
    else if (rc == 0)
        ctl->switching = true;
    pthread_mutex_unlock(&c->lock);
    if (rc < 0)
        return rc;
    rc = ws_added_remove(c, ctl, err);
    pthread_mutex_lock(&c->lock);
    ctl->switching = false;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static int cancel_switch(struct ws_command_request *rq, struct ws_error *err)
{
    struct ws_control *c = rq->control;
    pthread_mutex_lock(&c->lock);
    bool running = rq->controller->switching;
    if (running)
        atomic_store(&rq->controller->cancel, true);
    pthread_mutex_unlock(&c->lock);
    return running ? 0 : ws_error_set(err, ENOENT, "no switch of %s is running", rq->controller->name);
}

static int run_policy(struct ws_command_request *rq, struct ws_error *err)
{
    const char *const *o = rq->command.options;
    const struct ws_policy_options options = {o[WS_OPTION_EVERY], o[WS_OPTION_MIN_INTERVAL],
                                              o[WS_OPTION_UNTIL]};
    const int rc = ws_controller_set_policy(rq->control, rq->controller, rq->command.args[0], &options, err);
    if (rc < 0)
        return rc;
    if (!ws_policy_follows_releases(ws_controller_policy(rq->control, rq->controller)))
        ws_follow_forget(rq->control, rq->controller, rq->model);
    ws_follow_desired(rq->control, rq->model); /* a release may be under way, or have been */
    warn_if_unclear(rq->control, rq->controller, rq->command.args[0]);
    return 0;
}

static int run_strategy(struct ws_command_request *rq, struct ws_error *err)
{
    struct ws_transport_prefs s;
    int rc = ws_transport_prefs_parse(rq->command.args[0], &s, err);
    if (rc == 0)
        rc = ws_transport_prefs_set(rq->control->store, rq->controller->name, &s, err);
    if (rc == 0)
        ws_controller_event(rq->control, rq->controller, "strategy model=%s strategy=%s",
                            rq->controller->name, rq->command.args[0]);
    return rc;
}

static int run_learn(struct ws_command_request *rq, struct ws_error *err)
{
    const char *model = rq->controller->name, *word = rq->command.args[0];
    struct ws_learned_info i;
    const bool ends = strcmp(word, "end") == 0;
    if (!ends && strcmp(word, "again") != 0)
        return ws_error_set(err, EINVAL, "'%.100s' is neither end nor again", word);
    if (!ws_model_learned(rq->model, &i))
        return ws_error_set(err, EINVAL,
                            "this mount does not learn what is read of %s: mount with -o need=%s=learn",
                            model, model);
    if (ends && i.n_tensors == 0)
        return ws_error_set(err, ENODATA,
                            "nothing of %s was read through this mount yet, so nothing would come of later "
                            "versions: have its engines load one first",
                            model);
    if (ends)
        ws_model_learn_end(rq->model, true);
    else
        ws_model_learn_again(rq->model);
    ws_controller_event(rq->control, rq->controller, "learn model=%s learning=%s tensors=%zu", model,
                        ends ? "ended" : "again", i.n_tensors);
    return 0;
}

static int run_commit(struct ws_command_request *rq, struct ws_error *err)
{
    return ws_controller_set_commit(rq->control, rq->controller, rq->command.args[0], err);
}

static int run_engine_remove(struct ws_command_request *rq, struct ws_error *err)
{
    return ws_engine_remove(rq->control, rq->controller, rq->command.args[0], err);
}

static int run_engine_sync(struct ws_command_request *rq, struct ws_error *err)
{
    return ws_switch_catch_up(rq->control, rq->controller, rq->model,
                              (const char *const[]){rq->command.args[0]}, 1, true, NULL, err);
}

const struct ws_command_action ws_command_actions[WS_VERB_COUNT] = {
    [WS_VERB_LOAD] = {run_load},
    [WS_VERB_STAGE] = {run_load},
    [WS_VERB_CHECK] = {run_load},
    [WS_VERB_LOAD_ALL] = {run_load_all},
    [WS_VERB_CANCEL] = {cancel_switch},
    [WS_VERB_COMMIT] = {run_commit, .changes_settings = true},
    [WS_VERB_POLICY] = {run_policy, .changes_settings = true},
    [WS_VERB_LEARN] = {run_learn},
    [WS_VERB_STRATEGY] = {run_strategy, .changes_settings = true},
    [WS_VERB_PULL] = {run_version},
    [WS_VERB_DROP] = {run_version},
    [WS_VERB_VERIFY] = {run_version},
    [WS_VERB_LOADED] = {run_version},
    [WS_VERB_PIN] = {run_version, .changes_settings = true, .lengthens_settings = true},
    [WS_VERB_UNPIN] = {run_version, .changes_settings = true},
    [WS_VERB_ENGINE_ADD] = {run_engine_add, .changes_settings = true, .lengthens_settings = true},
    [WS_VERB_ENGINE_REMOVE] = {run_engine_remove, .changes_settings = true},
    [WS_VERB_ENGINE_SYNC] = {run_engine_sync},
    [WS_VERB_ADD] = {run_add, .changes_settings = true, .lengthens_settings = true},
    [WS_VERB_REMOVE] = {run_remove, .changes_settings = true},
};
