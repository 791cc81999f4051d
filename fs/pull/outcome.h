/* Outcome: what a pull that has ended leaves at its version: the state, by what it came or why it did not,
 * and figures; and a line in the log. */
#ifndef WS_FS_PULL_OUTCOME_H
#define WS_FS_PULL_OUTCOME_H
#include "fs/pull/source_select.h"

/* These with store->lock. */

/* What strategy it came by. why: why by none before it; the version's from now on. */
void ws_outcome_strategy(struct ws_version *v, const struct ws_route *r, char *why);
void ws_outcome_forget(struct ws_version *v); /* there is no error any more */
void ws_outcome_success(struct ws_version *v, enum ws_goal goal, const char *how, struct ws_changes *c);
void ws_outcome_failure(struct ws_version *v, enum ws_goal goal, int rc, const struct ws_error *err,
                        struct ws_changes *c);

/* Without any lock. */
void ws_outcome_log(struct ws_version *v, enum ws_goal goal, int rc, const char *how,
                    const struct ws_error *err);

#endif
