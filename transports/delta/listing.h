/* Offers: which deltas lead to a version, as a server lists them, so that a chain can be chosen before
 * anything is fetched. As JSON, newest first:
 *   [{"base":1,"base_run":"r","base_digest":"..","version":2,"run":"r","digest":"..","state":"whole","bytes":1,
 *     "changed":1,"whole_blocks":0,"blocks":9}, ...]
 * state: growing (it can be fetched already, bytes grow), whole, given-up (what there is can be used).
 * "parts":1 in one says that it comes in at most so many parts (a file behind a web server that knows nothing
 * of parts is one stream); without it, as many as its reader likes. */
#ifndef WS_TRANSPORTS_DELTA_LISTING_H
#define WS_TRANSPORTS_DELTA_LISTING_H
#include "transports/delta/delta.h"
#include <jansson.h>

#define WS_MAX_OFFERS 64

struct ws_delta_offer {
    struct ws_delta_link link;
    struct ws_delta_figures figures;
    uint64_t n_blocks;   /* of the target */
    unsigned most_parts; /* 0: as many as you like */
};

json_t *ws_delta_offer_json(const struct ws_delta *d);
/* Reads at most WS_MAX_OFFERS; those that cannot be used (a state unknown here) are left out. -EPROTO. */
WS_MUST_USE int ws_delta_offers_read(const json_t *list, struct ws_delta_offer out[WS_MAX_OFFERS], size_t *n);

#endif
