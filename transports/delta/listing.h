/* Listing: which deltas lead to a version, as a server lists them, so that a reader can choose a chain before
 * it fetches anything. As JSON, newest first:
 *   [{"base":1,"base_run":"r","base_digest":"..","version":2,"run":"r","digest":"..","state":"whole","bytes":1,
 *     "changed":1,"whole_blocks":0,"blocks":9}, ...]
 * state: growing (it can be fetched already, and its bytes grow), whole, given-up (the records that it has can
 * be used). "parts":1 in an entry: its stream comes in at most so many parts, since a file behind a web server
 * is one stream. Without it, the reader decides. */
#ifndef WS_TRANSPORTS_DELTA_LISTING_H
#define WS_TRANSPORTS_DELTA_LISTING_H
#include "transports/delta/delta.h"
#include <jansson.h>

#define WS_MAX_DELTA_ENTRIES 64

struct ws_delta_entry {
    struct ws_delta_link link;
    struct ws_delta_stats stats;
    uint64_t n_blocks;   /* of the target */
    unsigned most_parts; /* 0: as many as the reader likes */
};

/* New reference; NULL: no memory. */
json_t *ws_delta_entry_json(const struct ws_delta *d);
/* Reads at most WS_MAX_DELTA_ENTRIES, and leaves out entries in a state that this build does not know.
 * -EPROTO: not a listing. */
WS_MUST_USE int ws_delta_listing_read(const json_t *list, struct ws_delta_entry out[WS_MAX_DELTA_ENTRIES],
                                      size_t *n);

#endif
