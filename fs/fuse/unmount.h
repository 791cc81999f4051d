/* Unmount: what 'wsync umount' does with a mount of whatever daemon. */
#ifndef WS_FS_FUSE_UNMOUNT_H
#define WS_FS_FUSE_UNMOUNT_H
#include "transports/base/error.h"
#include <stdbool.h>

/* Ends the mount that is on top at path; lazy: once the last open file is closed. A busy one is tried again for 2.5 s
 * by root; others unmount through fusermount3, which tries once. -EINVAL: no wsync mount; -EBUSY leaves all as it
 * was. Unless lazy, waits for its daemon's end; -EINPROGRESS: it is unmounted, and the daemon has not ended within 10 s. */
WS_MUST_USE int ws_unmount(const char *path, bool lazy, struct ws_error *err);

#endif
