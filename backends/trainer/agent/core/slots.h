/* Slots: which slot of a model the next version gets, and within what memory. All under the agent's lock where
 * nothing else is said; functions that move memory release the lock meanwhile. */
#ifndef WS_TRAINER_AGENT_CORE_SLOTS_H
#define WS_TRAINER_AGENT_CORE_SLOTS_H
#include "backends/trainer/agent/core/state.h"

/* A slot for the next version of the group's model, which a rank of it begins; here and below, c is NULL where the agent
 * itself fills it, for a model without ranks. Releases the lock meanwhile. */
WS_MUST_USE int ws_slots_acquire(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *c,
                                 struct ws_slot **out, uint64_t deadline_ns, struct ws_error *err);
/* Makes the memory of an acquired slot fit, within what the agent may use; changes: ranks only write what
 * changed. Releases the lock meanwhile. On failure the slot may have no memory. */
WS_MUST_USE int ws_slots_prepare(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *c,
                                 struct ws_slot *s, bool changes, uint64_t deadline_ns, struct ws_error *err);
/* The slot that serves the version; NULL: none does. */
struct ws_slot *ws_slots_find(const struct ws_agent_model *m, const struct ws_version_id *id);
/* Is the model's newest version in it? */
bool ws_slots_is_newest(const struct ws_agent_model *m, const struct ws_slot *s);
/* False while a thread lays it out: its fields must not be read then. */
bool ws_slots_is_prepared(const struct ws_agent *a, const struct ws_slot *s);
/* Is there memory for so many bytes more? -ENOMEM. */
WS_MUST_USE int ws_slots_check_budget(const struct ws_agent *a, uint64_t bytes, struct ws_error *err);
/* The ids of the slots that will be written again as they are. Ranks should unmap all others. New
 * reference. */
json_t *ws_slots_reusable_ids(const struct ws_agent_model *m);
bool ws_slots_ids_contain(const json_t *ids, const json_t *id);
/* Whether the rank has slots mapped that will not be written again, as far as is known. */
bool ws_slots_session_maps_stale(const struct ws_session *c);
/* Retires all slots of a model; frees those without readers, and leaves the rest until their readers end. */
void ws_slots_retire_all(struct ws_agent *a, struct ws_agent_model *m);

#endif
