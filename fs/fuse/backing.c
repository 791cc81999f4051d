#include "fs/fuse/backing.h"
#include <errno.h>
#include <stdint.h>
#include <sys/ioctl.h>
#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

/* linux/fuse.h of Linux 6.9, which older systems' headers lack. */
struct backing_map {
    int32_t fd;
    uint32_t flags;
    uint64_t padding;
};
#define BACKING_OPEN  _IOW(229, 1, struct backing_map)
#define BACKING_CLOSE _IOW(229, 2, uint32_t)

int ws_backing_open_by(int connection, int fd)
{
    struct backing_map map = {.fd = fd};
    int id = ioctl(connection, BACKING_OPEN, &map);
    return id > 0 ? id : id == 0 ? -EIO : -errno;
}

void ws_backing_close_by(int connection, int id)
{
    uint32_t n = (uint32_t)id;
    (void)ioctl(connection, BACKING_CLOSE, &n);
}

int ws_backing_open(struct fuse_session *session, int fd)
{
    return ws_backing_open_by(fuse_session_fd(session), fd);
}

void ws_backing_close(struct fuse_session *session, int id)
{
    ws_backing_close_by(fuse_session_fd(session), id);
}
