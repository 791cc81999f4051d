/* Fill: a version in memory of this mount, made of a version that is here and of deltas, as far as they
 * reach, of a broadcast, and of blocks from the source. A version that no source has whole is made of its
 * delta bases (delta_bases.h). Called by a pull's thread, without any lock. */
#ifndef WS_FS_PULL_FILL_H
#define WS_FS_PULL_FILL_H
#include "fs/pull/source_select.h"

/* The version must have its manifest. 0: all of its blocks are here. how: "broadcast to 4 at 38.2 GB/s, then
 * tcp 12 MB"; "tcp full: why no delta". */
WS_MUST_USE int ws_fill_run(struct ws_source_select *sel, const atomic_int *priority, char how[WS_HOW_CHARS],
                            struct ws_error *err);
/* After a pull that brought all: has the pool prepare regions for the next version. */
void ws_fill_prepare_next(struct ws_version *v);
/* Is it made of the one copy of its model, as it was that before? Then no source is asked. */
bool ws_fill_knows_way(struct ws_version *v);

#endif
