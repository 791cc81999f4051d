/* The door of an HTTP server: it listens, and takes connections in for libmicrohttpd, which itself tries
 * again and again where there are no descriptors, or takes nobody in any more while those that it has stay.
 */
#ifndef WS_TRANSPORTS_HTTP_DOOR_H
#define WS_TRANSPORTS_HTTP_DOOR_H
#include "transports/base/error.h"
#include <limits.h>
#include <microhttpd.h>
#include <stdbool.h>

/* Of the daemon: it has no socket of its own, and no limit. */
#define WS_HTTP_DOOR_FLAGS ((unsigned)MHD_USE_NO_LISTEN_SOCKET | (unsigned)MHD_USE_ITC)
#define WS_HTTP_DOOR_LIMIT MHD_OPTION_CONNECTION_LIMIT, (unsigned)INT_MAX
/* And of one that has no callbacks of its own for these. */
#define WS_HTTP_DOOR_OPTIONS(door)                                                                           \
    WS_HTTP_DOOR_LIMIT, MHD_OPTION_URI_LOG_CALLBACK, ws_http_door_target, NULL,                              \
        MHD_OPTION_NOTIFY_CONNECTION, ws_http_door_event, (door)

struct ws_http_door;
/* Listens as ws_http_listen does, and lets in at most so many at a time once it is open: more wait. */
WS_MUST_USE int ws_http_door_new(struct ws_http_door **out, const char *address, bool beyond_loopback,
                                 unsigned most, unsigned *port, struct ws_error *err);
/* For this daemon, which ends with the door; or with this call, where it fails. */
WS_MUST_USE int ws_http_door_open(struct ws_http_door *d, struct MHD_Daemon *daemon, struct ws_error *err);
void ws_http_door_free(struct ws_http_door *d); /* NULL is fine */
/* For MHD_OPTION_NOTIFY_CONNECTION; door is the first argument. */
void ws_http_door_event(void *door, struct MHD_Connection *c, void **state,
                        enum MHD_ConnectionNotificationCode code);
/* For MHD_OPTION_URI_LOG_CALLBACK: of a target with more, or longer, arguments than any has that is served
 * nothing is left but "/", which is answered as all that is not there. libmicrohttpd, where its memory does
 * not hold the arguments, never answers, and crashes if the client has gone. Returns NULL. */
void *ws_http_door_target(void *cls, const char *uri, struct MHD_Connection *c);
int ws_http_connection_socket(struct MHD_Connection *c);

#endif
