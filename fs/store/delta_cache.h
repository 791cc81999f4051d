/* Delta cache: a model's deltas that are kept, those that it fetched and those of a view that it made, for chains and for
 * mounts that pull from this one. They lie beside the cache of versions, and delta-cache= bounds them. */
#ifndef WS_FS_STORE_DELTA_CACHE_H
#define WS_FS_STORE_DELTA_CACHE_H
#include "fs/store/state.h"

/* These with store->lock. How much memory a model's deltas may take; of a part: its share of what the model's may. */
uint64_t ws_model_delta_room(const struct ws_model *m);
/* Drops deltas that no version here can be patched with any more, but for a few that other mounts may pull,
 * and what is over delta-cache=. */
void ws_model_trim_deltas(struct ws_model *m);

/* Without store->lock. The deltas held here that lead to a version (delta/listing.h), a new reference; and
 * one of them, counted. NULL: none, or no memory. lineage NULL: the live one; an empty one of base: the
 * version's. level: of compression, that the reader asks of the next one that is made here. */
json_t *ws_model_deltas(struct ws_model *m, uint64_t version, const char *lineage);
struct ws_delta *ws_model_delta(struct ws_model *m, uint64_t version, const char *lineage,
                                const struct ws_version_id *base, unsigned level);

#endif
