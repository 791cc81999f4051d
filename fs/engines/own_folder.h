/* Own folder: where the mount lies. A daemon that opens what only itself shows waits for itself for good, and whoever touches the
 * mount with it: what is named to it must lie elsewhere. Pure functions of names and of where they lead now; thread-safe. */
#ifndef WS_FS_ENGINES_OWN_FOLDER_H
#define WS_FS_ENGINES_OWN_FOLDER_H
#include "fs/engines/source_spec.h"
#include <limits.h>

/* Where a path leads; of one that is not there, as a folder that is yet to be made, all but its last component. Waits for what lies there. */
WS_MUST_USE int ws_own_folder_resolve(const char *path, char out[PATH_MAX], struct ws_error *err);
/* -EINVAL: the path leads below the mount's folder, which is resolved. The mount is not touched: it may not answer yet. */
WS_MUST_USE int ws_own_folder_check(const char *mountpoint, const char *path, struct ws_error *err);
/* The same of a source that is a folder or a socket, and of its token's file. */
WS_MUST_USE int ws_own_folder_check_source(const char *mountpoint, const struct ws_source_spec *source,
                                           struct ws_error *err);

#endif
