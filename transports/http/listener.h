/* Listener: listens for an HTTP server and accepts connections for libmicrohttpd. Left to itself, libmicrohttpd
 * spins when the process is out of descriptors, or accepts no connection while the present ones last. */
#ifndef WS_TRANSPORTS_HTTP_LISTENER_H
#define WS_TRANSPORTS_HTTP_LISTENER_H
#include "transports/base/error.h"
#include <stdbool.h>

struct MHD_Daemon;
struct ws_http_listener;
/* By the listener's thread. */
struct ws_http_listener_hooks {
    bool (*has_room)(void *self,
                     unsigned n_accepted); /* beside those that are accepted, and have not ended */
    void (*looks)(void *self);             /* once a second, and at each connection */
    void *self;
};
/* Listens as ws_http_listen does. Once started it accepts while there is room; more connections wait. */
WS_MUST_USE int ws_http_listener_new(struct ws_http_listener **out, const char *address, bool beyond_loopback,
                                     unsigned *port, struct ws_error *err);
/* Accepts for this daemon, which has no socket and no limit of its own. The daemon ends with the listener, or
 * with this call where it fails. */
WS_MUST_USE int ws_http_listener_start(struct ws_http_listener *l, const struct ws_http_listener_hooks *hooks,
                                       struct MHD_Daemon *daemon, struct ws_error *err);
void ws_http_listener_closed(struct ws_http_listener *l); /* an accepted connection has ended */
void ws_http_listener_free(struct ws_http_listener *l);   /* NULL is fine */

#endif
