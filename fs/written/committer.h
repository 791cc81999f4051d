/* Committer: the thread that finds out which folder is whole, and has it published. */
#ifndef WS_FS_WRITTEN_COMMITTER_H
#define WS_FS_WRITTEN_COMMITTER_H
#include "fs/written/commit_request.h"
#include "fs/written/nodes.h"

/* With the lock, which it leaves meanwhile: the call that is answered next may have made the folder whole. Waits until that was looked
 * at, and published where it is: once, if that fails. Not where a file of it is open for writing. NULL: nothing. */
void written_settle(struct written *w, struct written_top *top);
/* Without the lock: settles it, and says what came of it. The folder's own node only. */
void written_commit_now(struct written *w, struct written_top *top, struct ws_commit_reply *out);
/* Is it whole, as far as its names and files say? Without the lock, and with a reference. */
bool written_is_whole(const struct written *w, const struct written_top *top, bool says_why);
/* Until w->ends. arg: struct written. */
void *written_commit(void *arg);

#endif
