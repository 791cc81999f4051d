/* Client: requests to an agent over its unix socket (ipc.h). One thread at a time uses a connection. */
#ifndef WS_TRANSPORTS_IPC_CLIENT_H
#define WS_TRANSPORTS_IPC_CLIENT_H
#include "transports/base/error.h"
#include "transports/ipc/peer.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Connects to a unix socket's path ("unix:/run/..." or the bare path), if an account serves it that is trusted
 * (peer.h); -EPERM. named: one that is, besides; NULL: none. The caller closes *sock. */
WS_MUST_USE int ws_ipc_connect_to(const char *path, const struct ws_ipc_account *named, int *sock,
                                  struct ws_error *err);
WS_MUST_USE int ws_ipc_connect(const char *path, int *sock, struct ws_error *err);
/* The same without a look at who serves it, for who only asks whether one does. */
WS_MUST_USE int ws_ipc_probe(const char *path, int *sock, struct ws_error *err);

/* A request, and its reply. body_in and fds_in are borrowed; body_in may be NULL. *body_out: new reference; the
 * caller owns the fds that came. timeout_ms: until the reply begins. An error reply's errno is returned, its
 * text is in err. Where the conversation itself fails (-ETIMEDOUT, -ECONNRESET, -EBADMSG, -EMFILE) the socket is
 * shut down: a late reply would be taken for the next request's. */
WS_MUST_USE int ws_ipc_request_send(int sock, const char *method, const char *path, const json_t *body_in,
                                    const int *fds_in, size_t n_fds_in, struct ws_error *err);
WS_MUST_USE int ws_ipc_reply_recv(int sock, int64_t timeout_ms, json_t **body_out, int *fds, size_t max_fds,
                                  size_t *n_fds, struct ws_error *err);
/* Both in one. */
WS_MUST_USE int ws_ipc_call(int sock, const char *method, const char *path, const json_t *body_in,
                            const int *fds_in, size_t n_fds_in, int64_t timeout_ms, json_t **body_out,
                            int *fds, size_t max_fds, size_t *n_fds, struct ws_error *err);

/* The same over a connection that a lease lives on, which is not shut down. *lost: no other request can use the
 * connection; the caller closes it when it gives up what was leased. */
WS_MUST_USE int ws_ipc_request_send_leased(int sock, const char *method, const char *path,
                                           const json_t *body_in, const int *fds_in, size_t n_fds_in,
                                           bool *lost, struct ws_error *err);
WS_MUST_USE int ws_ipc_reply_recv_leased(int sock, int64_t timeout_ms, json_t **body_out, int *fds,
                                         size_t max_fds, size_t *n_fds, bool *lost, struct ws_error *err);

#endif
