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
