#include "fs/engines.h"
#include "backends/engine/http.h"
#include "fs/desk.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT_S 300
#define PROBE_MS          15000

const char *ws_engine_state_name(enum ws_engine_state s)
{
    static const char *const names[] = {"serving", "paused", "loading", "unknown", "broken", "stale"};
    return names[s];
}

void ws_engine_free(struct ws_engine *e)
{
    if (!e)
        return;
    char *secrets[] = {e->token, e->admin_token};
    for (size_t i = 0; i < 2; i++) {
        if (secrets[i])
            explicit_bzero(secrets[i], strlen(secrets[i]));
        free(secrets[i]);
    }
    free(e->name);
    free(e->url);
    free(e->prefix);
    free(e->pause_mode);
    free(e->group);
    free(e->line);
    for (size_t i = 0; i < 4; i++)
        free(e->templates[i]);
    free(e);
}

void ws_engine_call_of(struct ws_engine *e, struct ws_control *c, struct ws_engine_call *out)
{
    pthread_mutex_lock(&c->lock);
    out->facts = e->facts;
    pthread_mutex_unlock(&c->lock);
    out->templates =
        (struct ws_engine_templates){e->templates[0], e->templates[1], e->templates[2], e->templates[3]};
    out->target = (struct ws_engine_target){.url = e->url,
                                            .token = e->token,
                                            .admin_token = e->admin_token,
                                            .pause_mode = e->pause_mode,
                                            .cache = e->cache,
                                            .timeout_ms = e->timeout_ms,
                                            .cancel = {&c->stop},
                                            .facts = &out->facts,
                                            .templates = &out->templates};
}

int ws_engine_ask(struct ws_engine *e, struct ws_control *c, unsigned timeout_ms,
                  struct ws_engine_serving *out, struct ws_error *err)
{
    struct ws_engine_call call;
    struct ws_engine_facts facts;
    ws_engine_call_of(e, c, &call);
    call.target.facts = NULL;
    call.target.timeout_ms = timeout_ms < e->timeout_ms ? timeout_ms : e->timeout_ms;
    int rc = e->ops->probe(&call.target, &facts, out, err);
    if (rc == 0) {
        pthread_mutex_lock(&c->lock);
        e->facts = facts;
        snprintf(e->version, sizeof(e->version), "%s", out->version);
        if (out->path[0])
            memcpy(e->path, out->path, sizeof(e->path));
        pthread_mutex_unlock(&c->lock);
    }
    return rc;
}

/* The next line of a file of secrets; NULL: there is none. */
static char *read_secret(FILE *f)
{
    char line[4096] = "";
    if (!fgets(line, sizeof(line), f))
        line[0] = 0;
    line[strcspn(line, "\r\n")] = 0;
    char *secret = line[0] ? strdup(line) : NULL;
    explicit_bzero(line, sizeof(line));
    return secret;
}

static int read_tokens(const char *path, struct ws_engine *e, struct ws_error *err)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return ws_error_set(err, errno, "cannot read the token file %s: %s", path, strerror(errno));
    e->token = read_secret(f);
    e->admin_token = e->token ? read_secret(f) : NULL;
    fclose(f);
    return e->token ? 0 : ws_error_set(err, EINVAL, "the token file %s is empty", path);
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

static int parse_cache(const char *word, enum ws_engine_cache *out, struct ws_error *err)
{
    static const char *const words[] = {"local", "external", "keep"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (!word || strcmp(word, words[i]) == 0) {
            *out = (enum ws_engine_cache)i;
            return 0;
        }
    }
    return ws_error_set(err, EINVAL, "cache=%.100s: it is local, external or keep", word);
}

static int make_engine(const struct ws_command *q, struct ws_engine **out, struct ws_error *err)
{
    const char *timeout = q->options[WS_OPTION_TIMEOUT], *token = q->options[WS_OPTION_TOKEN_FILE];
    const char *group = q->options[WS_OPTION_GROUP];
    const char *prefix = q->options[WS_OPTION_PREFIX], *pause = q->options[WS_OPTION_PAUSE];
    uint64_t seconds = DEFAULT_TIMEOUT_S;
    const struct ws_engine_ops *ops = ws_engine_find(q->args[1]);
    if (!ws_name_is_safe(q->args[0]) || strchr(q->args[0], ' '))
        return ws_error_set(err, EINVAL, "'%s' is no name for an engine: no blanks and no slash", q->args[0]);
    if (!ops) {
        char kinds[256] = "";
        size_t n = 0;
        for (const char *const *k = ws_engine_kinds(); *k && n < sizeof(kinds); k++)
            n += (size_t)snprintf(kinds + n, sizeof(kinds) - n, "%s%s", n ? ", " : "", *k);
        return ws_error_set(err, EINVAL, "there is no kind of engine '%s'; there is %s", q->args[1], kinds);
    }
    if (timeout && (ws_word_number(timeout, 86400, &seconds) || seconds == 0))
        return ws_error_set(err, EINVAL, "timeout=%s is no number of seconds from 1 to 86400", timeout);
    if (prefix && prefix[0] != '/')
        return ws_error_set(err, EINVAL,
                            "prefix=%s is no absolute path: it is where the engine sees this mount", prefix);
    static const enum ws_option templates[] = {WS_OPTION_PAUSE, WS_OPTION_LOAD, WS_OPTION_RESUME,
                                               WS_OPTION_SERVING};
    bool remote = ops == &ws_engine_remote;
    enum ws_engine_cache cache = WS_CACHE_LOCAL;
    int rc = ws_http_check_url(q->args[2], err);
    if (rc == 0)
        rc = parse_cache(q->options[WS_OPTION_CACHE], &cache, err);
    if (rc == 0 && !remote)
        rc = check_pause_mode(ops, pause, err);
    for (size_t i = 1; rc == 0 && !remote && i < 4; i++)
        if (q->options[templates[i]])
            rc = ws_error_set(err, EINVAL,
                              "load=, resume= and serving= are templates of engines of kind remote");
    if (rc < 0)
        return rc;
    struct ws_engine *e = calloc(1, sizeof(*e));
    if (e) {
        e->ops = ops;
        e->timeout_ms = (unsigned)seconds * 1000;
        e->name = strdup(q->args[0]);
        e->url = strdup(q->args[2]);
        e->prefix = prefix ? strdup(prefix) : NULL;
        e->pause_mode = pause && !remote ? strdup(pause) : NULL;
        e->cache = cache;
        e->group = group ? strdup(group) : NULL;
        for (size_t i = 0; remote && i < 4; i++) {
            const char *t = q->options[templates[i]];
            e->templates[i] = t ? strdup(t) : NULL;
            if (t && !e->templates[i])
                rc = -ENOMEM;
        }
    }
    if (!e || rc < 0 || !e->name || !e->url || !e->prefix != !prefix || !e->group != !group ||
        !e->pause_mode != !(pause && !remote))
        rc = ws_error_set(err, ENOMEM, "no memory for an engine");
    if (rc == 0 && token)
        rc = read_tokens(token, e, err);
    if (rc < 0) {
        ws_engine_free(e);
        return rc;
    }
    *out = e;
    return 0;
}

static bool has_engine(const struct ws_desk *d, const char *name)
{
    for (const struct ws_engine *e = d->engines; e; e = e->next)
        if (strcmp(e->name, name) == 0)
            return true;
    return false;
}

static const struct ws_engine *engine_at(const struct ws_desk *d, const char *url)
{
    const struct ws_engine *e = d->engines;
    while (e && strcmp(e->url, url) != 0)
        e = e->next;
    return e;
}

int ws_engine_add(struct ws_control *c, struct ws_desk *d, const struct ws_command *q, const char *line,
                  bool ask, struct ws_error *err)
{
    struct ws_engine *e = NULL;
    struct ws_engine_serving serving = {0};
    int rc = make_engine(q, &e, err);
    if (rc < 0)
        return rc;
    e->line = strdup(line);
    if (!e->line)
        rc = ws_error_set(err, ENOMEM, "no memory for an engine");
    else if (ask)
        rc = ws_engine_ask(e, c, PROBE_MS, &serving, err);
    pthread_mutex_lock(&c->lock);
    const struct ws_engine *same = rc == 0 ? engine_at(d, e->url) : NULL;
    if (same)
        rc = ws_error_set(err, EEXIST, "%s is registered with %s already, as '%s'", e->url, d->name,
                          same->name);
    if (rc == 0 && has_engine(d, e->name))
        rc = ws_error_set(err, EEXIST, "%s has an engine '%s' already; remove it first", d->name, e->name);
    if (rc == 0 && d->n_engines >= WS_MAX_ENGINES)
        rc = ws_error_set(err, E2BIG, "%s has %d engines, which is the limit", d->name, WS_MAX_ENGINES);
    if (rc == 0 && d->switching)
        rc = ws_error_set(err, EBUSY, "a switch of %s is running; add the engine when it is done", d->name);
    if (rc == 0) {
        struct ws_engine **at = &d->engines;
        e->state = !ask ? WS_ENGINE_UNKNOWN : serving.paused ? WS_ENGINE_PAUSED : WS_ENGINE_SERVING;
        while (*at)
            at = &(*at)->next;
        *at = e;
        d->n_engines++;
    }
    pthread_mutex_unlock(&c->lock);
    if (rc != 0) {
        ws_engine_free(e);
        return rc;
    }
    ws_desk_event(c, d, "engine-added model=%s engine=%s kind=%s release=%s url=%s serving=%s%s%s", d->name,
                  q->args[0], q->args[1], e->facts.release[0] ? e->facts.release : "unknown", q->args[2],
                  serving.version[0] ? serving.version : "unknown", e->facts.lacks[0] ? " lacks=" : "",
                  e->facts.lacks);
    return 0;
}

int ws_engine_remove(struct ws_control *c, struct ws_desk *d, const char *name, struct ws_error *err)
{
    struct ws_engine **at, *e = NULL;
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    for (at = &d->engines; *at && strcmp((*at)->name, name) != 0; at = &(*at)->next)
        ;
    if (!*at) {
        rc = ws_error_set(err, ENOENT, "%s has no engine '%s'; reading 'engines' lists them", d->name, name);
    } else if (d->switching) {
        rc =
            ws_error_set(err, EBUSY, "a switch of %s is running; remove the engine when it is done", d->name);
    } else {
        e = *at;
        *at = e->next;
        d->n_engines--;
    }
    if (e && e->holders > 0) {
        e->removed = true;
        e = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    ws_engine_free(e);
    if (rc == 0)
        ws_desk_event(c, d, "engine-removed model=%s engine=%s", d->name, name);
    return rc;
}

static void release(struct ws_engine *e)
{
    if (--e->holders == 0 && e->removed)
        ws_engine_free(e);
}

struct ws_engine *ws_engine_hold_next(struct ws_control *c, struct ws_desk *d, struct ws_engine *e)
{
    pthread_mutex_lock(&c->lock);
    struct ws_engine *next = d->engines;
    for (; e && next; next = next->next) {
        if (next == e) {
            next = next->next;
            break;
        }
    }
    if (next)
        next->holders++;
    if (e)
        release(e);
    pthread_mutex_unlock(&c->lock);
    return next;
}

void ws_engine_release(struct ws_control *c, struct ws_engine *e)
{
    pthread_mutex_lock(&c->lock);
    release(e);
    pthread_mutex_unlock(&c->lock);
}
