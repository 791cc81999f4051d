/* Holders: the identities of a server's known clients, each with how many connections it has (connections.h). Not
 * thread safe. */
#ifndef WS_TRANSPORTS_HTTP_HOLDERS_H
#define WS_TRANSPORTS_HTTP_HOLDERS_H
#include "transports/access/identity.h"
#include <sys/queue.h>

struct ws_http_holder {
    LIST_ENTRY(ws_http_holder) entry;
    char name[WS_IDENTITY_CHARS + 1];
    unsigned n_connections;
};
LIST_HEAD(ws_http_holders, ws_http_holder);
/* A connection more of that identity; NULL: no memory. */
struct ws_http_holder *ws_http_holders_add(struct ws_http_holders *holders, const char *name);
/* A connection less; the last one frees it. NULL is fine. */
void ws_http_holder_remove(struct ws_http_holder *holder);
/* The one with the most connections; NULL: there is none. */
struct ws_http_holder *ws_http_holders_largest(struct ws_http_holders *holders);

#endif
