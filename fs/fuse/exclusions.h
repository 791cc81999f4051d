/* Exclusions: mount options that exclude each other, or say nothing without another one. All return 0, or -EINVAL with both options and
 * what to do instead. */
#ifndef WS_FS_FUSE_EXCLUSIONS_H
#define WS_FS_FUSE_EXCLUSIONS_H
#include "fs/fuse/options.h"

/* With derive= (pull/derive.h says why). */
WS_MUST_USE int ws_exclusions_derive(const struct ws_mount_options *o, struct ws_error *err);
/* With need=. */
WS_MUST_USE int ws_exclusions_needs(const struct ws_mount_options *o, struct ws_error *err);
/* What goes with one copy in memory, and what does not. -ENOTSUP: this machine has no memory for that. */
WS_MUST_USE int ws_exclusions_copies(const struct ws_mount_options *o, struct ws_error *err);
/* What is only for trees says nothing without them. */
WS_MUST_USE int ws_exclusions_topology(const struct ws_mount_options *o, struct ws_error *err);

#endif
