/* Serve: a catalog, and local routes with descriptors, over a unix socket (ipc.h). One thread accepts, and each
 * connection has a thread of its own, on which handlers are called. */
#ifndef WS_TRANSPORTS_IPC_SERVE_H
#define WS_TRANSPORTS_IPC_SERVE_H
#include "transports/protocol/catalog.h"
#include <stdatomic.h>
#include <sys/types.h>

struct ws_ipc_peer {
    int sock; /* its connection; the server owns it */
    pid_t pid;
    uid_t uid;
    struct ws_identity who; /* of that account */
    int pidfd; /* of the process that connected; -1: unknown, as of a process in another pid namespace */
    atomic_bool
        ends_with_process; /* set by the handler: the connection ends when the process does, also where
                                      a child of it keeps the socket open */
    void *state;           /* the handler's own, NULL at first */
};
/* Has the process ended? False where that is unknown. */
bool ws_ipc_peer_is_dead(const struct ws_ipc_peer *p);
/* Has the process ended, or the connection? For a handler that waits: the server reads nothing meanwhile. */
bool ws_ipc_peer_is_gone(const struct ws_ipc_peer *p);

struct ws_ipc_handler {
    /* A local-only route (the publisher's: POST /v1/local/...). fds_in are borrowed, and closed after the call. body is
     * borrowed, too, and may be emptied: a handler that waits should not keep what it has read. Fills *reply (new reference) and up to max_fds descriptors in fds_out, which the server sends and then
     * closes. */
    int (*call)(void *self, struct ws_ipc_peer *peer, const char *method, const char *path, json_t *body,
                const int *fds_in, size_t n_fds_in, json_t **reply, int *fds_out, size_t max_fds,
                size_t *n_fds_out, struct ws_error *err);
    void (*gone)(void *self, struct ws_ipc_peer *peer); /* the connection has ended; frees peer->state */
};

struct ws_ipc_server;
/* Listens on path (mode 0600, or 0660 with group gid != -1). A socket that an agent left is replaced; one that
 * an agent serves is -EADDRINUSE. Paths under /v1/local/ go to handler (may be NULL), all others to the
 * catalog. */
WS_MUST_USE int ws_ipc_server_new(struct ws_ipc_server **out, const char *path, gid_t gid,
                                  const struct ws_catalog *catalog, const struct ws_ipc_handler *handler,
                                  void *handler_self, struct ws_error *err);
void ws_ipc_server_wake(struct ws_ipc_server *s); /* the catalog has changed: long polls look again */
void ws_ipc_server_free(struct ws_ipc_server *s); /* ends connections, joins threads, removes the socket */

#endif
