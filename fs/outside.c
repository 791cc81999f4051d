#include "fs/outside.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Only system calls here: other threads of the parent may have held any lock. */
static void close_from(unsigned first, unsigned last)
{
    struct rlimit limit;
    if (first > last || syscall(SYS_close_range, first, last, 0) == 0)
        return;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) /* Linux before 5.9, or a filter that does not know the call */
        for (unsigned fd = first; fd <= last && fd < limit.rlim_cur; fd++)
            (void)close((int)fd);
}

static int act(int file_system, const char *path)
{
    struct stat st;
    const unsigned kept = file_system < 3 ? 2 : (unsigned)file_system;
    close_from(3, kept - 1);
    close_from(kept + 1, ~0U);
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

int ws_outside_look(const char *path)
{
    return run(-1, path);
}

int ws_outside_attach(int file_system, const char *path)
{
    return file_system < 0 ? -EBADF : run(file_system, path);
}
