/* Region: memory that is also a file descriptor, so that the bytes a transfer writes are the bytes
 * an engine maps.
 *
 * Kinds, best first: an unlinked file in a detached huge-page tmpfs (needs CAP_SYS_ADMIN); a memfd
 * with MADV_HUGEPAGE; a plain memfd. Falling back is logged once. An IMPORTED region is somebody
 * else's read-only descriptor (transport ipc).
 *
 * Who still reads a region only the kernel knows: mappings outlive files and descriptors travel. So
 * a region is written again or recycled only after ws_region_idle said yes, which asks for
 * an F_WRLCK lease: granted exactly when no other open file and no mapping is left in any process.
 * Linux: fcntl(2) F_SETLEASE, fs/locks.c check_conflicting_open.
 *
 * A lease does not tell of pages that a reader has spliced into a pipe or given to a socket (splice,
 * vmsplice, sendfile): they are the region's own pages, and no open file and no mapping. So a region that
 * anybody could read from outside, by a descriptor or by a name, is never written again, whatever the lease
 * says: its owner closes it and takes another one. */
#ifndef WS_TRANSPORTS_MEMORY_REGION_H
#define WS_TRANSPORTS_MEMORY_REGION_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ws_region_kind { WS_REGION_TMPFS_HUGE, WS_REGION_MEMFD_HUGE, WS_REGION_MEMFD, WS_REGION_IMPORTED };

struct ws_region; /* opaque; functions are thread safe on different regions, idle/free by the owner */

/* New zeroed region of size bytes (> 0), mapped shared and writable in this process (2 MiB aligned
 * address where huge). Memory is not touched yet: writing more than there is ends in SIGBUS or in the
 * OOM killer's hands, so ask available.h before. Regions under 1 MiB have 4 KiB pages. A child made by fork
 * does not inherit the mapping (its hold could not be seen). The environment variable WSYNC_REGION
 * (tmpfs, memfd, memfd-plain) forces a kind. */
WS_MUST_USE int ws_region_new(struct ws_region **out, uint64_t size_bytes, struct ws_error *err);
/* Wraps a descriptor received from a peer: takes ownership of fd also on failure. Mapped read-only
 * unless `writable`, and then closed at once: a child made by fork would hold its owner's memory by it.
 * Checked: regular file, size exactly size_bytes. */
WS_MUST_USE int ws_region_import(struct ws_region **out, int fd, uint64_t size_bytes, bool writable,
                                 struct ws_error *err);
enum ws_region_kind ws_region_kind(const struct ws_region *r);
const char *ws_region_kind_name(enum ws_region_kind kind);
unsigned char *ws_region_data(struct ws_region *r); /* NULL when size is 0 */
uint64_t ws_region_size(const struct ws_region *r);
/* The region's own descriptor (O_RDWR; imported: as received, -1 where writable); stays the region's. */
int ws_region_fd(const struct ws_region *r);
/* Who gets a descriptor: a reader that may do with it what he likes, from which on the region is never idle
 * again; a local publisher; a process of ours that maps it, copies the bytes and lets it go. */
enum ws_region_access { WS_REGION_READ, WS_REGION_WRITE, WS_REGION_COPY };
/* A new descriptor, the caller's: O_RDONLY can neither write nor be mapped writable, and from the first
 * one on the file's mode lets no other user reopen it for writing (what may leave the process). */
WS_MUST_USE int ws_region_open(struct ws_region *r, enum ws_region_access access, int *fd,
                               struct ws_error *err);
/* A descriptor of our own open file, the caller's: who gets it, and what he maps of it, is not seen by
 * ws_region_idle. For a local publisher that keeps a slot mapped from version to version. */
WS_MUST_USE int ws_region_lend(const struct ws_region *r, int *fd, struct ws_error *err);
/* May this process's mapping be written? What a device was told of it stays. */
WS_MUST_USE int ws_region_protect(struct ws_region *r, bool writable, struct ws_error *err);
/* May it be written again: is nobody but us holding it? 0; -EBUSY: somebody has it open or mapped; -EPERM:
 * the kernel cannot tell, because it was read from outside or grants no leases, and it is to be closed. Our
 * own read-only descriptors must be closed before, and its names gone: the answer holds for as long as nobody
 * can open it. Imported regions: -EPERM. Does not wait; keeps the SIGIO of the lease from the program. */
WS_MUST_USE int ws_region_idle(const struct ws_region *r);
/* Could anybody outside ever read it? Then ws_region_idle never says 0 again. */
bool ws_region_was_shown(const struct ws_region *r);
/* Does the kernel grant leases at all (sysctl fs.leases-enable, sandboxes)? Asked until it does, and said
 * once where it does not. */
bool ws_region_leases_work(void);
/* Memory of regions that this process has closed and others still hold, as far as the tmpfs tells; 0 where
 * regions are memfds. */
uint64_t ws_region_left_bytes(void);
/* Faults all pages in (first touch is slow: do it ahead of need); n_threads >= 1. */
WS_MUST_USE int ws_region_prefault(struct ws_region *r, unsigned n_threads, struct ws_error *err);
/* The same for the part at offset (a multiple of 4 KiB), cut at the region's end. */
WS_MUST_USE int ws_region_prefault_part(struct ws_region *r, uint64_t offset, uint64_t n_bytes,
                                        unsigned n_threads, struct ws_error *err);
/* Gives the name `name` in the folder dirfd to the region's file (link mode), mode 0444. The folder
 * must be on the tmpfs returned by ws_region_tmpfs; -EXDEV otherwise. The caller unlinks it. Until the
 * region is freed the file also has a name in the folder .keep (mode 0700) of that tmpfs, so that it can
 * be linked again after it was recycled. */
WS_MUST_USE int ws_region_link(struct ws_region *r, int dirfd, const char *name);
/* The descriptor of this process's huge-page tmpfs mount (for move_mount in link mode), or -ENOSYS,
 * -EPERM when regions are memfds. Stays the library's. */
int ws_region_tmpfs(void);
/* Changes the size of an idle region of ours; what is kept is kept, what is new is zero. On failure it has
 * no mapping any more and can only be freed. */
WS_MUST_USE int ws_region_resize(struct ws_region *r, uint64_t size_bytes, struct ws_error *err);
void ws_region_free(struct ws_region *r); /* unmaps, closes; memory returns when the last reader ends */

#endif
