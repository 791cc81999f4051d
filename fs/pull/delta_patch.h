/* Delta patch: makes one block of a version out of the base's and of the records that are here. Any thread, each with a
 * worker of its own. */
#ifndef WS_FS_PULL_DELTA_PATCH_H
#define WS_FS_PULL_DELTA_PATCH_H
#include "fs/pull/delta_apply_state.h"

/* What the thread with that number patches with. NULL: no memory. */
struct ws_delta_worker *ws_delta_worker_get(struct ws_delta_apply *p, unsigned index);
/* Is the block of the base here? */
bool ws_delta_base_has(const struct ws_delta_apply *p, size_t file, size_t block);
/* Makes the block, if that was not tried before, and marks it as here if it has the manifest's hash. */
void ws_delta_patch_block(struct ws_delta_apply *p, struct ws_delta_worker *w, size_t file, size_t block);

#endif
