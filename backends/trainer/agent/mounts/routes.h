/* The mounts of an agent's models, and releases over them (routes.c). */
#ifndef WS_TRAINER_AGENT_MOUNTS_ROUTES_H
#define WS_TRAINER_AGENT_MOUNTS_ROUTES_H
#include "transports/access/identity.h"

/* The catalog's seen; not under lock. */
void ws_mounts_seen(void *self, const struct ws_identity *who, const char *mount_id, unsigned ms);

#endif
