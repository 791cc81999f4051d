/* What every HTTP server here needs beside libmicrohttpd: a socket to listen on, bearer tokens, ranges. */
#ifndef WS_TRANSPORTS_HTTP_SERVER_H
#define WS_TRANSPORTS_HTTP_SERVER_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stdint.h>

/* Listens on "HOST:PORT" or "[HOST]:PORT" (port 0: any; *port is the one taken). The caller closes *sock.
 * -EINVAL: no address; -EACCES: beyond loopback where that is not allowed; else what bind said. */
WS_MUST_USE int ws_http_listen(const char *address, bool beyond_loopback, int *sock, unsigned *port,
                               struct ws_error *err);
/* Whether an Authorization header (or NULL) carries the token; takes as long for a wrong one as for a right
 * one. */
bool ws_http_bearer(const char *authorization, const char *token);
/* A Range header (or NULL) to [*begin, *end). 0: none, or one that may be ignored: the whole; 1: a part;
 * -ERANGE: outside. RFC 9110, section 14. */
int ws_http_range(const char *text, uint64_t size, uint64_t *begin, uint64_t *end);
/* Does an If-None-Match header (or NULL) name this entity tag (with its quotes)? RFC 9110, 13.1.2. */
bool ws_http_names_tag(const char *text, const char *tag);

#endif
