/* Version step: a rank's part in one version, at its agent. Begin gets the slot's memory. Commit releases
 * that memory before the agent is asked to commit, so that no rank can write to an announced version. Abandon
 * gives the version up. What is copied in between is publisher_put's.
 *
 * One thread at a time: the publisher's caller or, with versions on demand, the thread that holds the
 * publisher's lock (ws_publisher_lock). */
#ifndef WS_TRAINER_PUBLISHER_VERSION_STEP_H
#define WS_TRAINER_PUBLISHER_VERSION_STEP_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stdint.h>

struct wsync_publisher;

/* on_demand: the version is announced already, and a reader asked for its bytes. -EINVAL: nothing is
 * registered; -EALREADY: a version is begun; -ESTALE: ranks have to register anew. */
WS_MUST_USE int ws_version_step_begin(struct wsync_publisher *p, uint64_t version, bool on_demand,
                                      struct ws_error *err);
/* -ENODATA: a parameter was not put, and the version stays begun. After any other result none is begun. */
WS_MUST_USE int ws_version_step_commit(struct wsync_publisher *p, struct ws_error *err);
int ws_version_step_abandon(struct wsync_publisher *p, struct ws_error *err);
/* Releases the slot's memory where it is mapped, without a request to the agent. */
void ws_version_step_end(struct wsync_publisher *p);

#endif
