#include "fs/written/folder.h"
#include "fs/written/node.h"
#include "fs/written/ops.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct ws_written_open *open_of(const struct fuse_file_info *fi)
{
    return (struct ws_written_open *)(uintptr_t)fi->fh;
}

void ws_written_give(fuse_req_t req, int folder, const char *name)
{
    const struct fuse_ctx *who = fuse_req_ctx(req);

    if (who->uid != geteuid() || who->gid != getegid())
        (void)fchownat(folder, name, who->uid, who->gid, AT_SYMLINK_NOFOLLOW);
}

/* Takes fd over. */
static int keep(struct ws_written *w, fuse_ino_t ino, int fd, struct fuse_file_info *fi)
{
    struct ws_written_open *o = malloc(sizeof(*o));

    if (!o) {
        close(fd);
        return -ENOMEM;
    }
    *o = (struct ws_written_open){.fd = fd, .writes = (fi->flags & O_ACCMODE) != O_RDONLY};
    fi->fh = (uintptr_t)o;
    const int backing = ws_written_node_opened(w, ino, o);
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
    fi->backing_id = backing;
#endif
    fi->keep_cache = backing == 0;
    return 0;
}

static void let_go(struct ws_written *w, fuse_ino_t ino, struct ws_written_open *o)
{
    ws_written_node_closed(w, ino, o);
    close(o->fd);
    free(o);
}

void ws_written_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct ws_written *w = fuse_req_userdata(req);
    char path[32];

    ws_written_node_path(w, ino, path);
    const int fd = open(path, (fi->flags & ~(O_NOFOLLOW | O_CREAT | O_EXCL | O_APPEND)) | O_CLOEXEC);
    const int rc = fd < 0 ? -errno : keep(w, ino, fd, fi);
    if (rc < 0)
        fuse_reply_err(req, -rc);
    else if (fuse_reply_open(req, fi) != 0) /* nobody will close it */
        let_go(w, ino, open_of(fi));
}

void ws_written_op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                          struct fuse_file_info *fi)
{
    struct ws_written *w = fuse_req_userdata(req);
    const struct ws_written_node *p = ws_written_node_of(parent);
    /* Folders are versions; a file in the top folder is none, whatever it is called. */
    const int folder = p ? p->fd : w->lower.below;
    struct fuse_entry_param e;
    const int fd =
        openat(folder, name, (fi->flags & ~(O_APPEND | O_NOFOLLOW)) | O_CREAT | O_NOFOLLOW | O_CLOEXEC, mode);
    int rc = fd < 0 ? -errno : 0;

    if (rc == 0) {
        ws_written_give(req, folder, name);
        rc = ws_written_node_look(w, parent, name, &e);
        if (rc < 0)
            close(fd);
    }
    if (rc == 0 && (rc = keep(w, e.ino, fd, fi)) < 0)
        ws_written_node_forget(w, e.ino, 1);
    if (rc < 0) {
        fuse_reply_err(req, -rc);
    } else if (fuse_reply_create(req, &e, fi) != 0) {
        let_go(w, e.ino, open_of(fi));
        ws_written_node_forget(w, e.ino, 1);
    }
}

void ws_written_op_read(fuse_req_t req, fuse_ino_t ino, size_t n, off_t at, struct fuse_file_info *fi)
{
    struct fuse_bufvec b = FUSE_BUFVEC_INIT(n);

    (void)ino;
    b.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
    b.buf[0].fd = open_of(fi)->fd;
    b.buf[0].pos = at;
    fuse_reply_data(req, &b, 0);
}

void ws_written_op_write(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *in, off_t at,
                         struct fuse_file_info *fi)
{
    struct fuse_bufvec b = FUSE_BUFVEC_INIT(fuse_buf_size(in));

    (void)ino;
    b.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
    b.buf[0].fd = open_of(fi)->fd;
    b.buf[0].pos = at;
    const ssize_t n = fuse_buf_copy(&b, in, 0);
    if (n < 0)
        fuse_reply_err(req, (int)-n);
    else
        fuse_reply_write(req, (size_t)n);
}

/* close(2) waits for this. A file that another process has as well may be written on; that is seen by its time. */
void ws_written_op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct ws_written *w = fuse_req_userdata(req);
    const struct ws_written_node *n = ws_written_node_of(ino);
    struct ws_written_open *o = open_of(fi);

    ws_written_node_flushed(w, ino, o);
    if (o->writes && n->folder)
        ws_written_folder_settle(w, n->folder);
    fuse_reply_err(req, 0);
}

void ws_written_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct ws_written *w = fuse_req_userdata(req);
    struct ws_written_open *o = open_of(fi);
    struct ws_written_folder *f = o->writes ? ws_written_node_of(ino)->folder : NULL;

    let_go(w, ino, o);
    if (f)
        ws_written_folder_settle(w, f);
    fuse_reply_err(req, 0);
}

void ws_written_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    const int fd = open_of(fi)->fd;

    (void)ino;
    fuse_reply_err(req, (datasync ? fdatasync(fd) : fsync(fd)) == 0 ? 0 : errno);
}

void ws_written_op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t at, off_t n,
                             struct fuse_file_info *fi)
{
    (void)ino;
    fuse_reply_err(req, fallocate(open_of(fi)->fd, mode, at, n) == 0 ? 0 : errno);
}

void ws_written_op_lseek(fuse_req_t req, fuse_ino_t ino, off_t at, int whence, struct fuse_file_info *fi)
{
    const off_t to = lseek(open_of(fi)->fd, at, whence);

    (void)ino;
    if (to < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_lseek(req, to);
}

void ws_written_op_copy(fuse_req_t req, fuse_ino_t from, off_t from_at, struct fuse_file_info *from_fi,
                        fuse_ino_t to, off_t to_at, struct fuse_file_info *to_fi, size_t n, int flags)
{
    const ssize_t done =
        copy_file_range(open_of(from_fi)->fd, &from_at, open_of(to_fi)->fd, &to_at, n, (unsigned)flags);

    (void)from;
    (void)to;
    if (done < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_write(req, (size_t)done);
}

int ws_written_truncate(struct ws_written *w, fuse_ino_t ino, off_t bytes, const struct fuse_file_info *fi)
{
    char path[32];

    ws_written_node_path(w, ino, path);
    return (fi ? ftruncate(open_of(fi)->fd, bytes) : truncate(path, bytes)) == 0 ? 0 : -errno;
}
