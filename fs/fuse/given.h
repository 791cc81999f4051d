/* Given: a mount that somebody else makes. Whoever may mount opens /dev/fuse, mounts it where readers see it, and gives this process the
 * descriptor, by inheritance or over a unix socket, as Kubernetes' drivers do for containers without privileges. The daemon knows
 * nothing of the place then: it does not unmount, and who looks for it by its path may be in another mount namespace. */
#ifndef WS_FS_FUSE_GIVEN_H
#define WS_FS_FUSE_GIVEN_H
#include "transports/base/error.h"

/* "/dev/fd/N": N; -1: another path. */
int ws_given_number(const char *mountpoint);
/* Is it open, and /dev/fuse? -EINVAL. */
WS_MUST_USE int ws_given_check(int fd, struct ws_error *err);
/* The descriptor that the process listening at the socket's path sends first, with a byte or more. Waits for it, and for the
 * socket, 30 s. The caller owns *fd. -ETIMEDOUT; -EINVAL: what came is not /dev/fuse; what connect(2) failed with. */
WS_MUST_USE int ws_given_receive(const char *path, int *fd, struct ws_error *err);

#endif
