/* Transfer: moves the missing blocks of a version into its regions over several lanes at once. */
#ifndef WS_FS_PULL_TRANSFER_H
#define WS_FS_PULL_TRANSFER_H
#include "fs/pull/source_select.h"

/* Every region must be there. 0: all blocks are here and verified; -EBADMSG: one block was wrong
 * WS_BLOCK_TRIES times; else ws_source_select_next's errors. priority may rise meanwhile. *transport: of the
 * source that served last; "" where none did. */
WS_MUST_USE int ws_transfer_run(struct ws_source_select *sel, const atomic_int *priority,
                                const char **transport, struct ws_error *err);

#endif
