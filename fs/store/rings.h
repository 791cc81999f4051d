/* Rings: mounts that wait for each other. While a pull uses another mount as its source, that stay has a token,
 * a new one for each stay. A mount's listing says of a version that is not complete on it with which
 * token it waits, followed by what its source's listing said of its own waiting:
 *
 *     "waits":[mine, my source's, its source's, ...]     at most WS_MAX_RELAYS
 *
 * A mount that reads its own token of the present stay in the listing of that stay's source waits for itself:
 * each mount in between passed the token on while it waited. All members of a ring read the same tokens. The
 * member with the lowest token leaves the ring for its next source, at once. The token of a mount that has no
 * other source that answers is above all others, so a ring without a way out is left alone. In a chain no
 * token comes back. A mount of an older release says nothing, and a ring through it is not seen.
 *
 * All with store->lock held. */
#ifndef WS_FS_STORE_RINGS_H
#define WS_FS_STORE_RINGS_H
#include "fs/store/offers.h"

/* A pull of the version begins, with no stay. */
void ws_rings_begin(struct ws_version *v);
/* It begins a stay at a source, or goes on with it. True: what ws_rings_to_json says has changed. */
bool ws_rings_stay(struct ws_version *v, unsigned index, bool has_other);
/* The value of "waits" in this mount's listing, a new reference; NULL: none. */
json_t *ws_rings_to_json(const struct ws_version *v);
/* The source with that index has sent this offer: leaves the source if the ring is ours to leave. */
void ws_rings_check(struct ws_version *v, unsigned index, const struct ws_offer *offer);

#endif
