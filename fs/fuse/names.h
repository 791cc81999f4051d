/* Names: with root=MODEL the mount's own folder is the model's, and with names=PATTERN its versions have the names that
 * a framework gives them ("step_7"), so that what lists it, or is told of one by path, finds what it would find in a
 * folder that trainers and engines share. Only these are listed. What a mount has besides (ctl, status, MODEL, latest)
 * is there by name.
 *
 * Such a folder has the version's files and nothing else. Its inode is another one than MODEL/N's: a folder has one
 * parent. */
#ifndef WS_FS_FUSE_NAMES_H
#define WS_FS_FUSE_NAMES_H
#include "fs/fuse/options.h"
#include "transports/base/pattern.h"

/* In an inode's index: a version's folder in the root, a link in the root, a link in such a folder. */
#define WS_NAMED 0x40000000UL

struct ws_names {
    const char *model; /* NULL: the root is that of all models */
    bool is_written;   /* side files may be beside the versions' (side.h) */
    struct ws_pattern pattern;
};

/* Reads root= and names=, and shows files 0644 where no option says otherwise. -EINVAL. */
WS_MUST_USE int ws_names_init(struct ws_names *n, struct ws_mount_options *o, struct ws_error *err);
/* The version whose folder in the root is called so, with a reference; or NULL. */
struct ws_version *ws_names_find(const struct ws_names *n, struct ws_store *store, const char *name);
/* What the version's folder in the root is called; false: it has none there. */
bool ws_names_of(const struct ws_names *n, struct ws_version *v, char out[WS_MAX_NAME + 1]);
/* Calls visit for each version that has a folder in the root; of a constant name, for the newest one. */
void ws_names_each(const struct ws_names *n, struct ws_store *store,
                   void (*visit)(void *arg, const char *name, struct ws_version *v), void *arg);

#endif
