#include "transports/protocol/api_routes.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

const struct ws_api_route ws_api_routes[] = {
    WS_API_ROUTE_FILTERS("GET", "/v1/models", READ),
    WS_API_ROUTE_FILTERS("GET", "/v1/events", READ),
    WS_API_ROUTE("GET", "/v1/{model}/events", READ),
    WS_API_ROUTE("GET", "/v1/{model}/{version}/manifest", READ),
    WS_API_ROUTE("GET", "/v1/{model}/{version}/deltas", READ),
    WS_API_ROUTE("GET", "/v1/{model}/{version}/delta", READ),
    WS_API_ROUTE("GET", "/v1/{model}/{version}/files/{file}", READ),
    WS_API_ROUTE("GET", "/v1/{model}/{version}/map", READ),
    WS_API_ROUTE("POST", "/v1/{model}/{version}/unmap", READ),
    {0},
};

static bool is_of_model(const struct ws_api_route *r)
{
    return strstr(r->pattern, "{model}") != NULL;
}

/* Of a pattern without a model: the path as it was sent, with a number where the pattern has {id}. */
static bool fits(const char *pattern, const char *path)
{
    for (; *pattern; pattern++) {
        if (strncmp(pattern, "{id}", 4) != 0) {
            if (*path++ != *pattern)
                return false;
            continue;
        }
        if (!isdigit((unsigned char)*path))
            return false;
        while (isdigit((unsigned char)*path))
            path++;
        pattern += 3;
    }
    return !*path;
}

/* The pattern of a request for a model, from its parts, which alone decide what a handler does with it. */
static void print_shape(const struct ws_api_request *q, char out[96])
{
    static const char *const verbs[] = {
        [WS_API_EVENTS] = "events", [WS_API_MANIFEST] = "manifest", [WS_API_DELTAS] = "deltas",
        [WS_API_DELTA] = "delta",   [WS_API_FILE] = "files/{file}", [WS_API_MAP] = "map",
        [WS_API_UNMAP] = "unmap"};
    const char *verb = q->kind == WS_API_OTHER ? q->verb : q->kind == WS_API_MODELS ? "" : verbs[q->kind];
    *out = 0;
    if (q->model[0] && verb[0])
        snprintf(out, 96, "/v1/{model}%s/%s", q->has_version ? "/{version}" : "", verb);
}

static const struct ws_api_route *find_in(const struct ws_api_route *table, const char *method,
                                          const char *path, const char *shape, bool of_model)
{
    for (const struct ws_api_route *r = table; r->method; r++)
        if (strcmp(r->method, method) == 0 && is_of_model(r) == of_model &&
            (of_model ? strcmp(r->pattern, shape) == 0 : fits(r->pattern, path)))
            return r;
    return NULL;
}

const struct ws_api_route *ws_api_route_find(const struct ws_api_route *const *tables, const char *method,
                                             const char *path, const struct ws_api_request *q)
{
    const struct ws_api_route *r = NULL;
    char shape[96];
    print_shape(q, shape);
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    for (unsigned of_model = 0; of_model <= 1 && !r; of_model++) { /* /v1/releases/7/abort is of no model */
        r = find_in(ws_api_routes, method, path, shape, of_model);
        for (size_t i = 0; !r && tables && tables[i]; i++)
            r = find_in(tables[i], method, path, shape, of_model);
    }
    return r;
}

const char *ws_api_route_model(const struct ws_api_route *r, const struct ws_api_request *q)
{
    return r->filters ? NULL : is_of_model(r) ? q->model : "";
}
