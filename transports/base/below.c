#include "transports/base/below.h"
#include "transports/base/file.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRIES 1000

static int refuse(const char *below, const char *path, bool folder, struct ws_error *err)
{
    return ws_error_set(err, EPERM,
                        "%s is no %s below %s, and who is not root names no others to this mount (-o files=)",
                        path, folder ? "folder" : "file", below);
}

/* What comes behind the folder's own name; NULL: something else. */
static const char *rest_of(const char *below, const char *path)
{
    size_t n = strlen(below);
    while (n > 0 && below[n - 1] == '/')
        n--;
    if (strncmp(path, below, n) != 0 || (path[n] && path[n] != '/'))
        return NULL;
    path += n + strspn(path + n, "/");
    return *path ? path : ".";
}

/* While anything is renamed, the kernel cannot resolve a name with `..` for certain: the call is repeated. */
static int look_beneath(int dir, const char *rest)
{
    const struct open_how how = {.flags = O_PATH | O_CLOEXEC,
                                 .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int fd = -1;
    for (int i = 0; i < TRIES && fd < 0 && (i == 0 || errno == EAGAIN); i++)
        fd = (int)syscall(SYS_openat2, dir, rest, &how, sizeof(how));
    return fd;
}

/* The kernel checks each part of the name, so nothing that is exchanged meanwhile leads out. The entry that
 * was found is then opened in its folder, and must be the same. */
static int open_beneath(int dir, const char *rest, const char *below, const char *path, bool folder,
                        struct stat *st, struct ws_error *err)
{
    struct stat seen;
    int at = look_beneath(dir, rest), fd;
    if (at < 0 && (errno == EXDEV || errno == ELOOP))
        return refuse(below, path, folder, err);
    if (at < 0)
        return ws_error_set(err, errno, "cannot open %s: %s", path, strerror(errno));
    if (fstat(at, &seen) < 0)
        fd = ws_error_set(err, errno, "cannot stat %s: %s", path, strerror(errno));
    else if (!folder && !S_ISREG(seen.st_mode))
        fd = refuse(below, path, folder, err);
    else
        fd = ws_entry_open(dir, rest, folder, st, err);
    if (fd >= 0 && (st->st_dev != seen.st_dev || st->st_ino != seen.st_ino)) {
        close(fd);
        fd = ws_error_set(err, ESTALE, "%s was exchanged while it was opened", path);
    }
    close(at);
    return fd;
}

int ws_below_open(const char *below, const char *path, bool folder, struct stat *st, struct ws_error *err)
{
    if (!below)
        return ws_entry_open(AT_FDCWD, path, folder, st, err);
    const char *rest = rest_of(below, path);
    if (!rest)
        return refuse(below, path, folder, err);
    int dir = open(below, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return ws_error_set(err, errno, "cannot open the folder %s: %s", below, strerror(errno));
    int fd = open_beneath(dir, rest, below, path, folder, st, err);
    close(dir);
    return fd;
}

int ws_below_root(const char *below, const char *path, char **out, struct ws_error *err)
{
    struct stat st;
    size_t n = strlen(path);
    *out = NULL;
    if (below) {
        int fd = ws_below_open(below, path, true, &st, err);
        if (fd < 0)
            return fd;
        close(fd);
        while (n > 1 && path[n - 1] == '/')
            n--;
    }
    errno = 0;
    *out = below ? strndup(path, n) : realpath(path, NULL);
    if (*out && (below || (stat(*out, &st) == 0 && S_ISDIR(st.st_mode))))
        return 0;
    int code = *out ? ENOTDIR : errno;
    free(*out);
    return ws_error_set(err, code, "cannot use dir:%s as a source: %s", path, strerror(code));
}

int ws_below_read(const char *below, const char *path, size_t most, char **text, size_t *n,
                  struct ws_error *err)
{
    struct stat st = {0};
    int fd = ws_below_open(below, path, false, &st, err), code = 0;
    char *p = NULL;
    ssize_t got = 0;
    if (fd < 0 && fd != -EINVAL && fd != -EISDIR)
        return fd;
    if (fd < 0 || (uint64_t)st.st_size > most)
        code = EBADMSG;
    else if (!(p = malloc((size_t)st.st_size + 1)))
        code = ENOMEM;
    else if ((got = ws_file_read(fd, p, (size_t)st.st_size, 0)) < 0)
        code = (int)-got;
    if (fd >= 0)
        close(fd);
    if (code || !p) {
        free(p);
        return code == EBADMSG
                   ? ws_error_set(err, code, "cannot read %s: it is no file of %zu bytes at most", path, most)
                   : ws_error_set(err, code, "cannot read %s: %s", path, strerror(code));
    }
    p[got] = '\0';
    *text = p;
    *n = (size_t)got;
    return 0;
}
