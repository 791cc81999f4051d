/* Machine: what this one is, and is a peer on it? */
#ifndef WS_TRANSPORTS_BASE_MACHINE_H
#define WS_TRANSPORTS_BASE_MACHINE_H
#include <jansson.h>
#include <stdint.h>

/* The same for all processes of this kernel until it is booted anew, in whichever container; 0: it is not known. Any thread. */
uint64_t ws_machine_hash(void);
/* {"wsync", "kernel": text, "memory", "memory_free": bytes, "now_us": of the time of day}; what cannot be told is not in it.
 * A new reference; NULL: no memory. Any thread. */
json_t *ws_machine_facts(void);

#endif
