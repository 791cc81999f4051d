/* The operations that look at names, sizes and attributes, and the ones that are refused. */
#include "fs/fuse/life.h"
#include "fs/fuse/ops_side.h"
#include "fs/fuse/tree.h"
#include "fs/fuse/version_cache.h"
#include "transports/base/vector.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads ahead that the kernel has under way at once. Of versions that are not here they wait for a source, and the kernel's
 * 12 would be used up by a few readers of a silent one: all other reads of the mount would wait for these. */
#define MAX_BACKGROUND 1024

static void run_lookup(struct ws_request *rq)
{
    struct ws_tree_node parent, child;
    struct fuse_entry_param e = {0};
    int rc = ws_tree_node_get(rq->fs, rq->ino, &parent);
    if (rc == 0)
        rc = ws_tree_node_child(rq, &parent, rq->name, &e.ino, &e.entry_timeout);
    ws_tree_node_release(&parent);
    if (rc > 0)
        return; /* parked */
    if (rc == 0)
        rc = ws_tree_node_get(rq->fs, e.ino, &child);
    if (rc == 0) {
        rc = ws_tree_node_attr(rq->fs, &child, &e.attr, &e.attr_timeout);
        ws_tree_node_release(&child);
    }
    if (rc < 0) {
        ws_request_deny(rq, -rc);
        return;
    }
    fuse_reply_entry(rq->req, &e);
    ws_request_end(rq);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    if (strlen(name) > WS_MAX_NAME)
        fuse_reply_err(req, ENAMETOOLONG);
    else
        ws_request_start(req, run_lookup, parent, name, 0, 0, NULL, false);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
    (void)ino;
    (void)n;
    fuse_reply_none(req); /* inodes are computed: there is nothing to free */
}

static void run_getattr(struct ws_request *rq)
{
    struct ws_tree_node n;
    struct stat st;
    double timeout = 0;
    int rc = ws_tree_node_get(rq->fs, rq->ino, &n);
    if (rc == 0 && ws_tree_node_is_former(&n) && !ws_version_files(n.version)) {
        ws_request_park(rq, n.version, WS_FILE_MANIFEST, 0, 0, rq->fs->options.deadline_ms);
        ws_tree_node_release(&n);
        return;
    }
    if (rc == 0) {
        rc = ws_tree_node_attr(rq->fs, &n, &st, &timeout);
        ws_tree_node_release(&n);
    }
    if (rc < 0) {
        ws_request_deny(rq, -rc);
        return;
    }
    fuse_reply_attr(rq->req, &st, timeout);
    ws_request_end(rq);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)fi;
    ws_request_start(req, run_getattr, ino, NULL, 0, 0, NULL, false);
}

/* Of a control file only what `echo >` does: it is truncated. */
static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                       struct fuse_file_info *fi)
{
    enum ws_tree_kind kind = ws_ino_kind(ino);
    if ((kind == WS_KIND_ROOT_VIEW || kind == WS_KIND_MODEL_VIEW) && (to_set & FUSE_SET_ATTR_SIZE) &&
        !(to_set & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)))
        op_getattr(req, ino, fi);
    else
        ws_side_op_setattr(req, ino, attr, to_set);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
    struct ws_fs *fs = fuse_req_userdata(req);
    struct ws_tree_node n;
    char target[WS_MAX_NAME + 128];
    int rc = ws_tree_node_get(fs, ino, &n);
    if (rc == 0)
        rc = ws_tree_kind_type(n.kind) == S_IFLNK ? ws_tree_node_target(fs, &n, target, sizeof(target))
                                                  : -EINVAL;
    ws_tree_node_release(&n);
    if (rc < 0)
        fuse_reply_err(req, -rc);
    else
        fuse_reply_readlink(req, target);
}

/* --- folders: a snapshot of the names at opendir --- */

struct entry {
    fuse_ino_t ino;
    size_t name; /* offset in names */
};
WS_VECTOR(entries, struct entry);
WS_VECTOR(names, char);

struct ws_open_folder {
    LIST_ENTRY(ws_open_folder) link; /* in fs->open_folders, guarded by fs->lock: see struct ws_open_file */
    struct entries entries;
    struct names names;
    bool failed;
};

static void add_entry(void *arg, const char *name, fuse_ino_t ino)
{
    struct ws_open_folder *f = arg;
    const struct entry entry = {ino, f->names.len};
    f->failed = f->failed || names_append_all(&f->names, name, strlen(name) + 1) < 0 ||
                entries_append(&f->entries, entry) < 0;
}

static void free_folder(struct ws_open_folder *f)
{
    if (f) {
        entries_reset(&f->entries);
        names_reset(&f->names);
        free(f);
    }
}

static void list_folder(struct ws_fs *fs, struct ws_open_folder *f)
{
    pthread_mutex_lock(&fs->lock);
    LIST_INSERT_HEAD(&fs->open_folders, f, link);
    pthread_mutex_unlock(&fs->lock);
}

static void unlist_folder(struct ws_fs *fs, struct ws_open_folder *f)
{
    pthread_mutex_lock(&fs->lock);
    LIST_REMOVE(f, link);
    pthread_mutex_unlock(&fs->lock);
    free_folder(f);
}

void ws_fs_close_folders(struct ws_fs *fs)
{
    while (!LIST_EMPTY(&fs->open_folders))
        unlist_folder(fs, LIST_FIRST(&fs->open_folders));
}

/* What a folder has now. 1: parked; NULL in *out then, and with an error. */
static int make_folder(struct ws_request *rq, struct ws_open_folder **out)
{
    struct ws_tree_node n;
    struct ws_open_folder *f = calloc(1, sizeof(*f));
    int rc = f ? ws_tree_node_get(rq->fs, rq->ino, &n) : -ENOMEM;
    *out = NULL;
    if (rc < 0) {
        free_folder(f);
        return rc;
    }
    if ((n.kind == WS_KIND_ROOT || n.kind == WS_KIND_MODEL) && ws_request_await_sources(rq)) {
        ws_tree_node_release(&n);
        free_folder(f);
        return 1;
    }
    add_entry(f, ".", rq->ino);
    add_entry(f, "..", FUSE_ROOT_ID);
    rc = ws_tree_node_list(rq, &n, add_entry, f);
    ws_tree_node_release(&n);
    if (rc == 0 && f->failed)
        rc = -ENOMEM;
    if (rc == 0)
        *out = f;
    else
        free_folder(f);
    return rc;
}

static void run_opendir(struct ws_request *rq)
{
    struct ws_open_folder *f;
    int rc = make_folder(rq, &f);
    if (rc < 0)
        ws_request_deny(rq, -rc);
    if (rc != 0)
        return;
    rq->fi.fh = ws_life_handle(rq->fs->life, f);
    list_folder(rq->fs, f);
    if (fuse_reply_open(rq->req, &rq->fi) != 0)
        unlist_folder(rq->fs, f);
    ws_request_end(rq);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    ws_request_start(req, run_opendir, ino, NULL, 0, 0, fi, false);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct ws_fs *fs = fuse_req_userdata(req);
    struct ws_open_folder *f = ws_life_handled(fs->life, fi->fh);
    (void)ino;
    if (f)
        unlist_folder(fs, f);
    fuse_reply_err(req, 0);
}

static size_t add_plain(fuse_req_t req, char *buf, size_t room, const char *name, fuse_ino_t ino, off_t next)
{
    struct stat st = {.st_ino = ino, .st_mode = ws_tree_kind_type(ws_ino_kind(ino))};
    return fuse_add_direntry(req, buf, room, name, &st, next);
}

static size_t add_plus(fuse_req_t req, char *buf, size_t room, const char *name, fuse_ino_t ino, off_t next)
{
    struct ws_fs *fs = fuse_req_userdata(req);
    struct fuse_entry_param e = {.attr = {.st_ino = ino, .st_mode = ws_tree_kind_type(ws_ino_kind(ino))}};
    struct ws_tree_node n;
    bool dots = name[0] == '.' && (name[1] == 0 || (name[1] == '.' && name[2] == 0));
    if (!dots && ws_tree_node_get(fs, ino, &n) == 0) {
        if (ws_tree_node_attr(fs, &n, &e.attr, &e.attr_timeout) == 0) {
            e.ino = ino; /* counted as a lookup; forgetting is free */
            e.entry_timeout = n.kind == WS_KIND_TENSOR ? WS_FOREVER : 0;
        }
        ws_tree_node_release(&n);
    }
    return fuse_add_direntry_plus(req, buf, room, name, &e, next);
}

static void reply_folder(fuse_req_t req, const struct ws_open_folder *f, size_t size, off_t off, bool plus)
{
    char *buf = malloc(size);
    size_t used = 0;
    if (!buf) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    for (size_t i = off > 0 ? (size_t)off : 0; i < f->entries.len; i++) {
        const char *name = f->names.ptr + f->entries.ptr[i].name;
        size_t n = (plus ? add_plus : add_plain)(req, buf + used, size - used, name, f->entries.ptr[i].ino,
                                                 (off_t)i + 1);
        if (n > size - used)
            break;
        used += n;
    }
    fuse_reply_buf(req, buf, used);
    free(buf);
}

/* Of a folder that a former daemon opened: it is listed anew, in the same order as far as it is the same. */
static void run_list_again(struct ws_request *rq)
{
    struct ws_open_folder *f;
    int rc = make_folder(rq, &f);
    if (rc < 0)
        ws_request_deny(rq, -rc);
    if (rc != 0)
        return;
    reply_folder(rq->req, f, rq->size, rq->off, rq->plus);
    free_folder(f);
    ws_request_end(rq);
}

static void read_folder(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi,
                        bool plus)
{
    const struct ws_fs *fs = fuse_req_userdata(req);
    const struct ws_open_folder *f = ws_life_handled(fs->life, fi->fh);
    if (f)
        reply_folder(req, f, size, off, plus);
    else
        ws_request_start(req, run_list_again, ino, NULL, size, off, fi, plus);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    read_folder(req, ino, size, off, fi, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    read_folder(req, ino, size, off, fi, true);
}

/* --- extended attributes of a tensor --- */

static const char xattr_names[] = "user.wsync.dtype\0user.wsync.shape\0user.wsync.offset\0user.wsync.file\0"
                                  "user.wsync.xxh3";

static void reply_xattr(struct ws_request *rq, const char *value, size_t len)
{
    if (rq->size == 0)
        fuse_reply_xattr(rq->req, len);
    else if (rq->size < len)
        fuse_reply_err(rq->req, ERANGE);
    else
        fuse_reply_buf(rq->req, value, len);
    ws_request_end(rq);
}

static void shape_text(const struct ws_tensor *t, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "[");
    for (unsigned d = 0; d < t->n_dims; d++)
        n += (size_t)snprintf(out + n, cap - n, "%s%" PRIu64, d ? ", " : "", t->shape[d]);
    snprintf(out + n, cap - n, "]");
}

/* The hash needs the bytes: 1 when parked. */
static int hash_text(struct ws_request *rq, struct ws_version *v, size_t file, const struct ws_tensor *t,
                     char *out, size_t cap)
{
    if (t->end > t->begin && !ws_version_is_complete(v)) {
        ws_request_park(rq, v, WS_FILE_ALL, 0, 0, rq->fs->options.deadline_ms);
        return 1;
    }
    if (t->end > t->begin && !ws_version_has_range(v, file, t->begin, t->end - t->begin))
        return -ENODATA; /* it does not come (need=learn) */
    struct ws_region *r = ws_version_region(v, file);
    snprintf(out, cap, "%016" PRIx64,
             t->end > t->begin ? ws_hash(ws_region_data(r) + t->begin, t->end - t->begin) : ws_hash("", 0));
    return 0;
}

static void run_getxattr(struct ws_request *rq)
{
    struct ws_tree_node n;
    struct ws_version_cache *cache;
    char value[WS_MAX_NAME + 256];
    const char *key = strncmp(rq->name, "user.wsync.", 11) == 0 ? rq->name + 11 : "";
    size_t file;
    int rc = ws_ino_kind(rq->ino) == WS_KIND_TENSOR ? ws_tree_node_get(rq->fs, rq->ino, &n) : -ENODATA;
    if (rc < 0) {
        ws_request_error(rq, -rc);
        return;
    }
    rc = ws_version_cache_tensors(rq->fs, n.version, &cache);
    if (rc == 0 && n.index >= cache->n_tensors)
        rc = -ENOENT;
    if (rc == 0) {
        const struct ws_tensor *t = ws_version_cache_tensor(n.version, cache, n.index, &file);
        if (strcmp(key, "dtype") == 0)
            snprintf(value, sizeof(value), "%s", ws_dtype_name(t->dtype));
        else if (strcmp(key, "shape") == 0)
            shape_text(t, value, sizeof(value));
        else if (strcmp(key, "offset") == 0)
            snprintf(value, sizeof(value), "%" PRIu64, t->begin);
        else if (strcmp(key, "file") == 0)
            snprintf(value, sizeof(value), "%s", ws_version_files(n.version)->files[file].name);
        else if (strcmp(key, "xxh3") == 0)
            rc = hash_text(rq, n.version, file, t, value, sizeof(value));
        else
            rc = -ENODATA;
    }
    ws_tree_node_release(&n);
    if (rc > 0)
        return; /* parked */
    if (rc < 0)
        ws_request_error(rq, rc == -EAGAIN ? EIO : -rc);
    else
        reply_xattr(rq, value, strlen(value));
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    ws_request_start(req, run_getxattr, ino, name, size, 0, NULL, false);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    size_t len = ws_ino_kind(ino) == WS_KIND_TENSOR ? sizeof(xattr_names) : 0;
    if (size == 0)
        fuse_reply_xattr(req, len);
    else if (size < len)
        fuse_reply_err(req, ERANGE);
    else
        fuse_reply_buf(req, xattr_names, len);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct ws_fs *fs = fuse_req_userdata(req);
    struct ws_store_stats s;
    (void)ino;
    ws_store_stats(fs->store, &s);
    struct statvfs out = {
        .f_bsize = 1 << 20, .f_frsize = 4096, .f_namemax = WS_MAX_NAME, .f_flag = ST_RDONLY};
    out.f_blocks = s.cache_bytes / out.f_frsize;
    out.f_bfree = out.f_bavail =
        s.used_bytes < s.cache_bytes ? (s.cache_bytes - s.used_bytes) / out.f_frsize : 0;
    fuse_reply_statfs(req, &out);
}

/* --- what is refused --- */

static void op_mkdir(fuse_req_t req, fuse_ino_t p, const char *n, mode_t m)
{
    (void)p, (void)n, (void)m;
    fuse_reply_err(req, EROFS);
}
static void op_symlink(fuse_req_t req, const char *t, fuse_ino_t p, const char *n)
{
    (void)t, (void)p, (void)n;
    fuse_reply_err(req, EROFS);
}
static void op_link(fuse_req_t req, fuse_ino_t i, fuse_ino_t p, const char *n)
{
    (void)i, (void)p, (void)n;
    fuse_reply_err(req, EROFS);
}
static void op_setxattr(fuse_req_t req, fuse_ino_t i, const char *n, const char *v, size_t s, int f)
{
    const struct ws_fs *fs = fuse_req_userdata(req);
    (void)i, (void)n, (void)v, (void)s, (void)f;
    fuse_reply_err(req, fs->names.is_written ? ENOTSUP : EROFS); /* which who copies a file passes over */
}

static void op_init(void *arg, struct fuse_conn_info *conn)
{
    struct ws_fs *fs = arg;
    conn->want &= ~(unsigned)(FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE | FUSE_CAP_SPLICE_READ);
    conn->max_readahead = 4 << 20;
    conn->max_background = MAX_BACKGROUND;
    conn->congestion_threshold = MAX_BACKGROUND;
    if (fs->names.model && (conn->capable & FUSE_CAP_PARALLEL_DIROPS))
        conn->want |= FUSE_CAP_PARALLEL_DIROPS; /* a look-up that waits for a source holds up no other */
#if WS_HAVE_PASSTHROUGH
    if (fs->reads == WS_READS_PASSTHROUGH && (conn->capable & FUSE_CAP_PASSTHROUGH)) {
        conn->want |= FUSE_CAP_PASSTHROUGH;
        conn->max_backing_stack_depth = 0;
    }
#endif
    atomic_store(&fs->has_begun, true);
}

const struct fuse_lowlevel_ops ws_fs_ops = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .readlink = op_readlink,
    .create = ws_side_op_create,
    .mknod = ws_side_op_mknod,
    .mkdir = op_mkdir,
    .unlink = ws_side_op_unlink,
    .rmdir = ws_side_op_rmdir,
    .symlink = op_symlink,
    .rename = ws_side_op_rename,
    .link = op_link,
    .open = ws_op_open,
    .read = ws_op_read,
    .write = ws_op_write,
    .release = ws_op_release,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .readdirplus = op_readdirplus,
    .releasedir = op_releasedir,
    .statfs = op_statfs,
    .setxattr = op_setxattr,
    .getxattr = op_getxattr,
    .listxattr = op_listxattr,
    .poll = ws_op_poll,
};
