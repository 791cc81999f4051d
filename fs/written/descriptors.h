/* Descriptors: does any process have a file open for writing? The kernel tells of the last close(2) of an open file only once that has
 * returned, and a framework's next call may overtake it. */
#ifndef WS_FS_WRITTEN_DESCRIPTORS_H
#define WS_FS_WRITTEN_DESCRIPTORS_H
#include "transports/base/error.h"
#include "transports/base/vector.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* ino: as stat(2) gives it for the file; one of another file system with this number counts, too. by: the thread that closes it. True
 * where it cannot be told, as without the right to look at a process; but those that `by` descends from got no descriptor of
 * it by a fork. */
bool written_is_open_anywhere(uint64_t ino, pid_t by);
/* Whoever maps a file may close it and go on writing, which no call tells. Has that process a mapping of the file through
 * which it may write? ino as above. False where it cannot be told. */
bool written_is_mapped_by(uint64_t ino, pid_t by);

WS_VECTOR(written_inos, ino_t);
/* Has any process a file right in the folder mapped so, or open for writing below the mount? As the kernel knows it. 0; -EBUSY: err names
 * the file. 0 where the kernel cannot tell (file_lease.h). The caller has none of them open. Not looked at are those in open_ones, by their
 * numbers below: what is read through the mount is open for writing on its reader's behalf. */
WS_MUST_USE int written_check_mapped(int folder, const struct written_inos *open_ones, struct ws_error *err);

#endif
