/* Offers: what each source says of a version that it lists: the digest, and which mounts the bytes come
 * through. From them follow two things: sources that name different digests for one version disagree, and one
 * of them is wrong; and what a mount lists itself can never be what it has from its own listing, in a ring of
 * mounts that serve each other either, because each listing names the mounts that it came through. */
#ifndef WS_FS_STORE_OFFERS_H
#define WS_FS_STORE_OFFERS_H
#include "fs/store/state.h"
#include <jansson.h>

struct ws_offer {
    struct ws_offer *next;
    unsigned index; /* of the watch */
    uint64_t bytes, created_ns;
    char digest[33]; /* empty: the source does not say */
    unsigned n_via;  /* mounts between the trainer and us; 0: its agent, or a folder */
    uint64_t via[WS_MAX_RELAYS];
    unsigned n_waits; /* rings.h; of an older release and of an agent: 0 */
    uint64_t waits[WS_MAX_RELAYS];
};

/* Of an entry in a listing. -EPROTO: it is malformed. Pure. */
WS_MUST_USE int ws_offer_read(const json_t *entry, struct ws_offer *out);

/* All with store->lock held. */

/* The digest that the sources list; empty: none of them knows it. */
const char *ws_offers_digest(const struct ws_version *v);
/* Why a version may have got another digest, and what to do. */
const char *ws_offers_advice(const struct ws_version *v);
/* May it be taken: it came neither through this mount nor through more mounts than the limit. */
bool ws_offer_is_fit(const struct ws_store *s, const struct ws_offer *offer);
/* The source with that index says so now; where there is no memory it has said nothing. */
void ws_offers_note(struct ws_version *v, unsigned index, const struct ws_offer *offer);
void ws_offers_forget(struct ws_version *v, unsigned index);
void ws_offers_free(struct ws_version *v);
/* -EBADMSG: two sources name different digests; names both. */
WS_MUST_USE int ws_offers_agree(const struct ws_version *v, struct ws_error *err);
/* After offers of the model have changed, and ws_listing_renew: what sources began to disagree about, among
 * themselves or with what is held, is told, and shown as the error of what is here already. */
void ws_offers_settle(struct ws_model *m);

/* Without any lock: what this mount may list to others, in the form of transports/protocol/catalog.h: what
 * is complete here, and what its sources list with a digest. model NULL: all. -ENOENT. */
WS_MUST_USE int ws_offers_list(struct ws_store *s, const char *model, uint64_t seq, json_t **out,
                               struct ws_error *err);

#endif
