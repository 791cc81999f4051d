/* Set: the models that one switch moves together. It holds what their engines name: where the target of an engine moves
 * that has a draft model (draft=), the draft moves along, or is of that number already. Adapters may stay.
 *
 * Target and draft are models of their own, whose runs may have different names. So a draft is taken for the target's by its
 * number, but for one case: where the target goes to another run and the draft's stays, that is the draft of the run before,
 * unless both runs have one name. */
#ifndef WS_FS_SWITCH_SET_H
#define WS_FS_SWITCH_SET_H
#include "fs/switch/switch.h"

/* The item of a model; NULL: it stays as it is. */
const struct ws_switch_item *ws_set_find(const struct ws_switch_item *items, size_t n, const char *model);
/* Before anything is pulled. -EINVAL: what is missing. */
WS_MUST_USE int ws_set_check(struct ws_control *c, const struct ws_switch_item *items, size_t n,
                             struct ws_error *err);
/* A draft model that is not among the items, and would not fit. */
struct ws_set_lack {
    char engine[WS_MAX_NAME + 1], draft[WS_MAX_NAME + 1];
    uint64_t current;  /* of the draft, in that engine */
    bool has_current;  /* it is known */
    bool is_other_run; /* its number fits, and its run does not */
};
/* Of the engines whose target the item is. False: nothing is missing. Takes the control's lock. */
bool ws_set_find_lack(struct ws_control *c, const struct ws_switch_item *items, size_t n,
                      const struct ws_switch_item *of, struct ws_set_lack *out);
/* The sentence: -EINVAL. */
int ws_set_refuse(const struct ws_switch_item *item, const struct ws_set_lack *lack, struct ws_error *err);

/* --- following, where one model of a set moves it --- */

#define WS_MAX_SET_DRAFTS 8 /* of the engines of one target */

/* Does the policy of the target of engines whose draft it is take it along? Then it does not cost them a pause of its own. */
bool ws_set_is_taken_along(struct ws_control *c, const struct ws_controller *ctl);
/* The draft models of the first item's engines go along, in versions of its number and run: items has room for WS_MAX_SET_DRAFTS
 * more, with references of their own. False: one is not there yet. */
bool ws_set_add_drafts(struct ws_control *c, struct ws_switch_item *items, size_t *n);
/* Is the version of the engine's draft model, that was current for a daemon before, still on its way here? Under the control's
 * lock. */
bool ws_set_waits_for_draft(struct ws_control *c, const struct ws_engine *e);
/* Has the engine's draft model a current version, which the engine can load and is not known to have? Under the control's
 * lock. */
bool ws_set_lacks_draft(struct ws_control *c, const struct ws_engine *e);
/* The targets of engines whose draft the model is; how many. */
size_t ws_set_find_targets(struct ws_control *c, const char *draft,
                           struct ws_controller *out[WS_MAX_SET_DRAFTS]);
/* Does the release of the item name the draft models of its engines too, or do they fit? Orders for its models come one
 * after the other, so this waits for a moment. */
WS_MUST_USE int ws_set_check_release(struct ws_control *c, const struct ws_switch_item *item,
                                     uint64_t release, struct ws_error *err);

#endif
