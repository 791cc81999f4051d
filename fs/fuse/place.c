#include "fs/fuse/place.h"
#include "fs/fuse/fs.h"
#include "transports/base/log.h"
#include "transports/base/vector.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <mntent.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOUNTS_BYTES (64UL << 10) /* of one read; mostly enough for all */
#define BUSY_TRIES   9            /* of an unmount, BUSY_NS apart, twice as long each time: 2.5 s in all */
#define BUSY_NS      10000000L
#define TURN_TRIES   500 /* BUSY_NS apart */
#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x4000U
#endif

WS_VECTOR(chars, char);

static bool is_mount_of_wsync(const char *path)
{
    bool found = false;
    FILE *f = setmntent("/proc/self/mounts", "re");
    for (const struct mntent *m; f && (m = getmntent(f));)
        if (strcmp(m->mnt_dir, path) == 0)
            found = strcmp(m->mnt_type, "fuse.wsync") == 0; /* the last one is on top */
    if (f)
        endmntent(f);
    return found;
}

int ws_place_check(const char *at, struct ws_error *err)
{
    struct stat st;
    if (access("/dev/fuse", R_OK | W_OK) != 0)
        return ws_error_set(
            err, ENODEV,
            "cannot mount on %s: /dev/fuse: %s; load the module (modprobe fuse), give a container "
            "--device /dev/fuse --cap-add SYS_ADMIN, or use 'wsync export'",
            at, strerror(errno));
    int rc = stat(at, &st) == 0 ? 0 : -errno;
    const bool dead = rc == -ENOTCONN || rc == -ECONNABORTED;
    if (dead && is_mount_of_wsync(at)) {
        ws_log(WS_LOG_WARN, "mount", "recovering a dead mount at=%s", at);
        if (umount2(at, MNT_DETACH) != 0) /* and what is mounted below it */
            return ws_error_set(err, errno,
                                "a dead mount is on %s and cannot be taken away: %s; try fusermount3 -uz %s",
                                at, strerror(errno), at);
        rc = stat(at, &st) == 0 ? 0 : -errno;
    } else if (dead) {
        return ws_error_set(err, -rc,
                            "cannot mount on %s: a dead file system that is not wsync's is there; see "
                            "'findmnt %s', and take it away with 'umount -l %s'",
                            at, at, at);
    } else if (rc == 0 && is_mount_of_wsync(at)) {
        return ws_error_set(err, EBUSY,
                            "wsync is mounted on %s already and answers; 'wsync umount %s' ends it", at, at);
    }
    if (rc == 0 && !S_ISDIR(st.st_mode))
        rc = -ENOTDIR;
    if (rc < 0)
        return ws_error_set(err, -rc, "cannot mount on %s: %s", at, strerror(-rc));
    return 0;
}

int ws_place_turn(const char *at)
{
    const struct timespec wait = {.tv_nsec = BUSY_NS};
    const int fd = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK && i < TURN_TRIES;
         i++)
        (void)nanosleep(&wait, NULL); /* a stranger may hold it for longer than any mount takes */
    return fd;
}

/* The device that is on top there, without a request to the daemon that serves it. */
static int device_at(const char *path, dev_t *out)
{
    struct statx st;
    if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_TYPE, &st) !=
        0)
        return -errno;
    *out = makedev(st.stx_dev_major, st.stx_dev_minor);
    return 0;
}

int ws_place_record(struct ws_place *p, const char *at, int connection)
{
    int rc = is_mount_of_wsync(at) ? device_at(at, &p->dev) : -ESTALE;
    if (rc < 0)
        return rc;
    p->at = at;
    p->connection = connection;
    return 0;
}

/* Does the kernel still have our file system? As long as it has, no other one gets its device number. */
static bool is_connected(const struct ws_place *p)
{
    struct pollfd fd = {.fd = p->connection};
    return p->at && poll(&fd, 1, 0) >= 0 && !(fd.revents & (POLLERR | POLLNVAL));
}

/* Is it on top at its path? */
static bool is_ours(const struct ws_place *p)
{
    dev_t dev = 0;
    return is_connected(p) && device_at(p->at, &dev) == 0 && dev == p->dev && is_connected(p);
}

/* "36 35 98:0 /root /mount/point options - type source more": blanks in a path are \040. */
static bool is_line_of(const struct ws_place *p, char *line)
{
    char device[32], *save = NULL, *field[5] = {NULL};
    for (size_t i = 0; i < 5; i++)
        if (!(field[i] = strtok_r(i ? NULL : line, " ", &save)))
            return false;
    snprintf(device, sizeof(device), "%u:%u", major(p->dev), minor(p->dev));
    if (strcmp(field[2], device) != 0)
        return false;
    char *to = field[4];
    for (const char *from = field[4]; *from; to++) {
        const bool escaped = from[0] == '\\' && strspn(from + 1, "01234567") >= 3;
        *to = escaped ? (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0')) : *from;
        from += escaped ? 4 : 1;
    }
    *to = 0;
    return strcmp(field[4], p->at) == 0;
}

/* From its begin to its end; the caller's. NULL: it cannot be read now. No descriptor is made for it. */
static char *read_all(int fd)
{
    struct chars text = {0};
    ssize_t got = lseek(fd, 0, SEEK_SET) == 0 ? 1 : -1;
    while (got > 0) {
        got = chars_reserve(&text, MOUNTS_BYTES) == 0 ? read(fd, text.ptr + text.len, MOUNTS_BYTES - 1) : -1;
        text.len += got > 0 ? (size_t)got : 0;
    }
    if (got < 0) {
        chars_reset(&text);
        return NULL;
    }
    text.ptr[text.len] = 0;
    return text.ptr;
}

int ws_place_is_mounted(const struct ws_place *p, int mounts)
{
    int found = 0;
    char *text = read_all(mounts), *save = NULL;
    if (!text)
        return -EAGAIN;
    for (char *line = strtok_r(text, "\n", &save); line && !found; line = strtok_r(NULL, "\n", &save))
        found = is_line_of(p, line);
    free(text);
    return found;
}

int ws_place_detach(const struct ws_place *p)
{
    if (!is_ours(p))
        return -ENOENT;
    return umount2(p->at, MNT_FORCE | MNT_DETACH) == 0 ? 0 : -errno;
}

/* --- wsync umount --- */

/* What link mode mounts below keeps its mount busy. It is taken away first and, where the mount stays, put
 * back: a copy of it is held meanwhile. -1: there is none. */
static int detach_regions(const char *path, char regions[4200])
{
    dev_t outer = 0, inner = 0;
    snprintf(regions, 4200, "%s/" WS_REGIONS_NAME, path);
    if (device_at(path, &outer) < 0 || device_at(regions, &inner) < 0 || outer == inner)
        return -1;
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, regions, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (tree >= 0 && umount2(regions, MNT_DETACH) != 0) {
        close(tree);
        tree = -1;
    }
    return tree;
}

/* A signal that ends the process waits until the regions are back. */
static int unmount(const char *path)
{
    char regions[4200];
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    int tree = detach_regions(path, regions);
    int rc = umount2(path, 0) == 0 ? 0 : -errno;
    if (rc < 0 && tree >= 0 &&
        syscall(SYS_move_mount, tree, "", AT_FDCWD, regions, MOVE_MOUNT_F_EMPTY_PATH) != 0)
        ws_log(WS_LOG_ERROR, "mount", "%s stays mounted and cannot be given back %s: %s", path, regions,
               strerror(errno));
    if (tree >= 0)
        close(tree);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* The mount that is on top there; 0: none, or it cannot be told. No other one has its number, before Linux 6.8 as
 * long as it is there. */
static uint64_t mount_number(const char *path)
{
    struct statx st;
    const unsigned wanted[] = {STATX_MNT_ID_UNIQUE, STATX_MNT_ID};
    for (size_t i = 0; i < 2; i++)
        if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, wanted[i],
                  &st) == 0 &&
            st.stx_mask & wanted[i])
            return st.stx_mnt_id;
    return 0;
}

/* Processes that only look at a mount, as 'wsync status' or the daemon's own start does, keep it busy for
 * moments: a busy one is tried again. One that has ended meanwhile may have a successor on its path. */
static int unmount_patiently(const char *path)
{
    const uint64_t number = mount_number(path);
    int rc = unmount(path);
    for (int i = 1; rc == -EBUSY && i < BUSY_TRIES; i++) {
        const long ns = BUSY_NS << (i - 1);
        const struct timespec wait = {.tv_sec = ns / 1000000000L, .tv_nsec = ns % 1000000000L};
        (void)nanosleep(&wait, NULL);
        const uint64_t now = mount_number(path);
        rc = now == 0 || now == number ? unmount(path) : 0;
    }
    return rc;
}

int ws_place_unmount(const char *mountpoint, bool lazy, struct ws_error *err)
{
    char path[4096];
    if (!realpath(mountpoint, path)) {
        if (errno != ENOTCONN)
            return ws_error_set(err, errno, "cannot unmount %s: %s", mountpoint, strerror(errno));
        snprintf(path, sizeof(path), "%s", mountpoint);
    }
    if (!is_mount_of_wsync(path))
        return ws_error_set(err, EINVAL, "no wsync mount is on %s", path);
    int rc = !lazy ? unmount_patiently(path) : umount2(path, MNT_DETACH) == 0 ? 0 : -errno;
    if (rc == -EPERM) { /* not root: by libfuse's helper */
        pid_t pid = fork();
        if (pid == 0) {
            execlp("fusermount3", "fusermount3", lazy ? "-uz" : "-u", "--", path, (char *)NULL);
            _exit(127);
        }
        int status = -1;
        if (pid > 0 && waitpid(pid, &status, 0) == pid && status == 0)
            return 0;
    }
    return rc == 0
               ? 0
               : ws_error_set(
                     err, -rc, "cannot unmount %s: %s%s", path, strerror(-rc),
                     rc == -EBUSY ? "; a process has a file open or works in it: end it, or use --lazy" : "");
}
