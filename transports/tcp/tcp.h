/* tcp: the HTTP server of a catalog (libmicrohttpd) and its client (libcurl; ws_tcp_ops). */
#ifndef WS_TRANSPORTS_TCP_TCP_H
#define WS_TRANSPORTS_TCP_TCP_H
#include "transports/protocol/catalog.h"
#include "transports/protocol/source.h"

extern const struct ws_transport_ops ws_tcp_ops;

struct ws_tcp_server_options {
    const char *listen; /* "127.0.0.1:18861", "[::]:18861", port 0: any */
    const char *token;  /* bearer token; NULL: none, and then only loopback unless insecure */
    bool insecure;      /* no token beyond loopback is allowed */
    const char *tls_cert_file, *tls_key_file, *tls_client_ca_file; /* NULL: plain */
    unsigned n_threads;                                            /* 0: min(cores, 8) */
    unsigned max_clients; /* connections; 0: WS_MAX_CLIENTS, or half of the descriptors where that is less */
};
struct ws_tcp_server;
/* Starts serving. /healthz answers {"ok":true} without a token. -EACCES: beyond loopback without a
 * token. What its head is refused for (a POST without the token, a body over the limit) is refused before its
 * body is read; who has asked for nothing yet shares half of the connections with his like. Bodies carry
 * Content-Length, ranges 206 + Content-Range + X-Wsync-XXH3 (hex hashes of the blocks that lie whole in the
 * range, comma-separated), ETag = digest (the manifest's has its time too); with ?run= Cache-Control is
 * immutable, without it no-cache; all else is no-store. If-None-Match: 304. Of a version that arrives, a body
 * goes out as far as it is here and waits for more. A revoked version's responses are cut; gone: 410. Error
 * bodies are {"error":"sentence","errno":"ESTALE"}. */
WS_MUST_USE int ws_tcp_server_new(struct ws_tcp_server **out, const struct ws_catalog *catalog,
                                  const struct ws_tcp_server_options *options, struct ws_error *err);
unsigned ws_tcp_server_port(const struct ws_tcp_server *s);
void ws_tcp_server_wake(struct ws_tcp_server *s); /* the catalog's seq changed: answers long polls */
struct ws_tcp_server_stats {
    uint64_t bytes_sent, requests;
    unsigned connections;
};
void ws_tcp_server_stats(struct ws_tcp_server *s, struct ws_tcp_server_stats *out);
void ws_tcp_server_free(struct ws_tcp_server *s);

#endif
