/* Delta apply: makes a version of one that is here, by the deltas between them.
 *
 * The base is patched in place if its memory can be handed over (store/handover.h), else copied block by
 * block. It need not be complete: those of its blocks that are here are patched. A patched block must have
 * the manifest's hash. Otherwise, and where no delta reaches, the transfer that follows fetches the block
 * whole. So one version comes from a base, from deltas and from the source at once, and a pull that was cut
 * does not begin anew. A version that its sources have only as a delta (an archive's) comes by its chain or
 * not at all: delta_bases.h first brings a base within reach.
 *
 * The one copy of a model (store/one_copy.h) may have been read. Its blocks are made aside, checked, and written to
 * fresh pages, after what they were was kept (undo.h). */
#ifndef WS_FS_PULL_DELTA_APPLY_H
#define WS_FS_PULL_DELTA_APPLY_H
#include "fs/pull/source_select.h"

struct ws_delta_apply;
/* *out NULL: a full pull is best. Chooses by cost among the bases that are here and a full pull, and has the base's memory handed over if it
 * is to be patched in place. The version must have its manifest and no memory. why: what was chosen and why, for the
 * version's how. Fails where the one copy of its model cannot be had (ws_one_copy_move). */
WS_MUST_USE int ws_delta_apply_new(struct ws_delta_apply **out, struct ws_source_select *sel,
                                   char why[WS_HOW_CHARS], struct ws_error *err);
/* Fetches what deltas are missing and patches; the version has its memory. Whatever fails is left to the
 * transfer. *transport: of the source that served; unchanged where none did. */
void ws_delta_apply_run(struct ws_delta_apply *p, const char **transport);
/* For a version that no source has whole. 0: all of it is here; else why it is not. */
WS_MUST_USE int ws_delta_apply_result(struct ws_delta_apply *p, struct ws_error *err);
void ws_delta_apply_free(struct ws_delta_apply *p); /* NULL is fine */

#endif
