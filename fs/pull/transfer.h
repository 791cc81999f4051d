/* Transfer: moves the missing blocks of a version into its regions over several lanes at once. */
#ifndef WS_FS_PULL_TRANSFER_H
#define WS_FS_PULL_TRANSFER_H
#include "fs/pull/source_select.h"

/* Every region is there. Returns when all blocks are here and verified (0), or with what ended it:
 * -EBADMSG (one block was wrong WS_BLOCK_TRIES times), -ESTALE, -EHOSTUNREACH, -ECANCELED ...
 * priority may rise meanwhile. *how: the transport of the source that served last. */
WS_MUST_USE int ws_transfer_run(struct ws_route *r, const atomic_int *priority, const char **how,
                                struct ws_error *err);

#endif
