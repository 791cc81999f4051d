/* User: what becomes of a daemon with run-as=, which mounts as root and serves as somebody else, with a broker (fuse/broker.h) for what
 * still needs root. Without that option all of this does nothing. */
#ifndef WS_FS_USER_H
#define WS_FS_USER_H
#include "fs/fuse/fs.h"

/* Before it mounts: the daemon looks at its mount, and detaches it, as that user. */
WS_MUST_USE int ws_user_check_reach(const struct ws_mount_options *o, struct ws_error *err);
/* Once it is mounted: from here on with the rights of run-as=. Before any thread is started. */
WS_MUST_USE int ws_user_become(struct ws_fs *fs, struct ws_error *err);

#endif
