/* Entries of a folder that other users may write to, opened by a process that has more rights than they have.
 *
 * A link must not lend those rights: it is followed only where the link's owner may reach and read the target, too.
 * That is certain where the link is root's or ours, or where each folder on the way and the target belong to the
 * link's owner or are open to all users. Groups and ACLs are not read: what is uncertain is refused. The idea is
 * Linux's fs.protected_symlinks. FIFOs, sockets and devices are refused before they are opened, so that
 * nothing blocks and nothing is set off. */
#ifndef WS_TRANSPORTS_BASE_ENTRY_H
#define WS_TRANSPORTS_BASE_ENTRY_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* Opens `path`, relative to the folder `at` (AT_FDCWD: as for openat), for reading: a regular file, or a
 * folder where `folder` is set. st: what was opened. A descriptor, or: -ENOENT; -EACCES: a link that is not
 * followed; -EISDIR, -ENOTDIR; -EINVAL: neither file nor folder; -ELOOP; what the system says. */
WS_MUST_USE int ws_entry_open(int at, const char *path, bool folder, struct stat *st, struct ws_error *err);

/* Identifies a file that was read before; its name alone never does. */
struct ws_stamp {
    uint64_t dev, ino, size_bytes, mtime_ns, ctime_ns;
};
struct ws_stamp ws_stamp_from_stat(const struct stat *st);
struct ws_stamp ws_stamp_of(const char *path); /* follows links; zeroed where there is no such file */
bool ws_stamp_equal(const struct ws_stamp *a, const struct ws_stamp *b);

#endif
