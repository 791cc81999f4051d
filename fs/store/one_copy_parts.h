/* One copy, of a version in parts: what becomes of the parts when its memory goes on (one_copy.h).
 *
 * Each part loses its name to a new version of it, which is KNOWN, with its manifest. Where the memory goes on to another
 * version in parts that is laid out alike, each part of that has in its place what the part before was, to be patched:
 * which version, and which blocks of it (struct ws_part_base). What lay in the place of a part whose pull had not begun is handed on.
 *
 * All but the first and the last with store->lock held. */
#ifndef WS_FS_STORE_ONE_COPY_PARTS_H
#define WS_FS_STORE_ONE_COPY_PARTS_H
#include "fs/store/events.h"
#include "fs/store/part_view.h"

struct ws_part_moves;
/* What the move of a version needs in memory. to: the parts of the other version, in the order of from's, borrowed; NULL:
 * the memory does not go on to parts. *out NULL: from has no parts. Without store->lock. */
WS_MUST_USE int ws_part_moves_new(struct ws_part_moves **out, struct ws_version *from,
                                  struct ws_version *const *to);
/* How many references to the whole version its parts have; stops their pulls. SIZE_MAX: one is still used. */
size_t ws_part_moves_quiet(struct ws_version *from);
/* from has no name and no memory any more, and `to` has its regions, if there are such parts. */
void ws_part_moves_run(struct ws_part_moves *moves, struct ws_version *from, struct ws_version *to,
                       struct ws_store_events *ev);
void ws_part_moves_free(struct ws_part_moves *moves); /* NULL is fine */

#endif
