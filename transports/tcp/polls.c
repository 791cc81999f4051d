/* Requests that wait for a change of the catalog: suspended, in a list, with a thread that ends them. */
#include "transports/base/clock.h"
#include "transports/base/workers.h"
#include "transports/tcp/call.h"

#define MOST_HOLD_MS 10000

static int64_t now_ms(void)
{
    return (int64_t)ws_clock_ms();
}

/* Removes it from the list of polls. With lock. */
static void unlink_poll(struct ws_tcp_call *q)
{
    if (q->prev)
        q->prev->next = q->next;
    else
        q->server->polls = q->next;
    if (q->next)
        q->next->prev = q->prev;
    q->is_suspended = false;
}

/* With lock. */
static bool may_wait(const struct ws_tcp_call *q)
{
    return !atomic_load(&q->server->stop) && now_ms() < q->poll_end_ms && !ws_http_is_ending(q->in);
}

/* With lock. */
static void suspend_poll(struct ws_tcp_call *q)
{
    struct ws_tcp_server *s = q->server;
    q->is_suspended = true;
    q->prev = NULL;
    q->next = s->polls;
    if (s->polls)
        s->polls->prev = q;
    s->polls = q;
    ws_http_suspend(q->in);
    pthread_cond_signal(&s->changed);
}

bool ws_tcp_poll_waits(struct ws_tcp_call *q)
{
    struct ws_tcp_server *s = q->server;
    if (q->poll_end_ms == 0)
        q->poll_end_ms = now_ms() + q->api->timeout_ms;
    pthread_mutex_lock(&s->lock);
    const bool wait = s->catalog.ops->seq(s->catalog.self) <= q->api->since && may_wait(q);
    if (wait)
        suspend_poll(q);
    pthread_mutex_unlock(&s->lock);
    return wait;
}

bool ws_tcp_poll_holds(struct ws_tcp_call *q, uint64_t hold_ms, uint64_t wakes)
{
    struct ws_tcp_server *s = q->server;
    if (q->poll_end_ms == 0)
        q->poll_end_ms = now_ms() + (int64_t)(hold_ms < MOST_HOLD_MS ? hold_ms : MOST_HOLD_MS);
    q->is_held = true;
    pthread_mutex_lock(&s->lock);
    const bool wait = atomic_load(&s->held_wakes) == wakes && may_wait(q);
    if (wait)
        suspend_poll(q);
    pthread_mutex_unlock(&s->lock);
    return wait;
}

bool ws_tcp_poll_has_time(const struct ws_tcp_call *q)
{
    return !atomic_load(&q->server->stop) && now_ms() < q->poll_end_ms;
}

void ws_tcp_poll_ended(struct ws_tcp_call *q)
{
    pthread_mutex_lock(&q->server->lock);
    if (q->is_suspended)
        unlink_poll(q);
    pthread_mutex_unlock(&q->server->lock);
}

/* With lock. */
static void resume_some(struct ws_tcp_server *s, int64_t ended_before_ms, bool held_only)
{
    for (struct ws_tcp_call *q = s->polls, *next; q; q = next) {
        next = q->next;
        if ((held_only && !q->is_held) || (q->poll_end_ms > ended_before_ms && !ws_http_is_ending(q->in)))
            continue;
        unlink_poll(q);
        ws_http_resume(q->in);
    }
}

static void resume_polls(struct ws_tcp_server *s, int64_t ended_before_ms)
{
    pthread_mutex_lock(&s->lock);
    resume_some(s, ended_before_ms, false);
    pthread_mutex_unlock(&s->lock);
}

static void *end_polls(void *arg)
{
    struct ws_tcp_server *s = arg;
    while (!atomic_load(&s->stop)) {
        resume_polls(s, now_ms());
        pthread_mutex_lock(&s->lock);
        if (!s->polls && !atomic_load(&s->stop))
            pthread_cond_wait(&s->changed, &s->lock);
        else
            (void)ws_cond_wait_until(&s->changed, &s->lock, ws_clock_ns() + 50 * WS_MS_NS);
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

void ws_tcp_server_wake(struct ws_tcp_server *s)
{
    resume_polls(s, INT64_MAX);
}

void ws_tcp_server_wake_held(struct ws_tcp_server *s)
{
    pthread_mutex_lock(&s->lock);
    atomic_fetch_add(&s->held_wakes, 1);
    resume_some(s, INT64_MAX, true);
    pthread_mutex_unlock(&s->lock);
}

int ws_tcp_polls_start(struct ws_tcp_server *s)
{
    return ws_thread_start(&s->clock, end_polls, s);
}

void ws_tcp_polls_stop(struct ws_tcp_server *s)
{
    atomic_store(&s->stop, true);
    pthread_mutex_lock(&s->lock);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->clock, NULL);
    resume_polls(s, INT64_MAX); /* libmicrohttpd's daemon would never end while a connection is suspended */
}
