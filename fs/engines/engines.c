#include "fs/engines/engines.h"
#include "fs/engines/controller.h"
#include "fs/engines/external.h"
#include "fs/engines/own_folder.h"
#include "transports/access/bearer.h"
#include "transports/base/below.h"
#include "transports/base/secret.h"
#include "transports/http/url.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT_S 300
#define PROBE_MS          15000

static void free_token(struct ws_engine_token *t)
{
    while (t->old) {
        struct ws_engine_old_token *one = t->old;
        t->old = one->before;
        ws_secret_free(one->text);
        free(one);
    }
    ws_secret_free(t->text);
}

void ws_engine_free(struct ws_engine *e)
{
    if (!e)
        return;
    char *const strings[] = {e->files,      e->load_format,      e->name,   e->url,    e->prefix,
                             e->pause_mode, e->ca_file,          e->mounts, e->group,  e->line,
                             e->token_file, e->admin_token_file, e->listed, e->strays, e->adapter_error};
    free_token(&e->token);
    free_token(&e->admin_token);
    for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++)
        free(strings[i]);
    for (size_t i = 0; i < WS_ENGINE_TEMPLATES; i++)
        free(e->templates[i]);
    free(e);
}

void ws_engine_call_init(struct ws_engine *e, struct ws_control *c, struct ws_engine_call *out)
{
    pthread_mutex_lock(&c->lock);
    out->facts = e->facts;
    const bool sleeping = e->condition.sleeping;
    const char *token = e->token.text, *admin_token = e->admin_token.text;
    pthread_mutex_unlock(&c->lock);
    out->templates = (struct ws_engine_templates){e->templates[0], e->templates[1], e->templates[2],
                                                  e->templates[3], e->templates[4], e->templates[5]};
    out->target = (struct ws_engine_target){.http = c->http,
                                            .url = e->url,
                                            .token = token,
                                            .admin_token = admin_token,
                                            .ca_file = e->ca_file,
                                            .ca_below = e->files,
                                            .short_ms = e->short_ms,
                                            .pause_mode = e->pause_mode,
                                            .load_format = e->load_format,
                                            .cache = e->cache,
                                            .sleep = e->sleep,
                                            .sleeping = sleeping,
                                            .timeout_ms = e->timeout_ms,
                                            .cancel = {&c->stop},
                                            .facts = &out->facts,
                                            .templates = &out->templates};
}

void ws_engine_call_limit(struct ws_engine_call *call, unsigned most_ms)
{
    if (call->target.timeout_ms > most_ms)
        call->target.timeout_ms = most_ms;
}

int ws_engine_query(const struct ws_engine *e, const struct ws_engine_target *t,
                    struct ws_engine_facts *facts, struct ws_engine_serving *out, struct ws_error *err)
{
    struct ws_engine_target fresh = *t;
    fresh.facts = NULL;
    return e->ops->probe(&fresh, facts, out, err);
}

void ws_engine_record(struct ws_engine *e, const struct ws_engine_facts *facts,
                      const struct ws_engine_serving *now)
{
    e->facts = *facts;
    ws_condition_probed(&e->condition, now);
}

/* Reads a token that is not there yet, or whose file has changed. */
static int find_token(struct ws_control *c, const char *path, const char *files, struct ws_engine_token *t,
                      struct ws_error *err)
{
    char *found = NULL;
    int rc = 0;
    if (!path)
        return 0;
    pthread_mutex_lock(&c->lock);
    const bool lacks = !t->text;
    struct ws_bearer_file file = t->file;
    pthread_mutex_unlock(&c->lock);
    file.path = path;
    file.below = files;
    if (lacks)
        rc = ws_token_read(path, files, &found, err);
    else
        found = ws_bearer_file_look(&file, false);
    struct ws_engine_old_token *old = found ? calloc(1, sizeof(*old)) : NULL;
    if (lacks && found && !old)
        rc = ws_error_set(err, ENOMEM, "no memory for the token of an engine");
    pthread_mutex_lock(&c->lock);
    if (!lacks && (old || !found)) /* without memory it is read again */
        t->file = file;
    if (old && (!t->text || strcmp(found, t->text) != 0)) {
        if (t->text) {
            *old = (struct ws_engine_old_token){.before = t->old, .text = t->text};
            t->old = old;
            old = NULL;
        }
        t->text = found;
        found = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    free(old);
    ws_secret_free(found);
    return rc;
}

/* Each call opens it again. */
static int check_ca(const struct ws_engine *e, struct ws_error *err)
{
    struct stat st;
    int fd = ws_below_open(e->files, e->ca_file, false, &st, err);
    if (fd >= 0)
        close(fd);
    return fd >= 0 ? 0 : e->files ? fd : ws_error_prefix(err, "cannot read the certificates");
}

int ws_engine_ready(struct ws_engine *e, struct ws_control *c, struct ws_error *err)
{
    int rc = find_token(c, e->token_file, e->files, &e->token, err);
    if (rc == 0)
        rc = find_token(c, e->admin_token_file, e->files, &e->admin_token, err);
    return rc == 0 && e->ca_file ? check_ca(e, err) : rc;
}

static int check_pause_mode(const struct ws_engine_ops *ops, const char *mode, struct ws_error *err)
{
    char known[256] = "";
    size_t n = 0;
    for (const char *const *m = ops->pause_modes; mode && *m; m++) {
        if (strcmp(*m, mode) == 0)
            return 0;
        n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s", n ? ", " : "", *m);
    }
    return mode ? ws_error_set(err, EINVAL, "pause=%s: %s knows %s", mode, ops->kind, known) : 0;
}

/* NULL stays NULL. */
static int copy(const char *from, char **to, struct ws_error *err)
{
    *to = from ? strdup(from) : NULL;
    return from && !*to ? ws_error_set(err, ENOMEM, "no memory for an engine") : 0;
}

static int find_kind(const char *kind, const struct ws_engine_ops **out, struct ws_error *err)
{
    char kinds[256] = "";
    size_t n = 0;
    *out = strcmp(kind, ws_external_ops.kind) == 0 ? &ws_external_ops : ws_engine_find(kind);
    if (*out)
        return 0;
    for (const char *const *k = ws_engine_kinds(); *k && n < sizeof(kinds); k++)
        n += (size_t)snprintf(kinds + n, sizeof(kinds) - n, "%s, ", *k);
    return ws_error_set(err, EINVAL, "there is no kind of engine '%s'; there is %s%s", kind, kinds,
                        ws_external_ops.kind);
}

static int check_options(const struct ws_command *q, const struct ws_engine_ops *ops, struct ws_error *err)
{
    static const enum ws_option templates[] = {WS_OPTION_LOAD, WS_OPTION_FLUSH, WS_OPTION_RESUME,
                                               WS_OPTION_SERVING, WS_OPTION_PATCH};
    const char *prefix = q->options[WS_OPTION_PREFIX];
    if (!ws_name_is_safe(q->args[0]) || strchr(q->args[0], ' '))
        return ws_error_set(err, EINVAL, "'%s' is no name for an engine: no blanks and no slash", q->args[0]);
    for (size_t i = 0; ops->external && i < WS_OPTION_COUNT; i++)
        if (q->options[i] || q->n_args > 2)
            return ws_error_set(
                err, EINVAL,
                "an external engine is driven by its own framework: it has a name, and nothing else");
    if (!ops->external && q->n_args < 3)
        return ws_error_set(err, EINVAL, "an engine of kind %s has a URL", ops->kind);
    for (size_t i = 0; i < WS_OPTION_COUNT; i++)
        if (q->options[i] && !q->options[i][0])
            return ws_error_set(err, EINVAL,
                                "an option has no value: leave it out, or write one behind its =");
    if (ops == &ws_engine_remote && q->options[WS_OPTION_LOAD] &&
        !strstr(q->options[WS_OPTION_LOAD], "{path}"))
        return ws_error_set(err, EINVAL, "load= has no {path}: what would the server load?");
    if (prefix && prefix[0] != '/')
        return ws_error_set(err, EINVAL,
                            "prefix=%s is no absolute path: it is where the engine sees this mount", prefix);
    for (size_t i = 0; ops != &ws_engine_remote && i < sizeof(templates) / sizeof(templates[0]); i++)
        if (q->options[templates[i]])
            return ws_error_set(
                err, EINVAL,
                "load=, flush=, resume=, serving= and patch= are templates of engines of kind remote");
    const char *patch = q->options[WS_OPTION_PATCH];
    if (patch && !(strstr(patch, "{stage}") && strstr(patch, "{plan}")))
        return ws_error_set(err, EINVAL,
                            "patch= has no {stage} or no {plan}: it is sent for each stage of a patch");
    if (ops != &ws_engine_sglang && q->options[WS_OPTION_LOAD_FORMAT])
        return ws_error_set(err, EINVAL,
                            "load-format= is SGLang's: an engine of kind %s is told no format with a load",
                            ops->kind);
    if (ops == &ws_engine_remote && q->options[WS_OPTION_SLEEP])
        return ws_error_set(err, EINVAL, "sleep=: the mount knows no way to wake an engine of kind %s",
                            ops->kind);
    if (q->options[WS_OPTION_ADAPTERS] && !ops->adapter_load)
        return ws_error_set(err, EINVAL,
                            "adapters=: the mount knows no way to load adapters into an engine of kind %s",
                            ops->kind);
    if (q->options[WS_OPTION_DRAFT] && !ops->load_draft)
        return ws_error_set(
            err, EINVAL,
            "draft=: the mount knows no way to load a draft model alone into an engine of kind %s",
            ops->kind);
    return ops->external ? 0 : ws_http_check_url("an engine", q->args[2], err);
}

static int fill_engine(struct ws_engine *e, const struct ws_command *q, struct ws_error *err)
{
    static const enum ws_option templates[WS_ENGINE_TEMPLATES] = {WS_OPTION_PAUSE,   WS_OPTION_LOAD,
                                                                  WS_OPTION_FLUSH,   WS_OPTION_RESUME,
                                                                  WS_OPTION_SERVING, WS_OPTION_PATCH};
    const char *const *o = q->options;
    bool remote = e->ops == &ws_engine_remote;
    const bool reports_version =
        e->ops->reports_version ||
        (remote && o[WS_OPTION_SERVING] && o[WS_OPTION_LOAD] && strstr(o[WS_OPTION_LOAD], "{version}"));
    const struct {
        const char *from;
        char **to;
    } strings[] = {{q->args[0], &e->name},
                   {e->ops->external ? NULL : q->args[2], &e->url},
                   {o[WS_OPTION_PREFIX], &e->prefix},
                   {remote ? NULL : o[WS_OPTION_PAUSE], &e->pause_mode},
                   {o[WS_OPTION_LOAD_FORMAT], &e->load_format},
                   {o[WS_OPTION_GROUP], &e->group},
                   {o[WS_OPTION_CA_FILE], &e->ca_file},
                   {o[WS_OPTION_TOKEN_FILE], &e->token_file},
                   {o[WS_OPTION_FILES], &e->files},
                   {o[WS_OPTION_ADMIN_TOKEN_FILE], &e->admin_token_file},
                   {o[WS_OPTION_MOUNTS], &e->mounts}};
    unsigned timeout_s = 0, pause_timeout_s = 0;
    int rc = ws_engine_sleep_parse(o[WS_OPTION_SLEEP], &e->sleep, err);
    ws_condition_init(&e->condition,
                      (struct ws_condition_reports){.version = reports_version,
                                                    .path = e->ops->reports_path,
                                                    .loses_asleep = e->sleep == WS_SLEEP_LOSES});
    if (rc == 0)
        rc = ws_engine_cache_parse(o[WS_OPTION_CACHE], &e->cache, err);
    if (rc == 0)
        rc = ws_command_seconds(q, WS_OPTION_TIMEOUT, DEFAULT_TIMEOUT_S, &timeout_s, err);
    if (rc == 0)
        rc = ws_command_seconds(q, WS_OPTION_PAUSE_TIMEOUT, 0, &pause_timeout_s, err);
    e->timeout_ms = timeout_s * 1000;
    e->short_ms = pause_timeout_s * 1000;
    if (rc == 0 && !remote)
        rc = check_pause_mode(e->ops, o[WS_OPTION_PAUSE], err);
    if (rc == 0)
        rc = ws_patching_init(&e->patching, e->ops, q, err);
    if (rc == 0)
        rc = ws_members_parse(o[WS_OPTION_ADAPTERS], o[WS_OPTION_DRAFT], &e->members, err);
    for (size_t i = 0; rc == 0 && i < sizeof(strings) / sizeof(strings[0]); i++)
        rc = copy(strings[i].from, strings[i].to, err);
    for (size_t n = rc == 0 && e->prefix ? strlen(e->prefix) : 0; n > 1 && e->prefix[n - 1] == '/';)
        e->prefix[--n] = 0;
    for (size_t i = 0; rc == 0 && remote && i < WS_ENGINE_TEMPLATES; i++)
        rc = copy(o[templates[i]], &e->templates[i], err);
    return rc;
}

static int make_engine(const struct ws_command *q, struct ws_engine **out, struct ws_error *err)
{
    const struct ws_engine_ops *ops;
    int rc = find_kind(q->args[1], &ops, err);
    if (rc == 0)
        rc = check_options(q, ops, err);
    if (rc < 0)
        return rc;
    struct ws_engine *e = calloc(1, sizeof(*e));
    if (!e)
        return ws_error_set(err, ENOMEM, "no memory for an engine");
    e->ops = ops;
    rc = fill_engine(e, q, err);
    if (rc < 0) {
        ws_engine_free(e);
        return rc;
    }
    *out = e;
    return 0;
}

int ws_engine_check(const struct ws_command *q, struct ws_error *err)
{
    struct ws_engine *e = NULL;
    const int rc = make_engine(q, &e, err);
    ws_engine_free(e);
    return rc;
}

static bool has_engine(const struct ws_controller *ctl, const char *name)
{
    for (const struct ws_engine *e = ctl->engines; e; e = e->next)
        if (strcmp(e->name, name) == 0)
            return true;
    return false;
}

/* Of any model: one server serves one. With the lock. */
static const struct ws_engine *engine_at(const struct ws_control *c, const char *url,
                                         const struct ws_controller **of)
{
    for (const struct ws_controller *ctl = c->controllers; url && ctl; ctl = ctl->next)
        for (const struct ws_engine *e = ctl->engines; e; e = e->next)
            if (e->url && ws_http_is_same(e->url, url)) {
                *of = ctl;
                return e;
            }
    return NULL;
}

/* Not of an engine that is brought back, which is not to be lost for it; nor for somebody to whom root has given one folder (files=), below
 * which they are opened. */
static int check_files(const struct ws_control *c, const struct ws_engine *e, bool ask, struct ws_error *err)
{
    const char *const files[] = {e->ca_file, e->token_file, e->admin_token_file};
    int rc = 0;
    for (size_t i = 0; rc == 0 && ask && !e->files && i < sizeof(files) / sizeof(files[0]); i++)
        rc = files[i] ? ws_own_folder_check(c->options.mountpoint, files[i], err) : 0;
    return rc;
}

int ws_engine_add(struct ws_control *c, struct ws_controller *ctl, const struct ws_command *q, bool ask,
                  struct ws_error *err)
{
    char line[WS_MAX_COMMAND + 1];
    struct ws_engine *e = NULL;
    struct ws_engine_facts facts = {0};
    struct ws_engine_serving serving = {0};
    int rc = make_engine(q, &e, err);
    if (rc < 0)
        return rc;
    rc = check_files(c, e, ask, err);
    if (rc == 0)
        rc = ws_words_join(&q->words, line, err);
    if (rc == 0 && !(e->line = strdup(line)))
        rc = ws_error_set(err, ENOMEM, "no memory for an engine");
    if (rc == 0 && ask)
        rc = ws_engine_ready(e, c, err);
    if (rc == 0 && ask && !e->ops->external) {
        struct ws_engine_call call;
        ws_engine_call_init(e, c, &call);
        ws_engine_call_limit(&call, PROBE_MS);
        rc = ws_engine_query(e, &call.target, &facts, &serving, err);
    }
    pthread_mutex_lock(&c->lock);
    const struct ws_controller *of = NULL;
    const struct ws_engine *same = rc == 0 ? engine_at(c, e->url, &of) : NULL;
    if (same)
        rc = ws_error_set(err, EEXIST, "%s is registered with %s already, as '%s'; remove it there first",
                          e->url, of->name, same->name);
    if (rc == 0 && ctl->engines && ctl->engines->ops->external != e->ops->external)
        rc = ws_error_set(err, EINVAL, "the engines of a model are all external, or none of them is");
    if (rc == 0 && ws_members_find(&e->members, ctl->name))
        rc = ws_error_set(err, EINVAL,
                          "%s is what the engine serves itself: adapters= and draft= name other models",
                          ctl->name);
    if (rc == 0 && has_engine(ctl, e->name))
        rc = ws_error_set(err, EEXIST, "%s has an engine '%s' already; remove it first", ctl->name, e->name);
    if (rc == 0 && ctl->n_engines >= WS_MAX_ENGINES)
        rc = ws_error_set(err, E2BIG, "%s has %d engines, which is the limit", ctl->name, WS_MAX_ENGINES);
    if (rc == 0 && ctl->switching)
        rc = ws_error_set(err, EBUSY, "a switch of %s is running; add the engine when it is done", ctl->name);
    if (rc == 0) {
        struct ws_engine **at = &ctl->engines;
        if (ask && !e->ops->external) {
            ws_engine_record(e, &facts, &serving);
            ws_condition_added(&e->condition, serving.paused);
        }
        while (*at)
            at = &(*at)->next;
        *at = e;
        ctl->n_engines++;
    }
    pthread_mutex_unlock(&c->lock);
    if (rc != 0) {
        ws_engine_free(e);
        return rc;
    }
    ws_controller_event(c, ctl, "engine-added model=%s engine=%s kind=%s release=%s url=%s serving=%s%s%s",
                        ctl->name, q->args[0], q->args[1], facts.release[0] ? facts.release : "unknown",
                        q->n_args > 2 ? q->args[2] : "-", serving.version[0] ? serving.version : "unknown",
                        facts.missing[0] ? " lacks=" : "", facts.missing);
    return 0;
}

int ws_engine_remove(struct ws_control *c, struct ws_controller *ctl, const char *name, struct ws_error *err)
{
    struct ws_engine **at, *e = NULL;
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    for (at = &ctl->engines; *at && strcmp((*at)->name, name) != 0; at = &(*at)->next)
        ;
    if (!*at) {
        rc =
            ws_error_set(err, ENOENT, "%s has no engine '%s'; reading 'engines' lists them", ctl->name, name);
    } else if (ctl->switching) {
        rc = ws_error_set(err, EBUSY, "a switch of %s is running; remove the engine when it is done",
                          ctl->name);
    } else {
        e = *at;
        *at = e->next;
        ctl->n_engines--;
        if (ctl->n_engines == 0) { /* those that come are started on what is here */
            free(ctl->needed);
            ctl->needed = NULL;
        }
    }
    if (e && e->refs > 0) {
        e->removed = true;
        e = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    ws_engine_free(e);
    if (rc == 0)
        ws_controller_event(c, ctl, "engine-removed model=%s engine=%s", ctl->name, name);
    return rc;
}

bool ws_engine_next_of(struct ws_control *c, const char *model, struct ws_engine_at *at)
{
    struct ws_controller *ctl = at->controller ? at->controller : c->controllers;
    struct ws_engine *e = at->engine ? at->engine->next : ctl ? ctl->engines : NULL;
    while (ctl) {
        for (; e; e = e->next) {
            const struct ws_member *member = ws_members_find(&e->members, model);
            if (!member && strcmp(ctl->name, model) != 0)
                continue;
            *at = (struct ws_engine_at){ctl, e, member};
            return true;
        }
        ctl = ctl->next;
        e = ctl ? ctl->engines : NULL;
    }
    return false;
}

bool ws_engine_has_role(struct ws_control *c, const char *model, enum ws_member_role role)
{
    struct ws_engine_at at = {0};
    bool has = false;
    pthread_mutex_lock(&c->lock);
    while (!has && ws_engine_next_of(c, model, &at))
        has = (at.member ? at.member->role : WS_MEMBER_TARGET) == role;
    pthread_mutex_unlock(&c->lock);
    return has;
}

unsigned ws_engine_most_kept(struct ws_control *c, const char *model)
{
    unsigned most = 0;
    for (struct ws_engine_at at = {0}; ws_engine_next_of(c, model, &at);)
        if (at.member && at.member->keep > most)
            most = at.member->keep;
    return most;
}

struct ws_engine **ws_engine_get_all(struct ws_control *c, struct ws_controller *ctl, bool of_others,
                                     size_t *n)
{
    size_t room = 1;
    *n = 0;
    pthread_mutex_lock(&c->lock);
    for (struct ws_engine_at at = {0}; ws_engine_next_of(c, ctl->name, &at);)
        room += of_others || !at.member;
    struct ws_engine **all = calloc(room, sizeof(struct ws_engine *));
    for (struct ws_engine_at at = {0}; all && ws_engine_next_of(c, ctl->name, &at);)
        if (of_others || !at.member) {
            at.engine->refs++;
            all[(*n)++] = at.engine;
        }
    pthread_mutex_unlock(&c->lock);
    return all;
}

void ws_engine_put_all(struct ws_control *c, struct ws_engine **all, size_t n)
{
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < n; i++)
        if (--all[i]->refs == 0 && all[i]->removed)
            ws_engine_free(all[i]);
    pthread_mutex_unlock(&c->lock);
    free(all);
}
