/* Archive version: writes all files of one version of an archive (archive.h) into a folder that is not listed
 * yet, its manifest last: in a bucket that makes it a version. */
#ifndef WS_TRANSPORTS_DIR_ARCHIVE_VERSION_H
#define WS_TRANSPORTS_DIR_ARCHIVE_VERSION_H
#include "transports/dir/archive.h"
#include "transports/dir/archive_store.h"

struct ws_archive_write {
    struct ws_archive_store *store;
    unsigned char *buffer; /* of one block, to work with */
    const struct ws_archive_version *version;
    struct ws_delta *delta; /* whole; NULL: the version is an anchor */
    const struct ws_archive_hooks *hooks;
};
/* folder: as the store's begin has it. -ECANCELED, -EBADMSG, -E2BIG, -EBUSY and what files fail with, as
 * ws_archive_add; the caller then abandons it. */
WS_MUST_USE int ws_archive_version_write(const struct ws_archive_write *w, const char *folder,
                                         struct ws_error *err);

#endif
