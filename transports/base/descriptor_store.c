#include "transports/base/descriptor_store.h"
#include "transports/base/log.h"
#include "transports/base/notify_socket.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_MS   10000 /* closing what is kept may give back gigabytes */
#define FIRST_GIVEN 3     /* sd_listen_fds(3) */

static struct {
    atomic_int sock; /* -1: there is none */
    struct ws_named_descriptor *found;
    size_t n;
} store = {.sock = -1};

void ws_descriptor_store_use(int sock, struct ws_named_descriptor *found, size_t n)
{
    const struct timeval patience = {.tv_sec = ANSWER_MS / 1000};
    assert(atomic_load(&store.sock) < 0);
    (void)setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    store.found = found;
    store.n = n;
    atomic_store(&store.sock, sock);
}

/* Descriptors from 3 on, named in the same order. Those of sockets that the manager made have names of their own. */
static size_t find_given(struct ws_named_descriptor **out)
{
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS"), *names = getenv("LISTEN_FDNAMES");
    const long n = pid && count && names && strtol(pid, NULL, 10) == getpid() ? strtol(count, NULL, 10) : 0;
    struct ws_named_descriptor *all = n > 0 && n <= WS_DESCRIPTORS ? calloc((size_t)n, sizeof(*all)) : NULL;
    for (long i = 0; all && i < n; i++) {
        const size_t chars = strcspn(names, ":");
        all[i].fd = FIRST_GIVEN + (int)i;
        (void)fcntl(all[i].fd, F_SETFD, FD_CLOEXEC);
        snprintf(all[i].name, sizeof(all[i].name), "%.*s", (int)chars, names);
        names += chars + (names[chars] == ':');
    }
    *out = all;
    return all ? (size_t)n : 0;
}

void ws_descriptor_store_use_manager(void)
{
    const char *most = getenv("FDSTORE");
    if (ws_descriptor_store_is_on())
        return;
    const int sock = most && strtol(most, NULL, 10) > 0 ? ws_notify_socket_connect() : -1;
    struct ws_named_descriptor *found;
    if (sock < 0)
        return;
    const size_t n = find_given(&found);
    ws_descriptor_store_use(sock, found, n);
}

bool ws_descriptor_store_is_on(void)
{
    return atomic_load(&store.sock) >= 0;
}

/* The socket stays open: other threads may be about to send to it. */
static void give_up(const char *why)
{
    if (atomic_exchange(&store.sock, -1) >= 0)
        ws_log(WS_LOG_ERROR, "store", "nothing outlives this process any more: what keeps its descriptors %s",
               why);
}

/* fd -1: none goes along. */
static int send_message(const char *text, int fd)
{
    const int sock = atomic_load(&store.sock);
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec v = {(void *)(uintptr_t)text, strlen(text)};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    if (sock < 0)
        return -ENOTCONN;
    if (fd >= 0) {
        m.msg_control = control.room;
        m.msg_controllen = sizeof(control.room);
        control.head = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
    }
    if (sendmsg(sock, &m, MSG_NOSIGNAL) >= 0)
        return 0;
    const int rc = -errno;
    if (rc != -ETOOMANYREFS) /* of its own descriptors too many are on their way */
        give_up(rc == -EAGAIN ? "does not answer" : "is gone");
    return rc;
}

/* Until it has done what it was sent. */
static void wait_until_done(void)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return;
    struct pollfd end = {.fd = ends[0]};
    const int rc = send_message("BARRIER=1", ends[1]);
    close(ends[1]);
    if (rc == 0 && poll(&end, 1, ANSWER_MS) == 0)
        give_up("does not answer");
    close(ends[0]);
}

static int send_about(const char *what, const char *name, int fd)
{
    char text[WS_DESCRIPTOR_NAME_CHARS + 64];
    snprintf(text, sizeof(text), "%s=1\nFDNAME=%s", what, name);
    return send_message(text, fd);
}

int ws_descriptor_store_put(const char *name, int fd)
{
    return send_about("FDSTORE", name, fd);
}

void ws_descriptor_store_remove(const char *name)
{
    if (send_about("FDSTOREREMOVE", name, -1) == 0)
        wait_until_done();
}

/* --- what was found --- */

const char *ws_descriptor_store_next(const char *prefix)
{
    for (size_t i = 0; i < store.n; i++)
        if (strncmp(store.found[i].name, prefix, strlen(prefix)) == 0)
            return store.found[i].name;
    return NULL;
}

int ws_descriptor_store_take(const char *name)
{
    size_t i = 0;
    while (i < store.n && strcmp(store.found[i].name, name) != 0)
        i++;
    if (i == store.n)
        return -1;
    const int fd = store.found[i].fd;
    store.found[i] = store.found[--store.n];
    return fd;
}

void ws_descriptor_store_drop_rest(void)
{
    for (size_t i = 0; i < store.n; i++) {
        close(store.found[i].fd);
        (void)send_about("FDSTOREREMOVE", store.found[i].name, -1);
    }
    if (store.n > 0)
        wait_until_done();
    free(store.found);
    store.found = NULL;
    store.n = 0;
}
