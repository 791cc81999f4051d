#include "fs/fuse/beacon.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#define MOST_WAITING 128 /* they are not accepted, and each takes one of these for good */

static socklen_t address_of(dev_t dev, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int n =
        snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "wsync-mount/%u:%u", major(dev), minor(dev));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int ws_beacon_light(dev_t dev)
{
    struct sockaddr_un address;
    const socklen_t n = address_of(dev, &address);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (bind(fd, (const struct sockaddr *)&address, n) == 0 && listen(fd, MOST_WAITING) == 0)
        return fd;
    const int rc = -errno;
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

int ws_beacon_find(dev_t dev, pid_t *pid)
{
    struct sockaddr_un address;
    const socklen_t n = address_of(dev, &address);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    const int rc = connect(fd, (const struct sockaddr *)&address, n) == 0 ? check_owner(fd, pid) : -errno;
    if (rc == 0)
        return fd;
    close(fd);
    return rc;
}

bool ws_beacon_wait(int beacon, int timeout_ms)
{
    const uint64_t end = ws_clock_ns() + (uint64_t)timeout_ms * WS_MS_NS;
    struct pollfd fd = {.fd = beacon};
    int rc;
    do {
        const uint64_t now = ws_clock_ns();
        rc = poll(&fd, 1, now < end ? (int)((end - now) / WS_MS_NS) + 1 : 0);
    } while (rc < 0 && errno == EINTR);
    close(beacon);
    return rc > 0;
}
