/* Run as: the user that a daemon becomes once root's work is done (run-as=). */
#ifndef WS_FS_FUSE_RUN_AS_H
#define WS_FS_FUSE_RUN_AS_H
#include "transports/base/error.h"
#include <stdint.h>
#include <sys/types.h>

#define WS_RUN_AS_GROUPS 64

struct ws_run_as {
    const char *name; /* borrowed; NULL: nobody else */
    uid_t uid;
    gid_t gid, groups[WS_RUN_AS_GROUPS];
    int n_groups;
};

/* Looks the user up, with all groups. -ENOENT: there is none; -EPERM: it is
 * root, or this process is not; -E2BIG: it has too many groups. */
WS_MUST_USE int ws_run_as_find(struct ws_run_as *out, const char *name, struct ws_error *err);
/* The whole process becomes that user, without any capability and for good. While there is one thread. -errno: it must end, as it may be half of both. */
WS_MUST_USE int ws_run_as_become(const struct ws_run_as *who, struct ws_error *err);
/* The same for a process of one thread, which keeps these capabilities. System calls only. -errno. */
WS_MUST_USE int ws_run_as_keep(const struct ws_run_as *who, uint64_t capabilities);

/* Can that user reach the path, by the modes of the folders above it? Looks in a child process. -EACCES and their like. */
WS_MUST_USE int ws_run_as_reaches(const struct ws_run_as *who, const char *path);

#endif
