/* Whole reads and writes of a descriptor: calls interrupted by a signal are continued. Any thread. */
#ifndef WS_TRANSPORTS_BASE_FILE_H
#define WS_TRANSPORTS_BASE_FILE_H
#include "transports/base/error.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Writes all of it. 0, or -errno; errno has the same. */
WS_MUST_USE int ws_file_write(int fd, const void *bytes, size_t n);
/* Reads n bytes that begin at `at`: how many there were, fewer than n at the end of the file; or -errno. */
WS_MUST_USE ssize_t ws_file_read(int fd, void *bytes, size_t n, uint64_t at);

#endif
