/* Peers: the addresses of a server's clients, each with how many of its connections are strangers (connections.h).
 * Of IPv6 an address is its first 64 bits, which is what one site has. Not thread safe. */
#ifndef WS_TRANSPORTS_HTTP_PEERS_H
#define WS_TRANSPORTS_HTTP_PEERS_H
#include <stddef.h>
#include <sys/socket.h>

struct ws_http_peer {
    struct ws_http_peer *next;
    unsigned char address[16]; /* of IPv4 as IPv6 writes it */
    unsigned n_connections, n_strangers;
};
#define WS_HTTP_PEER_LISTS 1024
struct ws_http_peers {
    struct ws_http_peer *lists[WS_HTTP_PEER_LISTS];
};
/* A connection more from there; NULL: no memory. What is neither IPv4 nor IPv6 is one address. */
struct ws_http_peer *ws_http_peers_add(struct ws_http_peers *peers, const struct sockaddr *address);
/* A connection less; the last one frees it. NULL is fine. */
void ws_http_peers_remove(struct ws_http_peers *peers, struct ws_http_peer *peer);

#endif
