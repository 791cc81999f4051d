/* Heart: the thread of a supervised daemon that answers its supervisor (fs/supervisor.h). That the process lives is not enough of an answer: the
 * thread takes the locks of store, control and files, and looks whether a worker still reads requests. */
#ifndef WS_FS_HEART_H
#define WS_FS_HEART_H
#include "fs/fuse/fs.h"

struct ws_heart;

/* Once store and control are there. channel: borrowed, the supervisor's; -1: there is none, and *out is NULL. */
WS_MUST_USE int ws_heart_start(struct ws_heart **out, struct ws_fs *fs, int channel);
/* Before control and store are freed. NULL is fine. */
void ws_heart_stop(struct ws_heart *h);

#endif
