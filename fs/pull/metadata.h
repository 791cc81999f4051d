/* Metadata: a version's manifest and the headers of its files, which is all that a look at it costs. Fetched
 * without room in the cache. Of a pull's thread, without any lock. */
#ifndef WS_FS_PULL_METADATA_H
#define WS_FS_PULL_METADATA_H
#include "fs/pull/source_select.h"

/* The version has its manifest when it returns 0; who waits for that is answered. */
WS_MUST_USE int ws_metadata_manifest(struct ws_route *r, struct ws_error *err);
/* The version has its manifest; now the headers that are not here. -EBADMSG: one was wrong WS_BLOCK_TRIES
 * times. */
WS_MUST_USE int ws_metadata_headers(struct ws_route *r, struct ws_error *err);

#endif
