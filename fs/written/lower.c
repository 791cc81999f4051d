#include "fs/written/lower.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SUFFIX ".tmp"

static int open_tmpfs(void)
{
    const int context = fsopen("tmpfs", FSOPEN_CLOEXEC);
    int fd = -1;

    if (context < 0)
        return -1;
    if (fsconfig(context, FSCONFIG_SET_STRING, "mode", "0755", 0) == 0 &&
        fsconfig(context, FSCONFIG_SET_STRING, "size", "100%", 0) == 0 &&
        fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        fd = fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    close(context);
    return fd;
}

/* Root alone may have a tmpfs of its own. */
static int open_memory(struct ws_lower *l, struct ws_error *err)
{
    l->memory = open_tmpfs();
    if (l->memory >= 0)
        return 0;
    const int code = errno;
    snprintf(l->left, sizeof(l->left), "/dev/shm/wsync-share-XXXXXX");
    if (!mkdtemp(l->left)) {
        l->left[0] = 0;
        return ws_error_set(err, code, "no memory file system for what is written: %s, and /dev/shm: %m",
                            strerror(code));
    }
    l->memory = open(l->left, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return l->memory < 0 ? ws_error_set(err, errno, "cannot open %s: %m", l->left) : 0;
}

int ws_lower_open(struct ws_lower *l, const char *dir, const struct ws_pattern *pattern, struct ws_error *err)
{
    *l = (struct ws_lower){.below = -1, .memory = -1, .pattern = pattern};
    l->below = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (l->below < 0)
        return ws_error_set(err, errno, "cannot open %s: %m", dir);
    return open_memory(l, err);
}

static void remove_all(int folder)
{
    DIR *names = fdopendir(folder); /* takes it over */
    const struct dirent *e;

    while (names && (e = readdir(names))) {
        const bool is_self = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
        int fd =
            is_self ? -1 : openat(dirfd(names), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0)
            remove_all(fd);
        if (!is_self)
            (void)unlinkat(dirfd(names), e->d_name, fd >= 0 ? AT_REMOVEDIR : 0);
    }
    if (names)
        closedir(names);
    else
        close(folder);
}

void ws_lower_close(struct ws_lower *l)
{
    if (l->left[0]) {
        remove_all(l->memory);
        (void)rmdir(l->left);
    } else if (l->memory > 0) {
        close(l->memory);
    }
    if (l->below > 0)
        close(l->below);
    *l = (struct ws_lower){.below = -1, .memory = -1};
}

bool ws_lower_is_version(const struct ws_lower *l, const char *name)
{
    char inner[WS_MAX_NAME + 1];
    uint64_t number;
    const char *from = name + (name[0] == '.');
    const size_t n = strlen(from), suffix = strlen(SUFFIX);

    if (ws_pattern_match(l->pattern, name, &number) || ws_pattern_match(l->pattern, from, &number))
        return true;
    if (n <= suffix || n - suffix > WS_MAX_NAME || strcmp(from + n - suffix, SUFFIX) != 0)
        return false;
    memcpy(inner, from, n - suffix);
    inner[n - suffix] = 0;
    return ws_pattern_match(l->pattern, inner, &number);
}

int ws_lower_of(const struct ws_lower *l, const char *name)
{
    struct stat st;

    if (fstatat(l->memory, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return l->memory;
    if (fstatat(l->below, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return l->below;
    return ws_lower_is_version(l, name) ? l->memory : l->below;
}
