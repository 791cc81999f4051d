/* State file: a small file that outlives its process. It is replaced whole: there is always the old one or the new
 * one. */
#ifndef WS_TRANSPORTS_BASE_STATE_FILE_H
#define WS_TRANSPORTS_BASE_STATE_FILE_H
#include "transports/base/error.h"
#include <stddef.h>

#define WS_MAX_STATE_FILE_BYTES (4UL << 20) /* what is read of such a file */

WS_MUST_USE int ws_state_file_make_folder(const char *path); /* makes the folders above it; 0 or -errno */
/* Makes the folders above it, writes a file beside it, for its owner only, and renames that. One thread at a
 * time for one path. 0 or -errno. */
WS_MUST_USE int ws_state_file_write(const char *path, const char *text, size_t n);
/* Takes the lock beside it, PATH.lock, which has the process id of its owner in it; makes the folders above. It ends
 * with the process, or when *fd is closed. -EBUSY: another process has it, *owner (0: unknown); else -errno. */
WS_MUST_USE int ws_state_file_lock(const char *path, int *fd, long *owner);
/* The whole file with a NUL after it, malloc'ed; *out is NULL and the result 0 where there is none. A part of
 * it is never returned: a read error is its errno, a longer file -EFBIG; a FIFO or a device is never waited
 * for: -EINVAL. */
WS_MUST_USE int ws_state_file_read(const char *path, char **out, size_t *n, struct ws_error *err);

#endif
