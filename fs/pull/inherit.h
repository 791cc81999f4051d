/* Inherit: a version whose memory the daemon before this one had, and left with the keeper (store/keeper.h): it is compared with the manifest, block
 * by block, and nothing is fetched. */
#ifndef WS_FS_PULL_INHERIT_H
#define WS_FS_PULL_INHERIT_H
#include "fs/pull/source_select.h"

/* The version must have its manifest and no memory. -ENOTSUP: nobody has kept it, or it has other bytes. Called by a pull's
 * thread, without any lock. */
WS_MUST_USE int ws_inherit_run(struct ws_source_select *sel, struct ws_error *err);

#endif
