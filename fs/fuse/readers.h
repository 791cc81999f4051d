/* Readers: which processes read a version by the mount. What the one copy of a model needs (fs/store/one_copy.h): its
 * memory goes on to another version when there are none, and who they are is said when there are. */
#ifndef WS_FS_FUSE_READERS_H
#define WS_FS_FUSE_READERS_H
#include "fs/fuse/fs.h"

/* Functions of struct ws_store_readers; arg: the ws_fs. */
void ws_readers_close(void *fs, struct ws_version *v);
/* Who has a file open, as it was when it was opened, and who has one mapped, by /proc. */
void ws_readers_describe(void *fs, struct ws_version *v, char *out, size_t cap);

#endif
