/* Readiness: when a mount is there for others, and who is told then: a caller, a parent of this process, and its supervisor. */
#ifndef WS_FS_READINESS_H
#define WS_FS_READINESS_H
#include "fs/fuse/fs.h"

struct ws_readiness {
    struct ws_fs *fs;
    void (*ready)(void);
    int ready_pipe; /* pipe to the parent; -1: none */
    int rc;         /* of the look at the mount */
};

/* A daemon that took over waits, before it answers any request, for what its mount had shown: who looks a version up that was there
 * before finds it. Others do not wait. */
void ws_readiness_await(struct ws_fs *fs);
/* A thread beside the session's loop (readiness: struct ws_readiness): inspects the mount as a user would, then reports that it is
 * there. A mount that cannot be inspected ends, and rc says why. */
void *ws_readiness_run(void *readiness);
/* The error of a mount that could not be looked at (rc < 0), which is returned. Once that thread has ended. */
int ws_readiness_error(const struct ws_readiness *s, struct ws_error *err);

#endif
