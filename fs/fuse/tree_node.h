/* Tree node: inode numbers (fs.h has the functions that make and read them), what each leads to, and its attributes; never the bytes. */
#ifndef WS_FS_FUSE_TREE_NODE_H
#define WS_FS_FUSE_TREE_NODE_H
#include "fs/fuse/fs.h"

#define WS_FOREVER 1e9 /* seconds: what never changes */

/* What an inode leads to; references are put by ws_tree_node_release. */
struct ws_tree_node {
    fuse_ino_t ino;
    enum ws_tree_kind kind;
    uint64_t index;
    struct ws_model *model;     /* model kinds */
    struct ws_version *version; /* version kinds */
};
/* -ENOENT: what it led to is gone; -ESTALE in a mount that outlives its daemons. */
WS_MUST_USE int ws_tree_node_get(struct ws_fs *fs, fuse_ino_t ino, struct ws_tree_node *out);
void ws_tree_node_release(struct ws_tree_node *n);
/* A former daemon's? The kernel may still pass such a file through, to the memory that that had, and takes no other: it is opened anew, as
 * the inode that its name leads to now. */
bool ws_tree_node_is_former(const struct ws_tree_node *n);
/* Attributes; *timeout in seconds. */
WS_MUST_USE int ws_tree_node_attr(struct ws_fs *fs, const struct ws_tree_node *n, struct stat *st,
                                  double *timeout);
/* Target of a link. */
WS_MUST_USE int ws_tree_node_target(struct ws_fs *fs, const struct ws_tree_node *n, char *out, size_t cap);
/* The version of a model's link, counted; NULL: it has none. index: enum ws_model_link, and WS_NAMED. */
struct ws_version *ws_tree_link_version(struct ws_model *m, uint64_t index);
bool ws_view_is_written(enum ws_view view);       /* may it be opened for writing? */
mode_t ws_tree_kind_type(enum ws_tree_kind kind); /* S_IFDIR, S_IFREG or S_IFLNK */

#endif
