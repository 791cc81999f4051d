/* Undo: keeps what the blocks of a model's one copy were before they are overwritten, in the way back
 * (store/way_back.h). Its memory is of the cache; where that has none left, or the process, the way back is given up: the
 * log says so, and the version that cannot be had again shows it. */
#ifndef WS_FS_PULL_UNDO_H
#define WS_FS_PULL_UNDO_H
#include "fs/pull/source_select.h"

/* Begins a way back from the pull's version, which has the memory now, to the one that it was before; all blocks are that
 * one's. Without any lock. */
void ws_undo_begin(struct ws_source_select *sel, const struct ws_manifest *before);
/* It is whole: all of the version is here. */
void ws_undo_end(struct ws_version *v);

struct ws_undo;
/* To write to the way back that was begun, with so many threads at once. NULL: there is none, or no memory. */
struct ws_undo *ws_undo_open(struct ws_source_select *sel, unsigned threads);
void ws_undo_close(struct ws_undo *u); /* NULL is fine */
/* Is the version's memory what another version's was, or may old pages of it be in pipes? Then blocks are made aside,
 * checked, and written by ws_undo_write: what is never brought overwrites nothing. */
bool ws_undo_is_needed(struct ws_version *v);
/* Keeps what a block was, where u is not NULL, and writes it to fresh pages where the old ones may be in pipes. A thread has
 * a number of its own. scratch: WS_BLOCK_BYTES, for a part, else NULL. On failure the block is as it was, and there is no way
 * back; -ESTALE: the part is described otherwise than the map's, and nothing has changed. */
WS_MUST_USE int ws_undo_write(struct ws_undo *u, struct ws_version *v, unsigned thread, size_t file,
                              size_t block, const unsigned char *bytes, unsigned char *scratch,
                              struct ws_error *err);

#endif
