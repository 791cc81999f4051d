/* Listing: what a source says that it offers (the models JSON of transports/protocol/catalog.h), applied to
 * the store's models and versions. It is input: every name, lineage and number is checked. */
#ifndef WS_FS_STORE_LISTING_H
#define WS_FS_STORE_LISTING_H
#include "fs/store/poller.h"

/* Applies a listing and notifies the listeners. asked_ns: when the source was asked for it. An older one than that which
 * holds, which was asked for beside it (inquiry.h), changes nothing. -EPROTO: it is malformed; nothing was changed. */
WS_MUST_USE int ws_listing_apply(struct ws_poller *p, const json_t *listing, uint64_t asked_ns, uint64_t *seq,
                                 struct ws_error *err);
/* The source offers nothing; likewise. */
void ws_listing_clear(struct ws_poller *p, uint64_t asked_ns);
/* With store->lock: forgets what the source with that index said about a model. */
void ws_listing_forget(struct ws_model *m, unsigned index);
/* With store->lock: was the model removed, so that only a source of its own brings it back? */
bool ws_listing_is_removed(const struct ws_store *s, const char *name);
/* With store->lock, after listings have changed: replaces versions of which nothing is here and whose known
 * digest no source lists any more. */
void ws_listing_renew(struct ws_model *m, struct ws_store_events *ev);

#endif
