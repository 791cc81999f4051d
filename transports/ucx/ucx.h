/* ucx: the HTTP API of an agent for everything but the bytes of files, which come by UCX (engine.h). A source is
 * "ucx+http://HOST:PORT" or "ucx+https://..."; a mount with -o ucx makes one beside each http source. What tcp checks
 * is checked here, too: a block is reported with the hash of what was stored, and not once the lease has ended. */
#ifndef WS_TRANSPORTS_UCX_UCX_H
#define WS_TRANSPORTS_UCX_UCX_H
#include "transports/protocol/source.h"

extern const struct ws_transport_ops ws_ucx_ops;

/* A source of the same versions as `http`, which is borrowed: all but fetches are its own. -ENOTSUP:
 * ws_ucx_available says why. */
WS_MUST_USE int ws_ucx_source_beside(struct ws_source *http, const struct ws_source_options *options,
                                     struct ws_source **out, struct ws_error *err);

#endif
