#include "fs/fuse/run_as.h"
#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int ws_run_as_find(struct ws_run_as *out, const char *name, struct ws_error *err)
{
    errno = 0;
    const struct passwd *p = getpwnam(name);
    if (!p)
        return ws_error_set(err, errno ? errno : ENOENT, "%s",
                            errno ? strerror(errno) : "there is no such user");
    if (p->pw_uid == 0)
        return ws_error_set(err, EPERM, "that is root; leave run-as out, or name a user of its own");
    if (geteuid() != 0)
        return ws_error_set(err, EPERM, "only root becomes another user; start the mount as that user");
    *out = (struct ws_run_as){.name = name, .uid = p->pw_uid, .gid = p->pw_gid, .n_groups = WS_RUN_AS_GROUPS};
    return getgrouplist(name, out->gid, out->groups, &out->n_groups) >= 0
               ? 0
               : ws_error_set(err, E2BIG, "it is in more than %d groups", WS_RUN_AS_GROUPS);
}

static int set_capabilities(uint64_t which)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct of[_LINUX_CAPABILITY_U32S_3] = {{0}};
    for (size_t i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
        of[i].effective = of[i].permitted = (uint32_t)(which >> (32 * i));
    return (int)syscall(SYS_capset, &head, of);
}

int ws_run_as_become(const struct ws_run_as *who, struct ws_error *err)
{
    /* The C library has all threads do the first three. Another user has no capabilities, but where the secure bits say otherwise. */
    if (setgroups((size_t)who->n_groups, who->groups) != 0 || setresgid(who->gid, who->gid, who->gid) != 0 ||
        setresuid(who->uid, who->uid, who->uid) != 0 || set_capabilities(0) != 0 ||
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return ws_error_set(err, errno, "cannot become the user %s: %s", who->name, strerror(errno));
    return 0;
}

int ws_run_as_keep(const struct ws_run_as *who, uint64_t capabilities)
{
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_setgroups, (size_t)who->n_groups, who->groups) != 0 ||
        syscall(SYS_setresgid, who->gid, who->gid, who->gid) != 0 ||
        syscall(SYS_setresuid, who->uid, who->uid, who->uid) != 0 || set_capabilities(capabilities) != 0 ||
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
        return -errno;
    return 0;
}

int ws_run_as_reaches(const struct ws_run_as *who, const char *path)
{
    struct stat st;
    int status;
    const pid_t pid = fork();
    if (pid == 0) {
        const int rc = ws_run_as_keep(who, 0);
        _exit(rc < 0 ? -rc : stat(path, &st) == 0 ? 0 : errno);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return pid < 0 ? -errno : WIFEXITED(status) ? -WEXITSTATUS(status) : -EINTR;
}
