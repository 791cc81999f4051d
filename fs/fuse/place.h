/* Place: the folder that a mount is on, and whether what is there is still that mount. A path is only a name:
 * a mount that was detached lazily lives on while a process has a file of it open, and its path may be a
 * successor's. The daemon knows its mount by the device number, which no other file system has while the
 * connection lives; without a connection there is nothing of its own to touch. */
#ifndef WS_FS_FUSE_PLACE_H
#define WS_FS_FUSE_PLACE_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <sys/types.h>

struct ws_place {
    const char *at; /* NULL: nothing is mounted */
    dev_t dev;
    int connection; /* the session's descriptor, borrowed */
};

/* A look into a mount waits for its daemon, which may be stopped: another process looks, and is ended after 5 s. look
 * returns 0 or -errno. */
enum ws_place_answer { WS_PLACE_ANSWERS, WS_PLACE_IS_DEAD, WS_PLACE_IS_SILENT };
enum ws_place_answer ws_place_ask(int (*look)(const char *path), const char *path);
int ws_place_look(const char *path); /* at what is there, as stat(2) does */
int ws_place_find(
    const char *path); /* which folder that is, as realpath(3) does: without a look at it itself */
/* Can it be mounted on? A dead mount of wsync is taken away, and nothing else. -EBUSY: a live one is there; -ETIMEDOUT: one that does not answer;
 * -ENODEV: no /dev/fuse. */
WS_MUST_USE int ws_place_check(const char *at, struct ws_error *err);
/* Daemons that mount there at the same moment take turns: from here on until the caller closes what this returns, others
 * wait. Whoever has it looks again by ws_place_check. -1: the folder cannot be opened, and the caller goes on without. */
WS_MUST_USE int ws_place_turn(const char *at);
/* After the mount: remembers what it is. -errno. */
WS_MUST_USE int ws_place_record(struct ws_place *p, const char *at, int connection);
/* Is it at its path at all, on top or below another? 1, 0, or -EAGAIN: that cannot be told now. mounts:
 * /proc/self/mountinfo, which polls as POLLPRI when it has changed. */
WS_MUST_USE int ws_place_is_mounted(const struct ws_place *p, int mounts);
/* Detaches it where it is ours, and ends its connection. -EPERM: fusermount3 may; -ENOENT: it is not there.
 */
WS_MUST_USE int ws_place_detach(const struct ws_place *p);
/* How long the path is without "/" and "/." at its end: with one, a look at the place is one into what is mounted there. */
size_t ws_place_bare(const char *path);
/* Is what is on top there, alive or dead, a mount of wsync's? */
bool ws_place_has_wsync(const char *path);
/* Is it a mount of that type? */
bool ws_place_has(const char *path, const char *type);
/* The device that is on top there, without a request to the daemon that serves it. -errno. */
WS_MUST_USE int ws_place_device(const char *path, dev_t *out);

#endif
