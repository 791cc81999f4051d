/* The HTTP of AstraFlow's endpoints: JSON in and out, a thread a connection because a transfer's reply may
 * take minutes, bodies and idle connections bounded. */
#ifndef WS_TRAINER_ASTRAFLOW_HTTP_H
#define WS_TRAINER_ASTRAFLOW_HTTP_H
#include "transports/base/error.h"
#include <jansson.h>

struct ws_astraflow_route {
    const char *method, *path;
    /* On the connection's own thread; may block. body: an object, or NULL where none came or it is none.
     * Returns the status and a new reference. */
    unsigned (*serve)(void *self, const json_t *body, json_t **reply);
};

struct ws_astraflow_http;
/* routes (ended by a path of NULL) and self are borrowed. Anything else is answered 404 {"error": "not
 * found"}. */
WS_MUST_USE int ws_astraflow_http_new(struct ws_astraflow_http **out, const char *listen,
                                      const struct ws_astraflow_route *routes, void *self,
                                      struct ws_error *err);
unsigned ws_astraflow_http_port(const struct ws_astraflow_http *h);
/* Stops listening and waits for the requests that run; NULL is fine. */
void ws_astraflow_http_free(struct ws_astraflow_http *h);

#endif
