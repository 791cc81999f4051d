/* Assemble: makes a version of which several agents have a part each. The parts are pulled at the same time,
 * each as a version of its own, by deltas, too. Then the whole is made of them in memory of its own, on all
 * cores, and hashed, which gives its manifest. The newest parts stay while the cache has space, because the
 * next version's deltas need them. */
#ifndef WS_FS_PULL_ASSEMBLE_H
#define WS_FS_PULL_ASSEMBLE_H
#include "fs/pull/source_select.h"

/* 0: the version's manifest and bytes are here; else the error of a part's pull, and err names its agent.
 * -EPROTO, -EBADMSG: the parts do not belong together. Called by a pull's thread, without any lock. */
WS_MUST_USE int ws_assemble_run(struct ws_source_select *sel, const atomic_int *priority,
                                char how[WS_HOW_CHARS], struct ws_error *err);

#endif
