/* Option table: of each option of a mount its name, its value's form, its meaning, and what sets it. */
#ifndef WS_FS_FUSE_OPTION_TABLE_H
#define WS_FS_FUSE_OPTION_TABLE_H
#include "fs/fuse/options.h"

struct ws_mount_option {
    const char *name, *value; /* value NULL: a flag */
    /* -EINVAL: it is not of the value's form; any other -errno, with the option's `why` where it says more. */
    int (*set)(struct ws_mount_options *o, const char *value);
    const char *meaning; /* NULL: accepted in silence, as mount(8) passes it */
};

/* NULL: there are fewer. */
const struct ws_mount_option *ws_mount_option_at(size_t i);
/* Keeps a copy of a string for as long as the options live. NULL: no memory or room. */
const char *ws_mount_option_keep(struct ws_mount_options *o, const char *value);
/* A group's name or number. -EINVAL: there is none. */
WS_MUST_USE int ws_mount_option_group(const char *value, gid_t *out);

#endif
