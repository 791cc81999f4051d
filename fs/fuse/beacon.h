/* Beacon: a socket by which others see, without a request to the daemon, that the daemon of a mount is there. It listens at the abstract
 * address "wsync-mount/MAJOR:MINOR/PLACE", the mount's device and the first place that is free: the kernel gives a device that is gone
 * to the next mount, while the daemon before is still ending. It accepts nothing; the kernel ends what is connected to it when the
 * daemon's process ends. It is seen in the same network namespace alone. */
#ifndef WS_FS_FUSE_BEACON_H
#define WS_FS_FUSE_BEACON_H
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define WS_BEACON_PLACES 8 /* of one device */

/* The daemon of a mount, and those that are ending of mounts that had its device. */
struct ws_beacons {
    struct {
        int fd; /* of its process, else of the socket */
        pid_t pid;
    } seen[WS_BEACON_PLACES];
    size_t n;
};

/* A descriptor, to be left open until the process ends; -errno: nobody will see this one. */
int ws_beacon_light(dev_t dev);
/* Those that can be trusted. The caller ends with ws_beacons_wait or ws_beacons_close. */
void ws_beacons_find(dev_t dev, struct ws_beacons *out);
/* Until the processes of all have ended; else false after timeout_ms, and *pid is of one that has not, 0 where it has none here. */
bool ws_beacons_wait(struct ws_beacons *b, int timeout_ms, pid_t *pid);
void ws_beacons_close(struct ws_beacons *b);

#endif
