/* Lower: the two folders that a shared folder shows as one. Folders of versions, and what they are called while they are
 * written, lie in memory (a tmpfs that has no name anywhere, so that it goes with the daemon); everything else lies
 * in the folder below, as if nothing were mounted over it. A name that is in memory hides the same one below. */
#ifndef WS_FS_WRITTEN_LOWER_H
#define WS_FS_WRITTEN_LOWER_H
#include "transports/base/error.h"
#include "transports/base/pattern.h"
#include <stdbool.h>

struct ws_lower {
    int below, memory;
    const struct ws_pattern *pattern;
    char left[64]; /* memory's name where the system gives none without; empty: it has none */
};

/* dir: before anything is mounted over it. Memory: of what the machine has, or -EPERM without CAP_SYS_ADMIN and /dev/shm. */
WS_MUST_USE int ws_lower_open(struct ws_lower *l, const char *dir, const struct ws_pattern *pattern,
                              struct ws_error *err);
void ws_lower_close(struct ws_lower *l); /* zeroed is fine */
/* Where a name of the top folder is, or would be made. */
int ws_lower_of(const struct ws_lower *l, const char *name);
/* Is that a version's name, or one that its folder may have while it is written: ".NAME.tmp", ".NAME", "NAME.tmp"? */
bool ws_lower_is_version(const struct ws_lower *l, const char *name);

#endif
