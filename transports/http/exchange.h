/* The server's internals, shared by its files: server (its life), exchange (a request from its first line to its
 * end), incoming and answer (what handlers see of it). */
#ifndef WS_TRANSPORTS_HTTP_EXCHANGE_H
#define WS_TRANSPORTS_HTTP_EXCHANGE_H
#include "transports/http/connections.h"
#include "transports/http/server.h"
#include "transports/http/tls.h"
#include <microhttpd.h>
#include <stdatomic.h>

struct ws_http_server {
    struct ws_http_server_options o; /* its strings are the caller's and no longer valid; copies follow */
    struct ws_access *access;
    struct ws_http_tls *tls; /* NULL: plain */
    struct ws_http_connections links;
    struct ws_http_listener *listener;
    unsigned port;
    _Atomic uint64_t requests, unknown, forbidden; /* the last two: refused with 401, 403 */
    _Atomic uint64_t logged_ns;                    /* when a refusal was logged last */
    atomic_uint unlogged;                          /* refusals since */
    atomic_uint connections;
    atomic_size_t large; /* bytes that requests keep of their bodies, each beyond WS_MAX_BODY_BYTES */
};

/* What a connection's client has shown of its certificate. */
struct ws_http_certificate {
    struct ws_http_names names; /* once it is verified */
    char text[256];             /* of what it lacks */
};

/* What a connection's client has shown: thousands of them wait for a change. Used by one thread at a time, as libmicrohttpd
 * calls for a connection. */
struct ws_http_connection {
    struct ws_http_link *link;               /* NULL: no memory */
    struct ws_http_credentials *credentials; /* of its TLS; NULL: plain */
    struct ws_http_certificate *certificate; /* NULL: none was asked for yet */
    bool is_verified;                        /* it was checked, and is not checked again */
};

/* libmicrohttpd's callbacks; cls is the server. */
void *ws_http_begin(void *cls, const char *uri, struct MHD_Connection *c);
enum MHD_Result ws_http_handle(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                               const char *version, const char *data, size_t *size, void **state);
void ws_http_end(void *cls, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode code);

int ws_http_connection_socket(struct MHD_Connection *c);
enum MHD_Result ws_http_send(const struct ws_http_incoming *in, struct ws_http_answer *a);

#endif
