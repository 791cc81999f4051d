/* The mounts of an agent's models, and releases over them (routes.c). */
#ifndef WS_TRAINER_AGENT_MOUNTS_ROUTES_H
#define WS_TRAINER_AGENT_MOUNTS_ROUTES_H
#include "transports/access/identity.h"
#include "transports/base/error.h"
#include <jansson.h>

/* The catalog's seen; not under lock. */
void ws_mounts_seen(void *self, const struct ws_identity *who, const char *mount_id, unsigned ms);
/* The name of the mount that a request is from, made printable. -EINVAL: it has none. */
WS_MUST_USE int ws_mounts_parse_id(const json_t *body, char out[WS_MOUNT_ID_CHARS + 1], struct ws_error *err);

#endif
