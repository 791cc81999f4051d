/* Version memory: the regions of a version that is made here, which are not its own before they hold something. Called by
 * a pull's thread, without any lock. */
#ifndef WS_FS_PULL_VERSION_MEMORY_H
#define WS_FS_PULL_VERSION_MEMORY_H
#include "fs/pull/source_select.h"

/* Claims the manifest's bytes of the cache for the pull's version and takes regions[], by file, NULL for size 0. What
 * ws_cache_budget_claim and ws_pool_get say; then the caller returns what there is. */
WS_MUST_USE int ws_version_memory_take(struct ws_source_select *sel, const struct ws_manifest *m,
                                       struct ws_region **regions, struct ws_error *err);
/* Gives both back; no region is the version's. */
void ws_version_memory_return(struct ws_version *v, struct ws_region **regions, size_t n);

#endif
