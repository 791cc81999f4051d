/* Sockets between ranks, under names derived from the communicator's; waits regularly check for an abort. */
#include "tests/fakes/nccl_fake.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LOOK_MS 5

static socklen_t address_of(const ncclComm_t comm, int rank, struct sockaddr_un *a)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX}; /* abstract: no file to clean up */
    int n = snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "%s.%d", comm->name, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int nccl_listen(const ncclComm_t comm)
{
    struct sockaddr_un a;
    socklen_t n = address_of(comm, comm->rank, &a);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) || listen(fd, NCCL_FAKE_MAX_RANKS)) {
        int rc = -errno;
        if (fd >= 0)
            close(fd);
        return rc;
    }
    return fd;
}

static int wait_until(const ncclComm_t comm, int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    while (!atomic_load(&comm->aborted))
        if (poll(&p, 1, LOOK_MS) > 0)
            return 0;
    return -ECANCELED;
}

int nccl_connect(const ncclComm_t comm, int rank, int *fd)
{
    struct sockaddr_un a;
    socklen_t n = address_of(comm, rank, &a);
    while (!atomic_load(&comm->aborted)) {
        *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (*fd < 0)
            return -errno;
        if (!connect(*fd, (struct sockaddr *)&a, n))
            return 0;
        close(*fd);
        *fd = -1;
        usleep(LOOK_MS * 1000); /* it does not exist yet */
    }
    return -ECANCELED;
}

int nccl_accept(const ncclComm_t comm, int listener, int *fd)
{
    int rc;
    do {
        rc = wait_until(comm, listener, POLLIN);
        *fd = rc ? -1 : accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    } while (rc == 0 && *fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED));
    return rc ? rc : *fd < 0 ? -errno : 0;
}

int nccl_send(const ncclComm_t comm, int fd, const void *p, size_t n)
{
    const char *at = p;
    while (n) {
        int rc = wait_until(comm, fd, POLLOUT);
        if (rc)
            return rc;
        ssize_t sent = send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return -EPIPE;
        at += sent > 0 ? sent : 0;
        n -= sent > 0 ? (size_t)sent : 0;
    }
    return 0;
}

int nccl_receive(const ncclComm_t comm, int fd, void *p, size_t n)
{
    char *at = p;
    while (n) {
        int rc = wait_until(comm, fd, POLLIN);
        if (rc)
            return rc;
        ssize_t got = recv(fd, at, n, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return -EPIPE;
        at += got > 0 ? got : 0;
        n -= got > 0 ? (size_t)got : 0;
    }
    return 0;
}
