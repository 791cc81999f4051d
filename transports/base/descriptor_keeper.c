#include "transports/base/descriptor_keeper.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int ws_descriptor_keeper_init(struct ws_descriptor_keeper *k, struct ws_error *err)
{
    *k = (struct ws_descriptor_keeper){.ends = {-1, -1}};
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, k->ends) == 0)
        return 0;
    return ws_error_set(err, errno, "cannot make a store of descriptors: %s", strerror(errno));
}

static bool make_room(struct ws_descriptor_keeper *k)
{
    const size_t cap = k->cap ? 2 * k->cap : 64;
    if (k->n < k->cap)
        return true;
    struct ws_named_descriptor *all = cap <= WS_DESCRIPTORS ? realloc(k->all, cap * sizeof(*all)) : NULL;
    if (!all)
        return false;
    k->all = all;
    k->cap = cap;
    return true;
}

/* Owns the descriptor. */
static void add(struct ws_descriptor_keeper *k, const char *name, int fd)
{
    if (strlen(name) > WS_DESCRIPTOR_NAME_CHARS || !make_room(k)) {
        ws_log(WS_LOG_WARN, "store", "a descriptor is not kept: %zu are name=%.80s", k->n, name);
        close(fd);
        return;
    }
    struct ws_named_descriptor *d = &k->all[k->n++];
    snprintf(d->name, sizeof(d->name), "%s", name);
    d->fd = fd;
}

static void remove_named(struct ws_descriptor_keeper *k, const char *name)
{
    for (size_t i = 0; i < k->n; i++)
        if (strcmp(k->all[i].name, name) == 0) {
            close(k->all[i].fd);
            k->all[i--] = k->all[--k->n];
        }
}

/* Owns the descriptor; -1: none came along. */
static void handle(struct ws_descriptor_keeper *k, const char *text, int fd)
{
    static const char put[] = "FDSTORE=1\nFDNAME=", drop[] = "FDSTOREREMOVE=1\nFDNAME=";
    if (strncmp(text, drop, strlen(drop)) == 0)
        remove_named(k, text + strlen(drop));
    if (fd >= 0 && strncmp(text, put, strlen(put)) == 0)
        add(k, text + strlen(put), fd);
    else if (fd >= 0) /* of a barrier */
        close(fd);
}

void ws_descriptor_keeper_receive(struct ws_descriptor_keeper *k)
{
    for (;;) {
        char text[WS_DESCRIPTOR_NAME_CHARS + 64];
        union {
            struct cmsghdr head;
            char room[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec v = {text, sizeof(text) - 1};
        struct msghdr m = {.msg_iov = &v,
                           .msg_iovlen = 1,
                           .msg_control = control.room,
                           .msg_controllen = sizeof(control.room)};
        const ssize_t n = recvmsg(k->ends[0], &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        const struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
        int fd = -1;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return;
        if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
            memcpy(&fd, CMSG_DATA(c), sizeof(fd));
        text[n] = 0;
        handle(k, text, fd);
    }
}

void ws_descriptor_keeper_serve_this(struct ws_descriptor_keeper *k)
{
    close(k->ends[0]);
    ws_descriptor_store_use(k->ends[1], k->all, k->n);
    *k = (struct ws_descriptor_keeper){.ends = {-1, -1}};
}

void ws_descriptor_keeper_release(struct ws_descriptor_keeper *k)
{
    for (size_t i = 0; i < k->n; i++)
        close(k->all[i].fd);
    free(k->all);
    close(k->ends[0]);
    close(k->ends[1]);
}
