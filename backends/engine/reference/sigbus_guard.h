/* Guard: reading a mapped file that may fail under the reader. A page of a mapping whose file was cut
 * short, or whose filesystem went away, cannot be had and raises SIGBUS; the engines die of it. The
 * guard turns it into an error for the one copy that it happened in; any other SIGBUS of the process
 * goes where it went before. */
#ifndef WS_ENGINE_REFERENCE_SIGBUS_GUARD_H
#define WS_ENGINE_REFERENCE_SIGBUS_GUARD_H
#include "transports/base/error.h"
#include <stddef.h>

/* Makes the guard the process's SIGBUS handler, where it is not yet or no longer; any thread. */
void ws_guard_install(void);
/* Copies n bytes out of a mapping: 0, or -EIO when a page could not be had (dst is then partly
 * written). Any thread, after ws_guard_install. */
WS_MUST_USE int ws_guard_copy(void *dst, const void *src, size_t n);

#endif
