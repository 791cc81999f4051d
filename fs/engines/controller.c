#include "fs/engines/controller.h"
#include "fs/engines/added.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MAX_EVERY    1000000000
#define MAX_INTERVAL 86400

void ws_controller_policy_text(const struct ws_controller *ctl, char out[WS_POLICY_CHARS])
{
    static const char *const names[] = {"manual", "pull", "follow-released", "follow-published",
                                        "follow-published until=release"};
    size_t n = (size_t)snprintf(out, WS_POLICY_CHARS, "%s", names[ctl->policy]);
    if (ctl->follow_every > 1)
        n += (size_t)snprintf(out + n, WS_POLICY_CHARS - n, " every=%u", ctl->follow_every);
    if (ctl->follow_interval_s)
        snprintf(out + n, WS_POLICY_CHARS - n, " min-interval=%u", ctl->follow_interval_s);
}

static int policy_from_word(const char *word, const char *until, enum ws_policy *out, struct ws_error *err)
{
    static const struct {
        const char *word;
        enum ws_policy policy;
    } words[] = {{"manual", WS_POLICY_MANUAL},
                 {"pull", WS_POLICY_PULL},
                 {"follow-released", WS_POLICY_FOLLOW_RELEASED},
                 {"follow-published", WS_POLICY_FOLLOW_PUBLISHED},
                 {"follow", WS_POLICY_FOLLOW_UNTIL_RELEASE}};
    size_t i = 0;
    while (i < sizeof(words) / sizeof(words[0]) && strcmp(word, words[i].word) != 0)
        i++;
    if (i == sizeof(words) / sizeof(words[0]))
        return ws_error_set(err, EINVAL,
                            "the policy is manual, pull, follow-released or follow-published, not '%.100s'",
                            word);
    *out = words[i].policy;
    if (!until)
        return 0;
    if (*out != WS_POLICY_FOLLOW_PUBLISHED || strcmp(until, "release") != 0)
        return ws_error_set(err, EINVAL, "until=release belongs to follow-published, and has no other value");
    *out = WS_POLICY_FOLLOW_UNTIL_RELEASE;
    return 0;
}

int ws_controller_set_policy(struct ws_control *c, struct ws_controller *ctl, const char *word,
                             const struct ws_policy_options *o, struct ws_error *err)
{
    enum ws_policy policy = WS_POLICY_MANUAL;
    const char *every = o->every, *interval = o->min_interval;
    uint64_t n = 1, s = 0;
    char text[WS_POLICY_CHARS];
    const int rc = policy_from_word(word, o->until, &policy, err);
    if (rc < 0)
        return rc;
    if ((every || interval) && policy != WS_POLICY_FOLLOW_PUBLISHED &&
        policy != WS_POLICY_FOLLOW_UNTIL_RELEASE)
        return ws_error_set(err, EINVAL,
                            "every= and min-interval= slow down the policy follow-published, not %s", word);
    if (every && (ws_word_number(every, MAX_EVERY, &n) || n == 0))
        return ws_error_set(err, EINVAL, "every=%.100s is no number of versions from 1 to %d", every,
                            MAX_EVERY);
    if (interval && ws_word_number(interval, MAX_INTERVAL, &s))
        return ws_error_set(err, EINVAL, "min-interval=%.100s is no number of seconds up to %d", interval,
                            MAX_INTERVAL);
    if (c)
        pthread_mutex_lock(&c->lock);
    ctl->policy = policy;
    ctl->follow_every = (unsigned)n;
    ctl->follow_interval_s = (unsigned)s;
    if (!c)
        return 0;
    ctl->refused_id = 0;
    ws_backoff_reset(&ctl->follow_backoff);
    ws_controller_policy_text(ctl, text);
    pthread_mutex_unlock(&c->lock);
    if (!atomic_load(&c->restoring))
        ws_controller_event(c, ctl, "policy model=%s policy=%s", ctl->name, text);
    return 0;
}

enum ws_policy ws_controller_policy(struct ws_control *c, const struct ws_controller *ctl)
{
    pthread_mutex_lock(&c->lock);
    const enum ws_policy policy = ctl->policy;
    pthread_mutex_unlock(&c->lock);
    return policy;
}

void ws_controller_commit_text(const struct ws_controller *ctl, char out[32])
{
    if (ctl->commit == WS_COMMIT_ALL)
        snprintf(out, 32, "all");
    else
        snprintf(out, 32, "%s=%u", ctl->commit == WS_COMMIT_QUORUM ? "quorum" : "rolling", ctl->commit_n);
}

int ws_controller_set_commit(struct ws_control *c, struct ws_controller *ctl, const char *word,
                             struct ws_error *err)
{
    enum ws_commit commit = strncmp(word, "quorum=", 7) == 0    ? WS_COMMIT_QUORUM
                            : strncmp(word, "rolling=", 8) == 0 ? WS_COMMIT_ROLLING
                                                                : WS_COMMIT_ALL;
    uint64_t n = 0;
    if (commit == WS_COMMIT_ALL ? strcmp(word, "all") != 0
                                : ws_word_number(strchr(word, '=') + 1, WS_MAX_ENGINES, &n) || n == 0)
        return ws_error_set(err, EINVAL,
                            "commit is all, quorum=N or rolling=N with N from 1 to %d, not '%.100s'",
                            WS_MAX_ENGINES, word);
    if (c)
        pthread_mutex_lock(&c->lock);
    ctl->commit = commit;
    ctl->commit_n = (unsigned)n;
    if (!c)
        return 0;
    pthread_mutex_unlock(&c->lock);
    if (!atomic_load(&c->restoring))
        ws_controller_event(c, ctl, "commit model=%s commit=%s", ctl->name, word);
    return 0;
}

struct ws_controller *ws_controller_get(struct ws_control *c, const char *model)
{
    struct ws_controller *ctl;
    if (!model)
        return &c->root;
    pthread_mutex_lock(&c->lock);
    for (ctl = c->controllers; ctl && strcmp(ctl->name, model) != 0; ctl = ctl->next)
        ;
    if (!ctl && (ctl = calloc(1, sizeof(*ctl)))) {
        ctl->name = strdup(model);
        ctl->events = ws_event_log_new();
        ctl->policy = c->options.prefetch ? WS_POLICY_PULL : WS_POLICY_MANUAL;
        if (ctl->name && ctl->events) {
            ctl->next = c->controllers;
            c->controllers = ctl;
        } else {
            ws_controller_release(ctl);
            free(ctl);
            ctl = NULL;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return ctl;
}

void ws_controller_event(struct ws_control *c, struct ws_controller *ctl, const char *format, ...)
{
    char line[WS_EVENT_LINE];
    va_list ap;
    va_start(ap, format);
    vsnprintf(line, sizeof(line), format, ap);
    va_end(ap);
    ws_event_log_add(ctl->events, line);
    if (ctl != &c->root)
        ws_event_log_add(c->root.events, line);
    ws_log(WS_LOG_INFO, "control", "%s", line);
    if (c->listener)
        c->listener(c->listener_arg, NULL);
}

const char *ws_controller_quotable(const char *text, char out[WS_ERROR_TEXT])
{
    snprintf(out, WS_ERROR_TEXT, "%s", text);
    for (char *p = out; (p = strchr(p, '"'));)
        *p = '\'';
    return out;
}

int ws_controller_fail(struct ws_control *c, struct ws_controller *ctl, const char *command,
                       const struct ws_error *err)
{
    int code = err->code > 0 ? err->code : EIO;
    char shown[WS_ERROR_TEXT], why[WS_ERROR_TEXT];
    pthread_mutex_lock(&c->lock);
    ctl->last_error.real_ns = ws_clock_day_ns();
    ctl->last_error.code = code;
    snprintf(ctl->last_error.command, sizeof(ctl->last_error.command), "%s", command);
    snprintf(ctl->last_error.text, sizeof(ctl->last_error.text), "%s", err->text);
    pthread_mutex_unlock(&c->lock);
    ws_controller_event(c, ctl, "failed model=%s errno=%s command=\"%s\" why=\"%.600s\"",
                        ctl->name ? ctl->name : "-", ws_errno_name(code),
                        ws_controller_quotable(command, shown), ws_controller_quotable(err->text, why));
    return -code;
}

/* What a command is about: what fails in one of these is over when another one of the same matter succeeds.
 */
static const char *find_matter(const char *command, char out[16])
{
    static const struct {
        const char *word, *matter;
    } matters[] = {{"stage", "load"},   {"check", "load"},  {"follow", "load"},   {"prepare", "load"},
                   {"restore", "load"}, {"latest", "load"}, {"previous", "load"}, {"current", "load"},
                   {"fetch", "pull"},   {"read", "pull"}};
    snprintf(out, 16, "%.*s", (int)strcspn(command, " "), command);
    if (out[0] >= '0' && out[0] <= '9')
        return "load";
    for (size_t i = 0; i < sizeof(matters) / sizeof(matters[0]); i++)
        if (strcmp(out, matters[i].word) == 0)
            return matters[i].matter;
    return out;
}

void ws_controller_clear_error(struct ws_controller *ctl, const char *command)
{
    char one[16], other[16];
    if (ctl->last_error.real_ns &&
        strcmp(find_matter(ctl->last_error.command, one), find_matter(command, other)) == 0)
        ctl->last_error.real_ns = 0;
}

bool ws_controller_has_quorum(const struct ws_controller *ctl, size_t n, size_t lost)
{
    if (lost == 0 || ctl->commit == WS_COMMIT_ALL)
        return lost == 0;
    return ctl->commit == WS_COMMIT_QUORUM ? n - lost >= ctl->commit_n : lost < ctl->commit_n && lost < n;
}

bool ws_controller_is_certain(const struct ws_controller *ctl)
{
    size_t uncertain = 0;
    for (const struct ws_engine *e = ctl->engines; e; e = e->next)
        uncertain += ws_condition_is_uncertain(&e->condition);
    return ws_controller_has_quorum(ctl, ctl->n_engines, uncertain);
}

bool ws_controller_is_external(const struct ws_controller *ctl)
{
    for (const struct ws_engine *e = ctl->engines; e; e = e->next)
        if (e->ops->external)
            return true;
    return false;
}

void ws_controller_release(struct ws_controller *ctl)
{
    while (ctl->engines) {
        struct ws_engine *e = ctl->engines;
        ctl->engines = e->next;
        ws_engine_free(e);
    }
    ws_added_free(ctl);
    ws_event_log_free(ctl->events);
    ws_pins_reset(&ctl->pins);
    ws_kept_versions_reset(&ctl->adapters.kept);
    free(ctl->declared);
    free(ctl->needed);
    free(ctl->name);
}
