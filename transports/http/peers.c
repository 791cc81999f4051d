#include "transports/http/peers.h"
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#define SITE_BYTES 8 /* of an IPv6 address */

static void put_address(const struct sockaddr *a, unsigned char out[16])
{
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    memset(out, 0, 16);
    if (a->sa_family == AF_INET) {
        memcpy(out, mapped, sizeof(mapped));
        memcpy(out + sizeof(mapped), &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4);
    } else if (a->sa_family == AF_INET6) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
        memcpy(out, six, IN6_IS_ADDR_V4MAPPED(six) ? sizeof(*six) : SITE_BYTES);
    }
}

static struct ws_http_peer **list_of(struct ws_http_peers *p, const unsigned char address[16])
{
    unsigned hash = 2166136261U;
    for (unsigned i = 0; i < 16; i++)
        hash = (hash ^ address[i]) * 16777619U;
    return &p->lists[hash % WS_HTTP_PEER_LISTS];
}

struct ws_http_peer *ws_http_peers_add(struct ws_http_peers *p, const struct sockaddr *address)
{
    unsigned char key[16];
    put_address(address, key);
    struct ws_http_peer **list = list_of(p, key), *peer = *list;
    while (peer && memcmp(peer->address, key, sizeof(key)) != 0)
        peer = peer->next;
    if (!peer && (peer = calloc(1, sizeof(*peer)))) {
        memcpy(peer->address, key, sizeof(key));
        peer->next = *list;
        *list = peer;
    }
    if (peer)
        peer->n_connections++;
    return peer;
}

void ws_http_peers_remove(struct ws_http_peers *p, struct ws_http_peer *peer)
{
    if (!peer || --peer->n_connections > 0)
        return;
    struct ws_http_peer **at = list_of(p, peer->address);
    while (*at != peer)
        at = &(*at)->next;
    *at = peer->next;
    free(peer);
}
