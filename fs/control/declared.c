#include "fs/control/declared.h"
#include "fs/engines/added.h"
#include "fs/engines/engines.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MARK "config "

static const struct ws_config_model *find(const struct ws_config_model *all, const char *name)
{
    while (all && strcmp(all->name, name) != 0)
        all = all->next;
    return all;
}

/* Controllers are only ever added, before this one. */
static struct ws_controller *first(struct ws_control *c)
{
    pthread_mutex_lock(&c->lock);
    struct ws_controller *ctl = c->controllers;
    pthread_mutex_unlock(&c->lock);
    return ctl;
}

/* --- as text --- */

/* A line, unless `before` has it. */
static void print_line(FILE *f, const char *before, const char *line)
{
    const size_t n = strlen(line);
    for (const char *at = before; at && (at = strstr(at, line)); at += n)
        if (at[n] == '\n' && (size_t)(at - before) >= strlen(MARK) &&
            memcmp(at - strlen(MARK), MARK, strlen(MARK)) == 0)
            return;
    fprintf(f, MARK "%s\n", line);
}

static void print_lines(FILE *f, const char *before, const struct ws_config_lines *lines)
{
    for (size_t i = 0; i < lines->len; i++)
        print_line(f, before, lines->ptr[i].text);
}

/* malloc'ed; m NULL: none; before NULL: nothing. NULL: no memory. */
static char *text_of(const struct ws_config_model *m, const char *before)
{
    char word[WS_POLICY_CHARS], list[WS_TRANSPORT_PREFS_CHARS], line[WS_POLICY_CHARS + 16], *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return NULL;
    fputs(before ? before : "", f);
    if (m && m->has_policy) {
        ws_controller_policy_text(&m->wanted, word);
        snprintf(line, sizeof(line), "policy %s", word);
        print_line(f, before, line);
    }
    if (m && m->has_commit) {
        ws_controller_commit_text(&m->wanted, word);
        snprintf(line, sizeof(line), "commit %s", word);
        print_line(f, before, line);
    }
    if (m && m->has_strategy) {
        ws_transport_prefs_text(&m->strategy, list);
        snprintf(line, sizeof(line), "strategy %s", list);
        print_line(f, before, line);
    }
    if (m) {
        print_lines(f, before, &m->engines);
        print_lines(f, before, &m->pins);
        print_lines(f, before, &m->sources);
    }
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

static int record(struct ws_control *c, struct ws_controller *ctl, const struct ws_config_model *m,
                  bool beside, struct ws_error *err)
{
    /* only the thread that sets the config writes it */
    char *text = text_of(m, beside ? ctl->declared : NULL);
    if (!text)
        return ws_error_set(err, ENOMEM, "no memory for what the config has set");
    pthread_mutex_lock(&c->lock);
    char *before = ctl->declared;
    ctl->declared = text[0] ? text : NULL;
    pthread_mutex_unlock(&c->lock);
    free(before);
    if (!text[0])
        free(text);
    return 0;
}

int ws_declared_record(struct ws_control *c, const struct ws_config_model *all, bool beside,
                       struct ws_error *err)
{
    int rc = 0;
    for (const struct ws_config_model *m = all; rc == 0 && m; m = m->next)
        rc = ws_controller_get(c, m->name) ? 0 : ws_error_set(err, ENOMEM, "no memory for a model");
    for (struct ws_controller *ctl = first(c); rc == 0 && ctl; ctl = ctl->next) {
        const struct ws_config_model *m = find(all, ctl->name);
        if (m || ctl->declared)
            rc = record(c, ctl, m, beside, err);
    }
    return rc;
}

void ws_declared_forget(struct ws_control *c)
{
    struct ws_error err;
    if (ws_declared_record(c, NULL, false, &err) < 0)
        ws_log(WS_LOG_WARN, "control", "%s", err.text);
}

struct ws_config_model *ws_declared_read(struct ws_control *c)
{
    struct ws_config_model *all = NULL;
    for (struct ws_controller *ctl = first(c); ctl; ctl = ctl->next) {
        char *copy = ctl->declared ? strdup(ctl->declared) : NULL, *save = NULL;
        for (char *line = copy ? strtok_r(copy, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save))
            ws_config_read_declared(&all, ctl->name, line + strlen(MARK));
        free(copy);
    }
    return all;
}

/* --- taking back --- */

static void take_back_words(struct ws_control *c, struct ws_controller *ctl, const struct ws_config_model *b,
                            const struct ws_config_model *m)
{
    const enum ws_policy policy = c->options.prefetch ? WS_POLICY_PULL : WS_POLICY_MANUAL;
    char word[32];
    pthread_mutex_lock(&c->lock);
    const bool has = b->has_policy && !(m && m->has_policy) && ws_config_has_policy(ctl, &b->wanted) &&
                     ctl->policy != policy;
    if (has) {
        ctl->policy = policy;
        ctl->follow_every = ctl->follow_interval_s = 0;
    }
    const bool commits = b->has_commit && !(m && m->has_commit) && ctl->commit == b->wanted.commit &&
                         ctl->commit_n == b->wanted.commit_n && ctl->commit != WS_COMMIT_ALL;
    if (commits) {
        ctl->commit = WS_COMMIT_ALL;
        ctl->commit_n = 0;
    }
    pthread_mutex_unlock(&c->lock);
    snprintf(word, sizeof(word), "%s", policy == WS_POLICY_PULL ? "pull" : "manual");
    if (has)
        ws_controller_event(c, ctl, "policy model=%s policy=%s by=config", ctl->name, word);
    if (commits)
        ws_controller_event(c, ctl, "commit model=%s commit=all by=config", ctl->name);
}

static int take_back_strategy(struct ws_control *c, const struct ws_config_model *b,
                              const struct ws_config_model *m, struct ws_error *err)
{
    struct ws_transport_prefs now;
    char is[WS_TRANSPORT_PREFS_CHARS], was[WS_TRANSPORT_PREFS_CHARS];
    if (!b->has_strategy || (m && m->has_strategy) || !ws_transport_prefs_get(c->store, b->name, &now))
        return 0;
    ws_transport_prefs_text(&now, is);
    ws_transport_prefs_text(&b->strategy, was);
    return strcmp(is, was) == 0 ? ws_transport_prefs_set(c->store, b->name, NULL, err) : 0;
}

/* Of a model that the config names it has all engines anyway (config.h). */
static int take_back_engines(struct ws_control *c, struct ws_controller *ctl, const struct ws_config_model *b,
                             struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < b->engines.len; i++) {
        const struct ws_config_line *l = &b->engines.ptr[i];
        bool has = false;
        pthread_mutex_lock(&c->lock);
        for (const struct ws_engine *e = ctl->engines; e; e = e->next)
            has = has || (strcmp(e->name, l->word) == 0 && strcmp(e->line, l->text) == 0);
        pthread_mutex_unlock(&c->lock);
        if (has)
            rc = ws_engine_remove(c, ctl, l->word, err);
    }
    return rc;
}

static void unpin(struct ws_control *c, struct ws_controller *ctl, const struct ws_config_line *pin)
{
    struct ws_model *model = ws_store_find(c->store, ctl->name);
    struct ws_error err = {0};
    struct ws_version *v = model ? ws_version_find(model, pin->word, &err) : NULL;
    struct ws_version_info info = {0};
    pthread_mutex_lock(&c->lock);
    for (size_t i = ctl->pins.len; i-- > 0;) /* of a daemon before, not known here yet */
        if (ws_config_names_version(pin, &ctl->pins.ptr[i]))
            ws_pins_remove(&ctl->pins, i);
    pthread_mutex_unlock(&c->lock);
    if (v)
        ws_version_info(v, &info);
    if (info.pinned && ws_version_pin(v, false, &err) < 0)
        ws_log(WS_LOG_WARN, "control", "the config cannot unpin %s: %s", pin->word, err.text);
    if (v)
        ws_version_put(v);
    if (model)
        ws_model_put(model);
}

int ws_declared_take_back(struct ws_control *c, const struct ws_config_model *before,
                          const struct ws_config_model *all, struct ws_error *err)
{
    int rc = 0;
    for (const struct ws_config_model *b = before; rc == 0 && b; b = b->next) {
        const struct ws_config_model *m = find(all, b->name);
        struct ws_controller *ctl = ws_controller_get(c, b->name);
        if (!ctl)
            return ws_error_set(err, ENOMEM, "no memory for a model");
        if (!m)
            rc = take_back_engines(c, ctl, b, err);
        if (rc < 0)
            break;
        take_back_words(c, ctl, b, m);
        rc = take_back_strategy(c, b, m, err);
        for (size_t i = 0; i < b->pins.len; i++)
            if (!m || !ws_config_find(&m->pins, b->pins.ptr[i].word))
                unpin(c, ctl, &b->pins.ptr[i]);
        for (size_t i = 0; i < b->sources.len; i++)
            if (!m || !ws_config_find(&m->sources, b->sources.ptr[i].word))
                ws_added_take_back(c, ctl, b->sources.ptr[i].word);
    }
    return rc;
}
