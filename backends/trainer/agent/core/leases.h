/* Leases: the catalog's functions by which readers lease a version (transports/protocol/catalog.h). Not under
 * lock. */
#ifndef WS_TRAINER_AGENT_CORE_LEASES_H
#define WS_TRAINER_AGENT_CORE_LEASES_H
#include "backends/trainer/agent/core/state.h"

int ws_agent_lease_acquire(void *self, const char *model, uint64_t version, const char *lineage,
                           const char *holder, void (*revoked)(void *), void *arg, struct ws_lease **out,
                           struct ws_error *err);
void ws_agent_lease_release(void *self, struct ws_lease *lease);
int ws_agent_lease_lend(void *self, struct ws_lease *lease, bool can_copy, struct ws_error *err);

#endif
