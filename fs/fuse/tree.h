/* Tree: names. Which there are, and which node each leads to. */
#ifndef WS_FS_FUSE_TREE_H
#define WS_FS_FUSE_TREE_H
#include "fs/fuse/request.h"
#include "fs/fuse/tree_node.h"

/* The child of a folder. Where the version's names are not here yet this parks the request and returns 1.
 * -ENOENT. *timeout is the name's. */
WS_MUST_USE int ws_tree_node_child(struct ws_request *rq, const struct ws_tree_node *parent, const char *name,
                                   fuse_ino_t *ino, double *timeout);
/* Calls visit for each name of a folder but . and ..; parks like ws_tree_node_child. */
typedef void ws_visit_name(void *arg, const char *name, fuse_ino_t ino);
WS_MUST_USE int ws_tree_node_list(struct ws_request *rq, const struct ws_tree_node *n, ws_visit_name *visit,
                                  void *arg);
/* Do reads of this file, of a version with its manifest, come to the daemon, so that it learns from them (need=learn)? */
bool ws_fs_sees_reads(struct ws_version *v, size_t file);

/* How long the list of a folder waits for a version's manifest: not as long as an opening does, which may be an engine's, unless
 * the version must first be made. */
unsigned ws_tree_list_ms(const struct ws_fs *fs, struct ws_version *v);

#endif
