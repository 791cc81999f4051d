/* Frame: one message, JSON and file descriptors, over a unix stream socket (ipc.h has the format). Both ends
 * and the publisher use it. One thread at a time sends on a socket, and one receives.
 *
 * Calls block until the frame is through. A peer that is stopped does not hold them: what is sent has to move
 * within stall_ms; what is received has to begin within timeout_ms (-1: at any time) and to go on within
 * WS_REPLY_TIMEOUT_MS; else -ETIMEDOUT. */
#ifndef WS_TRANSPORTS_IPC_FRAME_H
#define WS_TRANSPORTS_IPC_FRAME_H
#include "transports/base/error.h"
#include "transports/base/limits.h"
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

WS_MUST_USE int ws_frame_send(int sock, const json_t *body, const int *fds, size_t n_fds, int64_t stall_ms,
                              struct ws_error *err);
/* In as many frames as the descriptors need; "more" is set in body where that is more than one. */
WS_MUST_USE int ws_frame_send_many(int sock, json_t *body, const int *fds, size_t n_fds, int64_t stall_ms,
                                   struct ws_error *err);
/* *body: new reference; the caller owns the fds. -ECONNRESET: the peer has closed the connection; -EBADMSG: a
 * malformed frame, which a server answers with that before it closes the connection. */
WS_MUST_USE int ws_frame_recv(int sock, int64_t timeout_ms, json_t **body, int *fds, size_t max_fds,
                              size_t *n_fds, struct ws_error *err);
/* Closes them and sets each to -1. */
void ws_frame_close_fds(int *fds, size_t n);

#endif
