#include "mount-helpers/mounts.h"
#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t each_mount(const char *wanted, char found[PATH_MAX])
{
    size_t n = 0;
    FILE *f = setmntent("/proc/self/mounts", "re");
    if (!f)
        return 0;
    for (const struct mntent *m; (m = getmntent(f));) {
        if (strcmp(m->mnt_type, "fuse.wsync"))
            continue;
        if (wanted && strcmp(wanted, m->mnt_dir))
            continue;
        snprintf(found, PATH_MAX, "%s", m->mnt_dir);
        n++;
    }
    endmntent(f);
    return n;
}

bool mounts_is_wsync(const char *path)
{
    char found[PATH_MAX];
    return each_mount(path, found) > 0;
}

const char *mounts_pick(const struct cli_args *args)
{
    static char found[PATH_MAX];
    const char *named = cli_get(args, "mount");
    if (!named)
        named = getenv("WSYNC_MOUNT");
    if (named && *named) {
        size_t n = strlen(named);
        while (n > 1 && named[n - 1] == '/')
            n--;
        snprintf(found, sizeof found, "%.*s", (int)n, named);
        return found;
    }
    size_t n = each_mount(NULL, found);
    if (n == 0)
        exit(cli_fail("no wsync mount on this machine; mount one with 'wsync mount SOURCE DIR', "
                      "or name it with --mount DIR"));
    if (n > 1)
        exit(cli_fail("%zu wsync mounts on this machine; name one with --mount DIR or $WSYNC_MOUNT", n));
    return found;
}

char *mounts_read(const char *format, ...)
{
    char path[PATH_MAX];
    va_list ap;
    va_start(ap, format);
    vsnprintf(path, sizeof path, format, ap);
    va_end(ap);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    size_t len = 0, cap = 1 << 16;
    char *text = malloc(cap + 1);
    for (ssize_t n; text && (n = read(fd, text + len, cap - len)) != 0;) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int saved = errno;
            free(text);
            close(fd);
            errno = saved;
            return NULL;
        }
        len += (size_t)n;
        if (len == cap) {
            char *more = realloc(text, 2 * cap + 1);
            if (!more) {
                free(text);
                close(fd);
                errno = ENOMEM;
                return NULL;
            }
            text = more;
            cap *= 2;
        }
    }
    close(fd);
    if (text)
        text[len] = 0;
    return text;
}

int mounts_write(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = write(fd, text, strlen(text));
    int rc = n < 0 ? -errno : 0;
    close(fd);
    return rc;
}

char *mounts_value(const char *text, const char *key)
{
    size_t k = strlen(key);
    for (const char *line = text; line && *line;) {
        size_t n = strcspn(line, "\n");
        if (n > k && !strncmp(line, key, k) && line[k] == ' ')
            return strndup(line + k + 1, n - k - 1);
        line += n + (line[n] == '\n');
    }
    return NULL;
}
