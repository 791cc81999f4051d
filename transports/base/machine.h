/* Machine: is a peer on this one? */
#ifndef WS_TRANSPORTS_BASE_MACHINE_H
#define WS_TRANSPORTS_BASE_MACHINE_H
#include <stdint.h>

/* The same for all processes of this kernel until it is booted anew, in whichever container; 0: it is not known. Any thread. */
uint64_t ws_machine_hash(void);

#endif
