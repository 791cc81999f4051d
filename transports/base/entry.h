/* Entries of a folder that strangers may write to, opened by somebody with more rights than they have.
 *
 * A link must not lend those rights: it is followed only where the link's owner may reach and read the target
 * himself, which is known where the link is root's or ours, where each folder on the way and the target are
 * his, or are open to everybody. Groups and ACLs are not asked: what cannot be told is refused. The idea is
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

/* What tells that a file is the one that was read before: never its name alone. */
struct ws_stamp {
    uint64_t dev, ino, size_bytes, mtime_ns, ctime_ns;
};
struct ws_stamp ws_stamp_of(const struct stat *st);
bool ws_stamp_is(const struct ws_stamp *a, const struct ws_stamp *b);

#endif
