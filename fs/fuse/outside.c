#include "fs/fuse/outside.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Only system calls here: other threads of the parent may have held any lock. */

/* Where close_range is not known: Linux before 5.9, or a filter. Limits tell nothing: they may be a billion,
 * or have been higher. */
static int close_listed(unsigned first, unsigned last)
{
    _Alignas(struct dirent64) char names[4096];
    const int folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
    long n = folder < 0 ? -1 : 0;
    while (folder >= 0 && (n = syscall(SYS_getdents64, folder, names, sizeof(names))) > 0)
        for (long at = 0; at < n;) {
            const struct dirent64 *d = (const struct dirent64 *)(const void *)(names + at);
            unsigned fd = 0;
            for (const char *p = d->d_name; *p >= '0' && *p <= '9'; p++)
                fd = fd * 10 + (unsigned)(*p - '0');
            if (d->d_name[0] != '.' && fd >= first && fd <= last && fd != (unsigned)folder)
                (void)close((int)fd);
            at += d->d_reclen;
        }
    const int rc = n < 0 ? -errno : 0;
    (void)close(folder);
    return rc;
}

static int close_from(unsigned first, unsigned last)
{
    if (first > last || syscall(SYS_close_range, first, last, 0) == 0)
        return 0;
    return close_listed(first, last);
}

int ws_outside_close_from(unsigned first)
{
    return close_from(first, ~0U);
}

static int act(int file_system, const char *path)
{
    struct stat st;
    const unsigned kept = file_system < 3 ? 2 : (unsigned)file_system;
    int closed = close_from(3, kept - 1);
    if (closed == 0)
        closed = ws_outside_close_from(kept + 1);
    if (closed < 0)
        return -closed;
    const long rc = file_system < 0
                        ? stat(path, &st)
                        : syscall(SYS_move_mount, file_system, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH);
    return rc == 0 ? 0 : errno;
}

static int run(int file_system, const char *path)
{
    int status;
    const pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0)
        _exit(act(file_system, path));
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -EINTR;
}

int ws_outside_stat(const char *path)
{
    return run(-1, path);
}

int ws_outside_attach(int file_system, const char *path)
{
    return file_system < 0 ? -EBADF : run(file_system, path);
}
