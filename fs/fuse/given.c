#include "fs/fuse/given.h"
#include "transports/base/clock.h"
#include "transports/base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define WAIT_NS  (30 * WS_SECOND_NS)
#define AGAIN_NS (100 * WS_MS_NS) /* between two tries to connect */
#define FUSE_DEV makedev(10, 229)
#define MAX_FDS  8 /* of which all but the first are closed */

int ws_given_number(const char *mountpoint)
{
    static const char folder[] = "/dev/fd/";
    const char *at = mountpoint + sizeof(folder) - 1;
    uint64_t n;
    if (strncmp(mountpoint, folder, sizeof(folder) - 1) != 0 || ws_text_digits(&at, &n) < 0 || *at ||
        n > INT_MAX)
        return -1;
    return (int)n;
}

int ws_given_check(int fd, struct ws_error *err)
{
    struct stat st;
    if (fd <= STDERR_FILENO)
        return ws_error_set(err, EINVAL, "descriptor %d is a standard stream; pass one from 3 on", fd);
    if (fstat(fd, &st) != 0)
        return ws_error_set(err, EINVAL, "descriptor %d is not open; let this process inherit it", fd);
    if (!S_ISCHR(st.st_mode) || st.st_rdev != FUSE_DEV || (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
        return ws_error_set(err, EINVAL, "descriptor %d is not /dev/fuse, opened for reading and writing",
                            fd);
    return 0;
}

static int64_t ms_until(uint64_t end)
{
    const uint64_t now = ws_clock_ns();
    return now < end ? (int64_t)((end - now) / WS_MS_NS) + 1 : 0;
}

/* The socket may not be there yet. */
static int connect_to(const char *path, uint64_t end, int *out, struct ws_error *err)
{
    const struct timespec wait = {.tv_nsec = AGAIN_NS};
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(a.sun_path))
        return ws_error_set(err, ENAMETOOLONG, "the socket %s has a name of more than %zu bytes", path,
                            sizeof(a.sun_path) - 1);
    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    const int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int rc = sock < 0 ? -errno : -EAGAIN;
    while (sock >= 0 && rc < 0) {
        rc = connect(sock, (struct sockaddr *)&a, sizeof(a)) == 0 ? 0 : -errno;
        if ((rc != -ENOENT && rc != -ECONNREFUSED && rc != -EAGAIN) || ms_until(end) == 0)
            break;
        (void)nanosleep(&wait, NULL);
    }
    if (rc == 0) {
        *out = sock;
        return 0;
    }
    if (sock >= 0)
        close(sock);
    return ws_error_set(err, -rc, "cannot connect to %s for a descriptor of /dev/fuse: %s", path,
                        strerror(-rc));
}

/* The first descriptor of a message; the others are closed. -1: it has none. */
static int first_of(struct msghdr *m)
{
    int first = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= c->cmsg_len; at += sizeof(int)) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + at, sizeof(fd));
            if (first < 0)
                first = fd;
            else
                close(fd);
        }
    }
    return first;
}

static int receive(int sock, const char *path, uint64_t end, int *out, struct ws_error *err)
{
    union {
        char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
        struct cmsghdr align;
    } room;
    char data[512]; /* some drivers tell more, which is theirs */
    struct iovec v = {data, sizeof(data)};
    for (*out = -1; *out < 0;) {
        struct pollfd p = {.fd = sock, .events = POLLIN};
        struct msghdr m = {
            .msg_iov = &v, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof(room)};
        if (ms_until(end) == 0 || (poll(&p, 1, (int)ms_until(end)) == 0))
            return ws_error_set(err, ETIMEDOUT,
                                "who listens at %s has sent no descriptor of /dev/fuse in 30 s", path);
        const ssize_t n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return ws_error_set(
                err, n < 0 ? errno : ECONNRESET,
                "who listens at %s has closed the connection without a descriptor of /dev/fuse", path);
        *out = first_of(&m);
    }
    return ws_given_check(*out, err);
}

int ws_given_receive(const char *path, int *fd, struct ws_error *err)
{
    const uint64_t end = ws_clock_ns() + WAIT_NS;
    int sock = -1;
    *fd = -1;
    int rc = connect_to(path, end, &sock, err);
    if (rc < 0)
        return rc;
    rc = receive(sock, path, end, fd, err);
    close(sock);
    if (rc < 0 && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}
