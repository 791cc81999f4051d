/* Comparison: two versions that are compared, so that other mounts get the one as a delta from the other. It keeps their
 * memory, as a relay's lease does, and neither their names nor their places in the cache: where one of them is dropped, evicted
 * or to be patched in place, or the store stops, the comparison ends within a block's time. */
#ifndef WS_FS_STORE_COMPARISON_H
#define WS_FS_STORE_COMPARISON_H
#include "fs/store/state.h"
#include "transports/delta/encode.h"

struct ws_comparison {
    struct ws_version *base, *target; /* counted */
    atomic_bool stop;
    LIST_ENTRY(ws_comparison) entry; /* guarded by store->lock */
};

/* These with store->lock; both versions have their names. */
void ws_comparison_begin(struct ws_comparison *c, struct ws_version *base, struct ws_version *target);
void ws_comparisons_stop(struct ws_store *s, const struct ws_version *of); /* NULL: all */
/* Without it: puts both. */
void ws_comparison_end(struct ws_comparison *c);
/* All of a version that is whole, as an encoder takes it. files: room for as many as it has; borrowed, as the version is. */
struct ws_delta_side ws_comparison_side(struct ws_version *v, const unsigned char **files);

#endif
