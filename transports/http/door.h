/* The door of an HTTP server: it listens, and takes connections in for libmicrohttpd, which itself tries
 * again and again where there are no descriptors, or takes nobody in any more while those that it has stay.
 */
#ifndef WS_TRANSPORTS_HTTP_DOOR_H
#define WS_TRANSPORTS_HTTP_DOOR_H
#include "transports/base/error.h"
#include <stdbool.h>

struct MHD_Daemon;
struct ws_http_door;
/* Listens as ws_http_listen does, and lets in at most so many at a time once it is open: more wait. */
WS_MUST_USE int ws_http_door_new(struct ws_http_door **out, const char *address, bool beyond_loopback,
                                 unsigned most, unsigned *port, struct ws_error *err);
/* For this daemon, which has no socket and no limit of its own, and ends with the door; or with this call,
 * where it fails. */
WS_MUST_USE int ws_http_door_open(struct ws_http_door *d, struct MHD_Daemon *daemon, struct ws_error *err);
void ws_http_door_left(struct ws_http_door *d); /* one of those that were let in */
void ws_http_door_free(struct ws_http_door *d); /* NULL is fine */

#endif
