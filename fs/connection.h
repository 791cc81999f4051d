/* Connection: the FUSE session of a mount and its descriptor of /dev/fuse, from where it comes to its end. Somebody else has mounted it
 * (fuse/given.h), a supervisor has had it (kept.h), or this process mounts. */
#ifndef WS_FS_CONNECTION_H
#define WS_FS_CONNECTION_H
#include "fs/fuse/fs.h"

/* Makes the session and its connection; no request is answered yet. Before any thread is started. -EPROTO: a supervisor's
 * other release wrote what this one cannot read; others as of mount(2). */
WS_MUST_USE int ws_connection_begin(struct ws_fs *fs, struct ws_error *err);
/* Unmounts lazily, with link mode's tmpfs below it, and ends the connection. No thread answers requests any
 * more, so every process and thread that waits for an answer (readiness.h's stat, an invalidation) has to be
 * let go. The descriptor stays taken, because requests that are parked in the store still reply to it. What is
 * at the path and is not ours, as a successor's mount after a lazy unmount, is left alone. */
void ws_connection_end(struct ws_fs *fs);
/* Closes the kernel's end and no more. The descriptor stays taken, by a pipe without a reader. Replies of
 * requests that are parked in the store fail on it; libfuse, which polls it before it unmounts by path, finds
 * an error and does not. The session is over for libfuse too, which else prints each reply that fails. */
void ws_connection_cut(struct ws_fs *fs);
/* Will no request be answered any more? libfuse forgets that its session has exited when its loop returns. */
bool ws_connection_is_over(const struct ws_fs *fs);

#endif
