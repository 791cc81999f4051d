/* Invalidation: tells the kernel what changed, from a thread of its own. From a request's thread, or while the
 * kernel waits for the daemon, this would deadlock. Any thread may post; nothing here waits. */
#ifndef WS_FS_FUSE_INVALIDATE_H
#define WS_FS_FUSE_INVALIDATE_H
#include "fs/fuse/fs.h"

WS_MUST_USE int ws_invalidate_start(struct ws_fs *fs);
void ws_invalidate_stop(struct ws_fs *fs);
/* A version's name is gone from that folder: the kernel forgets what it has cached of it. */
void ws_invalidate_name(struct ws_fs *fs, fuse_ino_t folder, const char *name);
/* Something can be read from a file that is polled. The handle is this function's from now on. */
void ws_invalidate_poll(struct ws_fs *fs, struct fuse_pollhandle *ph);

#endif
