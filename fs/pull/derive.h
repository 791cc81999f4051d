/* Derive: a version of a view that this mount makes itself (fs/store/derived.h). It is a pull like others, so no engine
 * waits for it in a pause, two who ask for it have it made once, and who gives up ends it within milliseconds.
 *
 * What it is made of is pulled first, whole, with the priority of who asks, and neither dropped nor evicted while it is
 * read. If nothing but views asked for that, it makes room for others afterwards (ws_version.only_for_views): cache= has
 * to hold it beside the view while the view is made. All of the view is made in memory of its own, which is the version's
 * when its manifest is: before that nothing of it can be read, and what fails leaves nothing.
 *
 * So a mount with one copy of a model (copies=1) makes no views: its memory would have to be both the old version, for going
 * back, and the new one, of which no deltas exist. */
#ifndef WS_FS_PULL_DERIVE_H
#define WS_FS_PULL_DERIVE_H
#include "fs/pull/derived_delta.h"
#include "fs/pull/source_select.h"

/* 0: the version's manifest and bytes are here. -ESTALE: what it is made of is gone; that one's error; what
 * derived_files.h and cache_budget.h say; -EBADMSG: also where a source lists it with another digest. *delta: the
 * caller's, also on failure; NULL: there is none. Called by a pull's thread, without any lock. */
WS_MUST_USE int ws_pull_derive(struct ws_source_select *sel, const atomic_int *priority,
                               char how[WS_HOW_CHARS], struct ws_derived_delta **delta, struct ws_error *err);

#endif
