/* Reads: how complete files of a mount are read: passed through by the kernel, by links into a tmpfs, or through the daemon. What
 * can be hoped for is chosen before the mount is there, and tried once it answers: what does not work then is read through
 * the daemon, and the log and the file status say why. How far the kernel reads ahead goes with it. */
#ifndef WS_FS_FUSE_READS_H
#define WS_FS_FUSE_READS_H
#include "fs/fuse/fs.h"

/* Is there no CAP_SYS_ADMIN, which mounts and hands files to the kernel? */
bool ws_reads_lack_privilege(void);
/* Why complete files cannot be read by FUSE passthrough here; NULL: they can. */
const char *ws_reads_lack_passthrough(void);

/* Sets reads and mode_text, by the options and what this process may do. Before it mounts. */
void ws_reads_choose(struct ws_fs *fs);
/* Opens the kernel's file of the read-ahead, once the place is known. While the process may do that. */
void ws_reads_open_ahead(struct ws_fs *fs);
/* Tries what was chosen, and falls back where it fails. Once the mount answers, of one thread. */
void ws_reads_settle(struct ws_fs *fs);

#endif
