/* Claim: a switch or the reconciler has the engines of models for itself, from claim to release; and which engines
 * those are. */
#ifndef WS_FS_SWITCH_CLAIM_H
#define WS_FS_SWITCH_CLAIM_H
#include "fs/switch/engine_steps.h"

/* All of them, and the other models whose engines serve one of them as a draft or as adapters; or none. -EBUSY: one is
 * claimed; *waits: by the reconciler, or by a switch of another model, for which an operator's switch waits. `items` is
 * whose claim it is. */
WS_MUST_USE int ws_switch_claim(struct ws_control *c, struct ws_switch_item *items, size_t n,
                                bool catching_up, bool *waits, struct ws_error *err);
/* counts: it was a switch, and ok says how it ended. */
void ws_switch_claim_release(struct ws_control *c, struct ws_switch_item *items, size_t n, bool counts,
                             bool ok);
/* A switch does not drive external engines. No engine is added or removed while the switch is claimed.
 * -EOPNOTSUPP. */
WS_MUST_USE int ws_switch_check_kinds(const struct ws_switch_item *items, size_t n, struct ws_error *err);
/* Gives the run its engines, each once with all that is switched of it, which the caller frees with `selected`. names
 * NULL: all engines. Items without a version do not count. */
WS_MUST_USE int ws_switch_collect(struct ws_switch_run *r, struct ws_switch_item *items, size_t n,
                                  const char *const *names, size_t n_names, struct ws_error *err);

#endif
