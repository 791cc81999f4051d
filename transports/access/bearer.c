#include "transports/access/bearer.h"
#include "transports/base/below.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/secret.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_NS WS_SECOND_NS

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

/* What may be another the next time, though the file is the same. */
static bool is_of_the_moment(int rc)
{
    return rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -EIO || rc == -EINTR;
}

char *ws_bearer_file_look(struct ws_bearer_file *f, bool at_once)
{
    const uint64_t now = ws_clock_ns();
    struct ws_error err = {0};
    struct stat st;
    char *token = NULL;
    if (!f->path || (!at_once && f->looked_ns != 0 && now - f->looked_ns < LOOK_NS))
        return NULL;
    f->looked_ns = now;
    if (stat(f->path, &st) != 0 || !S_ISREG(st.st_mode))
        return NULL;
    const struct ws_stamp stamp =
        ws_stamp_from_stat(&st); /* before reading: a change meanwhile is seen again */
    if (ws_stamp_equal(&stamp, &f->stamp))
        return NULL;
    const int rc = ws_token_read(f->path, f->below, &token, &err);
    if (!is_of_the_moment(rc))
        f->stamp = stamp;
    if (rc < 0)
        ws_log(WS_LOG_WARN, "access", "the token of before holds on: %s", err.text);
    return token;
}
