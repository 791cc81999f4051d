/* Listing: what a source says it offers (the models JSON of transports/protocol/catalog.h), taken into the
 * store's models and versions. Input: every name, run and number is checked. */
#ifndef WS_FS_STORE_LISTING_H
#define WS_FS_STORE_LISTING_H
#include "fs/store/poller.h"

/* Takes a listing over and tells the changes. -EPROTO: it is not one; nothing was changed. */
WS_MUST_USE int ws_listing_apply(struct ws_watch *w, const json_t *listing, uint64_t *seq,
                                 struct ws_error *err);
/* The source offers nothing; tells the changes. */
void ws_listing_clear(struct ws_watch *w);
/* With store->lock: takes back what the source with that index said about a model. */
void ws_listing_forget(struct ws_model *m, unsigned index);
/* With store->lock, after what sources say has changed: versions of which nothing is here, and which no
 * source lists with the digest that was known of them, begin anew. */
void ws_listing_renew(struct ws_model *m, struct ws_changes *c);

#endif
