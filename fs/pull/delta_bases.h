/* Delta bases: the versions that have to be here before one that its sources have only as a delta, as an
 * archive has most of its versions.
 *
 * The chain of deltas is walked back to the nearest version that is here, or that a source has whole (an
 * archive's anchor, or what the trainer still holds). That version is pulled first, like any other. Then
 * deltas are applied along the chain, at most WS_MAX_DELTA_CHAIN at once, because all of them are in memory
 * meanwhile. Of a longer chain every WS_MAX_DELTA_CHAIN-th version is a base, too. If the cache is full, each
 * base is patched in place to make the next, so a chain of any length takes the memory of two versions. */
#ifndef WS_FS_PULL_DELTA_BASES_H
#define WS_FS_PULL_DELTA_BASES_H
#include "fs/pull/source_select.h"

/* Returns when deltas can be applied, or the version comes whole. -ENODATA: no base is here or at a source;
 * else the error of the source or of a base's pull. Called by a pull's thread, without any lock. */
WS_MUST_USE int ws_delta_bases_pull(struct ws_source_select *sel, const atomic_int *priority,
                                    struct ws_error *err);

/* Pulls a version that has to be here before the selection's, whatever version the one copy of its model is for. */
WS_MUST_USE int ws_delta_bases_pull_first(struct ws_source_select *sel, struct ws_version *base,
                                          enum ws_priority priority, struct ws_error *err);

#endif
