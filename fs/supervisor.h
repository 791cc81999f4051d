/* Supervisor: a process that keeps a mount while its daemons die and are replaced (--supervised). It has the mount's descriptor of
 * /dev/fuse, the lock on its settings and the memory of fuse/life.h; it parses nothing, and its one connection is that of fs/takeover.h. A daemon is forked
 * from it, as it was when it had mounted, so the first and the last begin alike.
 *
 * A next daemon that fails before it serves counts as one that died.
 *
 * It ends with the daemon that ends by itself, because it was unmounted or told to end; with the third that dies within a minute; and
 * passes SIGTERM, SIGINT and SIGHUP on. A supervisor that is killed leaves its daemon as one without.
 *
 * Daemon (fs/supervised.h) and supervisor have a channel, on which the daemon says that it is ready, and answers (fs/heart.h). One that gives no answer for
 * hung_s is killed, and so replaced; one that a debugger traces is left alone. What is counted is the supervisor's own rounds, so
 * that a machine, or a group of processes, that slept is no reason.
 *
 * Memory of complete versions that a daemon has it keep is the next one's (store/keeper.h): the supervisor has descriptors and labels, and looks into
 * neither. With the last death but one that it would bear it gives all of that up, as it may be what kills them.
 *
 * Takeover: the supervisor becomes another binary, by fs/kept.h, once that was tried in a child and the daemon runs no command. There it kills
 * the daemon, and forks the next. If that fails before it is ready, which leaves the mount alone, the supervisor becomes what it was. */
#ifndef WS_FS_SUPERVISOR_H
#define WS_FS_SUPERVISOR_H
#include "fs/fuse/life.h"
#include "fs/kept.h"

#define WS_SUPERVISOR_IDLE_MS 30000 /* for commands to end, before a takeover is refused */

struct ws_supervisor_options {
    struct ws_kept *kept; /* borrowed, as all of this */
    struct ws_life *life;
    const char *what; /* the mount, for people */
    unsigned hung_s;  /* 0: daemons are not asked */
    void (*cut)(void *arg);
    void *arg;
};

/* Before any thread is started, with the signals of ws_ending_block_signals blocked. Returns 0 in each daemon, *is_daemon set. In the
 * supervisor it returns once all is over: 0, or the error of the last daemon. cut: called where a daemon asks for the end of the connection
 * (WS_WORD_CUT), so that who waits for the daemon is let go. */
WS_MUST_USE int ws_supervisor_run(const struct ws_supervisor_options *o, bool *is_daemon,
                                  struct ws_error *err);

#endif
