/* Verify: blocks in memory compared with the manifest, on all cores. */
#ifndef WS_FS_STORE_VERIFY_H
#define WS_FS_STORE_VERIFY_H
#include "fs/store/state.h"

/* Hashes the blocks in regions (one a file, NULL for size 0): those of v that are here, or all where v is
 * NULL. -EBADMSG: err names the first file and block that differ; -ECANCELED: one of stop (NULL: none) was
 * set. Without any lock. */
WS_MUST_USE int ws_verify_regions(struct ws_store *s, const struct ws_manifest *m,
                                  struct ws_region *const *regions, struct ws_version *v,
                                  const atomic_bool *const stop[2], struct ws_error *err);

#endif
