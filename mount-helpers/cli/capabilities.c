#include "mount-helpers/cli/capabilities.h"
#include "transports/base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORDS _LINUX_CAPABILITY_U32S_3

#ifndef SYS_faccessat2
#define SYS_faccessat2 439
#endif

/* --- the calling thread's sets; without libcap, whose calls are these two --- */

struct sets {
    struct __user_cap_data_struct of[WORDS];
};

static int get(struct sets *s)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    return (int)syscall(SYS_capget, &head, s->of);
}

static int set(const struct sets *s)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    return (int)syscall(SYS_capset, &head, s->of);
}

static uint32_t word(uint64_t capabilities, size_t i)
{
    return (uint32_t)(capabilities >> (32 * i));
}

/* --- what is needed --- */

/* As the process will be: without the capabilities to pass by the modes of files. */
static int access_without(const char *path, int mode)
{
    const uint64_t passes = CAPABILITY(CAP_DAC_OVERRIDE) | CAPABILITY(CAP_DAC_READ_SEARCH);
    struct sets before = {0}, without;
    if (get(&before) < 0)
        return 0;
    without = before;
    for (size_t i = 0; i < WORDS; i++)
        without.of[i].effective &= ~word(passes, i);
    if (set(&without) < 0)
        return 0;
    const int rc = (int)syscall(SYS_faccessat2, AT_FDCWD, path, mode, AT_EACCESS) < 0 ? -errno : 0;
    (void)set(&before);
    return rc;
}

static uint64_t describe_need(const char *path, int rc)
{
    if (rc != -EACCES && rc != -EPERM && rc != -ENOSYS)
        return 0;
    ws_log(WS_LOG_INFO, "capabilities", "keeps CAP_DAC_OVERRIDE, without which it cannot use path=%s", path);
    return CAPABILITY(CAP_DAC_OVERRIDE);
}

uint64_t capabilities_for_path(const char *path, int mode)
{
    char folder[PATH_MAX];
    int rc = path ? access_without(path, mode) : 0;
    if (path)
        snprintf(folder, sizeof(folder), "%s", path);
    while (rc == -ENOENT) { /* the nearest folder that is there is where it will be made */
        char *slash = strrchr(folder, '/');
        if (slash)
            slash[slash == folder] = 0;
        rc = access_without(slash ? folder : ".", W_OK | X_OK);
        if (!slash || slash == folder)
            break;
    }
    return describe_need(path, rc);
}

uint64_t capabilities_for_folder(const char *path, const char *below)
{
    char pattern[PATH_MAX];
    glob_t found = {0};
    uint64_t needs = capabilities_for_path(path, W_OK);
    if (!path || needs)
        return needs;
    snprintf(pattern, sizeof(pattern), "%s/%s", path, below);
    needs = capabilities_for_path(pattern, W_OK);
    snprintf(pattern, sizeof(pattern), "%s/%s/*", path, below);
    if (!needs && glob(pattern, GLOB_NOSORT, NULL, &found) == 0)
        for (size_t i = 0; !needs && i < found.gl_pathc; i++)
            needs = capabilities_for_path(found.gl_pathv[i], W_OK);
    globfree(&found);
    return needs;
}

uint64_t capabilities_for_listening(const char *address)
{
    const char *colon = address ? strrchr(address, ':') : NULL;
    const long port = colon ? strtol(colon + 1, NULL, 10) : 0;
    return port > 0 && port < 1024 ? CAPABILITY(CAP_NET_BIND_SERVICE) : 0;
}

void capabilities_join(gid_t group)
{
    gid_t groups[NGROUPS_MAX + 1];
    const int n = getgroups(NGROUPS_MAX, groups);
    if (n < 0)
        return;
    groups[n] = group;
    (void)setgroups((size_t)n + 1, groups);
}

/* --- the rest is given up --- */

void capabilities_drop(uint64_t keep)
{
    struct sets now = {0};
    for (unsigned long i = 0; prctl(PR_CAPBSET_READ, i, 0, 0, 0) >= 0; i++)
        if (i >= 64 || !(keep >> i & 1)) /* without CAP_SETPCAP what follows is enough */
            (void)prctl(PR_CAPBSET_DROP, i, 0, 0, 0);
    int rc = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || get(&now) < 0 ? -errno : 0;
    for (size_t i = 0; rc == 0 && i < WORDS; i++) {
        now.of[i].permitted &= word(keep, i);
        now.of[i].effective = now.of[i].permitted;
        now.of[i].inheritable = 0;
    }
    if (rc < 0 || set(&now) < 0)
        ws_log(WS_LOG_WARN, "capabilities", "what is not needed could not be given up: %s", strerror(errno));
}
