/* Routes: the reference engine's HTTP server, over a table of routes; JSON in, JSON or text out. */
#ifndef WS_ENGINE_REFERENCE_ROUTES_H
#define WS_ENGINE_REFERENCE_ROUTES_H
#include "transports/http/server.h"

/* 400 with the real server's shape of an error. */
void ws_answer_bad(struct ws_http_answer *a, const char *message);

/* Starts answering. Handlers run on their connections' own threads and may block; in->json is an object with
 * the query's arguments as strings in it, or NULL: there is neither a body nor an argument. */
WS_MUST_USE int ws_reference_serve(struct ws_http_server **out, const char *listen, const char *api_key,
                                   const struct ws_http_route *routes, void *self, struct ws_error *err);

#endif
