/* SIGBUS guard: copies out of a mapped file that may fail under the reader. A page whose file was cut short,
 * or whose filesystem went away, cannot be read and raises SIGBUS, which ends the real engines. The guard
 * turns it into an error of the one copy that it happened in. Any other SIGBUS of the process goes to the
 * handler that was there before. */
#ifndef WS_ENGINE_REFERENCE_SIGBUS_GUARD_H
#define WS_ENGINE_REFERENCE_SIGBUS_GUARD_H
#include "transports/base/error.h"
#include <stddef.h>

/* Installs the guard as the process's SIGBUS handler, unless it is that already; any thread. */
void ws_sigbus_guard_install(void);
/* Copies n bytes out of a mapping: 0, or -EIO when a page could not be read (dst is then partly written). Any
 * thread, after ws_sigbus_guard_install. */
WS_MUST_USE int ws_sigbus_guard_copy(void *dst, const void *src, size_t n);

#endif
