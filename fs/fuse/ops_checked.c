#include "fs/fuse/ops_checked.h"
#include "fs/fuse/tree.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define MAX_GROUPS 1024

enum { EXECUTE = 1, WRITE = 2, READ = 4 };

static bool is_in_group(fuse_req_t req, gid_t gid)
{
    gid_t groups[MAX_GROUPS];
    if (fuse_req_ctx(req)->gid == gid)
        return true;
    const int n = fuse_req_ctx(req)->pid ? fuse_req_getgroups(req, MAX_GROUPS, groups) : 0;
    for (int i = 0; i < n && i < MAX_GROUPS; i++)
        if (groups[i] == gid)
            return true;
    return false;
}

static int attributes(fuse_req_t req, fuse_ino_t ino, struct stat *st)
{
    struct ws_fs *fs = fuse_req_userdata(req);
    struct ws_tree_node n;
    double timeout;
    int rc = ws_tree_node_get(fs, ino, &n);
    if (rc < 0)
        return rc;
    rc = ws_tree_node_attr(fs, &n, st, &timeout);
    ws_tree_node_release(&n);
    return rc;
}

/* Answers the request where it may not. What is gone the kernel looks for once more. */
static bool refuses(fuse_req_t req, fuse_ino_t ino, mode_t wanted)
{
    const struct fuse_ctx *who = fuse_req_ctx(req);
    struct stat st;
    if (who->uid == 0)
        return false;
    if (attributes(req, ino, &st) < 0) {
        fuse_reply_err(req, ESTALE);
        return true;
    }
    const mode_t mode = who->uid == st.st_uid         ? st.st_mode >> 6
                        : is_in_group(req, st.st_gid) ? st.st_mode >> 3
                                                      : st.st_mode;
    if ((mode & wanted) == wanted)
        return false;
    fuse_reply_err(req, EACCES);
    return true;
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    if (!refuses(req, parent, EXECUTE))
        ws_fs_ops.lookup(req, parent, name);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (!refuses(req, ino, READ))
        ws_fs_ops.opendir(req, ino, fi);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    const int how = fi->flags & O_ACCMODE;
    if (!refuses(req, ino, how == O_RDONLY ? READ : how == O_WRONLY ? WRITE : READ | WRITE))
        ws_fs_ops.open(req, ino, fi);
}

/* Sizes and times of now are for whoever may write, all else for the owner. */
static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                       struct fuse_file_info *fi)
{
    const int by_writers = FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_MTIME_NOW | FUSE_SET_ATTR_ATIME_NOW;
    const uid_t uid = fuse_req_ctx(req)->uid;
    struct stat st;
    if (to_set & ~by_writers && uid != 0 && (attributes(req, ino, &st) < 0 || st.st_uid != uid))
        fuse_reply_err(req, EPERM);
    else if (to_set & ~by_writers || fi || !refuses(req, ino, WRITE))
        ws_fs_ops.setattr(req, ino, attr, to_set, fi);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                      struct fuse_file_info *fi)
{
    if (!refuses(req, parent, WRITE | EXECUTE))
        ws_fs_ops.create(req, parent, name, mode, fi);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t dev)
{
    if (!refuses(req, parent, WRITE | EXECUTE))
        ws_fs_ops.mknod(req, parent, name, mode, dev);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    if (!refuses(req, parent, WRITE | EXECUTE))
        ws_fs_ops.unlink(req, parent, name);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    if (!refuses(req, parent, WRITE | EXECUTE))
        ws_fs_ops.rmdir(req, parent, name);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t to,
                      const char *new_name, unsigned flags)
{
    if (!refuses(req, parent, WRITE | EXECUTE) && !refuses(req, to, WRITE | EXECUTE))
        ws_fs_ops.rename(req, parent, name, to, new_name, flags);
}

const struct fuse_lowlevel_ops *ws_ops_checked(void)
{
    static struct fuse_lowlevel_ops ops;
    ops = ws_fs_ops;
    ops.lookup = op_lookup;
    ops.opendir = op_opendir;
    ops.open = op_open;
    ops.setattr = op_setattr;
    ops.create = op_create;
    ops.mknod = op_mknod;
    ops.unlink = op_unlink;
    ops.rmdir = op_rmdir;
    ops.rename = op_rename;
    return &ops;
}
