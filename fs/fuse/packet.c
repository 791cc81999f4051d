#include "fs/fuse/packet.h"
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

union room {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

int ws_packet_send(int sock, const void *bytes, size_t n, int fd)
{
    union room room = {0};
    struct iovec v = {(void *)(uintptr_t)bytes, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    if (fd >= 0) {
        m.msg_control = &room;
        m.msg_controllen = sizeof(room);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    }
    ssize_t sent;
    do
        sent = sendmsg(sock, &m, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)n ? 0 : sent < 0 ? -errno : -EMSGSIZE;
}

int ws_packet_recv(int sock, void *bytes, size_t n, int *fd)
{
    union room room = {0};
    struct iovec v = {bytes, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof(room)};
    ssize_t got;
    if (!fd) /* what comes along is closed by the kernel */
        m.msg_controllen = 0;
    do
        got = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (fd)
        *fd = -1;
    for (struct cmsghdr *c = fd && got > 0 ? CMSG_FIRSTHDR(&m) : NULL; c; c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
            memcpy(fd, CMSG_DATA(c), sizeof(*fd));
    if (got == (ssize_t)n && !(m.msg_flags & MSG_TRUNC))
        return 0;
    if (fd && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return got == 0 ? -ECONNRESET : got < 0 ? -errno : -EBADMSG;
}
