/* Delta set: the deltas of a model that are kept, newest first. Not thread safe; its holder's lock guards it.
 */
#ifndef WS_TRANSPORTS_DELTA_SET_H
#define WS_TRANSPORTS_DELTA_SET_H
#include "transports/delta/listing.h"

struct ws_delta_set {
    size_t n;
    struct ws_delta *list[WS_MAX_OFFERS]; /* one reference each */
};

/* Takes the reference; one of the same base and target, and the oldest where there are too many, goes. */
void ws_delta_set_add(struct ws_delta_set *s, struct ws_delta *d);
/* Borrowed, or NULL. */
struct ws_delta *ws_delta_set_find(const struct ws_delta_set *s, const struct ws_mark *base,
                                   const struct ws_mark *target);
/* The chain that leads to a version as listing.h lists it, the last link first. New reference. */
json_t *ws_delta_set_leading_to(const struct ws_delta_set *s, const struct ws_mark *target);
uint64_t ws_delta_set_bytes(const struct ws_delta_set *s);
void ws_delta_set_drop_oldest(struct ws_delta_set *s); /* nothing where it is empty */
void ws_delta_set_clear(struct ws_delta_set *s);

#endif
