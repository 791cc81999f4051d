/* Outside: what a daemon has to do in its own mount is done by a child process.
 *
 * A thread that waits for a reply of its own process cannot be killed once the request has been read. After a
 * SIGKILL no thread answers; the waiting one keeps the process, the process keeps the descriptor of /dev/fuse,
 * and so the kernel keeps the connection: the daemon never ends, and every process that touches the mount
 * waits for ever. A child without the descriptor gets ENOTCONN, as every other process does. */
#ifndef WS_FS_FUSE_OUTSIDE_H
#define WS_FS_FUSE_OUTSIDE_H
#include "transports/base/error.h"

/* Is there something at the path? 0 or a negative errno. */
WS_MUST_USE int ws_outside_stat(const char *path);
/* Mounts the detached file system there. 0 or a negative errno. */
WS_MUST_USE int ws_outside_attach(int file_system, const char *path);

/* In a child process: closes all descriptors from that one on. System calls only. -errno. */
WS_MUST_USE int ws_outside_close_from(unsigned first);

#endif
