/* The path is walked component by component, each opened with O_PATH and O_NOFOLLOW, so that what is judged is what is opened, even if names change meanwhile. */
#include "transports/base/entry.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_LINKS 40 /* as the kernel's */
#define SHOWN     "%.160s"

struct walk {
    const char *path; /* as it was asked for */
    int at;           /* the folder that the walk has come to; ours, or AT_FDCWD */
    char rest[PATH_MAX];
    unsigned n_links;
    uid_t owners[MAX_LINKS]; /* other users whose links led here */
    unsigned n_owners;
};

static void leave(struct walk *w, int next)
{
    if (w->at >= 0)
        close(w->at);
    w->at = next;
}

/* May every user whose links led here use it? how: the bit of S_IRWXO. */
static bool is_open_to_owners(const struct walk *w, const struct stat *st, mode_t how)
{
    for (unsigned i = 0; i < w->n_owners; i++)
        if (st->st_uid != w->owners[i] && !(st->st_mode & how))
            return false;
    return true;
}

static int refuse(const struct walk *w, struct ws_error *err)
{
    return ws_error_set(err, EACCES,
                        SHOWN ": a link of user %u leads to what that user may not read; it is not followed: "
                              "give the link to root, or put the file there itself",
                        w->path, (unsigned)w->owners[w->n_owners - 1]);
}

static int system_says(const struct walk *w, int code, struct ws_error *err)
{
    return ws_error_set(err, code, "cannot open " SHOWN ": %s", w->path, strerror(code));
}

/* The link becomes the beginning of what is left to walk. */
static int follow(struct walk *w, int link, const struct stat *st, const char *rest, struct ws_error *err)
{
    char target[PATH_MAX], whole[PATH_MAX];
    ssize_t n = readlinkat(link, "", target, sizeof(target) - 1);
    if (n < 0)
        return system_says(w, errno, err);
    target[n] = 0;
    if (++w->n_links > MAX_LINKS)
        return system_says(w, ELOOP, err);
    if (st->st_uid != 0 && st->st_uid != geteuid())
        w->owners[w->n_owners++] = st->st_uid;
    if (snprintf(whole, sizeof(whole), "%s%s%s", target, *rest ? "/" : "", rest) >= (int)sizeof(whole))
        return system_says(w, ENAMETOOLONG, err);
    memcpy(w->rest, whole, sizeof(whole));
    return 0;
}

/* Takes the first component off, with the slashes behind it; false: there is none, or it is too long. */
static bool next_component(struct walk *w, char out[NAME_MAX + 1])
{
    size_t n = strcspn(w->rest, "/"), next = n + strspn(w->rest + n, "/");
    if (n == 0 || n > NAME_MAX)
        return false;
    memcpy(out, w->rest, n);
    out[n] = 0;
    memmove(w->rest, w->rest + next, strlen(w->rest + next) + 1);
    return true;
}

/* Comes to the last component's folder or file: an O_PATH descriptor that is no link. */
static int walk(struct walk *w, struct stat *st, struct ws_error *err)
{
    char name[NAME_MAX + 1];
    for (;;) {
        if (w->rest[0] == '/') {
            int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
            if (root < 0)
                return system_says(w, errno, err);
            leave(w, root);
            memmove(w->rest, w->rest + strspn(w->rest, "/"), strlen(w->rest + strspn(w->rest, "/")) + 1);
        }
        if (!next_component(w, name)) {
            if (w->rest[0])
                return system_says(w, ENAMETOOLONG, err);
            if (w->at < 0)
                return system_says(w, ENOENT, err);
            return fstat(w->at, st) == 0 ? 0 : system_says(w, errno, err);
        }
        if (w->n_owners > 0 && w->at >= 0 && (fstat(w->at, st) != 0 || !is_open_to_owners(w, st, S_IXOTH)))
            return refuse(w, err);
        int next =
            openat(w->at, name, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC); /* mounts what autofs has */
        if (next < 0 && (errno == ENOTDIR || errno == ELOOP))
            next = openat(w->at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0)
            return system_says(w, errno, err);
        if (fstat(next, st) == 0 && S_ISLNK(st->st_mode)) {
            char rest[PATH_MAX];
            memcpy(rest, w->rest, sizeof(rest));
            int rc = follow(w, next, st, rest, err);
            close(next);
            if (rc < 0)
                return rc;
        } else {
            leave(w, next);
        }
    }
}

static const char *kind_of(mode_t mode)
{
    return S_ISFIFO(mode)   ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
                            : "no file that has bytes";
}

static int check_kind(const struct walk *w, mode_t mode, bool folder, struct ws_error *err)
{
    if (folder ? S_ISDIR(mode) : S_ISREG(mode))
        return 0;
    if (folder)
        return system_says(w, ENOTDIR, err);
    if (S_ISDIR(mode))
        return system_says(w, EISDIR, err);
    return ws_error_set(err, EINVAL, SHOWN " is %s, which is never opened: remove it, or rename it", w->path,
                        kind_of(mode));
}

int ws_entry_open(int at, const char *path, bool folder, struct stat *st, struct ws_error *err)
{
    struct walk w = {.path = path, .at = AT_FDCWD};
    char self[64];
    int rc = 0, fd = -1;
    if (snprintf(w.rest, sizeof(w.rest), "%s", path) >= (int)sizeof(w.rest))
        return system_says(&w, ENAMETOOLONG, err);
    if (at != AT_FDCWD && (w.at = fcntl(at, F_DUPFD_CLOEXEC, 0)) < 0)
        return system_says(&w, errno, err);
    rc = walk(&w, st, err);
    if (rc == 0)
        rc = check_kind(&w, st->st_mode, folder, err);
    if (rc == 0 && !is_open_to_owners(&w, st, S_IROTH))
        rc = refuse(&w, err);
    if (rc == 0) {
        /* The same file again, this time to read: a name could be another's by now. */
        snprintf(self, sizeof(self), "/proc/self/fd/%d", w.at);
        fd = folder ? openat(w.at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                    : open(self, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (fd < 0)
            rc = system_says(&w, errno, err);
    }
    if (w.at >= 0)
        close(w.at);
    return rc < 0 ? rc : fd;
}

static uint64_t ns_of(const struct timespec *t)
{
    return (uint64_t)t->tv_sec * 1000000000 + (uint64_t)t->tv_nsec;
}

struct ws_stamp ws_stamp_from_stat(const struct stat *st)
{
    return (struct ws_stamp){st->st_dev, st->st_ino, (uint64_t)st->st_size, ns_of(&st->st_mtim),
                             ns_of(&st->st_ctim)};
}

struct ws_stamp ws_stamp_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? ws_stamp_from_stat(&st) : (struct ws_stamp){0};
}

bool ws_stamp_equal(const struct ws_stamp *a, const struct ws_stamp *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->size_bytes == b->size_bytes &&
           a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}
