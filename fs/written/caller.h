/* Caller: who asks for something to be made is its owner from the begin. A chown afterwards would be by a name, or of what has
 * the name by then: whoever may rename below the mount could have another's file given to him. */
#ifndef WS_FS_WRITTEN_CALLER_H
#define WS_FS_WRITTEN_CALLER_H
#include <sys/types.h>

/* This thread makes files as that account, with all the rights that it has itself, until written_be_self. What is not root's
 * makes files as itself. Nothing that waits may come between. */
void written_be_caller(uid_t uid, gid_t gid);
void written_be_self(void);

#endif
