/* The mounts of an agent's models, and releases over them (routes.c). */
#ifndef WS_TRAINER_AGENT_MOUNTS_ROUTES_H
#define WS_TRAINER_AGENT_MOUNTS_ROUTES_H

/* The catalog's seen; not under lock. */
void ws_mounts_seen(void *self, const char *mount_id, unsigned ms);

#endif
