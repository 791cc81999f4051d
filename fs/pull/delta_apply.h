/* Replay: fills a version from one that is here already, by the deltas between them.
 *
 * The base is patched in place where its memory can be had (store/handover.h), else copied block by block. A
 * base need not be complete: the blocks of it that are here are patched. What a chain makes of a block must
 * have the manifest's hash, else that block is fetched whole by the transfer that follows, as are those that
 * no delta reaches: so a version comes from what is here, from deltas and from the source at once, and a pull
 * that was cut is never begun again. A version that its sources have only as a delta (an archive's) comes by
 * its chain or not at all: delta_bases.h sees first that there is a base within reach. */
#ifndef WS_FS_PULL_DELTA_APPLY_H
#define WS_FS_PULL_DELTA_APPLY_H
#include "fs/pull/source_select.h"

struct ws_replay;
/* Chooses by cost among the bases that are here and a full pull, and takes the base's memory where it is to
 * be patched in place. NULL: the full pull is the best there is. The version has its manifest and no memory.
 * why: what was chosen and why, for people. */
struct ws_replay *ws_replay_new(struct ws_route *r, char why[WS_HOW_CHARS]);
/* Fetches what deltas are lacking and patches; the version has its memory. Whatever fails is left to the
 * transfer. *transport: of the source that served; unchanged where none did. */
void ws_replay_run(struct ws_replay *p, const char **transport);
/* For a version that no source has whole: is all of it here? -errno: why it is not. */
WS_MUST_USE int ws_replay_result(struct ws_replay *p, struct ws_error *err);
void ws_replay_free(struct ws_replay *p); /* NULL is fine */

#endif
