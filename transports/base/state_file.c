#include "transports/base/state_file.h"
#include "transports/base/file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

int ws_state_file_make_folder(const char *path)
{
    char dir[4096];
    snprintf(dir, sizeof(dir), "%s", path);
    char *slash = strrchr(dir, '/');
    if (!slash)
        return 0;
    *slash = 0;
    for (char *p = dir + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = 0;
        if (mkdir(dir, 0755) != 0 && errno != EEXIST)
            return -errno;
        *p = '/';
    }
    return mkdir(dir, 0700) == 0 || errno == EEXIST ? 0 : -errno;
}

int ws_state_file_lock(const char *path, int *out, long *owner)
{
    char beside[4096], pid[32] = "";
    *owner = 0;
    snprintf(beside, sizeof(beside), "%s.lock", path);
    const int rc = ws_state_file_make_folder(path);
    const int fd = rc == 0 ? open(beside, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    if (fd < 0)
        return rc < 0 ? rc : -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const int code = errno == EWOULDBLOCK ? EBUSY : errno;
        if (pread(fd, pid, sizeof(pid) - 1, 0) > 0)
            *owner = strtol(pid, NULL, 10);
        close(fd);
        return -code;
    }
    const int n = snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());
    const bool says = ftruncate(fd, 0) == 0 && pwrite(fd, pid, (size_t)n, 0) == n;
    (void)says; /* it is locked all the same */
    *out = fd;
    return 0;
}

/* The rename is durable when the folder is. */
static int sync_folder(const char *path)
{
    char dir[4096];
    snprintf(dir, sizeof(dir), "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash)
        slash[slash == dir] = 0;
    const int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    const int rc = fsync(fd) == 0 || errno == EINVAL ? 0 : -errno; /* EINVAL: a file system without */
    close(fd);
    return rc;
}

int ws_state_file_write(const char *path, const char *text, size_t n)
{
    char beside[4096];
    if (n > WS_MAX_STATE_FILE_BYTES) /* it could not be read again */
        return -EFBIG;
    snprintf(beside, sizeof(beside), "%s.new", path);
    int rc = ws_state_file_make_folder(path);
    (void)unlink(beside); /* of a crash, or another's: it is neither followed nor waited for */
    int fd = rc == 0 ? open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        return rc < 0 ? rc : -errno;
    rc = ws_file_write(fd, text, n);
    if (rc == 0 && fdatasync(fd) != 0)
        rc = -errno;
    if (close(fd) != 0 && rc == 0)
        rc = -errno;
    if (rc == 0 && rename(beside, path) != 0)
        rc = -errno;
    if (rc < 0)
        (void)unlink(beside);
    return rc < 0 ? rc : sync_folder(path);
}

int ws_state_file_read(const char *path, char **out, size_t *n, struct ws_error *err)
{
    struct stat st;
    const int fd =
        open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* of a FIFO it would wait for a writer */
    *out = NULL;
    *n = 0;
    if (fd < 0)
        return errno == ENOENT ? 0 : ws_error_set(err, errno, "cannot read %s: %s", path, strerror(errno));
    if (fstat(fd, &st) == 0 && !S_ISREG(st.st_mode)) {
        close(fd);
        return S_ISDIR(st.st_mode) ? ws_error_set(err, EISDIR, "cannot read %s: %s", path, strerror(EISDIR))
                                   : ws_error_set(err, EINVAL, "cannot read %s: it is no plain file", path);
    }
    FILE *f = fdopen(fd, "r");
    if (!f) {
        close(fd);
        return ws_error_set(err, ENOMEM, "no memory to read %s", path);
    }
    char *text = malloc(WS_MAX_STATE_FILE_BYTES + 1);
    int rc = 0;
    errno = 0;
    *n = text ? fread(text, 1, WS_MAX_STATE_FILE_BYTES + 1, f) : 0;
    if (!text)
        rc = ws_error_set(err, ENOMEM, "no memory to read %s", path);
    else if (ferror(f)) /* the part that came is not the file */
        rc =
            ws_error_set(err, errno ? errno : EIO, "cannot read %s: %s", path, strerror(errno ? errno : EIO));
    else if (*n > WS_MAX_STATE_FILE_BYTES)
        rc = ws_error_set(err, EFBIG, "%s is larger than %lu bytes, which no file of ours is", path,
                          WS_MAX_STATE_FILE_BYTES);
    fclose(f);
    if (rc < 0) {
        free(text);
        *n = 0;
        return rc;
    }
    text[*n] = 0;
    *out = text;
    return 0;
}
