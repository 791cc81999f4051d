/* Supervisor: a process that keeps a mount while its daemons die and are replaced (--supervised). It has the mount's descriptor of
 * /dev/fuse, the lock on its settings and the memory of fuse/life.h; it parses nothing and has no connection. A daemon is forked from it, as it was
 * when it had mounted, so the first and the last begin alike.
 *
 * It ends with the daemon that ends by itself, because it was unmounted or told to end; with the third that dies within a minute; and
 * passes SIGTERM, SIGINT and SIGHUP on. A supervisor that is killed leaves its daemon as one without. */
#ifndef WS_FS_SUPERVISOR_H
#define WS_FS_SUPERVISOR_H
#include "fs/fuse/life.h"

/* Before any thread is started, with the signals of ws_ending_block_signals blocked. Returns 0 in each daemon, *is_daemon set. In the
 * supervisor it returns once all is over: 0, or the error of the last daemon. cut: called where a daemon asks for the end of the connection
 * (ws_supervisor_cut). */
WS_MUST_USE int ws_supervisor_run(struct ws_life *life, const char *what, void (*cut)(void *arg), void *arg,
                                  bool *is_daemon, struct ws_error *err);
/* In a daemon: the supervisor gives up its descriptor, too, so that who waits for the daemon is let go. */
void ws_supervisor_cut(void);

#endif
