/* A place: the path of a unix socket that one process at a time listens at. Who takes it holds a lock on the
 * file PATH.owner for as long as it has it, so that of two that come in the same moment neither takes the
 * other's socket for one that was left. */
#ifndef WS_TRANSPORTS_IPC_PLACE_H
#define WS_TRANSPORTS_IPC_PLACE_H
#include "transports/base/error.h"
#include <sys/types.h>

struct ws_ipc_place {
    char *path;
    int listener, owner;
    dev_t dev;
    ino_t ino; /* of the socket that we made; 0: none yet */
};
/* gid: the group that may connect, beside the owner; (gid_t)-1: nobody. -EADDRINUSE: it is another's;
 * -EEXIST: what is there is no socket; or what the system says. */
WS_MUST_USE int ws_ipc_place_take(struct ws_ipc_place *p, const char *path, gid_t gid, struct ws_error *err);
void ws_ipc_place_leave(struct ws_ipc_place *p);

#endif
