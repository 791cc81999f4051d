/* Delta set: a model's deltas, newest first. Not thread safe: its owner's lock guards it. */
#ifndef WS_TRANSPORTS_DELTA_SET_H
#define WS_TRANSPORTS_DELTA_SET_H
#include "transports/delta/listing.h"

struct ws_delta_set {
    size_t n;
    struct ws_delta *list[WS_MAX_DELTA_ENTRIES]; /* one reference each */
};

/* The set owns the reference from here on. It drops a delta of the same base and target and, where it would
 * have too many, the oldest. */
void ws_delta_set_add(struct ws_delta_set *s, struct ws_delta *d);
/* Borrowed, or NULL. */
struct ws_delta *ws_delta_set_find(const struct ws_delta_set *s, const struct ws_version_id *base,
                                   const struct ws_version_id *target);
/* The chain that leads to a version, as listing.h has it, the last link first. New reference. */
json_t *ws_delta_set_chain_json(const struct ws_delta_set *s, const struct ws_version_id *target);
uint64_t ws_delta_set_bytes(const struct ws_delta_set *s);
void ws_delta_set_drop(struct ws_delta_set *s, const struct ws_delta *d); /* nothing where it is not in it */
void ws_delta_set_drop_oldest(struct ws_delta_set *s);                    /* nothing where it is empty */
void ws_delta_set_clear(struct ws_delta_set *s);

#endif
