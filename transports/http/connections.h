/* Connections: those of a server, what each of them does and since when, and which are ended. Thread safe.
 *
 * A connection is a stranger until its client has shown who it is, but for the time in which a request of it is
 * served: it has come whole, and is answered. Strangers have a limit together, and one by address; where either is
 * reached, the stranger that has been silent for longest is ended for the newest. So clients that are known
 * always find room, however many of them come from one address. Nor can one of them have all places: where all are
 * taken, an identity with more than half of them loses its oldest connections. Numbers are in base/limits.h. */
#ifndef WS_TRANSPORTS_HTTP_CONNECTIONS_H
#define WS_TRANSPORTS_HTTP_CONNECTIONS_H
#include "transports/http/ending.h"
#include "transports/http/holders.h"
#include "transports/http/peers.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct ws_http_link; /* one connection */
TAILQ_HEAD(ws_http_links, ws_http_link);
struct ws_http_connections {
    unsigned max, max_strangers, max_of_address;
    _Atomic uint64_t ended[WS_HTTP_ENDINGS];
    pthread_mutex_t lock;
    /* guarded by lock */
    struct ws_http_links all, strangers; /* strangers: the one that is silent for longest first */
    struct ws_http_peers peers;
    struct ws_http_holders holders;
    unsigned n, n_strangers, n_ending; /* n_ending: shut down, and not yet removed */
    uint64_t looked_ns, logged_ns;
    unsigned unlogged;
};
void ws_http_connections_init(struct ws_http_connections *c, unsigned max, bool has_tls);
void ws_http_connections_destroy(struct ws_http_connections *c);

/* A connection that has begun: a stranger that sends a head. Freed by ..._remove, before its socket is closed.
 * NULL: no memory; the other functions take NULL. */
struct ws_http_link *ws_http_connections_add(struct ws_http_connections *c, int sock,
                                             const struct sockaddr *address);
void ws_http_connections_remove(struct ws_http_connections *c, struct ws_http_link *link);
/* What it does. */
void ws_http_link_sends_head(struct ws_http_connections *c, struct ws_http_link *link);
void ws_http_link_sends_body(struct ws_http_connections *c, struct ws_http_link *link);
void ws_http_link_sent(struct ws_http_link *link, size_t n); /* so much more of the body */
void ws_http_link_is_served(struct ws_http_connections *c, struct ws_http_link *link);
void ws_http_link_is_idle(struct ws_http_connections *c, struct ws_http_link *link);
/* Whether the client of its present request has shown who it is. owner: whose alone its places are; "": many share
 * that identity. */
void ws_http_link_is_known(struct ws_http_connections *c, struct ws_http_link *link, bool is_known,
                           const char *owner);
/* Was it shut down? A request of it that is suspended has to be resumed, else the connection stays. */
bool ws_http_link_is_ending(const struct ws_http_link *link);
/* Shuts it down and counts it. */
void ws_http_link_end(struct ws_http_connections *c, struct ws_http_link *link, enum ws_http_ending why);

/* May one more be accepted now? n_waiting: accepted, and not added yet. By the thread that accepts. */
bool ws_http_connections_have_room(struct ws_http_connections *c, unsigned n_waiting);
/* Ends those that are too slow. To be called often; it looks twice a second at most. */
void ws_http_connections_look(struct ws_http_connections *c);

#endif
