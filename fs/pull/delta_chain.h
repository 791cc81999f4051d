/* Links: the deltas that are known to lead to a version: the source's word, and what is here. A chain is
 * walked backwards, link by link. */
#ifndef WS_FS_PULL_DELTA_CHAIN_H
#define WS_FS_PULL_DELTA_CHAIN_H
#include "fs/pull/source_select.h"

struct ws_links {
    struct ws_delta_offer offers[WS_MAX_OFFERS];
    size_t n;
};

/* One step of a chain: what it is, and where it comes from. */
struct ws_link {
    struct ws_delta_offer offer;
    struct ws_delta *held; /* whole and here already; NULL: to be fetched */
};

/* Asks the sources, one after the other until one knows of any, for what leads to the route's version; none
 * on failure. Without any lock. */
WS_MUST_USE int ws_links_ask(struct ws_route *r, struct ws_links *k, struct ws_error *err);
/* The link that ends at a version; held is borrowed. With store->lock. */
bool ws_links_find(const struct ws_model *m, const struct ws_links *k, const struct ws_mark *target,
                   const char *digest, struct ws_link *out);

#endif
