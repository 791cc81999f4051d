/* The slots of an agent's models: which one the next version gets, and within what memory. All under the
 * agent's lock where nothing else is said; what moves memory gives it up meanwhile. */
#ifndef WS_TRAINER_AGENT_CORE_SLOTS_H
#define WS_TRAINER_AGENT_CORE_SLOTS_H
#include "backends/trainer/agent/core/state.h"

/* A slot for the next version of the group's model, which a rank of it begins; gives the lock up meanwhile.
 */
WS_MUST_USE int ws_agent_take_slot(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *c,
                                   struct ws_slot **out, uint64_t deadline_ns, struct ws_error *err);
/* Makes the memory of a slot that was taken fit, within what the agent may use; changes: ranks only write
 * what changed. Gives the lock up meanwhile. On failure it may have none. */
WS_MUST_USE int ws_agent_prepare_slot(struct ws_agent *a, struct ws_agent_model *m,
                                      const struct ws_session *c, struct ws_slot *s, bool changes,
                                      uint64_t deadline_ns, struct ws_error *err);
/* Is the model's newest version in it? One that another thread lays out just now is not settled, and not
 * looked at. Is there memory for so many bytes more? -ENOMEM. */
bool ws_agent_is_newest(const struct ws_agent_model *m, const struct ws_slot *s);
bool ws_agent_is_settled(const struct ws_agent *a, const struct ws_slot *s);
WS_MUST_USE int ws_agent_check_budget(const struct ws_agent *a, uint64_t bytes, struct ws_error *err);
/* The numbers of the slots that will be written again as they are: what ranks have mapped of others is of no
 * use. Is one among them? Has the rank such memory mapped, as far as is known? */
json_t *ws_agent_slots_that_stay(const struct ws_agent_model *m);
bool ws_agent_is_in(const json_t *slots, const json_t *slot);
bool ws_agent_keeps_others(const struct ws_session *c);
/* Gives the slots of a model back that nobody reads, and what others have of it when they end. */
void ws_agent_give_up_slots(struct ws_agent *a, struct ws_agent_model *m);
/* lend.c: the catalog's lend; not under lock. */
int ws_agent_lend(void *self, struct ws_hold *hold, bool can_copy, struct ws_error *err);

#endif
