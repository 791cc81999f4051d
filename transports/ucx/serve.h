/* Serve: an agent's side of ucx. It leases versions of a catalog to readers, each of whom has a worker of its own for
 * as long as the lease stands; the worker ends before the lease is released, so that nothing under way can touch
 * memory that is no longer leased. One thread does all that UCX does; while nothing is asked it sleeps. */
#ifndef WS_TRANSPORTS_UCX_SERVE_H
#define WS_TRANSPORTS_UCX_SERVE_H
#include "transports/protocol/api.h"
#include "transports/protocol/catalog.h"

struct ws_ucx_server;
/* The catalog's versions are whole (its table has no `here`); it is borrowed. -ENOTSUP: ws_ucx_available says why. */
WS_MUST_USE int ws_ucx_server_new(struct ws_ucx_server **out, const struct ws_catalog *catalog,
                                  struct ws_error *err);
/* Answers POST /v1/{model}/{version}/ucx (wire.h). owner: the identity's name, empty for one that has none (as
 * ws_identity_owner). Any thread. -EOPNOTSUPP: the other side's UCX is of another release; -EBUSY: too many leases, or
 * more than the identity's share (share.h); -EAGAIN: the server ends; else as the catalog's lease. */
WS_MUST_USE int ws_ucx_server_offer(struct ws_ucx_server *s, const char *owner,
                                    const struct ws_api_request *q, const json_t *body, json_t **reply,
                                    struct ws_error *err);
struct ws_ucx_server_stats {
    uint64_t bytes, pieces, refused; /* handed over, in so many pieces; requests that were refused */
    unsigned leases;
};
void ws_ucx_server_stats(struct ws_ucx_server *s, struct ws_ucx_server_stats *out);
/* Ends all leases and the thread; offers are refused from here on. */
void ws_ucx_server_stop(struct ws_ucx_server *s);
/* Stops it if need be. No other call runs. NULL is fine. */
void ws_ucx_server_free(struct ws_ucx_server *s);

#endif
