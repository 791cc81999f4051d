/* Below: opens paths for a user who may name only what lies below one folder, in a process that has more rights. Every opening checks again, because the owner of a name can make it lead elsewhere at any time.
 */
#ifndef WS_TRANSPORTS_BASE_BELOW_H
#define WS_TRANSPORTS_BASE_BELOW_H
#include "transports/base/entry.h"
#include <stddef.h>

/* Opens a file, or where `folder` is set a folder, for reading, as ws_entry_open: path is absolute and below
 * the folder `below`, and so is what it leads to, which the kernel judges (openat2, RESOLVE_BENEATH). below
 * NULL: anywhere. A descriptor, or: -EPERM: it is not below it, or no such thing; -ESTALE: it was exchanged
 * meanwhile; as ws_entry_open. */
WS_MUST_USE int ws_below_open(const char *below, const char *path, bool folder, struct stat *st,
                              struct ws_error *err);
/* What a folder is called that is a source from now on, malloc'ed: below another one the name that was given,
 * whatever that leads to later, else where it leads now. As ws_below_open, or why it is no folder. */
WS_MUST_USE int ws_below_root(const char *below, const char *path, char **out, struct ws_error *err);
/* All of a small file; NUL-terminated, malloc, the caller's. As ws_below_open; -EBADMSG: no regular file, or
 * larger than `most`. */
WS_MUST_USE int ws_below_read(const char *below, const char *path, size_t most, char **text, size_t *n,
                              struct ws_error *err);

#endif
