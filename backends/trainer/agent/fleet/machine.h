/* Machine: what a mount says of the machine that it is on, as the agent keeps it (said.h). */
#ifndef WS_TRAINER_AGENT_FLEET_MACHINE_H
#define WS_TRAINER_AGENT_FLEET_MACHINE_H
#include <jansson.h>
#include <stdint.h>

/* A new object of a report's "machine"; NULL: it says nothing (as a mount of 0.1), or there is no memory. day_ns: the
 * agent's time of day; clock_ms is how far the mount's clock is before it, the report's way included. */
json_t *ws_machine_take(const json_t *said, uint64_t day_ns);

#endif
