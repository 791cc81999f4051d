/* A client's loop: the one thread of a client on which libcurl's transfers run, and the connections that it keeps
 * between them. Part of client.h. */
#ifndef WS_TRANSPORTS_HTTP_CLIENT_LOOP_H
#define WS_TRANSPORTS_HTTP_CLIENT_LOOP_H
#include "transports/http/client.h"
#include <curl/curl.h>

/* Runs a prepared transfer to its end and waits for that; any thread, any number at once. 0: *code says how
 * it ended. -ECANCELED: one of the request's flags was set; -EIO: libcurl's own failure. In any case the loop
 * has let go of the handle, and of what it points to, when this returns. */
WS_MUST_USE int ws_http_client_run(struct ws_http_client *http, CURL *easy,
                                   const struct ws_http_request *request, CURLcode *code);

#endif
