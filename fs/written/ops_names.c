#include "fs/written/folder.h"
#include "fs/written/node.h"
#include "fs/written/ops.h"
#include "transports/base/log.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MAX_BACKGROUND 64
#define KNOWN_S        1.0

static void op_init(void *arg, struct fuse_conn_info *conn)
{
    struct ws_written *w = arg;

    conn->want &= ~(unsigned)FUSE_CAP_ATOMIC_O_TRUNC; /* then a length is set before, as any other */
    conn->max_background = MAX_BACKGROUND;
    conn->congestion_threshold = MAX_BACKGROUND;
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
    w->passes = conn->capable & FUSE_CAP_PASSTHROUGH;
    if (w->passes) {
        conn->want |= FUSE_CAP_PASSTHROUGH;
        conn->max_backing_stack_depth = 1;
    }
#endif
}

/* Of a call that made or moved something in a folder of a version: is that whole now? */
static void settle(struct ws_written *w, fuse_ino_t parent)
{
    const struct ws_written_node *n = ws_written_node_of(parent);

    if (n && n->folder)
        ws_written_folder_settle(w, n->folder);
}

static void reply_entry(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct ws_written *w = fuse_req_userdata(req);
    struct fuse_entry_param e;
    const int rc = ws_written_node_look(w, parent, name, &e);

    if (rc < 0)
        fuse_reply_err(req, -rc);
    else if (fuse_reply_entry(req, &e) != 0)
        ws_written_node_forget(w, e.ino, 1);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    reply_entry(req, parent, name);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
    ws_written_node_forget(fuse_req_userdata(req), ino, n);
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t n, struct fuse_forget_data *all)
{
    for (size_t i = 0; i < n; i++)
        ws_written_node_forget(fuse_req_userdata(req), all[i].ino, all[i].nlookup);
    fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct stat st;
    const int rc = ws_written_node_stat(fuse_req_userdata(req), ino, &st);

    (void)fi;
    if (rc < 0)
        fuse_reply_err(req, -rc);
    else
        fuse_reply_attr(req, &st, ino == FUSE_ROOT_ID ? 0 : KNOWN_S); /* a dead mount is seen at once */
}

static struct timespec time_to_set(const struct timespec *given, int set, int is_given, int is_now)
{
    if (set & is_now)
        return (struct timespec){.tv_nsec = UTIME_NOW};
    return set & is_given ? *given : (struct timespec){.tv_nsec = UTIME_OMIT};
}

static int set_attr(struct ws_written *w, fuse_ino_t ino, const struct stat *st, int set,
                    const struct fuse_file_info *fi)
{
    const struct ws_written_node *n = ws_written_node_of(ino);
    const int fd = n ? n->fd : w->lower.below;
    char path[32];

    ws_written_node_path(w, ino, path);
    if (set & FUSE_SET_ATTR_MODE && chmod(path, st->st_mode & 07777) != 0)
        return -errno;
    if (set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID) &&
        fchownat(fd, "", set & FUSE_SET_ATTR_UID ? st->st_uid : (uid_t)-1,
                 set & FUSE_SET_ATTR_GID ? st->st_gid : (gid_t)-1, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0)
        return -errno;
    if (set & FUSE_SET_ATTR_SIZE) {
        const int rc = ws_written_truncate(w, ino, st->st_size, fi);
        if (rc < 0)
            return rc;
    }
    if (set &
        (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_MTIME_NOW)) {
        const struct timespec times[2] = {
            time_to_set(&st->st_atim, set, FUSE_SET_ATTR_ATIME, FUSE_SET_ATTR_ATIME_NOW),
            time_to_set(&st->st_mtim, set, FUSE_SET_ATTR_MTIME, FUSE_SET_ATTR_MTIME_NOW)};
        if (utimensat(AT_FDCWD, path, times, 0) != 0)
            return -errno;
    }
    return 0;
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int set, struct fuse_file_info *fi)
{
    struct ws_written *w = fuse_req_userdata(req);
    const int rc = set_attr(w, ino, st, set, fi);

    if (rc < 0)
        fuse_reply_err(req, -rc);
    else
        op_getattr(req, ino, NULL);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
    char to[PATH_MAX + 1];
    const ssize_t n = readlinkat(ws_written_node_of(ino)->fd, "", to, sizeof(to) - 1);

    if (n < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    to[n] = 0;
    fuse_reply_readlink(req, to);
}

/* --- names that are made --- */

static void made(fuse_req_t req, fuse_ino_t parent, int folder, const char *name, int rc)
{
    if (rc != 0) {
        fuse_reply_err(req, errno);
        return;
    }
    ws_written_give(req, folder, name);
    reply_entry(req, parent, name);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    struct ws_written *w = fuse_req_userdata(req);
    const int folder = ws_written_node_folder(w, parent, name);

    made(req, parent, folder, name, mkdirat(folder, name, mode));
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t dev)
{
    struct ws_written *w = fuse_req_userdata(req);
    const struct ws_written_node *p = ws_written_node_of(parent);
    const int folder = p ? p->fd : w->lower.below;

    if (S_ISCHR(mode) || S_ISBLK(mode)) {
        fuse_reply_err(req, EPERM);
        return;
    }
    made(req, parent, folder, name, mknodat(folder, name, mode, dev));
    settle(w, parent); /* an empty marker */
}

static void op_symlink(fuse_req_t req, const char *to, fuse_ino_t parent, const char *name)
{
    struct ws_written *w = fuse_req_userdata(req);
    const struct ws_written_node *p = ws_written_node_of(parent);
    const int folder = p ? p->fd : w->lower.below;

    made(req, parent, folder, name, symlinkat(to, folder, name));
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
    struct ws_written *w = fuse_req_userdata(req);
    const struct ws_written_node *p = ws_written_node_of(parent);
    const int folder = p ? p->fd : w->lower.below;
    char path[32];

    ws_written_node_path(w, ino, path);
    if (linkat(AT_FDCWD, path, folder, name, AT_SYMLINK_FOLLOW) != 0)
        fuse_reply_err(req, errno);
    else
        reply_entry(req, parent, name);
}

/* --- names that go --- */

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct ws_written *w = fuse_req_userdata(req);
    const int rc = unlinkat(ws_written_node_folder(w, parent, name), name, 0) == 0 ? 0 : errno;

    if (rc == 0)
        settle(w, parent); /* a temporary name that is gone */
    fuse_reply_err(req, rc);
}

/* With lock. */
static void forget_folder(struct ws_written *w, const char *name)
{
    for (struct ws_written_folder *f = w->folders; f; f = f->next)
        if (strcmp(f->name, name) == 0)
            f->is_there = false;
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct ws_written *w = fuse_req_userdata(req);
    const int folder = ws_written_node_folder(w, parent, name);
    const int rc = unlinkat(folder, name, AT_REMOVEDIR) == 0 ? 0 : errno;

    if (rc == 0 && parent == FUSE_ROOT_ID && folder == w->lower.memory) {
        pthread_mutex_lock(&w->lock);
        forget_folder(w, name);
        pthread_mutex_unlock(&w->lock);
    }
    fuse_reply_err(req, rc);
}

/* Of the top folder's: where it is. It stays in memory or below, whatever it is called then. */
static void move_folder(struct ws_written *w, const char *from, const char *to)
{
    pthread_mutex_lock(&w->lock);
    struct ws_written_folder *f = ws_written_folder_get(w, from);
    for (struct ws_written_folder *g = w->folders; g; g = g->next)
        if (g != f && strcmp(g->name, to) == 0) {
            g->name[0] = 0; /* what it was is covered, and settles no more */
            g->is_there = false;
        }
    if (f)
        snprintf(f->name, sizeof(f->name), "%s", to);
    pthread_mutex_unlock(&w->lock);
    if (f)
        ws_written_folder_settle(w, f);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t to_parent,
                      const char *to, unsigned flags)
{
    struct ws_written *w = fuse_req_userdata(req);
    const struct ws_written_node *p = ws_written_node_of(to_parent);
    const int from = ws_written_node_folder(w, parent, name);
    const bool is_top = parent == FUSE_ROOT_ID && to_parent == FUSE_ROOT_ID;
    const int into = is_top ? from : p ? p->fd : w->lower.below;

    if (flags & (unsigned)RENAME_EXCHANGE && is_top) {
        fuse_reply_err(req, EINVAL);
        return;
    }
    if (is_top && from == w->lower.below && ws_lower_is_version(&w->lower, to)) {
        ws_log(WS_LOG_WARN, "share",
               "%s cannot become %s: it lies on disk, and versions in memory; let it be called .%s.tmp or "
               "%s.tmp until then, or be copied",
               name, to, to, to);
        fuse_reply_err(req, EXDEV);
        return;
    }
    if (renameat2(from, name, into, to, flags) != 0) {
        fuse_reply_err(req, errno);
        return;
    }
    if (is_top && from == w->lower.memory)
        move_folder(w, name, to);
    settle(w, to_parent);
    if (parent != to_parent)
        settle(w, parent);
    fuse_reply_err(req, 0);
}

/* --- folders --- */

struct listing {
    struct entry {
        char *name;
        ino_t ino;
        unsigned char type;
    } * all;
    size_t n, room;
};

static void free_listing(struct listing *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->all[i].name);
    free(l->all);
    *l = (struct listing){0};
}

static bool is_listed(const struct listing *l, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(l->all[i].name, name) == 0)
            return true;
    return false;
}

/* but: the first n are listed already, and hide what has their names. */
static int list_one(struct listing *l, int folder, size_t n, uint64_t of)
{
    const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;
    int rc = 0;

    if (!names) {
        rc = -errno;
        if (fd >= 0)
            close(fd);
        return rc;
    }
    while (rc == 0 && (errno = 0, e = readdir(names))) {
        if (n && is_listed(l, n, e->d_name))
            continue;
        if (l->n == l->room) {
            const size_t room = l->room ? 2 * l->room : 64;
            struct entry *more = realloc(l->all, room * sizeof(*more));
            if (!more) {
                rc = -ENOMEM;
                break;
            }
            l->all = more;
            l->room = room;
        }
        l->all[l->n] = (struct entry){strdup(e->d_name), e->d_ino | of, e->d_type};
        rc = l->all[l->n].name ? 0 : -ENOMEM;
        l->n += rc == 0;
    }
    if (rc == 0 && errno)
        rc = -errno;
    closedir(names);
    return rc;
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct listing *l = calloc(1, sizeof(*l));

    (void)ino;
    if (!l) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    fi->fh = (uintptr_t)l;
    if (fuse_reply_open(req, fi) != 0)
        free(l);
}

static int list(struct ws_written *w, fuse_ino_t ino, struct listing *l)
{
    const struct ws_written_node *n = ws_written_node_of(ino);
    const uint64_t in_memory = 1UL << 62;

    free_listing(l);
    if (n)
        return list_one(l, n->fd, 0, n->folder ? in_memory : 0);
    const int rc = list_one(l, w->lower.memory, 0, in_memory);
    return rc < 0 ? rc : list_one(l, w->lower.below, l->n, 0);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t room, off_t at, struct fuse_file_info *fi)
{
    struct listing *l = (struct listing *)(uintptr_t)fi->fh;
    const int rc = at == 0 ? list(fuse_req_userdata(req), ino, l) : 0;
    char *out = malloc(room);
    size_t used = 0;

    if (rc < 0 || !out) {
        fuse_reply_err(req, rc < 0 ? -rc : ENOMEM);
        free(out);
        return;
    }
    for (size_t i = (size_t)at; i < l->n; i++) {
        const struct stat st = {.st_ino = l->all[i].ino, .st_mode = DTTOIF(l->all[i].type)};
        const size_t n = fuse_add_direntry(req, out + used, room - used, l->all[i].name, &st, (off_t)i + 1);
        if (n > room - used)
            break;
        used += n;
    }
    fuse_reply_buf(req, out, used);
    free(out);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct listing *l = (struct listing *)(uintptr_t)fi->fh;

    (void)ino;
    free_listing(l);
    free(l);
    fuse_reply_err(req, 0);
}

static void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    const struct ws_written *w = fuse_req_userdata(req);
    const struct ws_written_node *n = ws_written_node_of(ino);
    const int fd = openat(n ? n->fd : w->lower.below, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 ? errno : 0;

    (void)fi;
    if (rc == 0)
        rc = (datasync ? fdatasync(fd) : fsync(fd)) == 0 ? 0 : errno;
    if (fd >= 0)
        close(fd);
    fuse_reply_err(req, rc);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    const struct ws_written *w = fuse_req_userdata(req);
    const struct ws_written_node *n = ws_written_node_of(ino);
    struct statvfs st;

    if (fstatvfs(n && n->folder ? w->lower.memory : w->lower.below, &st) != 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_statfs(req, &st);
}

const struct fuse_lowlevel_ops ws_written_ops = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .readlink = op_readlink,
    .mkdir = op_mkdir,
    .mknod = op_mknod,
    .symlink = op_symlink,
    .link = op_link,
    .unlink = op_unlink,
    .rmdir = op_rmdir,
    .rename = op_rename,
    .create = ws_written_op_create,
    .open = ws_written_op_open,
    .read = ws_written_op_read,
    .write_buf = ws_written_op_write,
    .flush = ws_written_op_flush,
    .release = ws_written_op_release,
    .fsync = ws_written_op_fsync,
    .fallocate = ws_written_op_fallocate,
    .lseek = ws_written_op_lseek,
    .copy_file_range = ws_written_op_copy,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .releasedir = op_releasedir,
    .fsyncdir = op_fsyncdir,
    .statfs = op_statfs,
};
