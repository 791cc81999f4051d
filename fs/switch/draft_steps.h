/* Draft steps: the draft model of an engine in a switch. It is loaded while the engine is paused, after the target where
 * that moves too, and goes back to what the mount had loaded before. A draft model that the switch does not name is never
 * told anything. */
#ifndef WS_FS_SWITCH_DRAFT_STEPS_H
#define WS_FS_SWITCH_DRAFT_STEPS_H
#include "fs/switch/engine_steps.h"

int ws_draft_step_load(struct ws_switch_engine *se);
/* 0 too where nothing is known of what it had, as at the first load ever: it stays, and an event says so. Answers do not
 * depend on a draft model, only their speed does. */
WS_MUST_USE int ws_draft_step_bring_back(struct ws_switch_engine *se);

#endif
