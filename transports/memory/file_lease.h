/* File lease: which other open files of an inode there are, in any process, mappings among them. Only the kernel knows, and
 * says so by whether it grants a lease. */
#ifndef WS_TRANSPORTS_MEMORY_FILE_LEASE_H
#define WS_TRANSPORTS_MEMORY_FILE_LEASE_H
#include "transports/base/error.h"

/* kind: F_WRLCK: there is none but fd; F_RDLCK, of an fd that only reads: none may write. 0: so it is at this moment;
 * -EBUSY: it is not; -EPERM: the kernel cannot tell (sysctl fs.leases-enable, a file system or an owner without leases).
 * Does not wait, and keeps the lease's SIGIO from the program. Any thread. */
WS_MUST_USE int ws_file_lease_try(int fd, int kind);

#endif
