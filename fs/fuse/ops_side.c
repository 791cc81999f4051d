#include "fs/fuse/ops_side.h"
#include "fs/fuse/tree.h"
#include <errno.h>
#include <stdio.h> /* RENAME_NOREPLACE */
#include <stdlib.h>
#include <string.h>

/* The version of a folder in the root that takes side files, with its files known; a reference. -EROFS. */
static int folder_of(struct ws_fs *fs, fuse_ino_t ino, struct ws_version **out)
{
    struct ws_tree_node n;

    if (!fs->names.is_written || ws_ino_kind(ino) != WS_KIND_VERSION || !(ws_ino_index(ino) & WS_NAMED))
        return -EROFS;
    int rc = ws_tree_node_get(fs, ino, &n);
    if (rc < 0)
        return rc;
    *out = n.version;
    if (ws_version_files(n.version))
        return 0;
    ws_tree_node_release(&n); /* the look-up that came before knew them: it has gone and come meanwhile */
    return -ESTALE;
}

static bool is_its_own(struct ws_version *v, const char *name)
{
    return ws_manifest_find(ws_version_files(v), name) != NULL;
}

static int create(struct ws_fs *fs, fuse_ino_t parent, const char *name, uint64_t *id)
{
    struct ws_version *v;
    int rc = strlen(name) > WS_MAX_NAME ? -ENAMETOOLONG : folder_of(fs, parent, &v);

    if (rc < 0)
        return rc;
    rc = is_its_own(v, name) ? -EROFS : ws_side_create(&fs->side, v, name, id); /* removed, and made anew */
    ws_version_put(v);
    return rc;
}

static int describe(struct ws_fs *fs, uint64_t id, struct fuse_entry_param *e)
{
    const struct ws_tree_node n = {.ino = ws_side_ino(id), .kind = WS_KIND_SIDE};

    *e = (struct fuse_entry_param){.ino = n.ino};
    return ws_tree_node_attr(fs, &n, &e->attr, &e->attr_timeout);
}

void ws_side_op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                       struct fuse_file_info *fi)
{
    struct ws_fs *fs = fuse_req_userdata(req);
    struct fuse_entry_param e;
    uint64_t id = 0;
    int rc = create(fs, parent, name, &id);

    (void)mode;
    if (rc == 0)
        rc = ws_side_hold(&fs->side, id);
    if (rc == 0 && (rc = describe(fs, id, &e)) < 0)
        ws_side_let_go(&fs->side, id);
    if (rc < 0)
        fuse_reply_err(req, -rc);
    else if (fuse_reply_create(req, &e, fi) != 0)
        ws_side_let_go(&fs->side, id); /* who opened it is gone: release will not come */
}

void ws_side_op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t dev)
{
    struct ws_fs *fs = fuse_req_userdata(req);
    struct fuse_entry_param e;
    uint64_t id = 0;
    int rc = S_ISREG(mode) ? create(fs, parent, name, &id) : -EROFS;

    (void)dev;
    if (rc == 0)
        rc = describe(fs, id, &e);
    if (rc < 0)
        fuse_reply_err(req, -rc);
    else
        fuse_reply_entry(req, &e);
}

void ws_side_op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct ws_fs *fs = fuse_req_userdata(req);
    struct ws_version *v;
    int rc = folder_of(fs, parent, &v);

    if (rc == 0) {
        rc = is_its_own(v, name) ? ws_side_hide(&fs->side, v, name) : ws_side_unlink(&fs->side, v, name);
        ws_version_put(v);
    }
    fuse_reply_err(req, -rc);
}

/* Of a version whose files are not known nobody could have removed any: an empty folder. */
static bool shows_own(struct ws_fs *fs, struct ws_version *v)
{
    const struct ws_manifest *m = ws_version_files(v);

    for (size_t i = 0; m && i < m->n_files; i++)
        if (!ws_side_hides(&fs->side, v, m->files[i].name))
            return true;
    return false;
}

void ws_side_op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct ws_fs *fs = fuse_req_userdata(req);
    struct ws_version *v =
        fs->names.is_written && parent == FUSE_ROOT_ID ? ws_names_find(&fs->names, fs->store, name) : NULL;
    int rc = -EROFS;

    if (v) {
        rc = ws_side_hides(&fs->side, v, NULL) ? -ENOENT
             : shows_own(fs, v)                ? -ENOTEMPTY
                                               : ws_side_hide(&fs->side, v, NULL);
        ws_version_put(v);
    }
    fuse_reply_err(req, -rc);
}

void ws_side_op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t to_parent,
                       const char *to, unsigned flags)
{
    struct ws_fs *fs = fuse_req_userdata(req);
    struct ws_version *v;
    int rc = parent != to_parent                   ? -EROFS
             : flags & ~(unsigned)RENAME_NOREPLACE ? -EINVAL
             : strlen(to) > WS_MAX_NAME            ? -ENAMETOOLONG
                                                   : folder_of(fs, parent, &v);

    if (rc == 0) {
        rc = is_its_own(v, name) || is_its_own(v, to)
                 ? -EROFS
                 : ws_side_rename(&fs->side, v, name, to, flags & RENAME_NOREPLACE);
        ws_version_put(v);
    }
    fuse_reply_err(req, -rc);
}

static int set_side(struct ws_fs *fs, fuse_ino_t ino, const struct stat *attr, int to_set)
{
    struct timespec mtime = attr->st_mtim;
    int rc = 0;

    if (to_set & FUSE_SET_ATTR_SIZE)
        rc = attr->st_size < 0 ? -EINVAL
                               : ws_side_resize(&fs->side, ws_side_number(ino), (uint64_t)attr->st_size);
    if (to_set & FUSE_SET_ATTR_MTIME_NOW)
        clock_gettime(CLOCK_REALTIME, &mtime);
    if (rc == 0 && (to_set & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW)))
        rc = ws_side_set_mtime(&fs->side, ws_side_number(ino), mtime);
    return rc;
}

/* Does it change nothing that anybody else sees? */
static bool is_harmless(fuse_ino_t ino, int to_set)
{
    const enum ws_tree_kind kind = ws_ino_kind(ino);
    const bool is_file = kind == WS_KIND_FILE || kind == WS_KIND_FILL;
    const bool is_folder = kind == WS_KIND_VERSION && (ws_ino_index(ino) & WS_NAMED);

    return (is_file || is_folder) && !(to_set & FUSE_SET_ATTR_SIZE);
}

void ws_side_op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set)
{
    struct ws_fs *fs = fuse_req_userdata(req);
    struct ws_tree_node n;
    double timeout = 0;
    struct stat st;
    int rc = !fs->names.is_written ? -EROFS : to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID) ? -EPERM : 0;

    if (rc == 0 && ws_ino_kind(ino) == WS_KIND_SIDE)
        rc = set_side(fs, ino, attr, to_set);
    else if (rc == 0 && !is_harmless(ino, to_set))
        rc = -EROFS;
    if (rc == 0)
        rc = ws_tree_node_get(fs, ino, &n);
    if (rc == 0) {
        rc = ws_tree_node_attr(fs, &n, &st, &timeout);
        ws_tree_node_release(&n);
    }
    if (rc < 0)
        fuse_reply_err(req, -rc);
    else
        fuse_reply_attr(req, &st, timeout);
}

void ws_side_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct ws_fs *fs = fuse_req_userdata(req);
    const uint64_t id = ws_side_number(ino);
    int rc = ws_side_hold(&fs->side, id);

    if (rc == 0 && (fi->flags & O_TRUNC) && (rc = ws_side_resize(&fs->side, id, 0)) < 0)
        ws_side_let_go(&fs->side, id);
    if (rc < 0)
        fuse_reply_err(req, rc == -ENOENT ? ESTALE : -rc);
    else if (fuse_reply_open(req, fi) != 0)
        ws_side_let_go(&fs->side, id);
}

void ws_side_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off)
{
    struct ws_fs *fs = fuse_req_userdata(req);
    char *bytes;
    size_t n;
    const int rc = ws_side_read(&fs->side, ws_side_number(ino), (uint64_t)off, size, &bytes, &n);

    if (rc < 0) {
        fuse_reply_err(req, -rc);
        return;
    }
    fuse_reply_buf(req, bytes, n);
    free(bytes);
}

void ws_side_op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off)
{
    struct ws_fs *fs = fuse_req_userdata(req);
    const int rc = ws_side_write(&fs->side, ws_side_number(ino), (uint64_t)off, buf, size);

    if (rc < 0)
        fuse_reply_err(req, -rc);
    else
        fuse_reply_write(req, size);
}

void ws_side_op_release(fuse_req_t req, fuse_ino_t ino)
{
    struct ws_fs *fs = fuse_req_userdata(req);

    ws_side_let_go(&fs->side, ws_side_number(ino));
    fuse_reply_err(req, 0);
}
