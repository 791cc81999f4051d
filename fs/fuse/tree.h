/* Tree: names, inode numbers and attributes. Which names there are, what each is; never the bytes. */
#ifndef WS_FS_FUSE_TREE_H
#define WS_FS_FUSE_TREE_H
#include "fs/fuse/request.h"

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
/* The child of a folder. Where the version's names are not here yet this parks the request and returns 1.
 * -ENOENT. *timeout is the name's. */
WS_MUST_USE int ws_tree_node_child(struct ws_request *rq, const struct ws_tree_node *parent, const char *name,
                                   fuse_ino_t *ino, double *timeout);
/* Calls visit for each name of a folder but . and ..; parks like ws_tree_node_child. */
typedef void ws_visit_name(void *arg, const char *name, fuse_ino_t ino);
WS_MUST_USE int ws_tree_node_list(struct ws_request *rq, const struct ws_tree_node *n, ws_visit_name *visit,
                                  void *arg);
/* Target of a link. */
WS_MUST_USE int ws_tree_node_target(struct ws_fs *fs, const struct ws_tree_node *n, char *out, size_t cap);
bool ws_view_is_written(enum ws_view view);       /* may it be opened for writing? */
mode_t ws_tree_kind_type(enum ws_tree_kind kind); /* S_IFDIR, S_IFREG or S_IFLNK */

/* Do reads of this file, of a version with its manifest, come to the daemon, so that it learns from them (need=learn)? */
bool ws_fs_sees_reads(struct ws_version *v, size_t file);

/* How long the list of a folder waits for a version's manifest: not as long as an opening does, which may be an engine's, unless
 * the version must first be made. */
unsigned ws_tree_list_ms(const struct ws_fs *fs, struct ws_version *v);

#endif
