/* Beacon: a socket by which others see, without a request to the daemon, that the daemon of a mount is there. It listens at the abstract
 * address "wsync-mount/MAJOR:MINOR", the mount's device, and accepts nothing; the kernel ends what is connected to it when the daemon's
 * process ends. It is seen in the same network namespace alone. */
#ifndef WS_FS_FUSE_BEACON_H
#define WS_FS_FUSE_BEACON_H
#include <stdbool.h>
#include <sys/types.h>

/* A descriptor, to be left open until the process ends; -errno: nobody will see this one, as where a daemon that is ending had the
 * same device. */
int ws_beacon_light(dev_t dev);
/* A descriptor for ws_beacon_wait, which closes it; -errno: there is none that can be trusted. *pid: of the daemon, 0 where it has none
 * here. */
int ws_beacon_find(dev_t dev, pid_t *pid);
/* Until its daemon's process has ended; false: it has not within timeout_ms. */
bool ws_beacon_wait(int beacon, int timeout_ms);

#endif
