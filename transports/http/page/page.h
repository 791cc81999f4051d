/* The web page of agents and mounts: one file, put together when wsync is built (.ci/page), without outside
 * resources. It holds no data and is served to all; its script asks for data with the token that the operator
 * gives it. */
#ifndef WS_TRANSPORTS_HTTP_PAGE_PAGE_H
#define WS_TRANSPORTS_HTTP_PAGE_PAGE_H
#include "transports/http/answer.h"
#include "transports/http/incoming.h"

/* A handler of a route (http/server.h); self is not used. Callable from any thread. */
void ws_page_serve(void *self, struct ws_http_incoming *in, struct ws_http_answer *a);

#endif
