/* Memory: how much may be taken, asked before it is. */
#ifndef WS_TRANSPORTS_MEMORY_H
#define WS_TRANSPORTS_MEMORY_H
#include "transports/error.h"
#include <stdint.h>

/* Memory that may be taken now: the least of MemAvailable and what each cgroup (v1 or v2) above us
 * has left. *text (WS_ERROR_TEXT bytes, may be NULL) says which one it was. */
uint64_t ws_memory_available(char *text);

#endif
