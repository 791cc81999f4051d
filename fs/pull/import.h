/* Import: a version in the memory of its source, on the same host, which is mapped instead of copied. */
#ifndef WS_FS_PULL_IMPORT_H
#define WS_FS_PULL_IMPORT_H
#include "fs/pull/source_select.h"

/* Maps the source's regions into the version, which must have its manifest and no memory. -ENOTSUP: the
 * source has no memory to give. Called by a pull's thread, without any lock. */
WS_MUST_USE int ws_import_run(struct ws_source_select *sel, struct ws_error *err);

#endif
