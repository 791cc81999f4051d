/* Derived delta: what changed from the version before to one of a view that this mount made (derive.h), for mounts that pull
 * the view from this one. It is in the model's delta cache (store/delta_cache.h) like those that were fetched, growing from when
 * the version's manifest is there: who hears of the version then finds it, and gets its records as they are made. What it
 * is made of is compared when the version is ready: neither that nor a reader waits for it.
 *
 * It leads from the newest version of the same lineage that is here, in memory of this mount's own, and has the same files.
 * There is none where no mount can fetch it (no serve=), or delta-cache=0. It is given up where it would be larger than
 * half of the version or than that cache, and where one of both versions goes meanwhile (store/comparison.h). */
#ifndef WS_FS_PULL_DERIVED_DELTA_H
#define WS_FS_PULL_DERIVED_DELTA_H
#include "fs/store/state.h"

struct ws_derived_delta;

/* v: one that is being made; manifest: its, sealed. NULL: there is none. Without any lock. */
struct ws_derived_delta *ws_derived_delta_new(struct ws_version *v, const struct ws_manifest *manifest);
/* From now on others see it. Once, with store->lock. NULL is fine, as below. */
void ws_derived_delta_list(const struct ws_derived_delta *d);
/* Compares both versions, of which the newer one is complete, and frees it. Without any lock. */
void ws_derived_delta_make(struct ws_derived_delta *d);
void ws_derived_delta_give_up(struct ws_derived_delta *d); /* and frees it; likewise */

#endif
