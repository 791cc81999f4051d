/* Stepping stones: what has to be here before a version that its sources have only as a delta, as an archive
 * has most of its versions.
 *
 * The chain of deltas is walked back to the nearest version that is here, or that a source has whole (its
 * anchor, or what the trainer holds still); that one is pulled first, as an ordinary version. Replay then
 * patches along the chain, at most WS_MAX_CHAIN links at once, because all of them are in memory meanwhile:
 * of a longer chain every WS_MAX_CHAIN-th version is a stone too. Where the cache is full the stones are
 * patched in place one after the other, so a chain of any length takes the room of two versions. */
#ifndef WS_FS_PULL_DELTA_BASES_H
#define WS_FS_PULL_DELTA_BASES_H
#include "fs/pull/source_select.h"

/* Returns when a replay can begin, or the version comes whole. -ENODATA: nothing that it could be made of is
 * here or at a source; else what the pull of a stone, or the source, failed with. Of a pull's thread, without
 * any lock. */
WS_MUST_USE int ws_stones_lay(struct ws_route *r, const atomic_int *priority, struct ws_error *err);

#endif
