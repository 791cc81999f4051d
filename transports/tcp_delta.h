/* Deltas as responses of the HTTP server: sent while they grow. */
#ifndef WS_TRANSPORTS_TCP_DELTA_H
#define WS_TRANSPORTS_TCP_DELTA_H
#include "transports/delta.h"
#include <microhttpd.h>

/* A part of a delta as a response's body; waits (with the connection suspended) where the delta still grows.
 * Takes the reference over, also on failure (NULL). What is whole may be cached for ever, what is not by
 * nobody. */
struct MHD_Response *ws_tcp_delta_response(struct MHD_Connection *c, struct ws_delta *delta, unsigned part,
                                           unsigned parts);

#endif
