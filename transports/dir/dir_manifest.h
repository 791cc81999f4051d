/* Dir manifest: the manifest of a checkpoint in a folder, which has none: its files are hashed, on all cores. */
#ifndef WS_TRANSPORTS_DIR_DIR_MANIFEST_H
#define WS_TRANSPORTS_DIR_DIR_MANIFEST_H
#include "transports/dir/dir_scan.h"
#include <stdatomic.h>

/* The manifest of the version at v->path, and v->stamps, its files' stamps; the caller frees both, also
 * stamps after a failure. Of v it reads model, path, number and mtime. -ESTALE: a file was written to
 * meanwhile; -ECANCELED: cancel, which may be NULL, was set. Any thread. */
WS_MUST_USE int ws_dir_manifest(const struct ws_dir_scan *s, struct ws_dir_version *v,
                                const atomic_bool *cancel, struct ws_manifest **out, struct ws_error *err);

#endif
