/* The HTTP of the reference engine: a table of routes, JSON in, JSON or text out. Bodies are bounded,
 * idle connections are closed, a key is asked for where one is set. Part of the reference engine. */
#ifndef WS_ENGINE_REFERENCE_ROUTES_H
#define WS_ENGINE_REFERENCE_ROUTES_H
#include "transports/base/error.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct ws_answer {
    unsigned status;  /* 200 when the route is called */
    json_t *json;     /* new reference; else text */
    const char *text; /* static */
};
/* 400 with the real server's shape of an error. */
void ws_answer_bad(struct ws_answer *a, const char *message);

enum ws_reference_methods { WS_GET = 1, WS_POST = 2 };
struct ws_reference_route {
    const char *path;
    unsigned methods;
    bool open; /* answered without a key */
    /* On the connection's own thread; may block. body: an object (borrowed) with the
     * query's arguments as strings in it, or NULL: neither came. */
    void (*serve)(void *self, const json_t *body, struct ws_answer *a);
};

struct ws_reference_http;
/* Starts answering. listen: "HOST:PORT", "[V6]:PORT", port 0: any. routes and self are borrowed. */
WS_MUST_USE int ws_reference_http_new(struct ws_reference_http **out, const char *listen, const char *api_key,
                                      const struct ws_reference_route *routes, size_t n_routes, void *self,
                                      struct ws_error *err);
unsigned ws_reference_http_port(const struct ws_reference_http *h);
/* Stops listening and waits for the requests that run; NULL is fine. */
void ws_reference_http_free(struct ws_reference_http *h);

#endif
