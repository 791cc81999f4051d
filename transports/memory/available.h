/* Memory: how much may be taken, asked before it is, and given back. A page that is touched when none is left
 * ends the process, so whoever takes gigabytes asks here first. Any thread. */
#ifndef WS_TRANSPORTS_MEMORY_AVAILABLE_H
#define WS_TRANSPORTS_MEMORY_AVAILABLE_H
#include "transports/base/error.h"
#include <stdint.h>

/* Memory that may be taken now: the least of MemAvailable and what each cgroup (v1 or v2) above us
 * has left. *text (WS_ERROR_TEXT bytes, may be NULL) says which one it was. UINT64_MAX where the
 * system does not tell. */
uint64_t ws_memory_available(char *text);
/* The same of the system whose /proc and /sys are found below root ("" is this one). */
uint64_t ws_memory_available_below(const char *root, char *text);
/* -ENOMEM with the figures when `bytes` may not be taken now; what: "two slots of 3.4 GB". */
WS_MUST_USE int ws_memory_check(uint64_t bytes, const char *what, struct ws_error *err);

/* Gives back to the system what free() has kept of it. */
void ws_memory_trim(void);

#endif
