/* The file under a region: which kind this process may have, and how its descriptor is made. For region.c;
 * any thread. */
#ifndef WS_TRANSPORTS_MEMORY_REGION_FILE_H
#define WS_TRANSPORTS_MEMORY_REGION_FILE_H
#include "transports/memory/region.h"

#define WS_HUGE_BYTES         (2UL << 20)
#define WS_REGION_SMALL_BYTES (1UL << 20) /* below: 4 KiB pages, a small sidecar must not cost 2 MiB */

/* An empty unlinked file of mode 0600, open O_RDWR: its descriptor, or -errno. The environment variable
 * WSYNC_REGION (tmpfs, memfd, memfd-plain) forces a kind; -EINVAL for another word. */
WS_MUST_USE int ws_region_file_new(enum ws_region_kind *kind);
/* A second open file of the same inode, close-on-exec: its descriptor, or -errno. */
WS_MUST_USE int ws_region_file_reopen(int fd, int flags);
/* Bytes that the tmpfs holds, of files that are closed here too; 0: there is none. */
uint64_t ws_region_file_used(void);
/* Gives the file a name that stays as long as the region, since a file whose last name is gone can never get
 * another one. ws_region_file_forget removes it by its *number. */
WS_MUST_USE int ws_region_file_keep(int fd, unsigned long *number);
void ws_region_file_forget(unsigned long number);

#endif
