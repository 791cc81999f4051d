/* API routes: which role each path of the API asks for. A carrier (tcp, ipc) finds the route of a request here
 * before it takes anything else of it, and serves no path that no table has. Pure functions, any thread. */
#ifndef WS_TRANSPORTS_PROTOCOL_API_ROUTES_H
#define WS_TRANSPORTS_PROTOCOL_API_ROUTES_H
#include "transports/access/identity.h"
#include "transports/protocol/api.h"

struct ws_api_route {
    const char *method;  /* "GET" or "POST"; HEAD is GET */
    const char *pattern; /* {model} {version} {file} {id} stand for one name or number each */
    enum ws_role role;
    bool filters; /* its handler answers with what the client may use, or looks at the models in the body */
    size_t max_body; /* by HTTP; 0: WS_MAX_BODY_BYTES */
};
/* A line of a table names its role (READ, REPORT, ...), or does not compile. A table ends with {0}. */
#define WS_API_ROUTE(method, pattern, role)                                                                  \
    {                                                                                                        \
        method, pattern, WS_ROLE_##role, false, 0                                                            \
    }
#define WS_API_ROUTE_FILTERS(method, pattern, role)                                                          \
    {                                                                                                        \
        method, pattern, WS_ROLE_##role, true, 0                                                             \
    }
#define WS_API_ROUTE_BODY(method, pattern, role, most)                                                       \
    {                                                                                                        \
        method, pattern, WS_ROLE_##role, false, most                                                         \
    }

extern const struct ws_api_route ws_api_routes[]; /* of versions: every catalog has them */

/* The route of a parsed request, out of ws_api_routes or one of the tables, which NULL ends. NULL: none. */
const struct ws_api_route *ws_api_route_find(const struct ws_api_route *const *tables, const char *method,
                                             const char *path, const struct ws_api_request *q);
/* Which model a client must be allowed to use for it, as in ws_identity_check: NULL, "" or q's. */
const char *ws_api_route_model(const struct ws_api_route *r, const struct ws_api_request *q);

#endif
