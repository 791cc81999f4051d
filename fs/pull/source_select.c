/* Failures are of two kinds. A source that answers that the version is gone, or that this mount may not have
 * it, is not asked for it again; when all sources have refused, the pull is over. After anything else
 * (refused connections, resets, silence) the next source is tried, until nothing has moved for the pull's
 * deadline. */
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

void ws_source_select_init(struct ws_source_select *sel, struct ws_version *v)
{
    memset(sel, 0, sizeof(*sel));
    sel->version = v;
    atomic_init(&sel->progress_ns, ws_clock_ns());
    atomic_init(&sel->came_ns, 0);
    atomic_init(&sel->used, WS_NO_WAY);
    (void)ws_transport_prefs_get_locked(v->store, v->model->name, &sel->transport_prefs);
    ws_rings_begin(v);
    pthread_mutex_init(&sel->lock, NULL);
    ws_cond_init(&sel->changed);
}

void ws_source_select_release(struct ws_source_select *sel)
{
    pthread_cond_destroy(&sel->changed);
    pthread_mutex_destroy(&sel->lock);
}

int ws_source_select_canceled(const struct ws_source_select *sel, struct ws_error *err)
{
    return ws_error_set(err, ECANCELED, "the pull of %s/%lu was stopped", sel->version->model->name,
                        sel->version->number);
}

/* No source is left. With store->lock and sel->lock. */
static int none_left(struct ws_source_select *sel, struct ws_error *err)
{
    const struct ws_version *v = sel->version;
    const struct ws_version *newest = NULL;
    char why[WS_ERROR_TEXT / 2] = "";

    if (sel->last.code == ENOENT) /* the source lacks a part of the version: the reader needs to know which */
        snprintf(why, sizeof(why), " (%.*s)", (int)sizeof(why) - 4, sel->last.text);
    if (!sel->gone && sel->last.code && v->sources) {
        if (err)
            *err = sel->last;
        return -sel->last.code;
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

/* No source that has the version serves by a strategy of the list. With store->lock. */
static int none_in_list(const struct ws_source_select *sel, const struct ws_poller *barred,
                        struct ws_error *err)
{
    const struct ws_version *v = sel->version;
    char list[WS_TRANSPORT_PREFS_CHARS];

    ws_transport_prefs_text(&sel->transport_prefs, list);
    return ws_error_set(
        err, EHOSTUNREACH,
        "%s/%lu can be reached by %s (%s), but its strategies are %s: echo \"strategy auto\" > "
        "ctl, or name a strategy by which its source is reached",
        v->model->name, v->number, ws_way_name(barred->strategy), barred->source->url, list);
}

/* Is a better than b? */
static bool is_before(const struct ws_transport_prefs *s, const struct ws_poller *a,
                      const struct ws_poller *b)
{
    unsigned ra =
        (unsigned)ws_transport_prefs_rank(s, a->strategy); /* of one that is not in the list: the last */
    const unsigned rb = (unsigned)ws_transport_prefs_rank(s, b->strategy);

    return ra != rb ? ra < rb : a->order < b->order;
}

/* Candidates, the best one first; *barred: one that is left out for its strategy, or NULL. With store->lock
 * and sel->lock. */
static unsigned find_candidates(const struct ws_source_select *sel, const struct ws_source_attempt *attempt,
                                struct ws_poller *out[WS_MAX_SOURCES], struct ws_poller **barred)
{
    const struct ws_version *v = sel->version;
    uint64_t those = v->sources & ~sel->refused & ~attempt->skip & ~(attempt->needs_whole ? v->partial : 0);
    const struct ws_transport_prefs *list = attempt->only ? attempt->only : &sel->transport_prefs;
    unsigned n = 0;

    *barred = NULL;
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        struct ws_poller *p = v->store->pollers[i];
        unsigned at = n;
        if (!p || !(those & ws_bit(i)))
            continue;
        if (!attempt->any_strategy && ws_transport_prefs_rank(list, p->strategy) < 0) {
            *barred = p;
            continue;
        }
        for (; at > 0 && is_before(list, p, out[at - 1]); at--)
            out[at] = out[at - 1];
        out[at] = p;
        n++;
    }
    return n;
}

/* Is there another source that answers? With store->lock. */
static bool has_other(struct ws_poller *const *list, unsigned n, const struct ws_poller *taken)
{
    bool other = false;

    for (unsigned k = 0; k < n; k++)
        other = other || (list[k] != taken && list[k]->up);
    return other;
}

/* Each source of the version that answers has a share of the deadline. One share is left over, because a
 * transport takes up to a second to notice that it is to leave. With store->lock. */
static void set_share(const struct ws_source_select *sel, struct ws_source_attempt *attempt, bool has_other)
{
    struct ws_store *s = sel->version->store;
    unsigned n = 1;

    attempt->silent = false;
    attempt->since_ns = ws_clock_ns();
    attempt->share_ns = 0;
    if (!has_other && !attempt->optional)
        return;
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++)
        n += (sel->version->sources & ~sel->refused & ws_bit(i)) && s->pollers[i] && s->pollers[i]->up;
    attempt->share_ns = (uint64_t)s->options.deadline_ms * WS_MS_NS / n;
    ws_waiters_schedule(s, attempt->since_ns + attempt->share_ns);
}

/* With sel->lock. */
static void link_attempt(struct ws_source_select *sel, struct ws_source_attempt *attempt)
{
    atomic_store(&attempt->leave, atomic_load(&sel->stop));
    attempt->selection = sel;
    attempt->prev = NULL;
    attempt->next = sel->attempts;
    if (sel->attempts)
        sel->attempts->prev = attempt;
    sel->attempts = attempt;
}

static void unlink_attempt(struct ws_source_attempt *attempt)
{
    struct ws_source_select *sel = attempt->selection;

    pthread_mutex_lock(&sel->lock);
    *(attempt->prev ? &attempt->prev->next : &sel->attempts) = attempt->next;
    if (attempt->next)
        attempt->next->prev = attempt->prev;
    pthread_mutex_unlock(&sel->lock);
}

int ws_source_select_next(struct ws_source_select *sel, struct ws_source_attempt *attempt,
                          struct ws_error *err)
{
    struct ws_store *s = sel->version->store;
    struct ws_poller *list[WS_MAX_SOURCES], *barred = NULL;
    struct ws_store_events events;
    unsigned n;
    int rc = 0;

    if (atomic_load(&sel->stop))
        return ws_source_select_canceled(sel, err);
    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    rc = ws_offers_agree(sel->version, err);
    pthread_mutex_lock(&sel->lock);
    n = rc == 0 ? find_candidates(sel, attempt, list, &barred) : 0;
    attempt->turn = sel->turn;
    attempt->poller = NULL;
    for (unsigned k = 0; k < n && !attempt->poller; k++) {
        if (list[(sel->turn + k) % n]->up)
            attempt->poller = list[(sel->turn + k) % n];
    }
    if (n && !attempt->poller)
        attempt->poller = list[sel->turn % n];
    if (attempt->poller) {
        ws_poller_get(attempt->poller);
        link_attempt(sel, attempt);
        const bool other = has_other(list, n, attempt->poller);
        set_share(sel, attempt, other);
        if (ws_rings_stay(sel->version, attempt->poller->index, other))
            ws_store_events_add(&events, WS_MODEL_OFFERS, sel->version->model, NULL);
    } else if (rc == 0) {
        rc = barred && !sel->last.code ? none_in_list(sel, barred, err) : none_left(sel, err);
    }
    pthread_mutex_unlock(&sel->lock);
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
    return rc;
}

void ws_source_select_end(struct ws_source_attempt *attempt)
{
    if (attempt->poller) {
        unlink_attempt(attempt);
        ws_poller_put(attempt->poller);
    }
    attempt->poller = NULL;
}

/* With sel->lock. */
static void leave_attempts(struct ws_source_select *sel, const struct ws_poller *but_one)
{
    for (struct ws_source_attempt *attempt = sel->attempts; attempt; attempt = attempt->next)
        if (!but_one || attempt->poller == but_one)
            atomic_store(&attempt->leave, true);
    pthread_cond_broadcast(&sel->changed);
}

void ws_source_select_leave(struct ws_source_select *sel, unsigned index)
{
    pthread_mutex_lock(&sel->lock);
    sel->turn++;
    leave_attempts(sel, sel->version->store->pollers[index]);
    pthread_mutex_unlock(&sel->lock);
}

uint64_t ws_source_select_check_silence(struct ws_source_select *sel, uint64_t last_ns, uint64_t now_ns)
{
    uint64_t next = WS_NEVER;

    pthread_mutex_lock(&sel->lock);
    for (struct ws_source_attempt *attempt = sel->attempts; attempt; attempt = attempt->next) {
        const uint64_t due = (attempt->since_ns > last_ns ? attempt->since_ns : last_ns) + attempt->share_ns;
        if (attempt->share_ns == 0 || atomic_load(&attempt->leave))
            continue;
        if (due <= now_ns)
            atomic_store(&attempt->leave, attempt->silent = true);
        else if (due < next)
            next = due;
    }
    pthread_mutex_unlock(&sel->lock);
    return next;
}

void ws_source_select_describe(struct ws_source_select *sel, char out[WS_ERROR_TEXT / 2])
{
    pthread_mutex_lock(&sel->lock);
    if (sel->attempts)
        snprintf(out, WS_ERROR_TEXT / 2, "%s has not answered", sel->attempts->poller->source->url);
    else
        snprintf(out, WS_ERROR_TEXT / 2, "%.*s", WS_ERROR_TEXT / 2 - 1,
                 sel->last.code ? sel->last.text : "no source was asked yet");
    pthread_mutex_unlock(&sel->lock);
}

void ws_source_select_distrust(struct ws_source_select *sel, struct ws_source_attempt *attempt)
{
    pthread_mutex_lock(&sel->lock);
    if (sel->turn == attempt->turn)
        sel->turn++;
    pthread_mutex_unlock(&sel->lock);
    ws_source_select_end(attempt);
}

void ws_source_select_progress(struct ws_source_select *sel, struct ws_source_attempt *attempt)
{
    atomic_store(&sel->progress_ns, ws_clock_ns());
    if (!attempt->any_strategy)
        atomic_store(&sel->used, attempt->poller->strategy);
    attempt->failures = 0;
}

/* Leaves out the request that was answered, which is the longer part. With sel->lock. */
static void record_reason(struct ws_source_select *sel, int strategy, const char *why)
{
    const char *answer = strstr(why, " answered ");

    answer = answer ? strstr(answer, ": ") : NULL;
    snprintf(sel->why_not[strategy], WS_REASON_CHARS, "%s", answer ? answer + 2 : why);
}

void ws_source_select_record_reason(struct ws_source_select *sel, int strategy, const char *why)
{
    pthread_mutex_lock(&sel->lock);
    record_reason(sel, strategy, why);
    pthread_mutex_unlock(&sel->lock);
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

/* Nothing has moved for too long: one code for all failures to reach a source. */
static int given_up(const struct ws_source_select *sel, int rc, struct ws_error *err)
{
    const struct ws_version *v = sel->version;
    int code = rc == -ETIMEDOUT ? ETIMEDOUT : EHOSTUNREACH;
    char why[WS_ERROR_TEXT / 2];

    memcpy(why, sel->last.text, sizeof(why) - 1);
    why[sizeof(why) - 1] = '\0';
    return ws_error_set(err, code, "nothing of %s/%lu came for %.1f s: %s; is the trainer's agent up?",
                        v->model->name, v->number, (double)v->store->options.deadline_ms / 1000, why);
}

/* Sleeps before the next attempt, a half more or less, or until the stop. With sel->lock. */
static void back_off(struct ws_source_select *sel, unsigned attempts)
{
    unsigned doublings = attempts < MAX_DOUBLINGS ? attempts : MAX_DOUBLINGS;
    uint64_t ns = (uint64_t)FIRST_PAUSE_MS * WS_MS_NS << doublings;
    uint64_t now = ws_clock_ns();
    const uint64_t until = now + ns / 2 + (now ^ (uintptr_t)sel) % ns;

    while (!atomic_load(&sel->stop) && ws_cond_wait_until(&sel->changed, &sel->lock, until) != ETIMEDOUT)
        ;
}

int ws_source_select_failed(struct ws_source_select *sel, struct ws_source_attempt *attempt, int rc,
                            struct ws_error *err)
{
    struct ws_store *s = sel->version->store;
    uint64_t deadline_ns = (uint64_t)s->options.deadline_ms * WS_MS_NS;
    struct ws_poller *p = attempt->poller;
    bool up;
    int final = 0;

    if (atomic_load(&sel->stop)) {
        ws_source_select_end(attempt);
        return ws_source_select_canceled(sel, err);
    }
    pthread_mutex_lock(&s->lock);
    if (atomic_load(&attempt->leave)) {
        if (ws_clock_ns() - atomic_load(&sel->progress_ns) <= deadline_ns) { /* the next source, at once */
            pthread_mutex_unlock(&s->lock);
            ws_source_select_distrust(sel, attempt);
            return 0;
        }
        rc = attempt->silent
                 ? ws_error_set(err, ETIMEDOUT, "%s has not answered", p->source->url)
                 : ws_error_set(err, EHOSTUNREACH, "the mounts that are its sources wait for each other");
    }
    up = p->up && s->pollers[p->index] == p;
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&sel->lock);
    if (err)
        sel->last = *err;
    sel->last.code = -rc;
    record_reason(sel, p->strategy, sel->last.text);
    if (says_gone(rc) && (up || rc == -ESTALE)) {
        sel->refused |= ws_bit(p->index);
        sel->gone = true;
    } else if (says_never(rc)) {
        sel->refused |= ws_bit(p->index);
    } else {
        atomic_fetch_add(&s->retries, 1);
        if (sel->turn == attempt->turn)
            sel->turn++;
        if (ws_clock_ns() - atomic_load(&sel->progress_ns) > deadline_ns)
            final = given_up(sel, rc, err);
        else
            back_off(sel, attempt->failures++);
    }
    pthread_mutex_unlock(&sel->lock);
    ws_source_select_end(attempt);
    return final;
}

int ws_source_select_try(struct ws_source_select *sel, struct ws_source_attempt *attempt, ws_source_use *use,
                         void *arg, struct ws_error *err)
{
    int rc = ws_source_select_next(sel, attempt, err);

    while (rc == 0) {
        rc = use(arg, attempt, err);
        if (rc >= 0)
            break;
        rc = ws_source_select_failed(sel, attempt, rc, err);
        if (rc == 0)
            rc = ws_source_select_next(sel, attempt, err);
    }
    if (rc == 0)
        ws_source_select_progress(sel, attempt);
    ws_source_select_end(attempt);
    return rc;
}

void ws_source_select_stop(struct ws_source_select *sel)
{
    atomic_store(&sel->stop, true);
    pthread_mutex_lock(&sel->lock);
    leave_attempts(sel, NULL);
    pthread_mutex_unlock(&sel->lock);
}
