/* Notify: tells the kernel what changed, from a thread of its own: doing so from a request's thread, or while
 * the kernel waits for us, would deadlock. */
#ifndef WS_FS_FUSE_INVALIDATE_H
#define WS_FS_FUSE_INVALIDATE_H
#include "fs/fuse/fs.h"

WS_MUST_USE int ws_notify_start(struct ws_fs *fs);
void ws_notify_stop(struct ws_fs *fs);
/* A version's folder is gone from its model's. */
void ws_notify_gone(struct ws_fs *fs, uint64_t model_id, const char *name);
/* Something can be read from a file that is polled; takes the handle. */
void ws_notify_poll(struct ws_fs *fs, struct fuse_pollhandle *ph);

#endif
