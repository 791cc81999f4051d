/* Adapter steps: the adapters of an engine in a switch. They want no pause, and a version gets its own name, so requests
 * under way go on with the adapter that they began with. What all engines have loaded becomes current; where one fails, the
 * others unload it again. What they list beyond that is unloaded by the reconciler (adapter_upkeep.h), which waits for
 * requests. */
#ifndef WS_FS_SWITCH_ADAPTER_STEPS_H
#define WS_FS_SWITCH_ADAPTER_STEPS_H
#include "fs/switch/engine_steps.h"
#include "fs/switch/kept.h"

/* What one engine lists, asked now; the names that are its members' are recorded. Freed by the caller; NULL: why not. */
struct ws_engine_adapters *ws_adapters_ask(struct ws_control *c, struct ws_engine *e,
                                           const struct ws_engine_target *t, struct ws_error *err);
/* Loads and unloads one, with an event of its model and a record of what the engine lists. */
WS_MUST_USE int ws_adapter_load(struct ws_control *c, struct ws_controller *of, struct ws_engine *e,
                                const struct ws_engine_target *t, const struct ws_version_id *id,
                                const char *name, struct ws_error *err);
WS_MUST_USE int ws_adapter_unload(struct ws_control *c, struct ws_controller *of, struct ws_engine *e,
                                  const struct ws_engine_target *t, const char *name, struct ws_error *err);
/* Loads those of `wanted` that are here and not listed. */
WS_MUST_USE int ws_adapter_load_missing(struct ws_control *c, struct ws_controller *of, struct ws_engine *e,
                                        const struct ws_engine_target *t,
                                        const struct ws_engine_adapters *listed,
                                        const struct ws_wanted_adapters *wanted, struct ws_error *err);
/* Did this mount have it loaded, as a version of the model `of`: is its path one that it gives the engine? *id: of which. Another
 * mount's is not, nor is one without a path. */
bool ws_adapter_is_own(const struct ws_control *c, const struct ws_controller *of, const struct ws_engine *e,
                       const struct ws_engine_adapter *listed, struct ws_version_id *id);
/* Does the engine list that version of the model `of` under the name: loaded from the path that it is given there? An engine that
 * reports no path is believed. */
bool ws_adapter_is_listed(const struct ws_control *c, const struct ws_controller *of,
                          const struct ws_engine *e, const struct ws_engine_adapters *listed,
                          const char *name, const struct ws_version_id *id);

/* Has the engine an adapter whose model moves? */
bool ws_adapter_step_moves(const struct ws_switch_engine *se);
/* ... or one that a load of its target may make it forget? */
bool ws_adapter_step_is_due(const struct ws_switch_engine *se);
/* Was one loaded that has to go where another engine fails? */
bool ws_adapter_step_has_changed(const struct ws_switch_engine *se);
/* The steps of an engine, as those of engine_steps.h. The first is taken before names are given. */
int ws_adapter_step_ask(struct ws_switch_engine *se);
int ws_adapter_step_load(struct ws_switch_engine *se);
/* Unloads what this switch has loaded, and loads what a load of the target made it forget. What fails is put right by
 * the reconciler, and an event says so. */
int ws_adapter_step_bring_back(struct ws_switch_engine *se);
/* Names for the versions that the run loads, as its engines do not know them yet. Written to the settings with the
 * begin of the run's steps, before an engine hears of one. */
void ws_adapter_steps_name(struct ws_switch_run *r);

#endif
