/* Failures are of three kinds. A source that says that the version is gone, or that we may not have
 * it, is not asked for it again: when all have said so the pull is over. Anything else (refused
 * connections, resets, silence) is tried again, with the next alternative where there is one, until
 * nothing has moved for the pull's deadline. */
#include "fs/pull/source_select.h"
#include "fs/store/events.h"
#include "fs/store/offers.h"
#include "fs/store/rings.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_PAUSE_MS 50
#define MAX_DOUBLINGS  5 /* 1.6 s */

void ws_route_init(struct ws_route *r, struct ws_version *v)
{
    memset(r, 0, sizeof(*r));
    r->version = v;
    atomic_init(&r->progress_ns, ws_clock_ns());
    atomic_init(&r->came_ns, 0);
    atomic_init(&r->used, WS_NO_WAY);
    (void)ws_strategies_get_locked(v->store, v->model->name, &r->strategies);
    ws_rings_begin(v);
    pthread_mutex_init(&r->lock, NULL);
    ws_cond_init(&r->changed);
}

void ws_route_release(struct ws_route *r)
{
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
}

static int canceled(struct ws_route *r, struct ws_error *err)
{
    return ws_error_set(err, ECANCELED, "the pull of %s/%lu was stopped", r->version->model->name,
                        r->version->number);
}

/* No source is left. With store->lock and r->lock. */
static int none_left(struct ws_route *r, struct ws_error *err)
{
    const struct ws_version *v = r->version;
    const struct ws_version *newest = NULL;
    char why[WS_ERROR_TEXT / 2] = "";

    if (r->last.code == ENOENT) /* it lists the version and lacks a part of it: which one is of use */
        snprintf(why, sizeof(why), " (%.*s)", (int)sizeof(why) - 4, r->last.text);
    if (!r->gone && r->last.code && v->sources) {
        if (err)
            *err = r->last;
        return -r->last.code;
    }
    for (const struct ws_version *w = v->model->versions; w; w = w->next) {
        if (w->live && w->sources && w != v)
            newest = w;
    }
    if (newest)
        return ws_error_set(err, ESTALE, "%s/%lu is gone at the source; the newest is %lu%s", v->model->name,
                            v->number, newest->number, why);
    return ws_error_set(err, ESTALE, "%s/%lu is gone at the source%s", v->model->name, v->number, why);
}

/* The strategies of the list reach no source that has the version. With store->lock. */
static int none_in_list(const struct ws_route *r, const struct ws_watch *barred, struct ws_error *err)
{
    const struct ws_version *v = r->version;
    char list[WS_STRATEGIES_CHARS];

    ws_strategies_text(&r->strategies, list);
    return ws_error_set(
        err, EHOSTUNREACH,
        "%s/%lu can be reached by %s (%s), but its strategies are %s: echo \"strategy auto\" > "
        "ctl, or name one by which its source is reached",
        v->model->name, v->number, ws_way_name(barred->strategy), barred->source->url, list);
}

/* Is a better than b? */
static bool is_before(const struct ws_strategies *s, const struct ws_watch *a, const struct ws_watch *b)
{
    unsigned ra = (unsigned)ws_strategies_rank(s, a->strategy); /* of one that is not in the list: the last */
    unsigned rb = (unsigned)ws_strategies_rank(s, b->strategy);

    return ra != rb ? ra < rb : a->order < b->order;
}

/* Candidates, the best one first; *barred: one that is left out for its strategy, or NULL. With store->lock
 * and r->lock. */
static unsigned candidates(const struct ws_route *r, const struct ws_leg *leg,
                           struct ws_watch *out[WS_MAX_SOURCES], struct ws_watch **barred)
{
    const struct ws_version *v = r->version;
    uint64_t those = v->sources & ~r->refused & ~leg->skip & ~(leg->whole ? v->partial : 0);
    const struct ws_strategies *list = leg->only ? leg->only : &r->strategies;
    unsigned n = 0;

    *barred = NULL;
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        struct ws_watch *w = v->store->watches[i];
        unsigned at = n;
        if (!w || !(those & ws_bit(i)))
            continue;
        if (!leg->control && ws_strategies_rank(list, w->strategy) < 0) {
            *barred = w;
            continue;
        }
        for (; at > 0 && is_before(list, w, out[at - 1]); at--)
            out[at] = out[at - 1];
        out[at] = w;
        n++;
    }
    return n;
}

/* Is there one to go to from the one that is taken? With store->lock. */
static bool has_other(struct ws_watch *const *list, unsigned n, const struct ws_watch *taken)
{
    bool other = false;

    for (unsigned k = 0; k < n; k++)
        other = other || (list[k] != taken && list[k]->up);
    return other;
}

/* Each source of the version that can be asked has a share of the deadline, and one is left over for leaving
 * them: a transport looks once a second whether it is to leave. With store->lock. */
static void give_share(const struct ws_route *r, struct ws_leg *leg, bool has_other)
{
    struct ws_store *s = r->version->store;
    unsigned n = 1;

    leg->silent = false;
    leg->since_ns = ws_clock_ns();
    leg->share_ns = 0;
    if (!has_other && !leg->spare)
        return;
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++)
        n += (r->version->sources & ~r->refused & ws_bit(i)) && s->watches[i] && s->watches[i]->up;
    leg->share_ns = (uint64_t)s->options.deadline_ms * WS_MS_NS / n;
    ws_waits_look_at(s, leg->since_ns + leg->share_ns);
}

/* With r->lock. */
static void link_leg(struct ws_route *r, struct ws_leg *leg)
{
    atomic_store(&leg->leave, atomic_load(&r->stop));
    leg->route = r;
    leg->prev = NULL;
    leg->next = r->legs;
    if (r->legs)
        r->legs->prev = leg;
    r->legs = leg;
}

static void unlink_leg(struct ws_leg *leg)
{
    struct ws_route *r = leg->route;

    pthread_mutex_lock(&r->lock);
    *(leg->prev ? &leg->prev->next : &r->legs) = leg->next;
    if (leg->next)
        leg->next->prev = leg->prev;
    pthread_mutex_unlock(&r->lock);
}

int ws_route_take(struct ws_route *r, struct ws_leg *leg, struct ws_error *err)
{
    struct ws_store *s = r->version->store;
    struct ws_watch *list[WS_MAX_SOURCES], *barred = NULL;
    struct ws_changes changes;
    unsigned n;
    int rc = 0;

    if (atomic_load(&r->stop))
        return canceled(r, err);
    ws_changes_init(&changes);
    pthread_mutex_lock(&s->lock);
    rc = ws_offers_agree(r->version, err);
    pthread_mutex_lock(&r->lock);
    n = rc == 0 ? candidates(r, leg, list, &barred) : 0;
    leg->turn = r->turn;
    leg->watch = NULL;
    for (unsigned k = 0; k < n && !leg->watch; k++) {
        if (list[(r->turn + k) % n]->up)
            leg->watch = list[(r->turn + k) % n];
    }
    if (n && !leg->watch)
        leg->watch = list[r->turn % n];
    if (leg->watch) {
        ws_watch_get(leg->watch);
        link_leg(r, leg);
        const bool other = has_other(list, n, leg->watch);
        give_share(r, leg, other);
        if (ws_rings_stay(r->version, leg->watch->index, other))
            ws_changes_add(&changes, WS_MODEL_OFFERS, r->version->model, NULL);
    } else if (rc == 0) {
        rc = barred && !r->last.code ? none_in_list(r, barred, err) : none_left(r, err);
    }
    pthread_mutex_unlock(&r->lock);
    pthread_mutex_unlock(&s->lock);
    ws_changes_tell(&changes, s);
    return rc;
}

void ws_route_end(struct ws_leg *leg)
{
    if (leg->watch) {
        unlink_leg(leg);
        ws_watch_put(leg->watch);
    }
    leg->watch = NULL;
}

/* With r->lock. */
static void leave(struct ws_route *r, const struct ws_watch *but_one)
{
    for (struct ws_leg *leg = r->legs; leg; leg = leg->next)
        if (!but_one || leg->watch == but_one)
            atomic_store(&leg->leave, true);
    pthread_cond_broadcast(&r->changed);
}

void ws_route_leave(struct ws_route *r, unsigned index)
{
    pthread_mutex_lock(&r->lock);
    r->turn++;
    leave(r, r->version->store->watches[index]);
    pthread_mutex_unlock(&r->lock);
}

uint64_t ws_route_hurry(struct ws_route *r, uint64_t last_ns, uint64_t now_ns)
{
    uint64_t next = WS_NEVER;

    pthread_mutex_lock(&r->lock);
    for (struct ws_leg *leg = r->legs; leg; leg = leg->next) {
        const uint64_t due = (leg->since_ns > last_ns ? leg->since_ns : last_ns) + leg->share_ns;
        if (leg->share_ns == 0 || atomic_load(&leg->leave))
            continue;
        if (due <= now_ns)
            atomic_store(&leg->leave, leg->silent = true);
        else if (due < next)
            next = due;
    }
    pthread_mutex_unlock(&r->lock);
    return next;
}

void ws_route_describe(struct ws_route *r, char out[WS_ERROR_TEXT / 2])
{
    pthread_mutex_lock(&r->lock);
    if (r->legs)
        snprintf(out, WS_ERROR_TEXT / 2, "%s has not answered", r->legs->watch->source->url);
    else
        snprintf(out, WS_ERROR_TEXT / 2, "%.*s", WS_ERROR_TEXT / 2 - 1,
                 r->last.code ? r->last.text : "no source was asked yet");
    pthread_mutex_unlock(&r->lock);
}

void ws_route_doubt(struct ws_route *r, struct ws_leg *leg)
{
    pthread_mutex_lock(&r->lock);
    if (r->turn == leg->turn)
        r->turn++;
    pthread_mutex_unlock(&r->lock);
    ws_route_end(leg);
}

void ws_route_progress(struct ws_route *r, struct ws_leg *leg)
{
    atomic_store(&r->progress_ns, ws_clock_ns());
    if (!leg->control)
        atomic_store(&r->used, leg->watch->strategy);
    leg->attempts = 0;
}

/* Without the request that was answered, which is the longer part. With r->lock. */
static void note(struct ws_route *r, int strategy, const char *why)
{
    const char *answer = strstr(why, " answered ");

    answer = answer ? strstr(answer, ": ") : NULL;
    snprintf(r->why_not[strategy], WS_REASON_CHARS, "%s", answer ? answer + 2 : why);
}

void ws_route_note(struct ws_route *r, int strategy, const char *why)
{
    pthread_mutex_lock(&r->lock);
    note(r, strategy, why);
    pthread_mutex_unlock(&r->lock);
}

static bool says_gone(int rc)
{
    return rc == -ESTALE || rc == -ENOENT;
}

static bool says_never(int rc)
{
    switch (rc) {
    case -EACCES:
    case -EPERM:
    case -EPROTO:
    case -EINVAL:
    case -EBADMSG:
    case -ENOTSUP:
    case -E2BIG:
    case -EFBIG:
    case -ENOMEM:
    case -ENAMETOOLONG:
        return true;
    default:
        return false;
    }
}

/* Nothing has moved for too long: one code for all ways of not being there. */
static int given_up(const struct ws_route *r, int rc, struct ws_error *err)
{
    const struct ws_version *v = r->version;
    int code = rc == -ETIMEDOUT ? ETIMEDOUT : EHOSTUNREACH;
    char why[WS_ERROR_TEXT / 2];

    memcpy(why, r->last.text, sizeof(why) - 1);
    why[sizeof(why) - 1] = '\0';
    return ws_error_set(err, code, "nothing of %s/%lu came for %.1f s: %s; is the trainer's agent up?",
                        v->model->name, v->number, (double)v->store->options.deadline_ms / 1000, why);
}

/* Sleeps before the next attempt, a half more or less, or until the stop. With r->lock. */
static void back_off(struct ws_route *r, unsigned attempts)
{
    unsigned doublings = attempts < MAX_DOUBLINGS ? attempts : MAX_DOUBLINGS;
    uint64_t ns = (uint64_t)FIRST_PAUSE_MS * WS_MS_NS << doublings;
    uint64_t now = ws_clock_ns();
    const uint64_t until = now + ns / 2 + (now ^ (uintptr_t)r) % ns;

    while (!atomic_load(&r->stop) && ws_cond_wait_until(&r->changed, &r->lock, until) != ETIMEDOUT)
        ;
}

int ws_route_failed(struct ws_route *r, struct ws_leg *leg, int rc, struct ws_error *err)
{
    struct ws_store *s = r->version->store;
    uint64_t deadline_ns = (uint64_t)s->options.deadline_ms * WS_MS_NS;
    struct ws_watch *w = leg->watch;
    bool up;
    int final = 0;

    if (atomic_load(&r->stop)) {
        ws_route_end(leg);
        return canceled(r, err);
    }
    pthread_mutex_lock(&s->lock);
    if (atomic_load(&leg->leave)) {
        if (ws_clock_ns() - atomic_load(&r->progress_ns) <= deadline_ns) { /* the next one is asked at once */
            pthread_mutex_unlock(&s->lock);
            ws_route_doubt(r, leg);
            return 0;
        }
        rc = leg->silent
                 ? ws_error_set(err, ETIMEDOUT, "%s has not answered", w->source->url)
                 : ws_error_set(err, EHOSTUNREACH, "the mounts that were asked for it wait for each other");
    }
    up = w->up && s->watches[w->index] == w;
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&r->lock);
    if (err)
        r->last = *err;
    r->last.code = -rc;
    note(r, w->strategy, r->last.text);
    if (says_gone(rc) && (up || rc == -ESTALE)) {
        r->refused |= ws_bit(w->index);
        r->gone = true;
    } else if (says_never(rc)) {
        r->refused |= ws_bit(w->index);
    } else {
        atomic_fetch_add(&s->retries, 1);
        if (r->turn == leg->turn)
            r->turn++;
        if (ws_clock_ns() - atomic_load(&r->progress_ns) > deadline_ns)
            final = given_up(r, rc, err);
        else
            back_off(r, leg->attempts++);
    }
    pthread_mutex_unlock(&r->lock);
    ws_route_end(leg);
    return final;
}

void ws_route_stop(struct ws_route *r)
{
    atomic_store(&r->stop, true);
    pthread_mutex_lock(&r->lock);
    leave(r, NULL);
    pthread_mutex_unlock(&r->lock);
}
