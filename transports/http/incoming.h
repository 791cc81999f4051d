/* A request as a server's handler sees it. */
#ifndef WS_TRANSPORTS_HTTP_INCOMING_H
#define WS_TRANSPORTS_HTTP_INCOMING_H
#include "transports/access/identity.h"
#include "transports/base/vector.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ws_http_methods {
    WS_HTTP_GET = 1,
    WS_HTTP_HEAD = 2,
    WS_HTTP_POST = 4,
    WS_HTTP_OTHER = 8,
    WS_HTTP_READ = WS_HTTP_GET | WS_HTTP_HEAD,
    WS_HTTP_ANY = 15
};

/* What a request asks of its client. */
struct ws_http_need {
    enum ws_role role;
    bool is_of_models;           /* the client has to be allowed to use */
    char model[WS_MAX_NAME + 1]; /* this one; empty: all */
    size_t max_body;             /* what its body may have */
};

struct MHD_Connection;
struct ws_http_server;
struct ws_http_route;
struct ws_http_incoming {
    char *target, *query; /* path and query as sent, percent-encoded; NULL: no query */
    const char *path;     /* decoded, without the query */
    const char *method_name;
    unsigned method;        /* one of enum ws_http_methods */
    struct ws_bytes body;   /* empty: none */
    json_t *json;           /* of ws_http_json; a handler may put something else there */
    void *own;              /* its handler's */
    struct ws_identity who; /* its client; the name is empty where nothing says that */

    /* The server's own. */
    struct ws_http_server *server;
    struct MHD_Connection *connection;
    const struct ws_http_route *route; /* NULL: none */
    unsigned allowed;                  /* methods of a path whose route is NULL */
    const char *lacks;                 /* what its client's certificate does; NULL: nothing */
    bool is_too_large, lacks_room, is_counted;
    struct ws_http_need need;
    bool
        is_unauthenticated; /* no identity, and the server limits such requests: its body is read and dropped */
    uint64_t received;      /* bytes of its body */
    size_t large;           /* those that are kept of it beyond WS_MAX_BODY_BYTES */
};

const char *ws_http_header(const struct ws_http_incoming *in, const char *name);   /* or NULL */
const char *ws_http_argument(const struct ws_http_incoming *in, const char *name); /* decoded; or NULL */
/* All arguments, as strings, into a JSON object; it is made where there is none and there are some. */
void ws_http_arguments(const struct ws_http_incoming *in, json_t **object);
/* The body, parsed once; NULL: there is none, or it is no JSON. Stays the request's. */
json_t *ws_http_json(struct ws_http_incoming *in);

/* Of a handler that refuses a client what the table of routes cannot know: counts and logs it as the server does. */
void ws_http_log_refusal(const struct ws_http_incoming *in, unsigned status);
/* The socket of the request's connection, and the peer's address. */
int ws_http_socket(const struct ws_http_incoming *in);
void ws_http_peer(const struct ws_http_incoming *in, char out[96]);
/* Until it is resumed nothing comes or goes on the connection, no clock runs, and it must not be freed. Then
 * its handler is called again, or its body is read on. Suspended by the handler, or by the body's reader;
 * resumed by any thread, also before either has returned. */
void ws_http_suspend(const struct ws_http_incoming *in);
void ws_http_resume(const struct ws_http_incoming *in);
/* Its connection was ended: for want of room, or since it was too slow. Resume it, if it is suspended. */
bool ws_http_is_ending(const struct ws_http_incoming *in);

#endif
