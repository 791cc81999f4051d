/* Committer: the thread that finds out which folder is whole, and has it published. */
#ifndef WS_FS_WRITTEN_COMMITTER_H
#define WS_FS_WRITTEN_COMMITTER_H
#include "fs/written/nodes.h"

/* Until w->ends. arg: struct written. */
void *written_commit(void *arg);

#endif
