/* The operations on side files (side.h), and those that make, rename and remove them; all answer EROFS in a mount without
 * names=. */
#ifndef WS_FS_FUSE_OPS_SIDE_H
#define WS_FS_FUSE_OPS_SIDE_H
#include "fs/fuse/fs.h"

void ws_side_op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                       struct fuse_file_info *fi);
void ws_side_op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t dev);
void ws_side_op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void ws_side_op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void ws_side_op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t to_parent,
                       const char *to, unsigned flags);
/* Times, modes and sizes, of versions' files and folders as well: that which does no harm changes nothing. */
void ws_side_op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set);
/* Of an inode of WS_KIND_SIDE. */
void ws_side_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ws_side_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off);
void ws_side_op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off);
void ws_side_op_release(fuse_req_t req, fuse_ino_t ino);

#endif
