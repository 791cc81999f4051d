/* An HTTP server. It listens, accepts connections, collects bodies, decides which clients a route serves, and
 * answers; its user provides a table of routes and their handlers. What is wrong with a request is answered in
 * this order: no such path (404), no such method (405 with Allow), no identity (401), not the role (403), the
 * size of the body (413). Connections that are too slow, or one too many without an identity, are ended
 * (connections.h), whatever their server is for.
 *
 * Over libmicrohttpd, of which the other rooms see nothing. */
#ifndef WS_TRANSPORTS_HTTP_SERVER_H
#define WS_TRANSPORTS_HTTP_SERVER_H
#include "transports/access/access.h"
#include "transports/base/error.h"
#include "transports/http/answer.h"
#include "transports/http/ending.h"
#include "transports/http/incoming.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_http_route {
    unsigned methods; /* of enum ws_http_methods */
    const char *path; /* decoded; with a * at its end: every path that begins so. The first match serves */
    enum ws_role role;
    /* Answers, or suspends the request and is called again. It runs on the connection's own thread. With n_threads
     * it runs on one that serves other connections too, and must not block. */
    void (*serve)(void *self, struct ws_http_incoming *in, struct ws_http_answer *answer);
    /* Where one route stands for many paths: what this one asks for, which begins as the role above, of no model,
     * with the server's max_body; or NULL. */
    void (*need)(void *self, struct ws_http_incoming *in, struct ws_http_need *need);
};
/* A line of a table of routes. It names its role (READ, OPEN, ...), or does not compile. */
#define WS_HTTP_ROUTE(methods, path, role, serve)                                                            \
    {                                                                                                        \
        methods, path, WS_ROLE_##role, serve, NULL                                                           \
    }

/* A function that is NULL is not called. All may be called on several threads at once. */
struct ws_http_server_options {
    const char *listen; /* "HOST:PORT", "[V6]:PORT", port 0: any */
    /* Who its clients are. Without a token of any kind, and without insecure, it listens on loopback only. */
    struct ws_access_options access;
    const char *tls_cert_file, *tls_key_file, *tls_client_ca_file; /* NULL: plain */
    const struct ws_http_route *routes;                            /* borrowed; ended by a path of NULL */
    void *self;
    unsigned n_threads; /* 0: one for each connection, and then no request can be suspended */
    unsigned max_connections, idle_seconds;
    size_t max_body; /* where a route's need does not say; 0: bodies are read and dropped */
    /* A request whose head is reason enough (a POST without an identity, a body over the limit) is refused before its
     * body is read, and the connection ends. Bodies without an identity are not kept, and end with the limit. Without
     * this a body over the limit is read first, up to WS_MAX_DRAIN_BYTES, so that its sender sees the answer. */
    bool limits_unauthenticated;
    bool may_be_stored; /* answers have no Cache-Control */
    bool gives_hints;   /* a 401 says which scheme, a 503 when to try again */
    /* Before a handler, and after all checks have passed; false: it has answered. */
    bool (*before)(void *self, struct ws_http_incoming *in, struct ws_http_answer *answer);
    /* Gives a refusal another body or status; answer->status says why. NULL: {"error", "errno"}. */
    void (*refuse)(void *self, const struct ws_http_incoming *in, struct ws_http_answer *answer);
    void (*ended)(void *self, struct ws_http_incoming *in); /* frees in->own; no callback names it again */
    void (*closed)(void *self, int sock);                   /* a connection; its number may soon be reused */
};

struct ws_http_server;
/* Fails as ws_http_listen does (-EINVAL, -EACCES, errors of bind), and where a TLS file cannot be read. */
WS_MUST_USE int ws_http_server_new(struct ws_http_server **out, const struct ws_http_server_options *options,
                                   struct ws_error *err);
unsigned ws_http_server_port(const struct ws_http_server *s);
uint64_t ws_http_server_requests(const struct ws_http_server *s); /* so far */
/* Requests that were refused so far: clients without an identity (401), without the role (403). */
uint64_t ws_http_server_refused(const struct ws_http_server *s, unsigned status);
uint64_t ws_http_server_ended(const struct ws_http_server *s,
                              enum ws_http_ending why); /* connections, so far */
unsigned ws_http_server_connections(const struct ws_http_server *s);
uint64_t ws_http_server_certificate_end(const struct ws_http_server *s); /* seconds since 1970; 0: no TLS */
/* Stops listening and waits for the requests that run; none is suspended any more. NULL is fine. */
void ws_http_server_free(struct ws_http_server *s);

#endif
