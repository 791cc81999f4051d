#include "fs/fuse/backing.h"
#include "fs/written/committer.h"
#include "fs/written/descriptors.h"
#include "fs/written/ops.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static struct written_file *file_of(const struct fuse_file_info *fi)
{
    return (struct written_file *)(uintptr_t)fi->fh;
}

/* With the lock. All that have a file open have it in the same way: the kernel mixes no two. */
static void pass_through(const struct written *w, struct written_node *n, struct fuse_file_info *fi)
{
    char path[32];

    if (n->open == 0) {
        written_path(n, path);
        const int fd = open(path, O_RDWR | O_CLOEXEC);
        n->backing = fd < 0 ? 0 : ws_backing_open(w->session, fd);
        if (n->backing < 0)
            n->backing = 0;
        n->is_plain = n->backing == 0;
        if (fd >= 0)
            close(fd);
    }
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
    if (!n->is_plain)
        fi->backing_id = n->backing;
#else
    (void)fi;
#endif
}

/* With the lock. */
static int open_node(struct written *w, struct written_node *n, int fd, struct fuse_file_info *fi)
{
    struct written_file *f = calloc(1, sizeof(*f));

    assert(n);
    if (!f) {
        close(fd);
        return -ENOMEM;
    }
    f->fd = fd;
    f->writes = (fi->flags & O_ACCMODE) != O_RDONLY;
    pass_through(w, n, fi);
    n->open++;
    n->refs++;
    n->writers += f->writes;
    LIST_INSERT_HEAD(&w->files, f, entry);
    fi->fh = (uintptr_t)f;
    return 0;
}

/* What a file is opened with below: the kernel has looked at the rights, and gives offsets. */
static int flags_below(const struct fuse_file_info *fi)
{
    return (fi->flags & ~(O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW)) | O_CLOEXEC;
}

static void close_file(struct written *w, struct written_node *n, struct written_file *f)
{
    assert(n);
    close(f->fd); /* before it is a writer no more: what is published has none */
    pthread_mutex_lock(&w->lock);
    if (--n->open == 0 && n->backing) {
        ws_backing_close(w->session, n->backing);
        n->backing = 0;
    }
    LIST_REMOVE(f, entry);
    n->writers -= f->writes;
    if (f->writes)
        written_note(w, n->top, n->name);
    pthread_mutex_unlock(&w->lock);
    free(f);
    written_forget(w, n, 1);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct written *w = written_of(req);
    struct written_node *n = written_node_of(req, ino);
    char path[32];
    int rc = 0;

    written_path(n, path);
    pthread_mutex_lock(&w->lock);
    if ((fi->flags & O_ACCMODE) != O_RDONLY || (fi->flags & O_TRUNC))
        written_wait(w, n->top);
    const int fd = open(path, flags_below(fi));
    if (fd < 0)
        rc = -errno;
    else
        rc = open_node(w, n, fd, fi);
    pthread_mutex_unlock(&w->lock);
    if (rc < 0)
        fuse_reply_err(req, -rc);
    else if (fuse_reply_open(req, fi) < 0)
        close_file(w, n, file_of(fi));
}

/* With the lock. The child of that name, with one more reference, is the file that was opened: below the mount somebody
 * may have put another in its place. */
static int enter(fuse_req_t req, struct written_node *parent, const char *name, int fd, bool is_new,
                 struct written_node **out, struct stat *st)
{
    struct stat opened;
    const int rc = written_find_locked(written_of(req), parent, name, out, st);

    if (rc < 0)
        return rc;
    if (fstat(fd, &opened) < 0 || opened.st_dev != (*out)->dev || opened.st_ino != (*out)->ino)
        return -ESTALE;
    if (is_new)
        written_made(written_of(req), parent, *out, st);
    return 0;
}

static void op_create(fuse_req_t req, fuse_ino_t ino, const char *name, mode_t mode,
                      struct fuse_file_info *fi)
{
    struct written *w = written_of(req);
    struct written_node *parent = written_node_of(req, ino), *n = NULL;
    struct fuse_entry_param e = {0};

    pthread_mutex_lock(&w->lock);
    written_wait(w, parent->top);
    const int folder = written_folder_of(w, parent, name, false);
    written_become(req);
    int fd = openat(folder, name, flags_below(fi) | O_CREAT | O_EXCL | O_NOFOLLOW, mode & ~WRITTEN_NEVER);
    const int why = errno;
    written_be_self();
    const bool is_new = fd >= 0;
    if (fd < 0 && why == EEXIST && !(fi->flags & O_EXCL))
        fd = openat(folder, name, flags_below(fi) | O_NOFOLLOW);
    else
        errno = why;
    int rc = fd < 0 ? -errno : enter(req, parent, name, fd, is_new, &n, &e.attr);
    if (rc == 0)
        rc = open_node(w, n, fd, fi);
    else if (fd >= 0)
        close(fd);
    e.ino = (uintptr_t)n;
    pthread_mutex_unlock(&w->lock);
    if (rc == 0 && fuse_reply_create(req, &e, fi) < 0) {
        close_file(w, n, file_of(fi));
        written_forget(w, n, 1);
    } else if (rc < 0) {
        if (n)
            written_forget(w, n, 1);
        fuse_reply_err(req, -rc);
    }
}

/* Is this close(2) the last of the file's that may write, and of all in its folder, which is whole with it? With the lock, which it leaves
 * meanwhile. What cannot be told waits for the release. */
static bool is_last_close(fuse_req_t req, struct written *w, struct written_node *n)
{
    struct written_top *top = n->top;
    const pid_t by = fuse_req_ctx(req)->pid; /* 0: of processes that cannot be seen from here */
    struct stat st;
    uint64_t number;

    if (!written_is_version(w, top, &number) || n->writers != 1 || by == 0 || fstat(n->fd, &st) < 0)
        return false;
    n->writers = 0;
    const bool others = written_has_writer(w, top);
    n->writers = 1;
    if (others)
        return false;
    written_show(w, n, &st);
    top->refs++;
    pthread_mutex_unlock(&w->lock);
    const bool is = written_is_whole(w, top, false) && !written_is_mapped_by(st.st_ino, by) &&
                    !written_is_open_anywhere(st.st_ino, by);
    pthread_mutex_lock(&w->lock);
    const bool stays = n->top == top && n->writers == 1;
    written_top_drop(w, top);
    return is && stays;
}

static void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct written *w = written_of(req);
    struct written_node *n = written_node_of(req, ino);
    struct written_file *f = file_of(fi);

    pthread_mutex_lock(&w->lock);
    if (f->writes && n->top && is_last_close(req, w, n)) {
        f->writes = false;
        n->writers--;
        written_note(w, n->top, n->name);
        written_settle(w, n->top);
    }
    pthread_mutex_unlock(&w->lock);
    fuse_reply_err(req, 0);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    close_file(written_of(req), written_node_of(req, ino), file_of(fi));
    fuse_reply_err(req, 0);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t at, struct fuse_file_info *fi)
{
    struct fuse_bufvec from = FUSE_BUFVEC_INIT(size);

    (void)ino;
    from.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
    from.buf[0].fd = file_of(fi)->fd;
    from.buf[0].pos = at;
    fuse_reply_data(req, &from, 0);
}

static void op_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *in, off_t at,
                         struct fuse_file_info *fi)
{
    struct fuse_bufvec to = FUSE_BUFVEC_INIT(fuse_buf_size(in));

    (void)ino;
    to.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
    to.buf[0].fd = file_of(fi)->fd;
    to.buf[0].pos = at;
    const ssize_t n = fuse_buf_copy(&to, in, 0);
    if (n < 0)
        fuse_reply_err(req, (int)-n);
    else
        fuse_reply_write(req, (size_t)n);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    (void)ino;
    const int rc = datasync ? fdatasync(file_of(fi)->fd) : fsync(file_of(fi)->fd);
    fuse_reply_err(req, rc < 0 ? errno : 0);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t at, off_t length,
                         struct fuse_file_info *fi)
{
    (void)ino;
    fuse_reply_err(req, fallocate(file_of(fi)->fd, mode, at, length) < 0 ? errno : 0);
}

static void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t at, int whence, struct fuse_file_info *fi)
{
    (void)ino;
    const off_t found = lseek(file_of(fi)->fd, at, whence);
    if (found < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_lseek(req, found);
}

void written_file_ops(struct fuse_lowlevel_ops *ops)
{
    ops->open = op_open;
    ops->create = op_create;
    ops->flush = op_flush;
    ops->release = op_release;
    ops->read = op_read;
    ops->write_buf = op_write_buf;
    ops->fsync = op_fsync;
    ops->fallocate = op_fallocate;
    ops->lseek = op_lseek;
}
