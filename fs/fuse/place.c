#include "fs/fuse/place.h"
#include "transports/base/log.h"
#include "transports/base/vector.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <mntent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOUNTS_BYTES (64UL << 10) /* of one read; mostly enough for all */
#define ANSWER_MS    5000         /* for a daemon to answer a look at its folder */
#define TURN_TRIES   500          /* TURN_NS apart */
#define TURN_NS      10000000L

WS_VECTOR(chars, char);

size_t ws_place_bare(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && (path[n - 1] == '/' || (path[n - 1] == '.' && path[n - 2] == '/')))
        n--;
    return n;
}

bool ws_place_has(const char *path, const char *type)
{
    bool found = false;
    FILE *f = setmntent("/proc/self/mounts", "re");
    for (const struct mntent *m; f && (m = getmntent(f));)
        if (strcmp(m->mnt_dir, path) == 0)
            found = strcmp(m->mnt_type, type) == 0; /* the last one is on top */
    if (f)
        endmntent(f);
    return found;
}

bool ws_place_has_wsync(const char *path)
{
    return ws_place_has(path, "fuse.wsync");
}

int ws_place_look(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? 0 : -errno;
}

int ws_place_find(const char *path)
{
    char found[PATH_MAX];
    return realpath(path, found) ? 0 : -errno;
}

enum ws_place_answer ws_place_ask(int (*look)(const char *path), const char *path)
{
    const struct timespec step = {.tv_nsec = TURN_NS};
    const pid_t pid = fork();
    int status = 0;
    if (pid == 0)
        _exit(look(path) == -ENOTCONN ? WS_PLACE_IS_DEAD : WS_PLACE_ANSWERS);
    for (long ms = 0; pid > 0 && ms < ANSWER_MS; ms += TURN_NS / 1000000L) {
        if (waitpid(pid, &status, WNOHANG) != 0)
            return WIFEXITED(status) ? (enum ws_place_answer)WEXITSTATUS(status) : WS_PLACE_ANSWERS;
        (void)nanosleep(&step, NULL);
    }
    if (pid > 0) /* it may wait on, if the daemon has its request: whoever adopts it reaps it */
        (void)kill(pid, SIGKILL);
    return pid > 0 ? WS_PLACE_IS_SILENT : WS_PLACE_ANSWERS;
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
    if (ws_place_ask(ws_place_look, at) == WS_PLACE_IS_SILENT)
        return ws_error_set(
            err, ETIMEDOUT,
            "cannot mount on %s: what is mounted there, or above it, does not answer, as a mount whose "
            "daemon is stopped: let it go on (kill -CONT), or take it away with 'wsync umount --lazy'",
            at);
    int rc = stat(at, &st) == 0 ? 0 : -errno;
    const bool dead = rc == -ENOTCONN || rc == -ECONNABORTED;
    if (dead && ws_place_has_wsync(at)) {
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
    } else if (rc == 0 && ws_place_has_wsync(at)) {
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
    const struct timespec wait = {.tv_nsec = TURN_NS};
    const int fd = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK && i < TURN_TRIES;
         i++)
        (void)nanosleep(&wait, NULL); /* a stranger may hold it for longer than any mount takes */
    return fd;
}

int ws_place_device(const char *path, dev_t *out)
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
    int rc = ws_place_has_wsync(at) ? ws_place_device(at, &p->dev) : -ESTALE;
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
    return is_connected(p) && ws_place_device(p->at, &dev) == 0 && dev == p->dev && is_connected(p);
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
