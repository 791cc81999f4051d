/* Exported: a folder that `wsync export` made for one version. It is known by a mark in it, a file with what
 * it was made as, the version's run and digest, the inodes of the folder and of the model's, and its files'
 * names. A folder without such a mark, a copy of one and one that was moved elsewhere belong to a user: they
 * are never written to and never emptied. Paths are below the descriptor of a model's folder. Not thread safe. */
#ifndef WS_FS_EXPORTED_H
#define WS_FS_EXPORTED_H
#include "transports/base/error.h"
#include "transports/format/manifest.h"
#include <stdbool.h>

#define WS_EXPORTED_MARK ".wsync-export"

enum ws_exported {
    WS_EXPORTED_NONE,    /* nothing has that name */
    WS_EXPORTED_OURS,    /* made for that version, with that digest; whole */
    WS_EXPORTED_OLD,     /* made for that name by us, of another digest, or not whole */
    WS_EXPORTED_FOREIGN, /* we did not make it, or cannot tell */
};

/* What is there under a name. digest NULL: any. part: a folder in the making, which has the mark of the
 * version that it is made for. */
enum ws_exported ws_exported_check(int dir, const char *name, const char *digest);
/* Makes NAME's folder under the name part with its mark; returns its descriptor, or -errno. -EEXIST: part
 * belongs to a user. */
WS_MUST_USE int ws_exported_begin(int dir, const char *part, const char *name, const struct ws_manifest *m);
/* Removes the files of the mark, the mark and the folder, where the mark is ours; what else is in it stays.
 * -EPERM: it is not ours; -ENOTEMPTY: it holds files that the export did not make. */
int ws_exported_remove(int dir, const char *entry);

#endif
