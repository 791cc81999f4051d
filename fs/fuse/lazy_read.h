/* Lazy read: a FUSE read that is answered by blocks which are fetched for it (pull/lazy.h), instead of being parked. An
 * interrupt (a signal to the reader) ends it at once; what was fetched for it stays. */
#ifndef WS_FS_FUSE_LAZY_READ_H
#define WS_FS_FUSE_LAZY_READ_H
#include "fs/fuse/request.h"

/* Replies to the request, or has it replied, and ends it: n bytes of a file of the version, from `at` on. */
void ws_lazy_read_start(struct ws_request *rq, struct ws_version *v, size_t file, uint64_t at, uint64_t n);

#endif
