/* Copy turn: a pull asks for the one copy of its model (fs/store/one_copy.h). Called by a pull's thread, without any
 * lock. */
#ifndef WS_FS_PULL_COPY_TURN_H
#define WS_FS_PULL_COPY_TURN_H
#include "fs/pull/source_select.h"

/* May the pull have the one copy of its model, and is it in a state to go on from? *one_copy: it has one, which is
 * another version's. One that a pull before left half-way goes back first. */
WS_MUST_USE int ws_copy_turn_ask(struct ws_source_select *sel, const atomic_int *priority, bool *one_copy,
                                 struct ws_error *err);
/* The memory of the version before is given back: what comes is pulled whole. why_whole: why; empty: no delta leads to
 * it. */
WS_MUST_USE int ws_copy_turn_make_room(struct ws_source_select *sel, const char *why_whole,
                                       struct ws_error *err);

#endif
