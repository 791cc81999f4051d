#include "transports/base/file.h"
#include <errno.h>
#include <unistd.h>

int ws_file_write(int fd, const void *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t done = write(fd, (const char *)bytes + at, n - at);
        if (done == 0)
            errno = EIO;
        if (done <= 0 && errno != EINTR)
            return -errno;
        at += done > 0 ? (size_t)done : 0;
    }
    return 0;
}

ssize_t ws_file_read(int fd, void *bytes, size_t n, uint64_t at)
{
    size_t got = 0;
    while (got < n) {
        const ssize_t more = pread(fd, (char *)bytes + got, n - got, (off_t)(at + got));
        if (more < 0 && errno != EINTR)
            return -errno;
        if (more == 0)
            break;
        got += more > 0 ? (size_t)more : 0;
    }
    return (ssize_t)got;
}
