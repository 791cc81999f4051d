#include "backends/trainer/astraflow/push.h"
#include "transports/base/clock.h"
#include "transports/base/workers.h"
#include <arpa/inet.h>
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define STREAMS      2           /* as many as a receiver works on at once */
#define SMALL_BYTES  (1UL << 20) /* in one stream */
#define STEP_BYTES   (1UL << 20) /* between two looks whether it was cut */
#define WHOLE_MS     540000      /* the receiver's own HTTP client gives up after 600 s */
#define HEADER_BYTES 16

struct stream {
    int sock; /* -1: none, or done */
    struct sockaddr_in to;
    uint64_t begin, end;
    int rc;
    struct ws_error err;
};

struct ws_push {
    int wake; /* an eventfd: readable once it was cut */
    atomic_int cut;
    unsigned stall_ms;
    int64_t end_ms;
    const struct iovec *parts;
    size_t n_parts;
    unsigned n_streams;
    struct stream *failed_stream; /* it failed and cut the transfer; NULL: cut from outside */
    struct stream streams[WS_MAX_STREAMS];
};

static int64_t now_ms(void)
{
    return (int64_t)ws_clock_ms();
}

struct ws_push *ws_push_new(unsigned stall_ms)
{
    struct ws_push *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->wake < 0) {
        free(p);
        return NULL;
    }
    p->stall_ms = stall_ms;
    p->end_ms = now_ms() + WHOLE_MS;
    return p;
}

/* Was this the first? */
static bool cut(struct ws_push *p, int code)
{
    int none = 0;
    assert(code > 0);
    if (!atomic_compare_exchange_strong(&p->cut, &none, code))
        return false;
    (void)!write(p->wake, &(uint64_t){1}, sizeof(uint64_t));
    return true;
}

void ws_push_cut(struct ws_push *p, int code)
{
    (void)cut(p, code);
}

static const char *cut_reason(int code)
{
    switch (code) {
    case ESTALE:
        return "the trainer wants the memory of the version for a newer one; ask again";
    case EINTR:
        return "the receiver asked for another transfer, or registered again, while this one ran";
    case ESHUTDOWN:
        return "the agent is stopping";
    default:
        return strerror(code);
    }
}

static int is_cut(struct ws_push *p, struct ws_error *err)
{
    int code = atomic_load(&p->cut);
    return code ? ws_error_set(err, code, "the transfer was cut: %s", cut_reason(code)) : 0;
}

/* Until the socket is ready, or the push is cut, or the time is over. */
static int ready(struct ws_push *p, const struct stream *s, short events, unsigned ms, const char *what,
                 struct ws_error *err)
{
    struct pollfd fds[] = {{.fd = s->sock, .events = events}, {.fd = p->wake, .events = POLLIN}};
    int64_t now = now_ms(), end = now + ms;
    if (end > p->end_ms)
        end = p->end_ms;
    for (;; now = now_ms()) {
        int rc = is_cut(p, err);
        if (rc < 0)
            return rc;
        int n = poll(fds, 2, end > now ? (int)(end - now) : 0);
        if (n < 0 && errno != EINTR)
            return ws_error_set(err, errno, "cannot wait for %s: %s", what, strerror(errno));
        if (n > 0 && fds[0].revents)
            return 0;
        if (n == 0)
            return ws_error_set(err, ETIMEDOUT, "waited for %s in vain for %u s", what, ms / 1000);
    }
}

/* --- sending --- */

static int failed(const struct stream *s, int code, const char *what, struct ws_error *err)
{
    char host[INET_ADDRSTRLEN] = "";
    (void)inet_ntop(AF_INET, &s->to.sin_addr, host, sizeof(host));
    return ws_error_set(err, code, "%s the receiver at %s:%u: %s", what, host, ntohs(s->to.sin_port),
                        strerror(code));
}

static int open_stream(struct ws_push *p, struct stream *s, struct ws_error *err)
{
    int on = 1, code = 0;
    socklen_t n = sizeof(code);
    s->sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->sock < 0)
        return failed(s, errno, "no socket for", err);
    (void)setsockopt(s->sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(s->sock, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    if (connect(s->sock, (const struct sockaddr *)&s->to, sizeof(s->to)) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return failed(s, errno, "cannot connect to", err);
    int rc = ready(p, s, POLLOUT, WS_CONNECT_TIMEOUT_MS, "a connection to the receiver", err);
    if (rc == 0 && getsockopt(s->sock, SOL_SOCKET, SO_ERROR, &code, &n) == 0 && code)
        rc = failed(s, code, "cannot connect to", err);
    return rc;
}

/* The header arrives whole only when it is one segment: one call, the first on this connection. */
static int send_header(struct stream *s, struct ws_error *err)
{
    uint64_t header[2] = {htole64(s->begin), htole64(s->end - s->begin)};
    ssize_t n = send(s->sock, header, HEADER_BYTES, MSG_NOSIGNAL);
    if (n < 0)
        return failed(s, errno, "cannot send to", err);
    return n == HEADER_BYTES ? 0 : failed(s, EIO, "cannot send to", err);
}

static int send_bytes(struct ws_push *p, struct stream *s, const char *data, size_t n, struct ws_error *err)
{
    while (n > 0) {
        size_t step = n < STEP_BYTES ? n : STEP_BYTES;
        int rc = is_cut(p, err);
        if (rc < 0)
            return rc;
        ssize_t sent = send(s->sock, data, step, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EAGAIN)
            rc = ready(p, s, POLLOUT, p->stall_ms, "the receiver to take bytes", err);
        else if (sent < 0 && errno != EINTR)
            rc = failed(s, errno, "cannot send to", err);
        if (rc < 0)
            return rc;
        data += sent > 0 ? sent : 0;
        n -= sent > 0 ? (size_t)sent : 0;
    }
    return 0;
}

/* The stream's range of all parts laid end to end. */
static int send_range(struct ws_push *p, struct stream *s, struct ws_error *err)
{
    uint64_t at = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < p->n_parts && at < s->end; i++) {
        uint64_t len = p->parts[i].iov_len;
        uint64_t from = s->begin > at ? s->begin - at : 0, to = s->end - at < len ? s->end - at : len;
        if (from < to)
            rc = send_bytes(p, s, (const char *)p->parts[i].iov_base + from, to - from, err);
        at += len;
    }
    return rc;
}

static void run_stream(void *arg, size_t i)
{
    struct ws_push *p = arg;
    struct stream *s = &p->streams[i];
    s->rc = open_stream(p, s, &s->err);
    if (s->rc == 0)
        s->rc = send_header(s, &s->err);
    if (s->rc == 0)
        s->rc = send_range(p, s, &s->err);
    if (s->rc < 0 && cut(p, -s->rc)) /* the others need not go on */
        p->failed_stream = s;
}

static void divide(struct ws_push *p, const struct ws_push_target *to, uint64_t total)
{
    p->n_streams = to->n_ports > 1 ? to->n_ports : total < SMALL_BYTES ? 1 : STREAMS;
    uint64_t chunk = total / p->n_streams;
    for (unsigned i = 0; i < p->n_streams; i++) {
        struct stream *s = &p->streams[i];
        s->sock = -1;
        s->to.sin_family = AF_INET;
        s->to.sin_addr = to->address;
        s->to.sin_port = htons(to->ports[to->n_ports > 1 ? i : 0]);
        s->begin = i * chunk;
        s->end = i + 1 == p->n_streams ? total : s->begin + chunk;
    }
}

int ws_push_send(struct ws_push *p, const struct ws_push_target *to, const struct iovec *parts,
                 size_t n_parts, struct ws_error *err)
{
    uint64_t total = 0;
    int rc = is_cut(p, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n_parts; i++)
        total += parts[i].iov_len;
    assert(total > 0 && p->n_streams == 0 && to->n_ports > 0 && to->n_ports <= WS_MAX_STREAMS);
    p->parts = parts;
    p->n_parts = n_parts;
    divide(p, to, total);
    ws_workers_run_at_once(run_stream, p, p->n_streams);
    for (unsigned i = 0; i < p->n_streams; i++)
        if (p->streams[i].rc < 0)
            return p->failed_stream
                       ? ws_error_set(err, p->failed_stream->err.code, "%s", p->failed_stream->err.text)
                       : is_cut(p, err);
    return 0;
}

int ws_push_wait(struct ws_push *p, struct ws_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < p->n_streams; i++) {
        struct stream *s = &p->streams[i];
        unsigned char byte;
        ssize_t n = -1;
        while (rc == 0 && n < 0) {
            rc = ready(p, s, POLLIN, p->stall_ms, "the receiver to acknowledge the bytes", err);
            n = rc == 0 ? recv(s->sock, &byte, 1, 0) : -1;
            if (rc == 0 && n < 0 && errno != EAGAIN && errno != EINTR)
                rc = failed(s, errno, "no acknowledgement from", err);
        }
        if (rc == 0 && n == 0)
            rc =
                ws_error_set(err, ECONNRESET, "the receiver ended stream %u of %u without an acknowledgement",
                             i + 1, p->n_streams);
        if (rc == 0) {
            close(s->sock);
            s->sock = -1;
        }
    }
    return rc;
}

/* --- the end of one that failed --- */

void ws_push_half_close(struct ws_push *p)
{
    for (unsigned i = 0; i < p->n_streams; i++) {
        struct stream *s = &p->streams[i];
        if (s->sock >= 0 && shutdown(s->sock, SHUT_WR) != 0) { /* never connected, or gone */
            close(s->sock);
            s->sock = -1;
        }
    }
}

/* Reads what is there; has the receiver ended this connection? */
static bool is_ended(const struct stream *s)
{
    char ignored[64];
    ssize_t n;
    do
        n = recv(s->sock, ignored, sizeof(ignored), MSG_DONTWAIT);
    while (n > 0 || (n < 0 && errno == EINTR));
    return n == 0 || errno != EAGAIN;
}

bool ws_push_wait_closed(struct ws_push *p, unsigned timeout_ms)
{
    int64_t end = now_ms() + timeout_ms;
    for (unsigned i = 0; i < p->n_streams; i++) {
        struct stream *s = &p->streams[i];
        while (s->sock >= 0 && !is_ended(s)) {
            int64_t left = end - now_ms();
            struct pollfd fd = {.fd = s->sock, .events = POLLIN};
            if (left <= 0)
                return false;
            (void)poll(&fd, 1, (int)left);
        }
        if (s->sock >= 0)
            close(s->sock);
        s->sock = -1;
    }
    return true;
}

void ws_push_free(struct ws_push *p)
{
    if (!p)
        return;
    for (unsigned i = 0; i < p->n_streams; i++)
        if (p->streams[i].sock >= 0)
            close(p->streams[i].sock);
    close(p->wake);
    free(p);
}
