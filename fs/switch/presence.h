/* Presence: what this mount reports to its agents about itself: whether it follows a model, how many engines it
 * has, what they serve, which release it is done with, and what became of a version here. Any thread may call:
 * the store's reporter sends. */
#ifndef WS_FS_SWITCH_PRESENCE_H
#define WS_FS_SWITCH_PRESENCE_H
#include "fs/engines/controller.h"

/* Posts all of it for a model. After each change, and when an agent is there again. */
void ws_presence_post(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m);
/* Posts it where the last error is another than the one that was posted, or is over. Of a command, a reader or a follower: agents
 * show it. */
void ws_presence_post_error(struct ws_control *c, struct ws_controller *ctl);
/* The mount is done with that release: it serves it, or has reported why it does not. */
void ws_presence_post_answered(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                               uint64_t release);
/* The mount ends: agents need not wait for it. */
void ws_presence_leave(struct ws_control *c);
/* verb: "prepared", "fetched", "loaded" or "failed", the last with why. release: the one that asked for it; 0: none. */
void ws_presence_report(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                        const struct ws_version_id *version, const char *verb, uint64_t release,
                        const char *why);

#endif
