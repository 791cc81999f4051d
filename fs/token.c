#include "fs/token.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int refuse(const char *path, const char *below, struct ws_error *err)
{
    return ws_error_set(
        err, EPERM, "%s is no file below %s, and who is not root names no others to this mount (-o files=)",
        path, below);
}

/* The kernel looks at each part of the name, so that nothing that is exchanged meanwhile leads out. */
static int open_below(const char *path, const char *below, struct ws_error *err)
{
    const struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
                                 .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    size_t n = strlen(below);
    struct stat st;
    while (n > 1 && below[n - 1] == '/')
        n--;
    if (strncmp(path, below, n) != 0 || path[n] != '/')
        return refuse(path, below, err);
    int dir = open(below, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return ws_error_set(err, errno, "cannot open the folder %s: %s", below, strerror(errno));
    const char *rest = path + n + strspn(path + n, "/");
    int fd = (int)syscall(SYS_openat2, dir, rest, &how, sizeof(how));
    int code = errno;
    close(dir);
    if (fd < 0 && (code == EXDEV || code == ELOOP))
        return refuse(path, below, err);
    if (fd < 0)
        return ws_error_set(err, code, "cannot read the token file %s: %s", path, strerror(code));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return refuse(path, below, err);
    }
    return fd;
}

int ws_token_read(const char *path, const char *below, char **out, struct ws_error *err)
{
    char line[4096] = "";
    int fd = below ? open_below(path, below, err) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return below ? fd
                     : ws_error_set(err, errno, "cannot read the token file %s: %s", path, strerror(errno));
    FILE *f = fdopen(fd, "r");
    if (!f) {
        close(fd);
        return ws_error_set(err, ENOMEM, "no memory for a token");
    }
    if (!fgets(line, sizeof(line), f))
        line[0] = 0;
    int code = ferror(f) ? errno : 0;
    fclose(f);
    if (code)
        return ws_error_set(err, code, "cannot read the token file %s: %s", path, strerror(code));
    line[strcspn(line, "\r\n")] = 0;
    *out = line[0] ? strdup(line) : NULL;
    explicit_bzero(line, sizeof(line));
    return *out ? 0 : ws_error_set(err, EINVAL, "the token file %s is empty", path);
}
