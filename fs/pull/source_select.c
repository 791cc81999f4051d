/* Failures are of two kinds. A source that answers that the version is gone, or that this mount may not have
 * it, is not asked for it again; when all sources have refused, the pull is over. After anything else
 * (refused connections, resets, silence) the next source is tried, until nothing has moved for the pull's
 * deadline.
 *
 * A parent of a tree (fs/store/parents.h) that fails is not asked for some seconds: the next one up the path is, or a
 * source that the operator named (source_order.h). So a pull is never over because of parents, and goes back to them
 * by itself. */
#include "fs/pull/source_select.h"
#include "fs/pull/parent_watch.h"
#include "fs/pull/source_order.h"
#include "fs/store/events.h"
#include "fs/store/model.h"
#include "fs/store/offers.h"
#include "fs/store/parents.h"
#include "fs/store/rings.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_PAUSE_MS 50
#define MAX_DOUBLINGS  5 /* 1.6 s */
/* of parents */
#define AVOID_NS       (3 * WS_SECOND_NS)  /* one that failed */
#define DISTRUST_NS    (60 * WS_SECOND_NS) /* one that sent wrong bytes, or refuses */
#define SETTLE_NS      WS_SECOND_NS /* for an agent to name another in the place of one that was lost */
#define MOST_WAITS     3            /* timeouts of a parent in a row, each after WS_ARRIVAL_MS */
/* One that kept this mount waiting is left alone for so many times as long: both on the path up may wait in vain, and then
 * it is the agent's turn, not the first one's again. */
#define IN_VAIN        3
#define LOOK_MS        20

void ws_source_select_init(struct ws_source_select *sel, struct ws_version *v)
{
    memset(sel, 0, sizeof(*sel));
    sel->version = v;
    atomic_init(&sel->progress_ns, ws_clock_ns());
    ws_pace_begin(&sel->pace);
    atomic_init(&sel->used, WS_NO_WAY);
    atomic_init(&sel->way_is_gone, false);
    (void)ws_transport_prefs_get_locked(v->store, ws_model_source_name(v->model), &sel->transport_prefs);
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
        return ws_error_set(err, ESTALE, "%s/%lu is gone at the source; the newest is %lu%s%s",
                            v->model->name, v->number, newest->number,
                            newest->number == v->number ? ", which another run made" : "", why);
    return ws_error_set(err, ESTALE, "%s/%lu is gone at the source%s", v->model->name, v->number, why);
}

/* No source that has the version serves by a strategy of the list. With store->lock. */
static int none_in_list(const struct ws_source_select *sel, const struct ws_poller *barred,
                        struct ws_error *err)
{
    const struct ws_version *v = sel->version;
    char list[WS_TRANSPORT_PREFS_CHARS];

    ws_transport_prefs_text(&sel->transport_prefs, list);
    if (barred->strategy == WS_WAY_TCP && ws_transport_prefs_rank(&sel->transport_prefs, WS_WAY_UCX) >= 0)
        return ws_error_set(
            err, EHOSTUNREACH,
            "%s/%lu can be reached by tcp (%s), and its strategies are %s: ucx brings only bytes of whole "
            "versions of such a source, all else comes by tcp, which has to be listed behind it: echo "
            "\"strategy ucx,tcp\" > ctl (-o strategy=ucx:tcp)",
            v->model->name, v->number, barred->source->url, list);
    return ws_error_set(
        err, EHOSTUNREACH,
        "%s/%lu can be reached by %s (%s), but its strategies are %s: echo \"strategy auto\" > "
        "ctl, or name a strategy by which its source is reached",
        v->model->name, v->number, ws_way_name(barred->strategy), barred->source->url, list);
}

bool ws_source_select_comes_whole(struct ws_source_select *sel)
{
    pthread_mutex_lock(&sel->lock);
    const uint64_t refused = sel->refused;
    pthread_mutex_unlock(&sel->lock);
    return ws_version_comes_whole(sel->version, refused);
}

/* An attempt that needs bytes of files waits for a source that may come back, but not where another one leads to the
 * version by a delta. With store->lock and sel->lock. */
static int check_way(struct ws_source_select *sel, const struct ws_source_attempt *attempt,
                     struct ws_error *err)
{
    const struct ws_version *v = sel->version;

    if (!attempt->needs_whole || ws_version_comes_whole(v, sel->refused))
        return 0;
    atomic_store(&sel->way_is_gone, true);
    return ws_error_set(
        err, ENODATA,
        "no source that answers has %s/%lu whole any more, and there is only a delta to it%s%.400s",
        v->model->name, v->number, sel->last.code ? ": " : "", sel->last.code ? sel->last.text : "");
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
    attempt->has_other = has_other;
    if ((!has_other && !attempt->optional) || ws_parent_watch_is_parent(attempt))
        return; /* a parent may wait for its own, while it answers otherwise */
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
    attempt->seen = attempt->own_bytes = 0;
    attempt->slow_windows = 0;
    attempt->moved_ns = attempt->window_ns = ws_clock_ns();
    attempt->window_watched = sel->watched_bytes;
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

bool ws_source_select_has_moved(struct ws_source_select *sel, const struct ws_source_attempt *attempt)
{
    struct ws_store *s = sel->version->store;
    struct ws_poller *list[WS_MAX_SOURCES], *barred;
    bool moved = false;

    if (!s->parents)
        return false;
    pthread_mutex_lock(&s->lock);
    pthread_mutex_lock(&sel->lock);
    const unsigned n = ws_source_order_find(sel, attempt, list, &barred);
    const struct ws_poller *p = ws_source_order_parent(sel, attempt, list, n);
    moved = p ? p != attempt->poller
              : ws_parent_rank(sel->version, attempt->stripe, attempt->poller) != WS_PARENT_NONE;
    pthread_mutex_unlock(&sel->lock);
    pthread_mutex_unlock(&s->lock);
    return moved;
}

/* Its parent was lost, and an agent is about to name another. With store->lock. */
static bool is_settling(const struct ws_source_select *sel, const struct ws_source_attempt *attempt)
{
    const struct ws_version *v = sel->version;

    return attempt->lost_ns && ws_parents_told_ns(v) < attempt->lost_ns &&
           ws_clock_ns() - attempt->lost_ns < SETTLE_NS && ws_parents_settle(v->store);
}

/* A new version is listed by an agent at once, and by parents a moment later; one that is lost has a successor in a
 * moment. Without this wait all mounts would ask the agent. */
static void await_parent(struct ws_source_select *sel, const struct ws_source_attempt *attempt)
{
    struct ws_store *s = sel->version->store;
    struct ws_poller *list[WS_MAX_SOURCES], *barred;
    bool waits = s->parents && !attempt->not_parents;

    while (waits && !atomic_load(&sel->stop)) {
        pthread_mutex_lock(&s->lock);
        pthread_mutex_lock(&sel->lock);
        const struct ws_poller *p = ws_parent_expected(sel->version, attempt->stripe, &waits);
        const unsigned n = ws_source_order_find(sel, attempt, list, &barred);
        waits = waits && !(p && (ws_source_order_avoids(sel, p) || attempt->skip & ws_bit(p->index)));
        waits = (waits || is_settling(sel, attempt)) && !ws_source_order_has_better(sel, attempt, list, n);
        pthread_mutex_unlock(&s->lock);
        if (waits)
            (void)ws_cond_wait_until(&sel->changed, &sel->lock, ws_clock_ns() + LOOK_MS * WS_MS_NS);
        pthread_mutex_unlock(&sel->lock);
    }
}

int ws_source_select_next(struct ws_source_select *sel, struct ws_source_attempt *attempt,
                          struct ws_error *err)
{
    struct ws_store *s = sel->version->store;
    struct ws_poller *list[WS_MAX_SOURCES], *barred = NULL;
    struct ws_store_events events;
    unsigned n;
    int rc = 0;

    await_parent(sel, attempt);
    attempt->lost_ns = 0;
    if (atomic_load(&sel->stop))
        return ws_source_select_canceled(sel, err);
    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    rc = ws_offers_agree(sel->version, err);
    pthread_mutex_lock(&sel->lock);
    if (rc == 0)
        rc = check_way(sel, attempt, err);
    n = rc == 0 ? ws_source_order_find(sel, attempt, list, &barred) : 0;
    attempt->turn = sel->turn;
    attempt->poller = ws_source_order_choose(sel, attempt, list, n);
    if (attempt->poller) {
        ws_poller_get(attempt->poller);
        link_attempt(sel, attempt);
        const bool other = ws_source_order_has_other(list, n, attempt->poller);
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
    if (sel->attempts &&
        sel->last.code) /* that is asked again: why it was is more than that it is being asked */
        snprintf(out, WS_ERROR_TEXT / 2, "%.*s (%s is asked again)", WS_ERROR_TEXT / 4, sel->last.text,
                 sel->attempts->poller->source->url);
    else if (sel->attempts)
        snprintf(out, WS_ERROR_TEXT / 2, "%s has not answered", sel->attempts->poller->source->url);
    else
        snprintf(out, WS_ERROR_TEXT / 2, "%.*s", WS_ERROR_TEXT / 2 - 1,
                 sel->last.code ? sel->last.text : "no source was asked yet");
    pthread_mutex_unlock(&sel->lock);
}

/* A parent waits for its own, and answers otherwise, else it would be left. It is asked again, while other stripes move:
 * who went to the agent instead would slow down what all wait for. */
static bool may_wait(const struct ws_source_select *sel, struct ws_source_attempt *attempt, int rc)
{
    const uint64_t block = atomic_load(&sel->progress_ns), byte = atomic_load(&sel->pace.last_ns),
                   deadline_ns = (uint64_t)sel->version->store->options.deadline_ms * WS_MS_NS;

    return rc == -ETIMEDOUT && ws_clock_ns() - (block > byte ? block : byte) < deadline_ns / 4 &&
           attempt->failures++ < MOST_WAITS;
}

/* A parent is not asked for some time. rc: what it failed with; 0: it was left. False: it is none. */
static bool avoid(struct ws_source_select *sel, struct ws_source_attempt *attempt, uint64_t ns, bool blame,
                  int rc)
{
    struct ws_store *s = sel->version->store;

    if (!s->parents)
        return false;
    pthread_mutex_lock(&s->lock);
    const bool is = ws_parent_watch_is_parent(attempt),
               is_good = is && !blame && ws_parent_watch_is_of_before(attempt); /* of other stripes */
    const bool waits = is && may_wait(sel, attempt, rc);
    if (is && blame)
        ws_parents_blame(sel->version->model, attempt->poller);
    else if (is && ws_source_is_away(rc))
        ws_parents_suspect(attempt->poller);
    if (is && (ws_source_is_away(rc) || !attempt->poller->up))
        attempt->lost_ns = ws_clock_ns();
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&sel->lock);
    const uint64_t now_ns = ws_clock_ns(), vain_ns = IN_VAIN * (now_ns - attempt->moved_ns);
    if (is && !is_good && !waits)
        sel->avoid_ns[attempt->poller->index] = now_ns + (ns > vain_ns ? ns : vain_ns);
    pthread_mutex_unlock(&sel->lock);
    return is;
}

static void leave_it(struct ws_source_select *sel, struct ws_source_attempt *attempt, uint64_t ns, bool blame)
{
    const bool was_parent = avoid(sel, attempt, ns, blame, 0);

    pthread_mutex_lock(&sel->lock);
    if (!was_parent && sel->turn == attempt->turn)
        sel->turn++;
    pthread_mutex_unlock(&sel->lock);
    ws_source_select_end(attempt);
}

void ws_source_select_distrust(struct ws_source_select *sel, struct ws_source_attempt *attempt)
{
    leave_it(sel, attempt, DISTRUST_NS, true);
}

void ws_source_select_defer(struct ws_source_select *sel, struct ws_source_attempt *attempt)
{
    leave_it(sel, attempt, AVOID_NS, false);
}

void ws_source_select_progress(struct ws_source_select *sel, struct ws_source_attempt *attempt)
{
    atomic_store(&sel->progress_ns, ws_clock_ns());
    if (!attempt->any_strategy)
        atomic_store(&sel->used, attempt->by_ucx ? WS_WAY_UCX : attempt->poller->strategy);
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
            leave_it(sel, attempt, AVOID_NS, false);
            return 0;
        }
        rc = attempt->silent
                 ? ws_error_set(err, ETIMEDOUT, "%s has not answered", p->source->url)
                 : ws_error_set(err, EHOSTUNREACH, "the mounts that are its sources wait for each other");
    }
    up = p->up && s->pollers[p->index] == p;
    pthread_mutex_unlock(&s->lock);
    const bool was_parent = avoid(sel, attempt, says_never(rc) ? DISTRUST_NS : AVOID_NS, says_never(rc), rc);
    pthread_mutex_lock(&sel->lock);
    if (err)
        sel->last = *err;
    sel->last.code = -rc;
    record_reason(sel, p->strategy, sel->last.text);
    if (was_parent) {
        atomic_fetch_add(&s->retries, 1);
        if (ws_clock_ns() - atomic_load(&sel->progress_ns) > deadline_ns)
            final = given_up(sel, rc, err);
    } else if (says_gone(rc) && (up || rc == -ESTALE)) {
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
