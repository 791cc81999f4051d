/* Session: one mount from start to end: options, store, control, FUSE session, threads, unmount. */
#ifndef WS_FS_SESSION_H
#define WS_FS_SESSION_H
#include "fs/fuse/options.h"

/* Mounts and serves until it is unmounted or told to end (SIGINT, SIGTERM). In the background unless
 * o->foreground: then the caller's process returns 0 as soon as the mount answers, and a child serves.
 * -EBUSY: a live mount is there, or another daemon
 * owns its settings; a dead one is taken away first. -ENODEV: no /dev/fuse. `ready` is called
 * once the mount answers (in the foreground; may be NULL). */
WS_MUST_USE int ws_session_run(const struct ws_mount_options *o, void (*ready)(void), struct ws_error *err);

#endif
