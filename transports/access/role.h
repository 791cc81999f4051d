/* Roles: what a route asks for, and what an identity may do. A route names one role; an identity has a set of
 * them. Pure functions, callable from any thread.
 *
 *     open     every client, without an identity: only what holds no data
 *     read     versions, manifests, bytes, deltas, listings, status, metrics
 *     report   a mount says where it stands, under its own identity
 *     release  moves a fleet: releases, aborts, versions that mounts are asked to fetch
 *     publish  ranks of a trainer; by the unix socket only
 *     node     another agent of the same trainer
 *     admin    removes models and mounts */
#ifndef WS_TRANSPORTS_ACCESS_ROLE_H
#define WS_TRANSPORTS_ACCESS_ROLE_H
#include "transports/base/error.h"
#include <stddef.h>

enum ws_role {
    WS_ROLE_OPEN = 1,
    WS_ROLE_READ = 2,
    WS_ROLE_REPORT = 4,
    WS_ROLE_RELEASE = 8,
    WS_ROLE_PUBLISH = 16,
    WS_ROLE_NODE = 32,
    WS_ROLE_ADMIN = 64
};
/* What the one token of wsync 0.1 and, where an operator says --insecure, every client has. */
#define WS_ROLES_OF_CLIENTS ((unsigned)(WS_ROLE_READ | WS_ROLE_REPORT | WS_ROLE_RELEASE))
#define WS_ROLES_ALL        ((unsigned)(WS_ROLES_OF_CLIENTS | WS_ROLE_PUBLISH | WS_ROLE_NODE | WS_ROLE_ADMIN))

#define WS_ROLES_TEXT 64                 /* room for the names of all */
const char *ws_role_name(unsigned role); /* of one; "" where it is none, or several */
/* "read,report", in the order above; "none" where there is none. Returns out. */
char *ws_roles_print(unsigned roles, char out[WS_ROLES_TEXT]);
/* The first n bytes of text, names with commas between. `open` is of routes alone. -EINVAL: a word is no role. */
WS_MUST_USE int ws_roles_parse(const char *text, size_t n, unsigned *roles, struct ws_error *err);

#endif
