#include "transports/tcp/delta_body.h"
#include "transports/base/clock.h"
#include "transports/delta/stream.h"
#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/types.h>

struct ws_tcp_delta_body {
    struct ws_tcp_deltas *all;
    struct ws_tcp_delta_body *next, *prev; /* of all */
    const struct ws_http_incoming *in;
    struct MHD_Response *response;
    struct ws_delta *delta;
    struct ws_delta_stream_writer writer;
    struct ws_delta_filter *filter; /* NULL: none */
    struct ws_delta_waiter waiter;
    struct ws_delta_sender sender;
    int sock;
    bool is_sender; /* guarded by the list's lock; the socket is open while it is */
    uint64_t sent;
    struct ws_delta_race *race; /* guarded by the list's lock; NULL: there is none */
    uint64_t pace;              /* the socket's, bytes a second; 0: none */
};

void ws_tcp_deltas_init(struct ws_tcp_deltas *deltas, _Atomic(uint64_t) *bytes_sent)
{
    deltas->bytes_sent = bytes_sent;
    atomic_init(&deltas->stop, false);
    pthread_mutex_init(&deltas->lock, NULL);
    deltas->first = NULL;
    LIST_INIT(&deltas->races);
}

void ws_tcp_deltas_destroy(struct ws_tcp_deltas *deltas)
{
    assert(!deltas->first && LIST_EMPTY(&deltas->races));
    pthread_mutex_destroy(&deltas->lock);
}

static void resume(void *arg)
{
    ws_http_resume(((struct ws_tcp_delta_body *)arg)->in);
}

/* Resumes it, unless the delta notifies and so resumes it. */
static void stop_waiting(struct ws_tcp_delta_body *b)
{
    if (ws_delta_wait_cancel(b->delta, &b->waiter))
        resume(b);
}

void ws_tcp_deltas_stop(struct ws_tcp_deltas *deltas)
{
    atomic_store(&deltas->stop, true);
    pthread_mutex_lock(&deltas->lock);
    for (struct ws_tcp_delta_body *b = deltas->first; b; b = b->next)
        stop_waiting(b);
    pthread_mutex_unlock(&deltas->lock);
}

/* With the list's lock. */
static void set_pace(struct ws_tcp_delta_body *b, uint64_t pace)
{
    const unsigned rate = pace && pace < UINT_MAX ? (unsigned)pace : UINT_MAX;
    if (pace != b->pace && b->is_sender) /* one that is not to be paced goes on as it is */
        (void)setsockopt(b->sock, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
    b->pace = pace;
}

static void move(struct ws_tcp_delta_body *b, uint64_t bytes)
{
    b->sent += bytes;
    if (!b->race)
        return;
    pthread_mutex_lock(&b->all->lock);
    set_pace(b, ws_delta_race_move(b->race, b->writer.part, b->sent, ws_clock_ns()));
    pthread_mutex_unlock(&b->all->lock);
}

static ssize_t read_body(void *arg, uint64_t at, char *out, size_t room)
{
    struct ws_tcp_delta_body *b = arg;
    if (atomic_load(&b->all->stop))
        return WS_HTTP_STREAM_FAILS;
    ssize_t n = ws_delta_stream_write(&b->writer, (unsigned char *)out, room);
    (void)at;
    if (n == -2) /* in the middle of a record, where the stream has no word for it */
        ws_http_body_trailer(b->response, WS_TCP_GIVEN_UP, "1");
    if (n < 0)
        return WS_HTTP_STREAM_ENDS;
    if (n > 0) {
        atomic_fetch_add(b->all->bytes_sent, (uint64_t)n);
        move(b, (uint64_t)n);
        return n;
    }
    /* Suspended before it waits: the delta's notification, which resumes it, comes after the suspension. */
    ws_http_suspend(b->in);
    b->waiter.coming = b->writer.coming;
    b->waiter.sent = b->writer.data_at;
    if (!ws_delta_wait(b->delta, b->writer.next, b->writer.part, b->writer.parts, &b->waiter))
        resume(b);
    else if (atomic_load(&b->all->stop)) /* ws_tcp_deltas_stop ran before this one waited */
        stop_waiting(b);
    return 0;
}

static void list(struct ws_tcp_delta_body *b, bool in)
{
    struct ws_tcp_deltas *all = b->all;
    pthread_mutex_lock(&all->lock);
    if (in) {
        b->next = all->first;
        if (b->next)
            b->next->prev = b;
        all->first = b;
    } else {
        *(b->prev ? &b->prev->next : &all->first) = b->next;
        if (b->next)
            b->next->prev = b->prev;
    }
    pthread_mutex_unlock(&all->lock);
}

/* Slow readers cannot keep what the cache has dropped. */
static void cut(void *arg)
{
    (void)shutdown(((struct ws_tcp_delta_body *)arg)->sock, SHUT_RDWR);
}

/* With the list's lock. */
static void stop_sending(struct ws_tcp_delta_body *b)
{
    if (b->is_sender)
        ws_delta_sender_remove(b->delta, &b->sender);
    b->is_sender = false;
}

void ws_tcp_deltas_closed(struct ws_tcp_deltas *deltas, int sock)
{
    pthread_mutex_lock(&deltas->lock);
    for (struct ws_tcp_delta_body *b = deltas->first; b; b = b->next)
        if (b->sock == sock)
            stop_sending(b);
    pthread_mutex_unlock(&deltas->lock);
}

static void free_body(void *arg)
{
    struct ws_tcp_delta_body *b = arg;
    pthread_mutex_lock(&b->all->lock);
    if (b->race) {
        set_pace(b, 0);
        if (b->writer.ended)
            ws_delta_race_finish(b->race, b->writer.part, b->sent);
        ws_delta_race_leave(b->race);
    }
    stop_sending(b);
    pthread_mutex_unlock(&b->all->lock);
    list(b, false);
    (void)ws_delta_wait_cancel(b->delta, &b->waiter);
    ws_delta_stream_writer_free(&b->writer);
    ws_delta_filter_free(b->filter);
    ws_delta_put(b->delta);
    free(b);
}

struct MHD_Response *ws_tcp_delta_body(struct ws_tcp_deltas *deltas, const struct ws_http_incoming *in,
                                       struct ws_delta *delta, unsigned part, unsigned parts,
                                       struct ws_delta_filter *filter)
{
    const bool whole = ws_delta_state(delta) == WS_DELTA_WHOLE;
    const uint64_t size = whole && !filter ? ws_delta_stream_bytes(delta, part, parts) : WS_HTTP_SIZE_UNKNOWN;
    struct ws_tcp_delta_body *b = calloc(1, sizeof(*b));
    struct MHD_Response *r = NULL;
    if (b && ws_delta_stream_writer_init(&b->writer, delta, part, parts) < 0) {
        free(b);
        b = NULL;
    }
    if (!b) {
        ws_delta_filter_free(filter);
        ws_delta_put(delta);
        return NULL;
    }
    b->writer.filter = b->filter = filter;
    b->all = deltas;
    b->in = in;
    b->delta = delta;
    b->waiter = (struct ws_delta_waiter){.notify = resume, .arg = b, .filter = filter};
    b->sock = ws_http_socket(in);
    b->sender = (struct ws_delta_sender){.dropped = cut, .arg = b};
    b->is_sender = ws_delta_sender_add(delta, &b->sender);
    if (parts > 1) {
        pthread_mutex_lock(&deltas->lock);
        b->race = ws_delta_race_join(&deltas->races, delta, parts, ws_clock_ns());
        pthread_mutex_unlock(&deltas->lock);
    }
    list(b, true);
    if (!b->is_sender) { /* dropped just now */
        free_body(b);
        return NULL;
    }
    r = ws_http_stream(size, read_body, free_body, b);
    if (!r)
        return NULL;
    b->response = r; /* which is sent after this has returned */
    ws_http_body_header(r, "Content-Type", "application/octet-stream");
    ws_http_body_header(r, "Cache-Control", whole ? "public, max-age=31536000, immutable" : "no-store");
    return r;
}
