/* An HTTP server. It listens, lets in, collects what is sent, decides who may, and answers; its user has a
 * table of routes, and their handlers. What is wrong with a request is answered in this order: no such path
 * (404), no such method (405 with Allow), the token (401), the size of the body (413).
 *
 * Over libmicrohttpd, of which the other rooms see nothing. */
#ifndef WS_TRANSPORTS_HTTP_SERVER_H
#define WS_TRANSPORTS_HTTP_SERVER_H
#include "transports/base/error.h"
#include "transports/http/answer.h"
#include "transports/http/incoming.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Who may ask for it. */
enum ws_http_who {
    WS_HTTP_ANYBODY,
    WS_HTTP_TOKEN /* anybody, where the server has none */
};

struct ws_http_route {
    unsigned methods; /* of enum ws_http_methods */
    const char *path; /* decoded; with a * at its end: whatever begins so. The first that fits is taken */
    enum ws_http_who who;
    /* Answers, or suspends the request and is called again. On the connection's own thread, or, with n_threads,
     * on one that serves others, too: then it does not block. */
    void (*serve)(void *self, struct ws_http_incoming *in, struct ws_http_answer *answer);
};

/* A function that is NULL is not called. All may be called on several threads at once. */
struct ws_http_server_options {
    const char *listen;                                            /* "HOST:PORT", "[V6]:PORT", port 0: any */
    const char *token;                                             /* NULL: none */
    bool insecure;                                                 /* without one, also beyond loopback */
    const char *tls_cert_file, *tls_key_file, *tls_client_ca_file; /* NULL: plain */
    const struct ws_http_route *routes;                            /* borrowed; ended by a path of NULL */
    void *self;
    unsigned n_threads; /* 0: a thread a connection; only with threads of the server's can one be suspended */
    unsigned max_connections, idle_seconds;
    size_t max_body; /* 0: bodies are read and dropped */
    /* What its head is refused for (a POST without the token, a body over the limit) is refused before its body
     * is read, and the connection ends. Those that have not shown the token share half of the connections, and what
     * they send is not kept. */
    bool is_wary;
    bool may_be_stored; /* answers have no Cache-Control */
    bool gives_hints;   /* a 401 says which scheme, a 503 when to come again */
    /* Before a handler, and after everything else was found good; false: it has answered. */
    bool (*before)(void *self, struct ws_http_incoming *in, struct ws_http_answer *answer);
    /* Puts another body, or status, to a refusal; answer->status says why. NULL: {"error", "errno"}. */
    void (*refuse)(void *self, const struct ws_http_incoming *in, struct ws_http_answer *answer);
    void (*ended)(void *self, struct ws_http_incoming *in); /* frees in->own; it is not asked about again */
    void (*closed)(void *self, int sock); /* a connection; the number may be another's soon */
};

struct ws_http_server;
/* -EINVAL, -EACCES and what bind says: as ws_http_listen. */
WS_MUST_USE int ws_http_server_new(struct ws_http_server **out, const struct ws_http_server_options *options,
                                   struct ws_error *err);
unsigned ws_http_server_port(const struct ws_http_server *s);
uint64_t ws_http_server_requests(const struct ws_http_server *s); /* so far */
unsigned ws_http_server_connections(const struct ws_http_server *s);
/* Stops listening and waits for the requests that run; none is suspended any more. NULL is fine. */
void ws_http_server_free(struct ws_http_server *s);

#endif
