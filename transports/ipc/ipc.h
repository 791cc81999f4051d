/* ipc: requests and file descriptors over a unix stream socket on one host.
 *
 * A frame is: u32 magic "WSF1", u32 body bytes, u32 descriptors, then the JSON body; descriptors
 * ride with the first byte (SCM_RIGHTS). A request is {"method":"GET","path":"/v1/models","query":"",
 * "body":...}, its reply {"status":200,"body":...} or {"status":410,"errno":"ESTALE","error":"..."}.
 * Paths are the HTTP API's, so there is one API and two carriers; in addition, with descriptors:
 *   GET /v1/{model}/{version}/map[?run=R]  body: the manifest; descriptors: one a file (size 0: none),
 *                                          read-only; a lease, until "unmap" or the peer's end. &copy=1:
 *                                          the peer maps them, copies and closes, and hands them to nobody.
 *                                          Where the kernel grants no leases only that is served: EOPNOTSUPP.
 *                                          &copies=1: the peer can do with that instead, and is asked to by
 *                                          EOPNOTSUPP where a version's memory is not to be lent
 *   POST /v1/{model}/{version}/unmap
 * More descriptors than WS_MAX_FDS_PER_FRAME come in follow-up frames {"more":true}.
 * The server knows the peer's pid and uid (SO_PEERCRED); a dead peer's leases are released at once. */
#ifndef WS_TRANSPORTS_IPC_IPC_H
#define WS_TRANSPORTS_IPC_IPC_H
#include "transports/protocol/catalog.h"
#include "transports/protocol/source.h"
#include <stdatomic.h>
#include <sys/types.h>

extern const struct ws_transport_ops ws_ipc_ops;

/* One frame each way; blocking, whole. Used by both ends and by the publisher. A peer that is stopped holds
 * nobody: what is sent has to move within stall_ms, what is received has to begin within timeout_ms (-1:
 * whenever it likes) and to go on within WS_REPLY_TIMEOUT_MS, else -ETIMEDOUT. recv: *body new reference; fds
 * are the caller's; -ECONNRESET at the peer's end, -EBADMSG for a malformed frame, which a server answers
 * with that before it closes the connection. */
WS_MUST_USE int ws_frame_send(int sock, const json_t *body, const int *fds, size_t n_fds, int64_t stall_ms,
                              struct ws_error *err);
/* With as many frames as the descriptors need; body may be changed. */
WS_MUST_USE int ws_frame_send_many(int sock, json_t *body, const int *fds, size_t n_fds, int64_t stall_ms,
                                   struct ws_error *err);
WS_MUST_USE int ws_frame_recv(int sock, int64_t timeout_ms, json_t **body, int *fds, size_t max_fds,
                              size_t *n_fds, struct ws_error *err);
/* Connects to a unix socket path ("unix:/run/..." or the bare path). */
WS_MUST_USE int ws_ipc_connect(const char *path, int *sock, struct ws_error *err);
/* A request, its reply, and both in one, with the error of the reply in err (its errno as code). *fds may
 * come back. body_in borrowed, may be NULL. timeout_ms: until the reply begins. Where the conversation itself
 * fails
 * (-ETIMEDOUT, -ECONNRESET, -EBADMSG, -EMFILE) the socket is shut down: a late reply would answer another
 * request. */
WS_MUST_USE int ws_ipc_ask(int sock, const char *method, const char *path, const json_t *body_in,
                           const int *fds_in, size_t n_fds_in, struct ws_error *err);
WS_MUST_USE int ws_ipc_answer(int sock, int64_t timeout_ms, json_t **body_out, int *fds, size_t max_fds,
                              size_t *n_fds, struct ws_error *err);
/* The same of a connection that a lease lives on, which is not shut down: lost: it is of no use for another
 * request, and to be closed when what was leased is. */
WS_MUST_USE int ws_ipc_ask_leased(int sock, const char *method, const char *path, const json_t *body_in,
                                  const int *fds_in, size_t n_fds_in, bool *lost, struct ws_error *err);
WS_MUST_USE int ws_ipc_answer_leased(int sock, int64_t timeout_ms, json_t **body_out, int *fds,
                                     size_t max_fds, size_t *n_fds, bool *lost, struct ws_error *err);
WS_MUST_USE int ws_ipc_call(int sock, const char *method, const char *path, const json_t *body_in,
                            const int *fds_in, size_t n_fds_in, int64_t timeout_ms, json_t **body_out,
                            int *fds, size_t max_fds, size_t *n_fds, struct ws_error *err);

struct ws_ipc_peer {
    int sock; /* its connection, which the server owns */
    pid_t pid;
    uid_t uid;
    int pidfd; /* of the process that connected; -1: it cannot be told, as from another pid namespace */
    atomic_bool ends_with_process; /* set by the handler: also where a child of it keeps the socket */
    void *state;                   /* the handler's own, NULL at first */
};
/* Has the process ended? False where that cannot be told. */
bool ws_ipc_peer_is_dead(const struct ws_ipc_peer *p);
/* Has it, or has the connection? For a call that waits: the server reads nothing meanwhile. */
bool ws_ipc_peer_has_left(const struct ws_ipc_peer *p);
struct ws_ipc_handler {
    /* A local-only route (the publisher's: POST /v1/local/...). fds_in are borrowed (closed after
     * the call). Fills *reply (new reference) and up to max_fds descriptors in fds_out, which the
     * server sends and then CLOSES. Called on the connection's own thread. */
    int (*call)(void *self, struct ws_ipc_peer *peer, const char *method, const char *path,
                const json_t *body, const int *fds_in, size_t n_fds_in, json_t **reply, int *fds_out,
                size_t max_fds, size_t *n_fds_out, struct ws_error *err);
    void (*gone)(void *self, struct ws_ipc_peer *peer); /* the peer ended; free peer->state */
};
struct ws_ipc_server;
/* Listens on path (mode 0600, or 0660 with group gid != -1; a stale socket is replaced, a live one
 * is -EADDRINUSE). Paths under /v1/local/ go to handler (may be NULL), the rest to the catalog. */
WS_MUST_USE int ws_ipc_server_new(struct ws_ipc_server **out, const char *path, gid_t gid,
                                  const struct ws_catalog *catalog, const struct ws_ipc_handler *handler,
                                  void *handler_self, struct ws_error *err);
void ws_ipc_server_wake(struct ws_ipc_server *s);
void ws_ipc_server_free(struct ws_ipc_server *s); /* ends connections, joins, removes the socket */

#endif
