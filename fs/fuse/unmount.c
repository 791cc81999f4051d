#include "fs/fuse/unmount.h"
#include "fs/fuse/beacon.h"
#include "fs/fuse/fs.h"
#include "fs/fuse/place.h"
#include "transports/base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define END_MS     10000 /* for the daemon to end */
#define BUSY_TRIES 10    /* BUSY_NS apart, twice as long each time: 2.5 s in all */
#define BUSY_NS    10000000L
#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x4000U
#endif

/* Where link mode's tmpfs is, if one is mounted; else empty. */
static void find_regions(const char *path, char regions[4200])
{
    snprintf(regions, 4200, "%s/" WS_REGIONS_NAME, path);
    if (!ws_place_has(regions, "tmpfs"))
        regions[0] = 0;
}

/* What link mode mounts below keeps its mount busy. It is taken away first and, where the mount stays, put
 * back: a copy of it is held meanwhile. -1: there is none. */
static int detach_regions(const char *path, const char *regions)
{
    dev_t outer = 0, inner = 0;
    if (!regions[0] || ws_place_device(path, &outer) < 0 || ws_place_device(regions, &inner) < 0 ||
        outer == inner)
        return -1;
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, regions, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (tree >= 0 && umount2(regions, MNT_DETACH) != 0) {
        close(tree);
        tree = -1;
    }
    return tree;
}

/* A signal that ends the process waits until the regions are back. */
static int unmount(const char *path, const char *regions)
{
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
    char regions[4200];
    find_regions(path, regions);
    const enum ws_place_answer answer = regions[0] ? ws_place_ask(ws_place_look, regions) : WS_PLACE_ANSWERS;
    int rc = answer == WS_PLACE_IS_SILENT ? -ETIMEDOUT : -EBUSY;
    for (int i = 0; rc == -EBUSY && i < BUSY_TRIES; i++) {
        const long ns = i ? BUSY_NS << (i - 1) : 0;
        const struct timespec wait = {.tv_sec = ns / 1000000000L, .tv_nsec = ns % 1000000000L};
        (void)nanosleep(&wait, NULL);
        const uint64_t now = mount_number(path);
        if (now != 0 && now != number)
            rc = 0;
        else if (answer == WS_PLACE_IS_DEAD) /* with what is mounted below it */
            rc = umount2(path, MNT_DETACH) == 0 ? 0 : -errno;
        else
            rc = unmount(path, regions);
    }
    return rc;
}

/* Not root: by libfuse's helper. */
static bool unmount_by_helper(const char *path, bool lazy)
{
    pid_t pid = fork();
    if (pid == 0) {
        execlp("fusermount3", "fusermount3", lazy ? "-uz" : "-u", "--", path, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

/* Whoever mounts there again, or wants the daemon's memory and ports, need not wait for them. */
static int wait_for_daemon(const char *path, struct ws_beacons *daemon, struct ws_error *err)
{
    char who[32] = "";
    pid_t pid = 0;
    if (ws_beacons_wait(daemon, END_MS, &pid))
        return 0;
    if (pid > 0)
        snprintf(who, sizeof(who), " (process %d)", (int)pid);
    return ws_error_set(
        err, EINPROGRESS,
        "%s is unmounted, and its daemon%s has not ended after %d s: it still tells its engines "
        "and sources, as its log says, or it is stopped",
        path, who, END_MS / 1000);
}

int ws_unmount(const char *mountpoint, bool lazy, struct ws_error *err)
{
    char path[4096];
    dev_t dev;
    struct ws_beacons daemon = {0};
    char given[4096];
    snprintf(given, sizeof(given), "%.*s", (int)ws_place_bare(mountpoint), mountpoint);
    if (ws_place_ask(ws_place_find, given) == WS_PLACE_IS_SILENT)
        return ws_error_set(err, ETIMEDOUT,
                            "cannot unmount %s: it does not answer: it lies in a mount whose daemon is "
                            "stopped, or gives no answer; "
                            "name that mount's own folder, with --lazy",
                            mountpoint);
    if (!realpath(given, path)) {
        if (errno != ENOTCONN)
            return ws_error_set(err, errno, "cannot unmount %s: %s", mountpoint, strerror(errno));
        snprintf(path, sizeof(path), "%s", given);
    }
    if (!ws_place_has_wsync(path))
        return ws_error_set(err, EINVAL, "no wsync mount is on %s", path);
    /* One that is taken away lazily serves its readers on, for as long as they like. */
    if (!lazy && ws_place_device(path, &dev) == 0)
        ws_beacons_find(dev, &daemon);
    int rc = !lazy ? unmount_patiently(path) : umount2(path, MNT_DETACH) == 0 ? 0 : -errno;
    if (rc == -EPERM && unmount_by_helper(path, lazy))
        rc = 0;
    if (rc == -EINVAL && !ws_place_has_wsync(path)) {
        ws_log(WS_LOG_INFO, "mount", "%s was unmounted by another process meanwhile", path);
        rc = 0;
    }
    if (rc == 0)
        return wait_for_daemon(path, &daemon, err);
    ws_beacons_close(&daemon);
    return ws_error_set(err, -rc, "cannot unmount %s: %s%s", path, strerror(-rc),
                        rc == -EBUSY ? "; a process has a file open or works in it: end it, or use --lazy"
                        : rc == -ETIMEDOUT
                            ? "; its daemon does not answer, as one that is stopped: use --lazy"
                            : "");
}
