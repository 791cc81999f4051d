/* Version step: a rank's part in one version, at its agent. begin gets the slot's memory; commit lets go of
 * it before the agent is told, so that nobody can write a version that is announced; abandon gives it up.
 * What is copied in between is publisher_put's. One thread at a time: the publisher's caller, or,
 * where versions are made on demand, who has the publisher's turn (ws_publisher_lock). */
#ifndef WS_TRAINER_PUBLISHER_VERSION_STEP_H
#define WS_TRAINER_PUBLISHER_VERSION_STEP_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stdint.h>

struct wsync_publisher;

/* demanded: it is announced already, and a slot has to be filled. -EINVAL: nothing is registered; -EALREADY:
 * one is begun; -ESTALE: ranks have to register anew. */
WS_MUST_USE int ws_version_step_begin(struct wsync_publisher *p, uint64_t version, bool demanded,
                                      struct ws_error *err);
/* -ENODATA: something was not put. Whatever comes of it, nothing is begun any more, but after -ENODATA. */
WS_MUST_USE int ws_version_step_commit(struct wsync_publisher *p, struct ws_error *err);
int ws_version_step_abandon(struct wsync_publisher *p, struct ws_error *err);
/* Lets go of the slot's memory, where it is held; the agent is not told. */
void ws_version_step_end(struct wsync_publisher *p);

#endif
