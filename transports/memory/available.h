/* Memory: how much may be allocated, and giving back what was freed. A page that is touched when none is left
 * ends the process, so code that allocates gigabytes calls ws_memory_check first. Any thread. */
#ifndef WS_TRANSPORTS_MEMORY_AVAILABLE_H
#define WS_TRANSPORTS_MEMORY_AVAILABLE_H
#include "transports/base/error.h"
#include <stdint.h>

/* Memory that may be allocated now: the least of MemAvailable and what each cgroup (v1 or v2) above this process
 * has left. *text (WS_ERROR_TEXT bytes, may be NULL) says which one it was. UINT64_MAX where the system does not
 * report it. */
uint64_t ws_memory_available(char *text);
/* The same of the system whose /proc and /sys are found below root ("" is this one). */
uint64_t ws_memory_available_below(const char *root, char *text);
/* -ENOMEM with the figures when `bytes` may not be allocated now; what: "two slots of 3.4 GB". */
WS_MUST_USE int ws_memory_check(uint64_t bytes, const char *what, struct ws_error *err);

/* Gives the system the memory back that free() has kept. */
void ws_memory_trim(void);

#endif
