/* Outside: what a daemon does in its own mount is done by a child of it.
 *
 * A thread that waits for a reply of its own process cannot be killed once the request has been read: after a
 * SIGKILL nobody answers any more, the thread keeps the process, that keeps the descriptor of /dev/fuse, and
 * with that the kernel keeps the connection: the daemon never ends, and whoever touches the mount waits for
 * ever. A child that has not the descriptor gets ENOTCONN as everybody does. */
#ifndef WS_FS_FUSE_OUTSIDE_H
#define WS_FS_FUSE_OUTSIDE_H
#include "transports/base/error.h"

/* Is there something at the path? 0 or a negative errno. */
WS_MUST_USE int ws_outside_look(const char *path);
/* Mounts the detached file system there. 0 or a negative errno. */
WS_MUST_USE int ws_outside_attach(int file_system, const char *path);

#endif
