/* Respawn: a process that keeps what its daemons must not lose while they die and are replaced, as an agent's slots
 * (base/descriptor_keeper.h). A daemon is forked from it, as it was when it had that, so the first and the last begin alike. A mount's
 * supervisor does more (fs/supervisor.h).
 *
 * It ends with the daemon that ends by itself, because it was told to end, or has nothing left to serve; with the third that dies within a
 * minute, as which one counts that cannot start after a death; and passes SIGTERM, SIGINT and SIGHUP on. A supervisor that is killed leaves its daemon as one without. */
#ifndef WS_TRANSPORTS_BASE_RESPAWN_H
#define WS_TRANSPORTS_BASE_RESPAWN_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <sys/types.h>

struct ws_respawn {
    const char *name; /* for messages: "the daemon of NAME has died" */
    const char *component;
    const char *at_end; /* for the message of the last death: what becomes of it, "it is unmounted" */
    void *arg;
    int messages; /* a descriptor that daemons send to */
    /* Takes what has come there, and does not wait. After a death, too, before the next daemon is started. */
    void (*receive)(void *arg);
};

/* fork(2), tried again for a minute while the machine, or a group of processes, has no room for another one: what is kept would be lost
 * for a moment's lack. */
pid_t ws_respawn_fork(void);

/* Before any thread is started, with the signals blocked that a daemon waits for. Returns 0 in each daemon, *is_daemon set. In the
 * supervisor it returns once all is over: 0, or the error of the last daemon. */
WS_MUST_USE int ws_respawn_run(const struct ws_respawn *what, bool *is_daemon, struct ws_error *err);

#endif
