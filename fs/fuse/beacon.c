#include "fs/fuse/beacon.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#define MOST_WAITING 128 /* they are not accepted, and each takes one of these for good */

static socklen_t address_of(dev_t dev, unsigned place, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int n = snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "wsync-mount/%u:%u/%u", major(dev),
                           minor(dev), place);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int ws_beacon_light(dev_t dev)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int rc = fd < 0 ? -errno : -EADDRINUSE;
    for (unsigned place = 0; rc == -EADDRINUSE && place < WS_BEACON_PLACES; place++) {
        struct sockaddr_un address;
        const socklen_t n = address_of(dev, place, &address);
        rc = bind(fd, (const struct sockaddr *)&address, n) == 0 ? 0 : -errno;
    }
    if (rc == 0 && listen(fd, MOST_WAITING) != 0)
        rc = -errno;
    if (rc == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Any user may take the address: one that is neither root nor this user is a stranger, whose end means nothing. */
static int check_owner(int fd, pid_t *pid)
{
    struct ucred peer;
    socklen_t n = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0)
        return -errno;
    *pid = peer.pid;
    return peer.uid == 0 || peer.uid == geteuid() ? 0 : -EPERM;
}

/* The beacon goes out while the kernel closes what the process has open, one after the other: its process's descriptor tells
 * when all is. pid: 0 where it has none here. Closes beacon, where there is such a one. */
static int process_of(int beacon, pid_t pid)
{
    struct pollfd lit = {.fd = beacon};
    const int process = pid > 0 ? pidfd_open(pid, 0) : -1;
    if (process >= 0 && poll(&lit, 1, 0) == 0) { /* so the number was not another process's by then */
        close(beacon);
        return process;
    }
    if (process >= 0)
        close(process);
    return beacon;
}

/* -errno: there is none at that place that can be trusted. */
static int find_at(dev_t dev, unsigned place, pid_t *pid)
{
    struct sockaddr_un address;
    const socklen_t n = address_of(dev, place, &address);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    const int rc = connect(fd, (const struct sockaddr *)&address, n) == 0 ? check_owner(fd, pid) : -errno;
    if (rc == 0)
        return process_of(fd, *pid);
    close(fd);
    return rc;
}

void ws_beacons_find(dev_t dev, struct ws_beacons *out)
{
    *out = (struct ws_beacons){0};
    for (unsigned place = 0; place < WS_BEACON_PLACES; place++) {
        pid_t pid = 0;
        const int fd = find_at(dev, place, &pid);
        if (fd >= 0) {
            out->seen[out->n].fd = fd;
            out->seen[out->n++].pid = pid;
        }
    }
}

static bool wait_until(int fd, uint64_t end_ns)
{
    struct pollfd one = {.fd = fd,
                         .events = POLLIN}; /* of a process; a beacon that goes out needs no asking */
    int rc;
    do {
        const uint64_t now = ws_clock_ns();
        rc = poll(&one, 1, now < end_ns ? (int)((end_ns - now) / WS_MS_NS) + 1 : 0);
    } while (rc < 0 && errno == EINTR);
    return rc > 0;
}

bool ws_beacons_wait(struct ws_beacons *b, int timeout_ms, pid_t *pid)
{
    const uint64_t end = ws_clock_ns() + (uint64_t)timeout_ms * WS_MS_NS;
    bool ended = true;
    for (size_t i = 0; i < b->n; i++)
        if (!wait_until(b->seen[i].fd, end)) {
            ended = false;
            *pid = b->seen[i].pid;
        }
    ws_beacons_close(b);
    return ended;
}

void ws_beacons_close(struct ws_beacons *b)
{
    for (size_t i = 0; i < b->n; i++)
        close(b->seen[i].fd);
    b->n = 0;
}
