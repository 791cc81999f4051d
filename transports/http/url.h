/* Addresses of HTTP servers, as people write them. Pure functions, callable from any thread. */
#ifndef WS_TRANSPORTS_HTTP_URL_H
#define WS_TRANSPORTS_HTTP_URL_H
#include "transports/base/error.h"
#include <stdbool.h>

/* Is this the address of a server? what: "an engine", for the sentence, which never repeats credentials. -EINVAL
 * for what is too long, another scheme, credentials, a query or a fragment. */
WS_MUST_USE int ws_http_check_url(const char *what, const char *url, struct ws_error *err);
/* Do two addresses that were checked name the same place, however they are written? */
bool ws_http_is_same(const char *url, const char *other);
/* One address out of "http://host:1/" and "/path", malloc'ed; NULL: no memory. */
char *ws_http_join(const char *url, const char *path);

#endif
