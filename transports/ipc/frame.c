#include "transports/ipc/frame.h"
#include "transports/base/clock.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x31465357U /* "WSF1" */

struct head {
    uint32_t magic, body_bytes, n_fds;
};

static int64_t now_ms(void)
{
    return (int64_t)ws_clock_ms();
}

/* The array's owner must not close one of them again, by a number that may be another file's by now. */
void ws_frame_close_fds(int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        close(fds[i]);
        fds[i] = -1;
    }
}

/* Until the socket is ready, at most to the deadline (ms; -1: for ever). */
static int wait_ready(int sock, short events, int64_t deadline)
{
    for (;;) {
        int64_t left = deadline < 0 ? -1 : deadline - now_ms();
        if (deadline >= 0 && left < 0)
            left = 0;
        struct pollfd p = {.fd = sock, .events = events};
        int n = poll(&p, 1, left > INT_MAX ? INT_MAX : (int)left);
        if (n > 0)
            return 0;
        if (n == 0 && (deadline < 0 || now_ms() >= deadline))
            return -ETIMEDOUT;
        if (n < 0 && errno != EINTR)
            return -errno;
    }
}

/* stall_ms: the peer has to take some of it within this. */
static int send_all(int sock, const void *p, size_t n, const int *fds, size_t n_fds, int64_t stall_ms)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * WS_MAX_FDS_PER_FRAME)];
    } control = {0};
    const char *at = p;
    while (n > 0) {
        struct iovec iov = {.iov_base = (void *)(uintptr_t)at, .iov_len = n};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        if (n_fds > 0) {
            msg.msg_control = control.bytes;
            msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
            struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
            memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
        }
        ssize_t sent = sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN) {
            int rc = wait_ready(sock, POLLOUT, now_ms() + stall_ms);
            if (rc < 0)
                return rc;
            continue;
        }
        if (sent < 0)
            return errno == EPIPE ? -ECONNRESET : -errno;
        n_fds = 0; /* they ride with the first byte */
        at += sent;
        n -= (size_t)sent;
    }
    return 0;
}

int ws_frame_send(int sock, const json_t *body, const int *fds, size_t n_fds, int64_t stall_ms,
                  struct ws_error *err)
{
    assert(n_fds <= WS_MAX_FDS_PER_FRAME);
    size_t n = json_dumpb(body, NULL, 0, JSON_COMPACT);
    if (n == 0 || n > WS_MAX_MANIFEST_BYTES)
        return ws_error_set(err, E2BIG, "a message of %zu bytes does not fit into a frame", n);
    char *frame = malloc(sizeof(struct head) + n);
    if (!frame)
        return ws_error_set(err, ENOMEM, "no memory for a message of %zu bytes", n);
    struct head head = {MAGIC, (uint32_t)n, (uint32_t)n_fds};
    memcpy(frame, &head, sizeof(head));
    (void)json_dumpb(body, frame + sizeof(head), n, JSON_COMPACT);
    int rc = send_all(sock, frame, sizeof(head) + n, fds, n_fds, stall_ms);
    free(frame);
    if (rc < 0)
        return ws_error_set(err, -rc, "cannot send to the peer on the unix socket: %s",
                            rc == -ETIMEDOUT ? "it takes nothing, as a process that is stopped"
                                             : strerror(-rc));
    return 0;
}

int ws_frame_send_many(int sock, json_t *body, const int *fds, size_t n_fds, int64_t stall_ms,
                       struct ws_error *err)
{
    json_t *next = NULL;
    int rc = 0;
    for (size_t at = 0, n; rc == 0 && (at == 0 || at < n_fds); at += n ? n : 1) {
        n = n_fds - at > WS_MAX_FDS_PER_FRAME ? WS_MAX_FDS_PER_FRAME : n_fds - at;
        json_t *one = at == 0 ? body : (next = json_object());
        if (!one ||
            (n_fds > WS_MAX_FDS_PER_FRAME && json_object_set_new(one, "more", json_boolean(at + n < n_fds))))
            rc = ws_error_set(err, ENOMEM, "no memory for a reply");
        else
            rc = ws_frame_send(sock, one, fds + at, n, stall_ms, err);
        json_decref(next);
        next = NULL;
    }
    return rc;
}

struct receiver {
    int sock;
    int64_t deadline; /* -1: none */
    int *fds;
    size_t max_fds, n_fds;
};

static int store_fds(struct receiver *r, struct msghdr *msg)
{
    int rc = msg->msg_flags & MSG_CTRUNC ? -EMFILE : 0; /* there was no room for them in our table */
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        int got[WS_MAX_FDS_PER_FRAME];
        memcpy(got, CMSG_DATA(c), n * sizeof(int));
        for (size_t i = 0; i < n; i++) {
            if (r->n_fds < r->max_fds) {
                r->fds[r->n_fds++] = got[i];
            } else {
                close(got[i]);
                rc = -EBADMSG;
            }
        }
    }
    return rc;
}

static int recv_all(struct receiver *r, void *p, size_t n)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * WS_MAX_FDS_PER_FRAME)];
    } control;
    char *at = p;
    while (n > 0) {
        int rc = wait_ready(r->sock, POLLIN, r->deadline);
        if (rc < 0)
            return rc;
        struct iovec iov = {.iov_base = at, .iov_len = n};
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
        ssize_t got = recvmsg(r->sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got < 0)
            return -errno;
        rc = store_fds(r, &msg);
        if (rc < 0)
            return rc;
        if (got == 0)
            return -ECONNRESET;
        r->deadline = now_ms() + WS_REPLY_TIMEOUT_MS; /* a message that has begun continues */
        at += got;
        n -= (size_t)got;
    }
    return 0;
}

int ws_frame_recv(int sock, int64_t timeout_ms, json_t **body, int *fds, size_t max_fds, size_t *n_fds,
                  struct ws_error *err)
{
    struct receiver r = {.sock = sock,
                         .deadline = timeout_ms < 0 ? -1 : now_ms() + timeout_ms,
                         .fds = fds,
                         .max_fds = max_fds};
    struct head head;
    char *text = NULL;
    json_error_t why = {.text = ""};
    *body = NULL;
    int rc = recv_all(&r, &head, sizeof(head));
    if (rc == 0 && (head.magic != MAGIC || head.body_bytes == 0 || head.body_bytes > WS_MAX_MANIFEST_BYTES ||
                    head.n_fds > WS_MAX_FDS_PER_FRAME))
        rc = -EBADMSG;
    if (rc == 0 && !(text = malloc(head.body_bytes)))
        rc = -ENOMEM;
    if (rc == 0)
        rc = recv_all(&r, text, head.body_bytes);
    if (rc == 0 && r.n_fds != head.n_fds)
        rc = -EBADMSG;
    if (rc == 0 && !(*body = json_loadb(text, head.body_bytes, JSON_REJECT_DUPLICATES, &why)))
        rc = -EBADMSG;
    free(text);
    if (rc < 0) {
        ws_frame_close_fds(fds, r.n_fds);
        *n_fds = 0;
        return ws_error_set(
            err, -rc, "the process at the other end of the unix socket ended, or sent no whole message: %s%s",
            rc == -ECONNRESET  ? "it closed the connection"
            : rc == -EBADMSG   ? why.text[0] ? "it is no JSON: " : "it is not of wsync's format"
            : rc == -EMFILE    ? "its descriptors do not fit into this process's table, raise its limit of "
                                 "open files (ulimit -n)"
            : rc == -ETIMEDOUT ? "it did not answer in time, as a process that is stopped"
                               : strerror(-rc),
            why.text);
    }
    *n_fds = r.n_fds;
    return 0;
}
