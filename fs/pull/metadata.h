/* Metadata: a version's manifest and the headers of its files, which are all that a look at it costs. They
 * take no space in the cache. Called by a pull's thread, without any lock. */
#ifndef WS_FS_PULL_METADATA_H
#define WS_FS_PULL_METADATA_H
#include "fs/pull/source_select.h"

/* 0: the version has its manifest; waiters for it are completed. */
WS_MUST_USE int ws_metadata_manifest(struct ws_source_select *sel, struct ws_error *err);
/* Fetches the headers that are not here; the version must have its manifest. -EBADMSG: one was wrong
 * WS_BLOCK_TRIES times. */
WS_MUST_USE int ws_metadata_headers(struct ws_source_select *sel, struct ws_error *err);

/* Fetches what describes a part (fs/store/part_description.h), by trees of mounts where there are any. */
WS_MUST_USE int ws_metadata_description(struct ws_source_select *sel, struct ws_error *err);

#endif
