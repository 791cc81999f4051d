/* Assemble in place: whether the parts of a version can be made where the parts of another lie, which has the one copy of
 * the model (fs/store/one_copy.h), or which nobody wants any more and no process ever read (fs/store/handover.h). The
 * latter goes only where all parts come by deltas and no more is fetched for them than if the newest version was copied.
 *
 * Of one copy that is known before it goes on. A part that no delta leads to comes whole, block by
 * block, and what its blocks were is kept as of those that are patched. Where no part can be patched all of it is pulled
 * whole: then memory is better given back than filled with what was there. */
#ifndef WS_FS_PULL_ASSEMBLE_IN_PLACE_H
#define WS_FS_PULL_ASSEMBLE_IN_PLACE_H
#include "fs/pull/source_select.h"
#include "transports/format/node_part_map.h"

/* Of a part, by its pull (WS_GOAL_DELTAS): keeps the deltas that a source lists for it, as its next pull wants them. Without
 * any lock. */
WS_MUST_USE int ws_assemble_in_place_list(struct ws_source_select *sel, struct ws_error *err);
/* Can any of n parts, whose deltas are listed, be made of what lies in the place of the holder's, and each other one come
 * whole? False: *which is one that cannot be made so, the one that cannot come whole if there is such. With store->lock. */
bool ws_assemble_in_place_is_possible(const struct ws_version *holder, struct ws_version *const *parts,
                                      unsigned n, unsigned *which);

/* The newest version that the parts, whose deltas are listed, are made in the place of, since nobody wants it; laid out as
 * the map says. NULL: none. With store->lock. */
struct ws_version *ws_assemble_in_place_unread(const struct ws_version *v, const struct ws_node_part_map *map,
                                               struct ws_version *const *parts, unsigned n);
/* Takes that one's memory for v, and shows the parts there with what lies in their places. 0: it did, or *handed says that it
 * may not be had. Called by v's pull, without any lock. */
WS_MUST_USE int ws_assemble_in_place_take(struct ws_source_select *sel, const struct ws_node_part_map *map,
                                          struct ws_version *const *parts, unsigned n, bool *handed,
                                          struct ws_error *err);

#endif
