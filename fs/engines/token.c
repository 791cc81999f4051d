#include "fs/engines/token.h"
#include "transports/base/below.h"
#include "transports/base/clock.h"
#include "transports/base/secret.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Up to the end of a line, to the file's end, or as much as there is room for: so many bytes. */
static ssize_t read_line(int fd, const char *path, unsigned wait_ms, char *line, size_t room,
                         struct ws_error *err)
{
    const uint64_t until = ws_clock_ns() + wait_ms * WS_MS_NS;
    size_t n = 0;
    while (n < room && !memchr(line, '\n', n)) {
        const uint64_t now = ws_clock_ns();
        const int left = now < until ? (int)((until - now) / WS_MS_NS) + 1 : 0;
        const int ready = poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, left);
        if (ready == 0)
            return ws_error_set(err, ETIMEDOUT,
                                "the token file %s got no whole line for %u s; its first line is the token",
                                path, wait_ms / 1000);
        const ssize_t got = ready < 0 ? -1 : read(fd, line + n, room - n);
        if (got == 0)
            break;
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            return ws_error_set(err, errno, "cannot read the token file %s: %s", path, strerror(errno));
        n += got > 0 ? (size_t)got : 0;
    }
    return (ssize_t)n;
}

int ws_token_read_fd(int fd, const char *path, unsigned wait_ms, char **out, struct ws_error *err)
{
    ws_secret_leave_no_core();
    char line[WS_TOKEN_MOST + 2] = ""; /* an end of line and a 0 come behind */
    const ssize_t read = read_line(fd, path, wait_ms, line, sizeof(line) - 1, err);
    const size_t n = strcspn(line, "\r\n");
    int rc = read < 0 ? (int)read : 0;
    close(fd);
    *out = NULL;
    if (rc == 0 && n > WS_TOKEN_MOST)
        rc = ws_error_set(err, E2BIG, "the first line of the token file %s is longer than %d bytes", path,
                          WS_TOKEN_MOST);
    else if (rc == 0 && n < (size_t)read && !line[n])
        rc = ws_error_set(err, EINVAL, "the token file %s holds a zero byte; its first line is the token",
                          path);
    else if (rc == 0 && n == 0)
        rc = ws_error_set(err, EINVAL, "the token file %s is empty; its first line is the token", path);
    line[n] = 0;
    if (rc == 0 && !(*out = ws_secret_copy(line)))
        rc = ws_error_set(err, ENOMEM, "no memory for a token");
    explicit_bzero(line, sizeof(line));
    return rc;
}

int ws_token_read(const char *path, const char *below, char **out, struct ws_error *err)
{
    struct stat st;
    int fd = ws_below_open(below, path, false, &st, err);
    if (fd < 0)
        return below ? fd
                     : ws_error_prefix(err, "cannot read the token file, which has to be a regular file");
    return ws_token_read_fd(fd, path, 0, out, err);
}
