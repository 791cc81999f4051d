/* Config: sets what the file says, and shows what differs (config.h). */
#include "fs/control/config.h"
#include "fs/control/config_file.h"
#include "fs/control/declared.h"
#include "fs/engines/added.h"
#include "fs/engines/control.h"
#include "fs/engines/engines.h"
#include "fs/engines/job.h"
#include "fs/switch/follow.h"
#include "fs/switch/presence.h"
#include "fs/switch/reconcile.h"
#include "fs/switch/settings.h"
#include "transports/base/log.h"
#include "transports/http/url.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MS 200 /* whether a switch that runs is over */

/* --- setting; by one thread at a time --- */

static const struct ws_config_model *find_model(const struct ws_config_model *all, const char *name)
{
    while (all && strcmp(all->name, name) != 0)
        all = all->next;
    return all;
}

static bool is_engine_at(const struct ws_config_line *l, const char *url)
{
    struct ws_error err;
    struct ws_command *q = calloc(1, sizeof(*q));
    const bool is = q && ws_command_parse(WS_SCOPE_MODEL, l->text, strlen(l->text), q, &err) == 0 &&
                    q->args[2] && ws_http_is_same(q->args[2], url);
    free(q);
    return is;
}

/* Does the file have the engine's server? One of a model that the file does not name goes to the model that has it
 * there: it may be a model that was never there, out of a file with a wrong name in it. */
static bool has_server(const struct ws_config_model *all, const struct ws_engine *e)
{
    bool has = false;
    for (const struct ws_config_model *m = all; e->url && m; m = m->next)
        for (size_t i = 0; i < m->engines.len; i++)
            has = has || is_engine_at(&m->engines.ptr[i], e->url);
    return has;
}

/* Names of engines that are not as the file has them. NULL: no memory. */
static char **engines_to_remove(struct ws_control *c, const struct ws_controller *ctl,
                                const struct ws_config_model *all, size_t *n)
{
    const struct ws_config_model *m = find_model(all, ctl->name);
    *n = 0;
    pthread_mutex_lock(&c->lock);
    char **names = calloc(ctl->n_engines + 1, sizeof(*names));
    for (const struct ws_engine *e = ctl->engines; names && e; e = e->next) {
        const struct ws_config_line *l = m ? ws_config_find(&m->engines, e->name) : NULL;
        const bool goes = m ? !(l && strcmp(l->text, e->line) == 0) : has_server(all, e);
        if (goes && (names[*n] = strdup(e->name)))
            ++*n;
    }
    pthread_mutex_unlock(&c->lock);
    return names;
}

static int remove_engines(struct ws_control *c, struct ws_controller *ctl, const struct ws_config_model *all,
                          struct ws_error *err)
{
    size_t n;
    char **names = engines_to_remove(c, ctl, all, &n);
    int rc = names ? 0 : ws_error_set(err, ENOMEM, "no memory for the names of engines");
    for (size_t i = 0; i < n; i++) {
        if (rc == 0)
            rc = ws_engine_remove(c, ctl, names[i], err);
        free(names[i]);
    }
    free(names);
    return rc;
}

static bool has_engine(struct ws_control *c, const struct ws_controller *ctl, const char *name)
{
    bool has = false;
    pthread_mutex_lock(&c->lock);
    for (const struct ws_engine *e = ctl->engines; e; e = e->next)
        has = has || strcmp(e->name, name) == 0;
    pthread_mutex_unlock(&c->lock);
    return has;
}

/* The reconciler asks it what it is and serves: one that does not answer yet is no reason not to set the rest. */
static int add_engine(struct ws_control *c, struct ws_controller *ctl, const struct ws_config_line *l,
                      struct ws_error *err)
{
    struct ws_command *q = calloc(1, sizeof(*q));
    int rc = q ? ws_command_parse(WS_SCOPE_MODEL, l->text, strlen(l->text), q, err)
               : ws_error_set(err, ENOMEM, "no memory for an engine");
    if (rc == 0)
        rc = ws_engine_add(c, ctl, q, false, err);
    free(q);
    if (rc < 0) {
        char text[WS_ERROR_TEXT];
        snprintf(text, sizeof(text), "%s", err->text);
        ws_error_set(err, -rc, "%s:%u: %.800s", l->file, l->line, text);
    }
    return rc;
}

static void set_words(struct ws_control *c, struct ws_controller *ctl, const struct ws_config_model *m)
{
    char policy[WS_POLICY_CHARS], commit[32];
    pthread_mutex_lock(&c->lock);
    const bool new_policy = m->has_policy && !ws_config_has_policy(ctl, &m->wanted);
    const bool new_commit =
        m->has_commit && (ctl->commit != m->wanted.commit || ctl->commit_n != m->wanted.commit_n);
    if (new_policy) {
        ctl->policy = m->wanted.policy;
        ctl->follow_every = m->wanted.follow_every;
        ctl->follow_interval_s = m->wanted.follow_interval_s;
        ctl->refused_id = 0;
        ws_backoff_reset(&ctl->follow_backoff);
    }
    if (new_commit) {
        ctl->commit = m->wanted.commit;
        ctl->commit_n = m->wanted.commit_n;
    }
    ws_controller_policy_text(ctl, policy);
    ws_controller_commit_text(ctl, commit);
    pthread_mutex_unlock(&c->lock);
    if (new_policy)
        ws_controller_event(c, ctl, "policy model=%s policy=%s by=config", ctl->name, policy);
    if (new_commit)
        ws_controller_event(c, ctl, "commit model=%s commit=%s by=config", ctl->name, commit);
}

static bool has_source(struct ws_control *c, const struct ws_controller *ctl, const char *url)
{
    bool has = false;
    pthread_mutex_lock(&c->lock);
    for (const struct ws_added_source *a = ctl->added; a; a = a->next)
        has = has || strcmp(a->url, url) == 0;
    pthread_mutex_unlock(&c->lock);
    return has;
}

/* starting: they are opened with those that the settings have, after the mount's own. */
static int add_sources(struct ws_control *c, struct ws_controller *ctl, const struct ws_config_model *m,
                       bool starting, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < m->sources.len; i++) {
        char line[WS_MAX_COMMAND + 64], *text = NULL;
        size_t n;
        if (has_source(c, ctl, m->sources.ptr[i].word))
            continue;
        rc = ws_added_check(c, m->sources.ptr[i].word, false, err);
        if (rc < 0)
            return rc;
        FILE *f = open_memstream(&text, &n);
        if (f)
            ws_words_quote(f, m->sources.ptr[i].word);
        if (!f || fclose(f) != 0)
            return ws_error_set(err, ENOMEM, "no memory for a source");
        snprintf(line, sizeof(line), "source %s root", text);
        free(text);
        if (!starting)
            rc = ws_added_add(c, ctl, m->sources.ptr[i].word, false, err);
        else if (!ws_added_read(ctl, line))
            rc = ws_error_set(err, ENOMEM, "no memory for a source");
    }
    return rc;
}

static void pin_known(struct ws_model *model, const struct ws_config_model *m)
{
    for (size_t i = 0; i < m->pins.len; i++) {
        struct ws_error err;
        struct ws_version *v = ws_version_find(model, m->pins.ptr[i].word, &err);
        if (v && ws_version_pin(v, true, &err) < 0)
            ws_log(WS_LOG_WARN, "control", "the config cannot pin %s: %s", m->pins.ptr[i].word, err.text);
        if (v)
            ws_version_put(v);
    }
}

static int set_model(struct ws_control *c, struct ws_controller *ctl, const struct ws_config_model *m,
                     bool starting, struct ws_error *err)
{
    int rc = 0;
    set_words(c, ctl, m);
    if (m->has_strategy)
        rc = ws_transport_prefs_set(c->store, m->name, &m->strategy, err);
    for (size_t i = 0; rc == 0 && i < m->engines.len; i++)
        if (!has_engine(c, ctl, m->engines.ptr[i].word))
            rc = add_engine(c, ctl, &m->engines.ptr[i], err);
    return rc < 0 ? rc : add_sources(c, ctl, m, starting, err);
}

/* Engines that go, of all models, go first: a server may move from one model to another. */
static int set_all(struct ws_control *c, const struct ws_config_model *before,
                   const struct ws_config_model *all, bool starting, struct ws_error *err)
{
    int rc = ws_declared_take_back(c, before, all, err);
    pthread_mutex_lock(&c->lock);
    struct ws_controller *ctl = c->controllers; /* those after it stay */
    pthread_mutex_unlock(&c->lock);
    for (; rc == 0 && ctl; ctl = ctl->next)
        rc = remove_engines(c, ctl, all, err);
    for (const struct ws_config_model *m = all; rc == 0 && m; m = m->next) {
        ctl = ws_controller_get(c, m->name);
        rc = ctl ? set_model(c, ctl, m, starting, err) : ws_error_set(err, ENOMEM, "no memory for a model");
    }
    return rc;
}

/* What follows for models that are known. now: it is what the file says, and not what it said before. */
static void act(struct ws_control *c, const struct ws_config_model *all, bool now)
{
    for (const struct ws_config_model *m = all; m; m = m->next) {
        struct ws_controller *ctl = ws_controller_get(c, m->name);
        struct ws_model *model = ctl ? ws_store_find(c->store, m->name) : NULL;
        if (!model)
            continue;
        if (now)
            pin_known(model, m);
        ws_presence_post(c, ctl, model);
        ws_follow_desired(c, model);
        ws_model_put(model);
    }
}

static void replace(struct ws_control *c, struct ws_config_model *all)
{
    pthread_mutex_lock(&c->config_lock);
    struct ws_config_model *before = c->config;
    c->config = all;
    c->config_error[0] = 0;
    pthread_mutex_unlock(&c->config_lock);
    ws_config_file_free(before);
}

int ws_config_start(struct ws_control *c, struct ws_error *err)
{
    struct ws_config_model *all;
    if (!c->options.config) {
        ws_declared_forget(c);
        return 0;
    }
    int rc = ws_config_file_read(c->options.config, &all, err);
    if (rc < 0)
        return rc;
    replace(c, all);
    atomic_store(&c->restoring, true); /* nothing is written before all of it is there */
    struct ws_config_model *before = ws_declared_read(c);
    rc = set_all(c, before, all, true, err);
    if (rc == 0)
        rc = ws_declared_record(c, all, false, err);
    ws_config_file_free(before);
    atomic_store(&c->restoring, false);
    return rc;
}

/* The last reading did not do what it was to do. */
static void record_error(struct ws_control *c, const struct ws_error *err)
{
    pthread_mutex_lock(&c->config_lock);
    snprintf(c->config_error, sizeof(c->config_error), "%s", err->text);
    pthread_mutex_unlock(&c->config_lock);
    (void)ws_controller_fail(c, &c->root, "config", err);
}

static void reload(void *arg)
{
    struct ws_control *c = arg;
    struct ws_error err = {0};
    struct ws_config_model *all;
    pthread_mutex_lock(&c->configuring);
    int rc = ws_config_file_read(c->options.config, &all, &err);
    if (rc == 0) {
        struct ws_config_model *before = ws_declared_read(c);
        replace(c, all);
        rc = ws_declared_record(c, all, true, &err);
        while (rc == 0 && (rc = set_all(c, before, all, false, &err)) == -EBUSY && !atomic_load(&c->stop)) {
            (void)poll(NULL, 0, LOOK_MS);
            rc = 0;
        }
        if (rc == 0)
            rc = ws_declared_record(c, all, false, &err);
        act(c, before, false);
        act(c, all, true);
        ws_settings_save(c);
        ws_reconciler_wake(c->reconciler);
        ws_config_file_free(before);
    }
    if (rc < 0)
        record_error(c, &err);
    else
        ws_controller_event(c, &c->root, "config file=%s", c->options.config);
    pthread_mutex_unlock(&c->configuring);
}

void ws_config_reload(struct ws_control *c)
{
    if (c->options.config && ws_job_start(c, reload, c) < 0)
        ws_log(WS_LOG_WARN, "control", "the config is not read again: the mount is ending");
}

void ws_control_reload(struct ws_control *c)
{
    ws_config_reload(c);
}

void ws_config_free(struct ws_control *c)
{
    ws_config_file_free(c->config);
    c->config = NULL;
}

/* --- what is seen --- */

/* Under config_lock. */
static const struct ws_config_model *model_of(const struct ws_control *c, const struct ws_controller *ctl)
{
    return find_model(c->config, ctl->name);
}

void ws_config_version_known(struct ws_control *c, struct ws_controller *ctl, struct ws_version *v)
{
    const struct ws_version_id id = ws_version_id(v);
    bool pinned = false;
    struct ws_error err;
    pthread_mutex_lock(&c->config_lock);
    const struct ws_config_model *m = model_of(c, ctl);
    for (size_t i = 0; m && i < m->pins.len; i++)
        pinned = pinned || ws_config_names_version(&m->pins.ptr[i], &id);
    pthread_mutex_unlock(&c->config_lock);
    if (pinned && ws_version_pin(v, true, &err) < 0)
        ws_log(WS_LOG_WARN, "control", "the config cannot pin a version: %s", err.text);
}

struct difference {
    FILE *f;
    bool any;
};

__attribute__((format(printf, 2, 3))) static void differ(struct difference *d, const char *format, ...)
{
    va_list args;
    fputs(d->any ? "; " : "config_differs ", d->f);
    d->any = true;
    va_start(args, format);
    vfprintf(d->f, format, args);
    va_end(args);
}

/* Under both locks. */
static void differ_in_words(const struct ws_controller *ctl, const struct ws_config_model *m,
                            struct difference *d)
{
    char is[WS_POLICY_CHARS], wanted[WS_POLICY_CHARS];
    if (m->has_policy && !ws_config_has_policy(ctl, &m->wanted)) {
        ws_controller_policy_text(ctl, is);
        ws_controller_policy_text(&m->wanted, wanted);
        differ(d, "policy is %s, the file has %s", is, wanted);
    }
    if (m->has_commit && (ctl->commit != m->wanted.commit || ctl->commit_n != m->wanted.commit_n)) {
        ws_controller_commit_text(ctl, is);
        ws_controller_commit_text(&m->wanted, wanted);
        differ(d, "commit is %s, the file has %s", is, wanted);
    }
}

static void differ_in_need(const struct ws_control *c, const struct ws_config_model *m, struct difference *d)
{
    const char *is = ws_store_need_text(c->store, m->name);
    if (m->need && strcmp(m->need, is) != 0)
        differ(d, "need is %s, the file has %s, which holds when the mount is started again",
               is[0] ? is : "all", m->need);
}

static void differ_in_engines(const struct ws_controller *ctl, const struct ws_config_model *m,
                              struct difference *d)
{
    for (const struct ws_engine *e = ctl->engines; e; e = e->next) {
        const struct ws_config_line *l = ws_config_find(&m->engines, e->name);
        if (!l)
            differ(d, "engine %s is not in the file", e->name);
        else if (strcmp(l->text, e->line) != 0)
            differ(d, "engine %s is another one in the file", e->name);
    }
    for (size_t i = 0; i < m->engines.len; i++) {
        const struct ws_engine *e = ctl->engines;
        while (e && strcmp(e->name, m->engines.ptr[i].word) != 0)
            e = e->next;
        if (!e)
            differ(d, "engine %s of the file is missing", m->engines.ptr[i].word);
    }
}

/* Under both locks. */
static void differ_in_sources(const struct ws_controller *ctl, const struct ws_config_model *m,
                              struct difference *d)
{
    for (const struct ws_added_source *a = ctl->added; a; a = a->next)
        if (!ws_config_find(&m->sources, a->url))
            differ(d, "source %s is not in the file", a->url);
    for (size_t i = 0; i < m->sources.len; i++) {
        const struct ws_added_source *a = ctl->added;
        while (a && strcmp(a->url, m->sources.ptr[i].word) != 0)
            a = a->next;
        if (!a)
            differ(d, "source %s of the file is missing", m->sources.ptr[i].word);
    }
}

struct pins {
    const struct ws_config_model *of;
    struct difference *differs;
};

static void differ_in_pin(void *arg, struct ws_version *v)
{
    const struct pins *p = arg;
    const struct ws_version_id id = ws_version_id(v);
    struct ws_version_info info;
    bool wanted = false;
    ws_version_info(v, &info);
    for (size_t i = 0; i < p->of->pins.len; i++)
        wanted = wanted || ws_config_names_version(&p->of->pins.ptr[i], &id);
    if (info.pinned && !wanted)
        differ(p->differs, "the pin of %" PRIu64 " is not in the file", id.version);
    else if (!info.pinned && wanted)
        differ(p->differs, "the file's pin of %" PRIu64 " is missing", id.version);
}

void ws_config_print(struct ws_control *c, struct ws_controller *ctl, FILE *f)
{
    struct difference d = {.f = f};
    if (!c->options.config)
        return;
    pthread_mutex_lock(&c->config_lock);
    const struct ws_config_model *m = ctl == &c->root ? NULL : model_of(c, ctl);
    if (ctl == &c->root)
        fprintf(f, "config %s\n", c->options.config);
    if (ctl == &c->root && c->config_error[0])
        fprintf(f, "config_error %s\n", c->config_error);
    if (m) {
        struct ws_transport_prefs now;
        char text[WS_TRANSPORT_PREFS_CHARS], wanted[WS_TRANSPORT_PREFS_CHARS];
        (void)ws_transport_prefs_get(c->store, ctl->name, &now);
        ws_transport_prefs_text(&now, text);
        ws_transport_prefs_text(&m->strategy, wanted);
        pthread_mutex_lock(&c->lock);
        differ_in_words(ctl, m, &d);
        differ_in_engines(ctl, m, &d);
        differ_in_sources(ctl, m, &d);
        pthread_mutex_unlock(&c->lock);
        differ_in_need(c, m, &d);
        struct ws_model *model = ws_store_find(c->store, ctl->name);
        if (model) {
            ws_model_each(model, differ_in_pin, &(struct pins){m, &d});
            ws_model_put(model);
        }
        if (m->has_strategy && strcmp(text, wanted) != 0)
            differ(&d, "strategy is %s, the file has %s", text, wanted);
    }
    if (d.any)
        fputc('\n', f);
    pthread_mutex_unlock(&c->config_lock);
}
