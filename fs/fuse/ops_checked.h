/* The mount's operations with the permission checks of default_permissions in front, for a mount that somebody else has made (given.h),
 * perhaps without that option: then the kernel asks nobody. Users are those of the namespace that it was mounted in, so the daemon's own
 * number means nothing; a supplementary group counts where /proc shows the process. */
#ifndef WS_FS_FUSE_OPS_CHECKED_H
#define WS_FS_FUSE_OPS_CHECKED_H
#include "fs/fuse/fs.h"

const struct fuse_lowlevel_ops *ws_ops_checked(void);

#endif
