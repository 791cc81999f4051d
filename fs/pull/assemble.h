/* Assembly: a version of which several agents have a part each. The parts are pulled, all at once, as the
 * versions that they are (deltas and all); then the whole is made of them in memory of its own, on all cores,
 * and hashed, which gives its manifest. The newest parts stay while the cache has room for them, for the next
 * version's deltas need them. */
#ifndef WS_FS_PULL_ASSEMBLE_H
#define WS_FS_PULL_ASSEMBLE_H
#include "fs/pull/source_select.h"

/* Of a pull's thread, without any lock: the version's manifest and bytes are here when it returns 0. Else
 * what the pull of a part failed with, and whose; -EPROTO, -EBADMSG: the parts do not belong together. */
WS_MUST_USE int ws_assembly_run(struct ws_route *r, const atomic_int *priority, char how[WS_HOW_CHARS],
                                struct ws_error *err);

#endif
