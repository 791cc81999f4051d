#include "fs/written/committer.h"
#include "fs/written/ops.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define RENAME_FLAGS (1u << 0 | 1u << 1) /* RENAME_NOREPLACE, RENAME_EXCHANGE */

struct written *written_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

struct written_node *written_node_of(fuse_req_t req, fuse_ino_t ino)
{
    return ino == FUSE_ROOT_ID ? &written_of(req)->root : (struct written_node *)(uintptr_t)ino;
}

void written_path(const struct written_node *n, char out[32])
{
    snprintf(out, 32, "/proc/self/fd/%d", n->fd);
}

static void reply(fuse_req_t req, int rc)
{
    fuse_reply_err(req, rc < 0 ? -rc : 0);
}

/* Waits until the folder may be changed; then the lock is held. */
static void lock_for(struct written *w, const struct written_node *parent)
{
    pthread_mutex_lock(&w->lock);
    written_wait(w, parent->top);
}

void written_become(fuse_req_t req)
{
    const struct fuse_ctx *who = fuse_req_ctx(req);
    written_be_caller(who->uid, who->gid);
}

void written_made(const struct written *w, const struct written_node *parent, const struct written_node *n,
                  struct stat *st)
{
    if (parent == &w->root && n->top)
        n->top->is_made_here = true;
    written_show(w, n, st);
}

/* With the lock, since the child was made. */
static int enter_new(fuse_req_t req, struct written_node *parent, const char *name,
                     struct fuse_entry_param *out)
{
    struct written_node *n;
    const int rc = written_find_locked(written_of(req), parent, name, &n, &out->attr);

    if (rc < 0)
        return rc;
    written_made(written_of(req), parent, n, &out->attr);
    out->ino = (uintptr_t)n;
    return 0;
}

static void reply_entry(fuse_req_t req, int rc, const struct fuse_entry_param *e)
{
    if (rc < 0)
        reply(req, rc);
    else if (fuse_reply_entry(req, e) < 0)
        written_forget(written_of(req), (struct written_node *)(uintptr_t)e->ino, 1);
}

static void answer(fuse_req_t req, struct written_node *parent, const char *name)
{
    struct fuse_entry_param e = {0};
    struct written_node *n;
    const int rc = written_find(written_of(req), parent, name, &n, &e.attr);

    if (rc == 0)
        e.ino = (uintptr_t)n;
    reply_entry(req, rc, &e);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    answer(req, written_node_of(req, parent), name);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count)
{
    written_forget(written_of(req), written_node_of(req, ino), count);
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t n, struct fuse_forget_data *list)
{
    for (size_t i = 0; i < n; i++)
        written_forget(written_of(req), written_node_of(req, list[i].ino), list[i].nlookup);
    fuse_reply_none(req);
}

static void answer_attr(fuse_req_t req, const struct written_node *n)
{
    struct written *w = written_of(req);
    struct stat st;

    if (fstat(n->fd, &st) < 0) {
        reply(req, -errno);
        return;
    }
    pthread_mutex_lock(&w->lock);
    written_show(w, n, &st);
    pthread_mutex_unlock(&w->lock);
    fuse_reply_attr(req, &st, 0);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)fi;
    answer_attr(req, written_node_of(req, ino));
}

static int set_length(struct written *w, struct written_node *n, const char *path, off_t length)
{
    lock_for(w, n);
    const int rc = truncate(path, length) < 0 ? -errno : 0;
    if (rc == 0)
        written_note(w, n->top, n->name);
    pthread_mutex_unlock(&w->lock);
    return rc;
}

static int set_times(const char *path, const struct stat *a, int set)
{
    struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};

    if (set & FUSE_SET_ATTR_ATIME_NOW)
        t[0].tv_nsec = UTIME_NOW;
    else if (set & FUSE_SET_ATTR_ATIME)
        t[0] = a->st_atim;
    if (set & FUSE_SET_ATTR_MTIME_NOW)
        t[1].tv_nsec = UTIME_NOW;
    else if (set & FUSE_SET_ATTR_MTIME)
        t[1] = a->st_mtim;
    return utimensat(AT_FDCWD, path, t, 0) < 0 ? -errno : 0;
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *a, int set, struct fuse_file_info *fi)
{
    struct written *w = written_of(req);
    struct written_node *n = written_node_of(req, ino);
    char path[32];
    uint64_t number;
    int rc = 0;

    (void)fi;
    written_path(n, path);
    pthread_mutex_lock(&w->lock);
    const bool is_version = written_is_version(w, n->top, &number);
    pthread_mutex_unlock(&w->lock);
    if ((set & FUSE_SET_ATTR_MODE) && !is_version && chmod(path, a->st_mode) < 0)
        rc = -errno;
    if (rc == 0 && (set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) &&
        fchownat(n->fd, "", set & FUSE_SET_ATTR_UID ? a->st_uid : (uid_t)-1,
                 set & FUSE_SET_ATTR_GID ? a->st_gid : (gid_t)-1, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0)
        rc = -errno;
    if (rc == 0 && (set & FUSE_SET_ATTR_SIZE))
        rc = set_length(w, n, path, a->st_size);
    if (rc == 0 && (set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW |
                           FUSE_SET_ATTR_MTIME_NOW)))
        rc = set_times(path, a, set);
    if (rc < 0)
        reply(req, rc);
    else
        answer_attr(req, n);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
    char text[4097];
    const ssize_t n = readlinkat(written_node_of(req, ino)->fd, "", text, sizeof(text) - 1);

    if (n < 0) {
        reply(req, -errno);
        return;
    }
    text[n] = '\0';
    fuse_reply_readlink(req, text);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t ino, const char *name, mode_t mode)
{
    struct written *w = written_of(req);
    struct written_node *parent = written_node_of(req, ino);
    struct fuse_entry_param e = {0};

    lock_for(w, parent);
    const int folder = written_folder_of(w, parent, name, true);
    written_become(req);
    int rc = mkdirat(folder, name, mode | S_IRWXU) < 0 ? -errno : 0;
    written_be_self();
    if (rc == 0)
        rc = enter_new(req, parent, name, &e);
    pthread_mutex_unlock(&w->lock);
    reply_entry(req, rc, &e);
}

static void op_mknod(fuse_req_t req, fuse_ino_t ino, const char *name, mode_t mode, dev_t dev)
{
    struct written *w = written_of(req);
    struct written_node *parent = written_node_of(req, ino);
    struct fuse_entry_param e = {0};

    lock_for(w, parent);
    const int folder = written_folder_of(w, parent, name, false);
    written_become(req);
    int rc = mknodat(folder, name, mode & ~WRITTEN_NEVER, dev) < 0 ? -errno : 0;
    written_be_self();
    if (rc == 0)
        rc = enter_new(req, parent, name, &e);
    if (rc == 0) {
        written_note(w, parent->top, name);
        written_settle(w, parent->top); /* a marker */
    }
    pthread_mutex_unlock(&w->lock);
    reply_entry(req, rc, &e);
}

static void op_symlink(fuse_req_t req, const char *to, fuse_ino_t ino, const char *name)
{
    struct written *w = written_of(req);
    struct written_node *parent = written_node_of(req, ino);
    struct fuse_entry_param e = {0};

    lock_for(w, parent);
    const int folder = written_folder_of(w, parent, name, false);
    written_become(req);
    int rc = symlinkat(to, folder, name) < 0 ? -errno : 0;
    written_be_self();
    if (rc == 0)
        rc = enter_new(req, parent, name, &e);
    pthread_mutex_unlock(&w->lock);
    reply_entry(req, rc, &e);
}

/* A second name in another folder would be a way around the wait for who reads it. */
static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t new_parent, const char *name)
{
    struct written *w = written_of(req);
    struct written_node *n = written_node_of(req, ino), *parent = written_node_of(req, new_parent);
    char path[32];
    int rc = 0;

    written_path(n, path);
    lock_for(w, parent);
    if (n->top != parent->top)
        rc = -EXDEV;
    else if (linkat(AT_FDCWD, path, written_folder_of(w, parent, name, false), name, AT_SYMLINK_FOLLOW) < 0)
        rc = -errno;
    else
        written_note(w, parent->top, name);
    pthread_mutex_unlock(&w->lock);
    if (rc < 0)
        reply(req, rc);
    else
        answer(req, parent, name);
}

static void op_unlink(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    struct written *w = written_of(req);
    const struct written_node *parent = written_node_of(req, ino);

    lock_for(w, parent);
    const int rc = unlinkat(written_folder_of(w, parent, name, false), name, 0) < 0 ? -errno : 0;
    if (rc == 0) {
        written_note(w, parent->top, "");
        written_settle(w, parent->top); /* the last temporary name */
    }
    pthread_mutex_unlock(&w->lock);
    reply(req, rc);
}

/* The folder right below the mount that has this name. */
static struct written_top *find_top(const struct written *w, const char *name)
{
    for (struct written_top *t = w->tops; t; t = t->next)
        if (!t->is_gone && strcmp(t->name, name) == 0)
            return t;
    return NULL;
}

/* The version's folder is there no more under its name: its framework is done with it. */
static void retire(const struct written *w, const struct written_top *top)
{
    if (top->was_published)
        w->options->retire(w->options->arg, &top->id);
}

static void end_top(struct written *w, struct written_top *top)
{
    if (!top)
        return;
    retire(w, top);
    top->is_gone = true;
    written_top_drop(w, top);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    struct written *w = written_of(req);
    const struct written_node *parent = written_node_of(req, ino);
    int rc = 0;

    lock_for(w, parent);
    struct written_top *top = parent == &w->root ? find_top(w, name) : NULL;
    while (top && top->is_taken) {
        written_wait(w, top);
        top = find_top(w, name);
    }
    if (unlinkat(written_folder_of(w, parent, name, false), name, AT_REMOVEDIR) < 0)
        rc = -errno;
    else
        end_top(w, top);
    pthread_mutex_unlock(&w->lock);
    reply(req, rc);
}

/* A folder that is to be renamed over lies in the other place: it goes, where it is empty. */
static int replace_other(const struct written *w, int place, const char *name, unsigned flags)
{
    const int other = place == w->lower ? w->memory : w->lower;
    struct stat st;

    if (other < 0 || fstatat(other, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    if (flags)
        return flags & (1u << 1) ? -EXDEV : -EEXIST;
    return unlinkat(other, name, AT_REMOVEDIR) < 0 ? -errno : 0;
}

/* With the lock. Folders at the top stay there, and others below: which files are a version's is told by that. */
static int rename_folder(struct written *w, struct written_node *from, const char *name,
                         struct written_node *to, const char *new_name, unsigned flags)
{
    const int a = written_folder_of(w, from, name, false);
    struct written_top *mine = find_top(w, name), *its = find_top(w, new_name);
    uint64_t number;

    if ((from == &w->root) != (to == &w->root))
        return -EXDEV;
    if (from != &w->root) {
        if (from->top != to->top &&
            (written_is_version(w, from->top, &number) || written_is_version(w, to->top, &number)))
            return -EXDEV;
        return renameat2(from->fd, name, to->fd, new_name, flags) < 0 ? -errno : 0;
    }
    /* Out of memory into the folder below: who copies learns whether there is room. */
    if (written_folder_of(w, to, new_name, true) != a && a == w->memory)
        return -EXDEV;
    const int rc = replace_other(w, a, new_name, flags);
    if (rc < 0)
        return rc;
    if (renameat2(a, name, a, new_name, flags) < 0)
        return -errno;
    if (flags & (1u << 1)) { /* exchanged */
        if (its) {
            retire(w, its);
            snprintf(its->name, sizeof(its->name), "%s", name);
        }
    } else {
        end_top(w, its);
    }
    if (mine) {
        retire(w, mine);
        snprintf(mine->name, sizeof(mine->name), "%s", new_name);
        written_note(w, mine, "");
    }
    return 0;
}

static int rename_file(struct written *w, struct written_node *from, const char *name,
                       struct written_node *to, const char *new_name, unsigned flags, const struct stat *st)
{
    const int a = written_folder_of(w, from, name, false), b = written_folder_of(w, to, new_name, false);

    if (renameat2(a, name, b, new_name, flags) < 0)
        return -errno;
    for (size_t i = 0; i < WRITTEN_BUCKETS; i++)
        for (struct written_node *n = w->buckets[i]; n; n = n->next)
            if (n->dev == st->st_dev && n->ino == st->st_ino) {
                struct written_top *old = n->top;
                n->top = to->top;
                if (n->top)
                    n->top->refs++;
                written_top_drop(w, old);
                snprintf(n->name, sizeof(n->name), "%s", new_name);
            }
    written_note(w, from->top, "");
    written_note(w, to->top, new_name);
    return 0;
}

/* Everybody reads what is in a version: so who makes one of a file or a folder, or adds one to it, has it. With the lock. */
static int check_show(fuse_req_t req, const struct written_node *from, const char *name,
                      const struct written_node *to, const char *new_name, struct stat *st)
{
    const struct written *w = written_of(req);
    const uid_t caller = fuse_req_ctx(req)->uid;
    uint64_t number;

    if (fstatat(written_folder_of(w, from, name, false), name, st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    const bool shows = to == &w->root
                           ? S_ISDIR(st->st_mode) && ws_pattern_match(w->options->pattern, new_name, &number)
                           : written_is_version(w, to->top, &number);
    return !shows || (from != &w->root && from->top == to->top) || caller == 0 || caller == st->st_uid
               ? 0
               : -EPERM;
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
                      const char *new_name, unsigned flags)
{
    struct written *w = written_of(req);
    struct written_node *from = written_node_of(req, parent), *to = written_node_of(req, new_parent);
    struct stat st, its;
    int rc;

    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct written_top *all[] = {from->top, to->top, from == &w->root ? find_top(w, name) : NULL,
                                     to == &w->root ? find_top(w, new_name) : NULL};
        struct written_top *taken = NULL;
        for (size_t i = 0; i < 4; i++)
            if (all[i] && all[i]->is_taken)
                taken = all[i];
        if (!taken)
            break;
        written_wait(w, taken);
    }
    rc = flags & ~RENAME_FLAGS ? -EINVAL : check_show(req, from, name, to, new_name, &st);
    if (rc == 0 && (flags & (1u << 1)))
        rc = S_ISDIR(st.st_mode) ? check_show(req, to, new_name, from, name, &its)
                                 : -EINVAL; /* nobody needs it */
    if (rc == 0)
        rc = S_ISDIR(st.st_mode) ? rename_folder(w, from, name, to, new_name, flags)
                                 : rename_file(w, from, name, to, new_name, flags, &st);
    if (rc == 0) {
        written_settle(w, to == &w->root ? find_top(w, new_name) : to->top);
        if (from->top != to->top)
            written_settle(w, from->top);
    }
    pthread_mutex_unlock(&w->lock);
    reply(req, rc);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct statvfs st;

    if (fstatvfs(written_node_of(req, ino)->fd, &st) < 0)
        reply(req, -errno);
    else
        fuse_reply_statfs(req, &st);
}

/* --- listings --- */

static int add_names(fuse_req_t req, struct written_listing *l, int folder, bool is_second)
{
    const struct written *w = written_of(req);
    const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *d;
    struct stat its;
    int rc = 0;

    if (!names) {
        rc = -errno;
        if (fd >= 0)
            close(fd);
        return rc;
    }
    const bool in_memory = w->memory >= 0 && fstat(fd, &its) == 0 && its.st_dev == w->memory_dev;
    while (rc == 0 && (errno = 0, d = readdir(names))) {
        struct stat st = {.st_ino = d->d_ino ^ (in_memory ? WRITTEN_OF_MEMORY : 0),
                          .st_mode = (mode_t)d->d_type << 12};
        if (is_second && (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0))
            continue;
        const size_t size = fuse_add_direntry(req, NULL, 0, d->d_name, NULL, 0);
        char *bytes = realloc(l->bytes, l->n + size);
        if (!bytes) {
            rc = -ENOMEM;
            break;
        }
        l->bytes = bytes;
        fuse_add_direntry(req, bytes + l->n, size, d->d_name, &st, (off_t)(l->n + size));
        l->n += size;
    }
    if (rc == 0 && errno)
        rc = -errno;
    closedir(names);
    return rc;
}

static void end_listing(struct written *w, struct written_listing *l)
{
    pthread_mutex_lock(&w->lock);
    LIST_REMOVE(l, entry);
    pthread_mutex_unlock(&w->lock);
    free(l->bytes);
    free(l);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct written *w = written_of(req);
    struct written_listing *l = calloc(1, sizeof(*l));

    (void)ino;
    if (!l) {
        reply(req, -ENOMEM);
        return;
    }
    pthread_mutex_lock(&w->lock);
    LIST_INSERT_HEAD(&w->listings, l, entry);
    pthread_mutex_unlock(&w->lock);
    fi->fh = (uintptr_t)l;
    if (fuse_reply_open(req, fi) < 0)
        end_listing(w, l);
}

/* Each entry says where the next begins, in the field after its number. */
static size_t next_entry(const struct written_listing *l, size_t at)
{
    uint64_t next;
    memcpy(&next, l->bytes + at + 8, sizeof(next));
    return next;
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t at, struct fuse_file_info *fi)
{
    const struct written *w = written_of(req);
    const struct written_node *n = written_node_of(req, ino);
    struct written_listing *l = (struct written_listing *)(uintptr_t)fi->fh;
    int rc = 0;

    if (at == 0) { /* rewinddir */
        free(l->bytes);
        l->bytes = NULL;
        l->n = 0;
        rc = add_names(req, l, n->fd, false);
        if (rc == 0 && n == &w->root && w->memory >= 0)
            rc = add_names(req, l, w->memory, true);
    }
    if (rc < 0) {
        reply(req, rc);
        return;
    }
    size_t begin = 0;
    while (begin < l->n && (at < 0 || begin < (size_t)at)) /* lseek(2) takes its caller anywhere */
        begin = next_entry(l, begin);
    size_t end = begin;
    while (end < l->n && next_entry(l, end) - begin <= size)
        end = next_entry(l, end);
    const size_t fits = end - begin;
    char *answered = malloc(fits + 1); /* the listing may be released before the reply returns */
    if (!answered) {
        reply(req, -ENOMEM);
        return;
    }
    if (fits)
        memcpy(answered, l->bytes + begin, fits);
    fuse_reply_buf(req, answered, fits);
    free(answered);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    end_listing(written_of(req), (struct written_listing *)(uintptr_t)fi->fh);
    reply(req, 0);
}

/* A call that waits for what is published has one of the threads meanwhile: that is for the folder's owner. */
static bool may_wait(fuse_req_t req, const struct written_node *n)
{
    const uid_t caller = fuse_req_ctx(req)->uid;
    struct stat st;

    return caller == 0 || (fstat(n->fd, &st) == 0 && st.st_uid == caller);
}

static void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    struct written *w = written_of(req);
    const struct written_node *n = written_node_of(req, ino);
    const int fd = openat(n->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int rc = fd < 0 || fsync(fd) < 0 ? -errno : 0;

    (void)datasync;
    (void)fi;
    if (fd >= 0)
        close(fd);
    if (may_wait(req, n)) {
        pthread_mutex_lock(&w->lock);
        written_settle(w, n->top);
        pthread_mutex_unlock(&w->lock);
    }
    reply(req, rc);
}

static void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg, struct fuse_file_info *fi,
                     unsigned flags, const void *in, size_t in_bytes, size_t out_bytes)
{
    const struct written_node *n = written_node_of(req, ino);
    struct ws_commit_reply answer = {0};

    (void)arg;
    (void)fi;
    (void)in;
    (void)in_bytes;
    if (!(flags & FUSE_IOCTL_DIR) || cmd != (unsigned)WS_COMMIT_IOCTL || out_bytes < sizeof(answer)) {
        reply(req, -ENOTTY);
        return;
    }
    if (!may_wait(req, n)) {
        reply(req, -EPERM);
        return;
    }
    written_commit_now(written_of(req), n->top, &answer);
    fuse_reply_ioctl(req, 0, &answer, sizeof(answer));
}

void written_name_ops(struct fuse_lowlevel_ops *ops)
{
    ops->lookup = op_lookup;
    ops->forget = op_forget;
    ops->forget_multi = op_forget_multi;
    ops->getattr = op_getattr;
    ops->setattr = op_setattr;
    ops->readlink = op_readlink;
    ops->mkdir = op_mkdir;
    ops->mknod = op_mknod;
    ops->symlink = op_symlink;
    ops->link = op_link;
    ops->unlink = op_unlink;
    ops->rmdir = op_rmdir;
    ops->rename = op_rename;
    ops->statfs = op_statfs;
    ops->opendir = op_opendir;
    ops->readdir = op_readdir;
    ops->releasedir = op_releasedir;
    ops->fsyncdir = op_fsyncdir;
    ops->ioctl = op_ioctl;
}
