/* Broker: makes the calls of a mount for which Linux wants CAP_SYS_ADMIN, so that the daemon, which speaks with the network, has no capability
 * (run-as=). It is a process that was forked before the daemon became another user: it is that user, too, and has the one
 * capability, so that no file is opened for the daemon which that user could not open. It reads nothing but requests of a fixed size, has no
 * connection but that one, and ends with the daemon. */
#ifndef WS_FS_FUSE_BROKER_H
#define WS_FS_FUSE_BROKER_H
#include "fs/fuse/place.h"
#include "fs/fuse/run_as.h"

struct ws_broker;

/* connection: the mount's descriptor of /dev/fuse. */
WS_MUST_USE int ws_broker_start(struct ws_broker **out, int connection, const struct ws_place *place,
                                const struct ws_run_as *who, struct ws_error *err);
/* As ws_backing_open and ws_backing_close. Any thread. -EPIPE: the broker is gone, or silent for 5 s. */
WS_MUST_USE int ws_broker_backing_open(struct ws_broker *b, int fd);
void ws_broker_backing_close(struct ws_broker *b, int id);
/* As ws_place_detach, and the broker ends: what comes later is -EPIPE. Any thread. */
WS_MUST_USE int ws_broker_detach(struct ws_broker *b);
/* Ends it, and waits for that a second at most. NULL is fine. */
void ws_broker_free(struct ws_broker *b);

#endif
