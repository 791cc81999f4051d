/* Export: a version tree as plain files where there is no /dev/fuse. */
#ifndef WS_FS_EXPORT_H
#define WS_FS_EXPORT_H
#include "fs/fuse/options.h"

/* Keeps MODEL/VERSION folders of complete versions below o->mountpoint up to date until *stop: files are hard
 * links of the regions in a huge-page tmpfs that is mounted there, or copies where such a mount is not
 * allowed. */
WS_MUST_USE int ws_export_run(const struct ws_mount_options *o, const atomic_bool *stop, void (*ready)(void),
                              struct ws_error *err);

#endif
