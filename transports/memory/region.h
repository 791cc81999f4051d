/* Region: memory that is also a file descriptor, so that the bytes a transfer writes are the bytes
 * an engine maps.
 *
 * Kinds, best first: an unlinked file in a detached huge-page tmpfs (needs CAP_SYS_ADMIN); a memfd with
 * MADV_HUGEPAGE; a plain memfd. Falling back is logged once. An IMPORTED region is a peer's read-only descriptor
 * (transport ipc).
 *
 * Only the kernel knows which processes still read a region: mappings outlive files, and descriptors travel. So a
 * region is written again or recycled only after ws_region_idle has returned 0. It requests an F_WRLCK lease,
 * which is granted exactly when no other open file and no mapping is left in any process. Linux: fcntl(2)
 * F_SETLEASE, fs/locks.c check_conflicting_open.
 *
 * A lease does not show pages that a reader has spliced into a pipe or given to a socket (splice, vmsplice,
 * sendfile): they are the region's own pages, without an open file or a mapping. So a region that another process
 * could read, by a descriptor or by a name, is never written again, whatever the lease says: its owner closes it
 * and gets another one. Or it renews the pages (ws_region_renew) before it writes: a pipe keeps the old ones. */
#ifndef WS_TRANSPORTS_MEMORY_REGION_H
#define WS_TRANSPORTS_MEMORY_REGION_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ws_region_kind { WS_REGION_TMPFS_HUGE, WS_REGION_MEMFD_HUGE, WS_REGION_MEMFD, WS_REGION_IMPORTED };

struct ws_region; /* opaque; functions are thread safe on different regions, idle/free by the owner */

/* New zeroed region of size bytes (> 0), mapped shared and writable in this process (2 MiB aligned address where
 * huge). Memory is not touched yet: writing more than there is ends in SIGBUS or with the OOM killer, so call
 * ws_memory_check (available.h) before. Regions under 1 MiB have 4 KiB pages. A child made by fork does not
 * inherit the mapping, which a lease would not show. The environment variable WSYNC_REGION (tmpfs, memfd,
 * memfd-plain) forces a kind. */
WS_MUST_USE int ws_region_new(struct ws_region **out, uint64_t size_bytes, struct ws_error *err);
/* Has it kept beyond this process's death, until it is freed, where the process has a store of descriptors
 * (base/descriptor_store.h). prefix: of its name there, the rest of which is a random number. False: it is not kept. */
bool ws_region_store(struct ws_region *r, const char *prefix);
const char *ws_region_stored_as(const struct ws_region *r); /* NULL: it is not kept */
/* The region that a process before this one has had kept under that name, and has died since; it is kept on. Whom that process has shown it
 * is not known, so it counts as shown to others. -ENOENT: it was not kept; -EBADMSG: it is no region. */
WS_MUST_USE int ws_region_take_over(struct ws_region **out, const char *name, struct ws_error *err);
/* Wraps a descriptor received from a peer; owns fd from here on, also on failure. Mapped read-only unless
 * `writable`. A writable one is mapped and closed at once, so that no child made by fork keeps its owner's memory
 * by it. Checked: regular file, size exactly size_bytes. */
WS_MUST_USE int ws_region_import(struct ws_region **out, int fd, uint64_t size_bytes, bool writable,
                                 struct ws_error *err);
/* Closes the descriptor of an imported region, whose mapping stays, for the same reason: one that is only read, for a while,
 * in a process that may fork. */
void ws_region_close_descriptor(struct ws_region *r);
enum ws_region_kind ws_region_kind(const struct ws_region *r);
const char *ws_region_kind_name(enum ws_region_kind kind);
unsigned char *ws_region_data(struct ws_region *r); /* NULL when size is 0 */
uint64_t ws_region_size(const struct ws_region *r);
/* The region's own descriptor (O_RDWR; imported: as received, -1 where it is closed); stays the region's. */
int ws_region_fd(const struct ws_region *r);
/* What a descriptor is for. READ: a reader that may do anything with it, after which the region is never idle
 * again. WRITE: a local publisher. COPY: a wsync process that maps it, copies the bytes and closes it. */
enum ws_region_access { WS_REGION_READ, WS_REGION_WRITE, WS_REGION_COPY };
/* A new descriptor, the caller's: O_RDONLY can neither write nor be mapped writable, and from the first
 * one on the file's mode lets no other user reopen it for writing (what may leave the process). */
WS_MUST_USE int ws_region_open(struct ws_region *r, enum ws_region_access access, int *fd,
                               struct ws_error *err);
/* A descriptor of the region's own open file, owned by the caller: ws_region_idle sees neither its new holder nor
 * its mappings. For a local publisher that keeps a slot mapped from version to version. */
WS_MUST_USE int ws_region_lend(const struct ws_region *r, int *fd, struct ws_error *err);
/* May this process's mapping be written? A device's registration of it stays. */
WS_MUST_USE int ws_region_protect(struct ws_region *r, bool writable, struct ws_error *err);
/* May it be written again, because no other process holds it? 0: yes. -EBUSY: one has it open or mapped. -EPERM:
 * the kernel cannot tell, because another process has read it or no leases are granted: close it. The caller's own
 * read-only descriptors must be closed before, and its names removed: the answer holds as long as no process can
 * open it. Imported regions: -EPERM. Does not wait; keeps the lease's SIGIO from the program. */
WS_MUST_USE int ws_region_idle(const struct ws_region *r);
/* Could another process ever read it, as one can an imported region? Then ws_region_idle never returns 0 again. */
bool ws_region_was_shown(const struct ws_region *r);
/* Has no other process it open or mapped? 0, -EBUSY and -EPERM as ws_region_idle, whose rules on the caller's own
 * descriptors and names hold, too; but pages of it may be in pipes and sockets, so it may be written only where
 * its pages were renewed. */
WS_MUST_USE int ws_region_unheld(const struct ws_region *r);
/* Has fresh pages, which are zero, in the place of those of [offset, offset + n_bytes): whoever has the old ones in
 * a pipe or in a socket's queue keeps their bytes. offset: a multiple of WS_BLOCK_BYTES; the end: that, too, or the
 * region's. The region is unheld, and not registered with a device. */
WS_MUST_USE int ws_region_renew(struct ws_region *r, uint64_t offset, uint64_t n_bytes, struct ws_error *err);
/* Can pages be renewed on this machine? Not where a page that is in a pipe may reach beyond a block. */
bool ws_region_can_renew(void);
/* Does the kernel grant leases at all (sysctl fs.leases-enable, sandboxes)? Tried until it does, and logged once
 * where it does not. */
bool ws_region_leases_work(void);
/* Memory of regions that this process has closed and other processes still hold, by the tmpfs's counters; 0 where
 * regions are memfds. */
uint64_t ws_region_left_bytes(void);
/* Faults all pages in (first touch is slow: do it ahead of need); n_threads >= 1. */
WS_MUST_USE int ws_region_prefault(struct ws_region *r, unsigned n_threads, struct ws_error *err);
/* The same for the part at offset (a multiple of 4 KiB), cut at the region's end. */
WS_MUST_USE int ws_region_prefault_part(struct ws_region *r, uint64_t offset, uint64_t n_bytes,
                                        unsigned n_threads, struct ws_error *err);
/* Links the region's file as `name` into the folder dirfd (link mode), mode 0444. The folder must be on the tmpfs
 * returned by ws_region_tmpfs; -EXDEV otherwise. The caller unlinks it. Until the region is freed the file also
 * has a name in the folder .keep (mode 0700) of that tmpfs, so that it can be linked again after recycling. */
WS_MUST_USE int ws_region_link(struct ws_region *r, int dirfd, const char *name);
/* The descriptor of this process's huge-page tmpfs mount (for move_mount in link mode), or -ENOSYS,
 * -EPERM when regions are memfds. Stays the library's. */
int ws_region_tmpfs(void);
/* Changes the size of an idle region of this process; bytes that remain are kept, new ones are zero. On failure it
 * has no mapping any more and can only be freed. */
WS_MUST_USE int ws_region_resize(struct ws_region *r, uint64_t size_bytes, struct ws_error *err);
void ws_region_free(struct ws_region *r); /* unmaps, closes; memory returns when the last reader ends */

#endif
