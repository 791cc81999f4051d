/* Import: a version in the memory of its source, on the same host, which is mapped instead of copied. */
#ifndef WS_FS_PULL_IMPORT_H
#define WS_FS_PULL_IMPORT_H
#include "fs/pull/source_select.h"

/* Takes the regions over from the source; the version has its manifest and no memory. -ENOTSUP: the source
 * has none to give. Of a pull's thread, without any lock. */
WS_MUST_USE int ws_import_run(struct ws_route *r, struct ws_error *err);

#endif
