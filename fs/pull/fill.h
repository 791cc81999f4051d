/* Fill: a version in memory of our own, from what is here and from deltas, as far as they go, from a
 * broadcast, and from the source. What no source has whole is made of what it hangs on (delta_bases.h). Of a
 * pull's thread, without any lock. */
#ifndef WS_FS_PULL_FILL_H
#define WS_FS_PULL_FILL_H
#include "fs/pull/source_select.h"

/* The version has its manifest; all of its blocks are here when it returns 0. how: "broadcast to 4 at 38.2
 * GB/s, then tcp 12 MB"; "tcp full: why no delta". */
WS_MUST_USE int ws_fill_run(struct ws_route *r, const atomic_int *priority, char how[WS_HOW_CHARS],
                            struct ws_error *err);
/* After a pull that brought all: makes room for the next version in good time. */
void ws_fill_prepare_next(struct ws_version *v);

#endif
