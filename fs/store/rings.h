/* Rings: mounts that wait for each other. While a pull uses another mount as its source, that stay has a
 * token of its own, a new one for each; a mount's listing says of a version that is not whole here with which
 * token it waits, and then what its source's listing said of its own waiting:
 *
 *     "waits":[mine, my source's, the source's of that, ...]     at most WS_MAX_RELAYS
 *
 * Who hears the token of the stay that goes on from the very source of that stay waits for himself: everybody
 * in between said so while he waited. All members of a ring hear the same tokens, and the one with the least
 * leaves it for his next source, at once; the tokens of those that have no other one that answers are greater
 * than all of others, so that a ring in which nobody has is left alone. A chain never brings a token back. A
 * mount that says nothing (of an older release) is no part of a ring that can be seen.
 *
 * All with store->lock held. */
#ifndef WS_FS_STORE_RINGS_H
#define WS_FS_STORE_RINGS_H
#include "fs/store/offers.h"

/* A pull of the version begins, with no stay. */
void ws_rings_begin(struct ws_version *v);
/* It begins a stay at a source, or goes on with it. True: what is said of it has changed. */
bool ws_rings_stay(struct ws_version *v, unsigned index, bool has_other);
/* What this mount says; NULL: nothing. A new reference. */
json_t *ws_rings_said(const struct ws_version *v);
/* The source with that index says so now. */
void ws_rings_heard(struct ws_version *v, unsigned index, const struct ws_offer *offer);

#endif
