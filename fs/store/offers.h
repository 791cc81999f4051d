/* Offers: what each source says of a version that it lists: its digest, and the mounts that its bytes come
 * through. They show two things. Sources that name different digests for one version disagree, and one of
 * them is wrong. And a mount recognises what it would get from itself, also in a ring of mounts that serve
 * each other, because each listing names the mounts that it came through. */
#ifndef WS_FS_STORE_OFFERS_H
#define WS_FS_STORE_OFFERS_H
#include "fs/store/state.h"
#include <jansson.h>

struct ws_offer {
    struct ws_offer *next;
    unsigned index; /* of the source */
    uint64_t bytes, created_ns;
    char digest[33]; /* empty: the source has not hashed it yet */
    unsigned n_via;  /* mounts between the trainer and this one; 0: its agent, or a folder */
    uint64_t via[WS_MAX_RELAYS];
    unsigned n_ring_tokens; /* rings.h; 0 of an agent, and of a mount of an older release */
    uint64_t ring_tokens[WS_MAX_RELAYS];
};

/* From a version's entry in a listing. -EPROTO: it is malformed. Pure. */
WS_MUST_USE int ws_offer_from_json(const json_t *entry, struct ws_offer *out);

/* All with store->lock held. */

/* The digest that the sources list; empty: none of them has one. */
const char *ws_offers_digest(const struct ws_version *v);
/* Why a version may have got another digest, and what the operator can do. */
const char *ws_offers_advice(const struct ws_version *v);
/* Did it come without passing through this mount? */
bool ws_offer_is_usable(const struct ws_store *s, const struct ws_offer *offer);
/* Replaces the offer of the source with that index; without memory it is lost. */
void ws_offers_record(struct ws_version *v, unsigned index, const struct ws_offer *offer);
void ws_offers_forget(struct ws_version *v, unsigned index);
void ws_offers_free(struct ws_version *v);
/* -EBADMSG: two sources name different digests; names both. */
WS_MUST_USE int ws_offers_agree(const struct ws_version *v, struct ws_error *err);
/* After the model's offers have changed, and ws_listing_renew. Where sources begin to disagree, with each
 * other or with what is held here, that is logged, and shown as the error of a version that is here. */
void ws_offers_reconcile(struct ws_model *m);

/* Without any lock: what this mount lists to others, in the form of transports/protocol/catalog.h: versions
 * that are complete here, and those that its sources list with a digest. model NULL: all. -ENOENT. */
WS_MUST_USE int ws_offers_list(struct ws_store *s, const char *model, uint64_t seq, json_t **out,
                               struct ws_error *err);

#endif
