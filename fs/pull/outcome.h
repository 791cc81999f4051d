/* Outcome: what a pull that has ended leaves in its version: the state, how it came or why it did not, and
 * figures; and a line in the log. */
#ifndef WS_FS_PULL_OUTCOME_H
#define WS_FS_PULL_OUTCOME_H
#include "fs/pull/source_select.h"

/* These with store->lock. */

/* The strategy by which it came. why: why it came by none before that one; owned by the version from now on.
 */
void ws_outcome_set_strategy(struct ws_version *v, const struct ws_source_select *sel, char *why);
/* When its bytes came; no thread of the pull fetches any more. */
void ws_outcome_set_pace(struct ws_version *v, struct ws_source_select *sel);
void ws_outcome_clear_error(struct ws_version *v);
void ws_outcome_success(struct ws_version *v, enum ws_goal goal, const char *how, struct ws_store_events *ev);
void ws_outcome_failure(struct ws_version *v, enum ws_goal goal, int rc, const struct ws_error *err,
                        struct ws_store_events *ev);

/* Nothing is wrong with it, but the one copy of its model is for another version. */
void ws_outcome_turned_away(struct ws_version *v, int rc, const struct ws_error *err,
                            struct ws_store_events *ev);

/* Without any lock. */
void ws_outcome_log(struct ws_version *v, enum ws_goal goal, int rc, const char *how,
                    const struct ws_error *err);

#endif
