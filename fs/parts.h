/* Parts: what a mount is made of besides its files, by its options: store, control, and the servers of probes and of other mounts. */
#ifndef WS_FS_PARTS_H
#define WS_FS_PARTS_H
#include "fs/fuse/fs.h"

/* Makes them, and has them ask their sources. What was made before an error is in fs, whose owner frees it. */
WS_MUST_USE int ws_parts_start(struct ws_fs *fs, struct ws_error *err);
/* Ends control (fs: struct ws_fs), once or again. With it goes what a successor at the path wants, the settings last: it waits for them. */
void ws_parts_end_control(void *fs);

#endif
