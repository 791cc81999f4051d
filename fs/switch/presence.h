/* Standing: what this mount tells its agents of itself: whether it follows a model, how many engines it has,
 * what they serve, which release it has come to an end with, and what became of a version here. */
#ifndef WS_FS_SWITCH_PRESENCE_H
#define WS_FS_SWITCH_PRESENCE_H
#include "fs/engines/controller.h"

/* Where the mount stands with a model, whole. After each change, and when an agent is there again. */
void ws_standing_tell(struct ws_control *c, struct ws_desk *d, struct ws_model *m);
/* It has come to an end with that release: it serves it, or has said why it does not. */
void ws_standing_answer(struct ws_control *c, struct ws_desk *d, struct ws_model *m, uint64_t release);
/* The mount ends: agents need not wait for it. */
void ws_standing_leave(struct ws_control *c);
/* verb: "prepared", "fetched", "loaded" or "failed", the last with why. */
void ws_standing_report(struct ws_control *c, struct ws_desk *d, struct ws_model *m,
                        const struct ws_mark *version, const char *verb, const char *why);

#endif
