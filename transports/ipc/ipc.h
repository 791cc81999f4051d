/* IPC: requests and file descriptors over a unix stream socket on one host.
 *
 * A frame is three numbers of the machine's byte order, each an u32, and a JSON body:
 *
 *     u32  magic            "WSF1"
 *     u32  body_bytes
 *     u32  n_fds            descriptors, which ride with the first byte (SCM_RIGHTS)
 *     body_bytes            JSON
 *
 * A request is {"method":"GET","path":"/v1/models","query":"","body":...}, its reply {"status":200,"body":...}
 * or {"status":410,"errno":"ESTALE","error":"..."}. Descriptors that one frame (WS_MAX_FDS_PER_FRAME) does not
 * hold come in the next ones; each but the last of these says "more":true.
 *
 * Paths are the HTTP API's (protocol/api.h), so there is one API and two carriers. In addition, with
 * descriptors:
 *
 *     GET /v1/{model}/{version}/map[?run=R]
 *         The reply's body is the manifest; its descriptors are read-only, one a file, none for a file of size
 *         0. They are a lease until "unmap" or the peer's end.
 *         &copy=1    The peer maps the descriptors, copies and closes them, and passes them on to no other
 *                    process. Where the kernel grants no leases only this is served; else EOPNOTSUPP.
 *         &copies=1  The peer can copy instead. It is asked to, by EOPNOTSUPP, where a version's memory is not
 *                    to be lent.
 *     POST /v1/{model}/{version}/unmap
 *
 * The server knows the peer's pid and uid (SO_PEERCRED). It releases a dead peer's leases at once. */
#ifndef WS_TRANSPORTS_IPC_IPC_H
#define WS_TRANSPORTS_IPC_IPC_H
#include "transports/protocol/source.h"

extern const struct ws_transport_ops ws_ipc_ops; /* the mount's side: pull.c */

#endif
