/* Mounts: finding wsync mounts on this machine and reading their control files. */
#ifndef WS_MOUNT_HELPERS_CLI_MOUNTS_H
#define WS_MOUNT_HELPERS_CLI_MOUNTS_H
#include "mount-helpers/cli/cli.h"
#include <limits.h>
#include <stdbool.h>

/* The mount that --mount, $WSYNC_MOUNT or the only wsync mount of /proc/self/mounts names; exits
 * with a sentence when there is none, when what is named is none, or when it is not clear which. */
const char *mounts_pick(const struct cli_args *args);
const char *mounts_at(const char *named); /* the mount of that folder; exits where it is none */
/* The same for a command of the words [DIR|DIR/MODEL] [MODEL]: a word with a slash names the mount, or the
 * folder of a model on it. *model is NULL where none is named; exits where the word can be no model's name. */
const char *mounts_pick_model(const struct cli_args *args, const char **model);
const char *mounts_named(const struct cli_args *args); /* --mount or $WSYNC_MOUNT as written, or NULL */
/* Is a path on a wsync mount, dead or alive? Gives the mount's folder, and the rest of the path. */
bool mounts_find(const char *path, char mount[PATH_MAX], char below[PATH_MAX]);
/* Where a path leads to now, since a link such as `current` may lead elsewhere in a moment; the path itself where that
 * cannot be told. Gives out. */
const char *mounts_follow(const char *path, char out[PATH_MAX]);
/* A whole control file as malloc'ed text; NULL with errno. path is formatted. */
__attribute__((format(printf, 1, 2))) char *mounts_read(const char *format, ...);
/* What may be added to an error of a mount: its daemon died, if that is what the errno means, or nothing. */
const char *mounts_hint(int code);
/* Writes one command; 0 or -errno. */
int mounts_write(const char *path, const char *text);
/* Calls visit with the name of each folder in path, numbers in their order, until one call fails. may_be_gone: it is no
 * failure where there is no such path. CLI_OK, what visit said, or CLI_FAILED with its sentence. */
int mounts_each_folder(const char *path, bool may_be_gone, int (*visit)(void *arg, const char *name),
                       void *arg);
/* The same with the name of each model of a mount, which need not list them (root=). */
int mounts_each_model(const char *mount, int (*visit)(void *arg, const char *name), void *arg);
/* Value of "key value" in flat text: malloc'ed or NULL. */
char *mounts_value(const char *text, const char *key);

#endif
