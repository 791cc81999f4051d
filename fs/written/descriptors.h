/* Descriptors: does any process have a file open for writing, or mapped? The kernel tells of the last close(2) of an open file, or the last
 * munmap(2), only once that has returned, and a framework's next call may overtake it. */
#ifndef WS_FS_WRITTEN_DESCRIPTORS_H
#define WS_FS_WRITTEN_DESCRIPTORS_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* ino: as stat(2) gives it for the file; one of another file system with this number counts, too. by: the thread that closes it. True
 * where it cannot be told, as without the right to look at a process; but those that `by` descends from got no descriptor of
 * it by a fork. */
bool written_is_open_anywhere(uint64_t ino, pid_t by);

#endif
