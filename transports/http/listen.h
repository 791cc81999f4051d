/* A socket to listen on. */
#ifndef WS_TRANSPORTS_HTTP_LISTEN_H
#define WS_TRANSPORTS_HTTP_LISTEN_H
#include "transports/base/error.h"
#include <stdbool.h>

/* Listens on "HOST:PORT" or "[HOST]:PORT" (port 0: any; *port is the one taken). The caller closes *sock.
 * -EINVAL: no address; -EACCES: beyond loopback where that is not allowed; else the error of bind. */
WS_MUST_USE int ws_http_listen(const char *address, bool beyond_loopback, int *sock, unsigned *port,
                               struct ws_error *err);

#endif
