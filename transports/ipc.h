/* ipc: requests and file descriptors over a unix stream socket on one host.
 *
 * A frame is: u32 magic "WSF1", u32 body bytes, u32 descriptors, then the JSON body; descriptors
 * ride with the first byte (SCM_RIGHTS). A request is {"method":"GET","path":"/v1/models","query":"",
 * "body":...}, its reply {"status":200,"body":...} or {"status":410,"errno":"ESTALE","error":"..."}.
 * Paths are the HTTP API's, so there is one API and two carriers; in addition, with descriptors:
 *   GET /v1/{model}/{version}/map[?run=R]  body: the manifest; descriptors: one a file (size 0: none),
 *                                          read-only; a lease, until "unmap" or the peer's end
 *   POST /v1/{model}/{version}/unmap
 * More descriptors than WS_MAX_FDS_PER_FRAME come in follow-up frames {"more":true}.
 * The server knows the peer's pid and uid (SO_PEERCRED); a dead peer's leases are released at once. */
#ifndef WS_TRANSPORTS_IPC_H
#define WS_TRANSPORTS_IPC_H
#include "transports/catalog.h"
#include "transports/transport.h"
#include <sys/types.h>

/* One frame each way; blocking, whole, bounded by timeout_ms (-1: none). Used by both ends and by
 * the publisher. recv: *body new reference; fds are the caller's; -ECONNRESET at the peer's end,
 * -EBADMSG for a malformed frame, -ETIMEDOUT. */
WS_MUST_USE int ws_frame_send(int sock, const json_t *body, const int *fds, size_t n_fds,
                              struct ws_error *err);
WS_MUST_USE int ws_frame_recv(int sock, int timeout_ms, json_t **body, int *fds, size_t max_fds,
                              size_t *n_fds, struct ws_error *err);
/* Connects to a unix socket path ("unix:/run/..." or the bare path). */
WS_MUST_USE int ws_ipc_connect(const char *path, int *sock, struct ws_error *err);
/* Request and reply in one, with the error of the reply in err (its errno as code). *fds may come
 * back. body_in borrowed, may be NULL. */
WS_MUST_USE int ws_ipc_call(int sock, const char *method, const char *path, const json_t *body_in,
                            const int *fds_in, size_t n_fds_in, json_t **body_out, int *fds, size_t max_fds,
                            size_t *n_fds, struct ws_error *err);

struct ws_ipc_peer {
    pid_t pid;
    uid_t uid;
    void *state; /* the handler's own, NULL at first */
};
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
