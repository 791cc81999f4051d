/* Listener: a unix socket at a path that one process at a time listens on. The process holds a lock on the file
 * PATH.owner while it listens, so that of two that start in the same moment neither takes the other's socket
 * for one that was left behind. */
#ifndef WS_TRANSPORTS_IPC_LISTENER_H
#define WS_TRANSPORTS_IPC_LISTENER_H
#include "transports/base/error.h"
#include <sys/types.h>

struct ws_ipc_listener {
    char *path;
    int fd, owner; /* the socket; PATH.owner */
    dev_t dev;
    ino_t ino; /* of the socket's file that this process made; 0: none yet */
};
/* gid: the group that may connect, beside the owner; (gid_t)-1: none. -EADDRINUSE: another process listens;
 * -EEXIST: another kind of file is at path; or what a system call failed with. */
WS_MUST_USE int ws_ipc_listener_open(struct ws_ipc_listener *p, const char *path, gid_t gid,
                                     struct ws_error *err);
void ws_ipc_listener_close(struct ws_ipc_listener *p);

#endif
