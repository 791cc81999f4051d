/* tcp: the HTTP server of a catalog (libmicrohttpd) and its client (libcurl; ws_tcp_ops). */
#ifndef WS_TRANSPORTS_TCP_TCP_H
#define WS_TRANSPORTS_TCP_TCP_H
#include "transports/access/access.h"
#include "transports/http/ending.h"
#include "transports/protocol/catalog.h"
#include "transports/protocol/source.h"
#include <stdio.h>

extern const struct ws_transport_ops ws_tcp_ops;

struct ws_tcp_server_options {
    const char *listen;              /* "127.0.0.1:18861", "[::]:18861", port 0: any */
    struct ws_access_options access; /* who its clients are; without any of it only loopback */
    const char *tls_cert_file, *tls_key_file, *tls_client_ca_file; /* NULL: plain */
    unsigned n_threads;                                            /* 0: min(cores, 8) */
    unsigned max_clients; /* connections; 0: WS_MAX_CLIENTS, or half of the descriptors where that is less */
};
struct ws_tcp_server;
/* Starts serving. -EACCES: beyond loopback without anything that keeps clients out.
 *
 *   /healthz         {"ok":true}, without an identity
 *   refusals         401 without an identity, 403 without the role that the route asks for, or the model; a POST so
 *                    refused, or with a body over the limit, is refused before its body is read; bodies
 *                    over their route's limit likewise (413)
 *   ended            connections that are slow, or one too many without an identity: http/connections.h
 *   bodies           Content-Length; ETag = digest (the manifest's has its time too); If-None-Match: 304
 *   ranges           206, Content-Range, X-Wsync-XXH3 (hex hashes of the blocks that lie whole in the range,
 *                    comma-separated)
 *   Cache-Control    immutable with ?run=, no-cache without it; no-store for everything else
 *   arriving         a body sends what is here and waits for more
 *   given up         a delta's body that ends in the middle of a record has the trailer X-Wsync-Given-Up
 *   revoked, gone    responses of a revoked version are cut; a version that is gone is 410
 *   errors           {"error":"sentence","errno":"ESTALE"} */
WS_MUST_USE int ws_tcp_server_new(struct ws_tcp_server **out, const struct ws_catalog *catalog,
                                  const struct ws_tcp_server_options *options, struct ws_error *err);
unsigned ws_tcp_server_port(const struct ws_tcp_server *s);
void ws_tcp_server_wake(struct ws_tcp_server *s); /* the catalog's seq changed: answers long polls */
/* Routes that hold requests are asked again (WS_ROUTE_HELD). */
void ws_tcp_server_wake_held(struct ws_tcp_server *s);
struct ws_tcp_server_stats {
    uint64_t bytes_sent, requests, unknown, forbidden; /* the last two: refused with 401, 403 */
    uint64_t ended[WS_HTTP_ENDINGS];                   /* connections that the server ended */
    unsigned connections;
    uint64_t certificate_end; /* seconds since 1970; 0: no TLS */
};
void ws_tcp_server_stats(struct ws_tcp_server *s, struct ws_tcp_server_stats *out);
/* A metric of that name, without a value where there is no TLS. */
void ws_tcp_server_print_certificate(const struct ws_tcp_server_stats *stats, const char *name, FILE *out);
/* As lines of a metric, NAME{reason="head"} and so on. */
void ws_tcp_server_print_ended(const struct ws_tcp_server_stats *stats, const char *name, FILE *out);
void ws_tcp_server_free(struct ws_tcp_server *s);

#endif
