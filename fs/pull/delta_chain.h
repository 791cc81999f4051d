/* Delta chain: the deltas that lead to a version, those that a source lists and those that are here. A chain
 * is walked backwards, step by step. */
#ifndef WS_FS_PULL_DELTA_CHAIN_H
#define WS_FS_PULL_DELTA_CHAIN_H
#include "fs/pull/source_select.h"

/* What a source lists. */
struct ws_delta_chain {
    struct ws_delta_entry entries[WS_MAX_DELTA_ENTRIES];
    size_t n;
};

/* One step of a chain: what it is, and where it comes from. */
struct ws_delta_step {
    struct ws_delta_entry entry;
    struct ws_delta *held; /* the delta, if all of it is here; NULL: it is to be fetched */
    bool is_way_back;      /* it was made here (fs/store/way_back.h), of bytes that were verified */
};

/* Asks one source after the other for deltas that lead to the version, until one lists any. On failure the
 * chain is empty. Without any lock. */
WS_MUST_USE int ws_delta_chain_query(struct ws_source_select *sel, struct ws_delta_chain *chain,
                                     struct ws_error *err);
/* The step that ends at a version; held is borrowed. With store->lock. */
bool ws_delta_chain_find(const struct ws_model *m, const struct ws_delta_chain *chain,
                         const struct ws_version_id *target, const char *digest, struct ws_delta_step *out);

#endif
