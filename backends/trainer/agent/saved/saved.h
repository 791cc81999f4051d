/* Saved: what outlives the agent, in the file of --state: of each model its lineage and newest number, what was
 * released last, and which mounts are registered; and the last releases. The feature reads it before anything is served, writes it after
 * what changed, and before what must not be forgotten is shown: a committed release, an announced number
 * (saved_text.h has the format).
 *
 * After SIGKILL `newest` may be one behind what mounts have, and `reserved` is not: a version's number is in the file before it is
 * announced, and becomes `newest` there a moment after. That order cannot be another one. Which of the two it was when the agent ended,
 * announced or about to be, only a mount could know that has not reached the next agent yet. So that agent calls it neither newest,
 * since it may have been announced to nobody, nor free, since a mount may have it: other bytes are refused under that number.
 *
 * One agent owns the file, by a lock beside it. A file that cannot be read whole ends the start: an agent that
 * began without it would let versions be published under numbers that mounts have. */
#ifndef WS_TRAINER_AGENT_SAVED_SAVED_H
#define WS_TRAINER_AGENT_SAVED_SAVED_H
#include "backends/trainer/agent/core/state.h"

/* Writes the file now, if anything in it has changed, and marks the releases that are in it as recorded. Without
 * --state it only marks them. Not under lock; may take as long as the disk. -ENOSPC and what else files fail with:
 * what was there before is still there. */
WS_MUST_USE int ws_saved_write(struct ws_agent *a, struct ws_error *err);
/* Something in it has changed: it is written soon, by the feature's thread. Under lock. */
void ws_saved_mark(struct ws_agent *a);

#endif
