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

const char *ws_policy_name(enum ws_policy p)
{
    static const char *const names[] = {"manual", "pull", "follow"};
    return names[p];
}

void ws_desk_policy_text(const struct ws_desk *d, char out[64])
{
    size_t n = (size_t)snprintf(out, 64, "%s", ws_policy_name(d->policy));
    if (d->follow_every > 1)
        n += (size_t)snprintf(out + n, 64 - n, " every=%u", d->follow_every);
    if (d->follow_interval_s)
        snprintf(out + n, 64 - n, " min-interval=%u", d->follow_interval_s);
}

int ws_desk_set_policy(struct ws_control *c, struct ws_desk *d, const char *word, const char *every,
                       const char *interval, struct ws_error *err)
{
    enum ws_policy policy = WS_POLICY_MANUAL;
    uint64_t n = 1, s = 0;
    char text[64];
    while (policy <= WS_POLICY_FOLLOW && strcmp(word, ws_policy_name(policy)) != 0)
        policy++;
    if (policy > WS_POLICY_FOLLOW)
        return ws_error_set(err, EINVAL, "the policy is manual, pull or follow, not '%.100s'", word);
    if ((every || interval) && policy != WS_POLICY_FOLLOW)
        return ws_error_set(err, EINVAL, "every= and min-interval= slow down the policy follow, not %s",
                            word);
    if (every && (ws_word_number(every, MAX_EVERY, &n) || n == 0))
        return ws_error_set(err, EINVAL, "every=%.100s is no number of versions from 1 to %d", every,
                            MAX_EVERY);
    if (interval && ws_word_number(interval, MAX_INTERVAL, &s))
        return ws_error_set(err, EINVAL, "min-interval=%.100s is no number of seconds up to %d", interval,
                            MAX_INTERVAL);
    pthread_mutex_lock(&c->lock);
    d->policy = policy;
    d->follow_every = (unsigned)n;
    d->follow_interval_s = (unsigned)s;
    d->refused_id = d->not_before_ns = d->again_ns = 0;
    ws_desk_policy_text(d, text);
    pthread_mutex_unlock(&c->lock);
    if (!atomic_load(&c->restoring))
        ws_desk_event(c, d, "policy model=%s policy=%s", d->name, text);
    return 0;
}

void ws_desk_commit_text(const struct ws_desk *d, char out[32])
{
    if (d->commit == WS_COMMIT_ALL)
        snprintf(out, 32, "all");
    else
        snprintf(out, 32, "%s=%u", d->commit == WS_COMMIT_QUORUM ? "quorum" : "rolling", d->commit_n);
}

int ws_desk_set_commit(struct ws_control *c, struct ws_desk *d, const char *word, struct ws_error *err)
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
    pthread_mutex_lock(&c->lock);
    d->commit = commit;
    d->commit_n = (unsigned)n;
    pthread_mutex_unlock(&c->lock);
    ws_desk_event(c, d, "commit model=%s commit=%s", d->name, word);
    return 0;
}

struct ws_desk *ws_desk_of(struct ws_control *c, const char *model)
{
    struct ws_desk *d;
    if (!model)
        return &c->root;
    pthread_mutex_lock(&c->lock);
    for (d = c->desks; d && strcmp(d->name, model) != 0; d = d->next)
        ;
    if (!d && (d = calloc(1, sizeof(*d)))) {
        d->name = strdup(model);
        d->events = ws_events_new();
        d->policy = c->options.prefetch ? WS_POLICY_PULL : WS_POLICY_MANUAL;
        if (d->name && d->events) {
            d->next = c->desks;
            c->desks = d;
        } else {
            ws_desk_release(d);
            free(d);
            d = NULL;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return d;
}

void ws_desk_event(struct ws_control *c, struct ws_desk *d, const char *format, ...)
{
    char line[WS_EVENT_LINE];
    va_list ap;
    va_start(ap, format);
    vsnprintf(line, sizeof(line), format, ap);
    va_end(ap);
    ws_events_add(d->events, line);
    if (d != &c->root)
        ws_events_add(c->root.events, line);
    ws_log(WS_LOG_INFO, "control", "%s", line);
    if (c->listener)
        c->listener(c->listener_arg, NULL);
}

const char *ws_desk_quotable(const char *text, char out[WS_ERROR_TEXT])
{
    snprintf(out, WS_ERROR_TEXT, "%s", text);
    for (char *p = out; (p = strchr(p, '"'));)
        *p = '\'';
    return out;
}

int ws_desk_fail(struct ws_control *c, struct ws_desk *d, const char *command, const struct ws_error *err)
{
    int code = err->code > 0 ? err->code : EIO;
    char shown[WS_ERROR_TEXT], why[WS_ERROR_TEXT];
    pthread_mutex_lock(&c->lock);
    d->last_error.real_ns = ws_clock_day_ns();
    d->last_error.code = code;
    snprintf(d->last_error.command, sizeof(d->last_error.command), "%s", command);
    snprintf(d->last_error.text, sizeof(d->last_error.text), "%s", err->text);
    pthread_mutex_unlock(&c->lock);
    ws_desk_event(c, d, "failed model=%s errno=%s command=\"%s\" why=\"%.600s\"", d->name ? d->name : "-",
                  ws_errno_name(code), ws_desk_quotable(command, shown), ws_desk_quotable(err->text, why));
    return -code;
}

/* What a command is about: what fails in one of these is over when another one of the same matter succeeds.
 */
static const char *matter_of(const char *command, char out[16])
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

void ws_desk_settle(struct ws_desk *d, const char *command)
{
    char one[16], other[16];
    if (d->last_error.real_ns &&
        strcmp(matter_of(d->last_error.command, one), matter_of(command, other)) == 0)
        d->last_error.real_ns = 0;
}

bool ws_desk_is_enough(const struct ws_desk *d, size_t n, size_t lost)
{
    if (lost == 0 || d->commit == WS_COMMIT_ALL)
        return lost == 0;
    return d->commit == WS_COMMIT_QUORUM ? n - lost >= d->commit_n : lost < d->commit_n && lost < n;
}

bool ws_desk_is_settled(const struct ws_desk *d)
{
    size_t doubted = 0;
    for (const struct ws_engine *e = d->engines; e; e = e->next)
        doubted += ws_condition_is_doubted(&e->condition);
    return ws_desk_is_enough(d, d->n_engines, doubted);
}

bool ws_desk_is_external(const struct ws_desk *d)
{
    for (const struct ws_engine *e = d->engines; e; e = e->next)
        if (e->ops->external)
            return true;
    return false;
}

void ws_desk_release(struct ws_desk *d)
{
    while (d->engines) {
        struct ws_engine *e = d->engines;
        d->engines = e->next;
        ws_engine_free(e);
    }
    ws_added_free(d);
    ws_events_free(d->events);
    free(d->pins);
    free(d->name);
}
