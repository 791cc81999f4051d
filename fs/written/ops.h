/* Operations of the mount: on names (ops_names.c) and on open files (ops_files.c). */
#ifndef WS_FS_WRITTEN_OPS_H
#define WS_FS_WRITTEN_OPS_H
#include "fs/written/caller.h"
#include "fs/written/nodes.h"
#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#define WRITTEN_NEVER ((mode_t)(S_ISUID | S_ISGID)) /* of new files: below, they could be run */

void written_name_ops(struct fuse_lowlevel_ops *ops);
void written_file_ops(struct fuse_lowlevel_ops *ops);

struct written *written_of(fuse_req_t req);
struct written_node *written_node_of(fuse_req_t req, fuse_ino_t ino);
/* A path to a node's file, which leads to it whatever its name is now. */
void written_path(const struct written_node *n, char out[32]);
/* Until written_be_self what is made is the caller's (caller.h). */
void written_become(fuse_req_t req);
/* With the lock, since the child was made: notes that; *st is what is shown of it. */
void written_made(const struct written *w, const struct written_node *parent, const struct written_node *n,
                  struct stat *st);

#endif
