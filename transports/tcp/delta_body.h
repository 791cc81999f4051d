/* Deltas as responses of the HTTP server: sent while they grow. */
#ifndef WS_TRANSPORTS_TCP_DELTA_BODY_H
#define WS_TRANSPORTS_TCP_DELTA_BODY_H
#include "transports/delta/delta.h"
#include "transports/delta/filter.h"
#include "transports/http/answer.h"
#include "transports/tcp/delta_pace.h"
#include <pthread.h>
#include <stdatomic.h>

/* The trailer of a body that ends in the middle of a record, which its sender was passing on and cannot have whole. A client that
 * does not know it sees a stream without its end, as of a connection that broke. */
#define WS_TCP_GIVEN_UP "X-Wsync-Given-Up"

struct ws_tcp_delta_body;
/* All delta bodies of a server. Not copied after init. */
struct ws_tcp_deltas {
    atomic_bool stop;
    _Atomic(uint64_t) *bytes_sent; /* the server's counter */
    pthread_mutex_t lock;
    /* guarded by lock */
    struct ws_tcp_delta_body *first;
    struct ws_delta_races races;
};

void ws_tcp_deltas_init(struct ws_tcp_deltas *deltas, _Atomic(uint64_t) *bytes_sent);
/* Ends the bodies that wait for more, since the HTTP server cannot end while a connection is suspended. No body
 * waits afterwards. */
void ws_tcp_deltas_stop(struct ws_tcp_deltas *deltas);
/* The connection of that socket has ended; its number may soon be another's. */
void ws_tcp_deltas_closed(struct ws_tcp_deltas *deltas, int sock);
void ws_tcp_deltas_destroy(struct ws_tcp_deltas *deltas); /* the HTTP server has ended: none is left */

/* A part of a delta as a response's body; where the delta still grows, it waits with the connection suspended. If the
 * delta is dropped, the connection ends. filter: NULL, or the blocks whose records it has. Takes the reference and the filter over, also on failure (NULL). A whole delta may be cached for ever, a growing one not at all. */
struct MHD_Response *ws_tcp_delta_body(struct ws_tcp_deltas *deltas, const struct ws_http_incoming *in,
                                       struct ws_delta *delta, unsigned part, unsigned parts,
                                       struct ws_delta_filter *filter);

#endif
