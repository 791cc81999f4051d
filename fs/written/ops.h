/* Requests of a shared folder: ops_names.c has those on names and folders, ops_files.c those on what is in files. */
#ifndef WS_FS_WRITTEN_OPS_H
#define WS_FS_WRITTEN_OPS_H
#include "fs/written/written.h"

void ws_written_op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                          struct fuse_file_info *fi);
void ws_written_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ws_written_op_read(fuse_req_t req, fuse_ino_t ino, size_t n, off_t at, struct fuse_file_info *fi);
void ws_written_op_write(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *in, off_t at,
                         struct fuse_file_info *fi);
void ws_written_op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ws_written_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ws_written_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void ws_written_op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t at, off_t n,
                             struct fuse_file_info *fi);
void ws_written_op_lseek(fuse_req_t req, fuse_ino_t ino, off_t at, int whence, struct fuse_file_info *fi);
void ws_written_op_copy(fuse_req_t req, fuse_ino_t from, off_t from_at, struct fuse_file_info *from_fi,
                        fuse_ino_t to, off_t to_at, struct fuse_file_info *to_fi, size_t n, int flags);
/* A file's length, by fi where it is open. 0 or -errno. */
int ws_written_truncate(struct ws_written *w, fuse_ino_t ino, off_t bytes, const struct fuse_file_info *fi);
/* What is made belongs to whoever asks. */
void ws_written_give(fuse_req_t req, int folder, const char *name);

#endif
