/* Mounts: finding wsync mounts on this machine and reading their control files. */
#ifndef WS_MOUNT_HELPERS_MOUNTS_H
#define WS_MOUNT_HELPERS_MOUNTS_H
#include "mount-helpers/cli.h"
#include <limits.h>
#include <stdbool.h>

/* The mount that --mount, $WSYNC_MOUNT or the only wsync mount of /proc/self/mountinfo names; exits
 * with a sentence when there is none or when it is not clear which. */
const char *mounts_pick(const struct cli_args *args);
bool mounts_is_wsync(const char *path); /* is it listed as a wsync mount, dead or alive? */
/* A whole control file as malloc'ed text; NULL with errno. path is formatted. */
__attribute__((format(printf, 1, 2))) char *mounts_read(const char *format, ...);
/* Writes one command; 0 or -errno. */
int mounts_write(const char *path, const char *text);
/* Value of "key value" in flat text: malloc'ed or NULL. */
char *mounts_value(const char *text, const char *key);

#endif
