#include "transports/http/holders.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ws_http_holder *ws_http_holders_add(struct ws_http_holders *holders, const char *name)
{
    struct ws_http_holder *h = LIST_FIRST(holders);
    while (h && strcmp(h->name, name) != 0)
        h = LIST_NEXT(h, entry);
    if (!h && (h = calloc(1, sizeof(*h)))) {
        snprintf(h->name, sizeof(h->name), "%s", name);
        LIST_INSERT_HEAD(holders, h, entry);
    }
    if (h)
        h->n_connections++;
    return h;
}

void ws_http_holder_remove(struct ws_http_holder *h)
{
    if (!h || --h->n_connections > 0)
        return;
    LIST_REMOVE(h, entry);
    free(h);
}

struct ws_http_holder *ws_http_holders_largest(struct ws_http_holders *holders)
{
    struct ws_http_holder *largest = NULL;
    for (struct ws_http_holder *h = LIST_FIRST(holders); h; h = LIST_NEXT(h, entry))
        if (!largest || h->n_connections > largest->n_connections)
            largest = h;
    return largest;
}
