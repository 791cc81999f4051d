/* Model, inside the store: the list of a model's named versions, and the rules by which names come and go. */
#ifndef WS_FS_STORE_MODEL_H
#define WS_FS_STORE_MODEL_H
#include "fs/store/events.h"
#include "fs/store/state.h"

/* All but tidy with store->lock held. */

/* The listed model of that name, not counted; or NULL. */
struct ws_model *ws_model_lookup(struct ws_store *s, const char *name);
/* The same, made if there is none. NULL, with a line in the log: no memory, or WS_MAX_MODELS are there. */
struct ws_model *ws_model_add(struct ws_store *s, const char *name, struct ws_store_events *ev);
/* Of a model with a need: the hidden one of its source's versions, made if there is none. NULL as above. */
struct ws_model *ws_model_add_whole(struct ws_model *m, struct ws_store_events *ev);
/* What sources call it. */
const char *ws_model_source_name(const struct ws_model *m);
/* Takes a model out of the store with all its versions; its pulls are stopped. It is freed where nothing else holds it. */
void ws_model_unlist(struct ws_model *m, struct ws_store_events *ev);
/* Is a newer than b? The live lineage is newer than any other. */
bool ws_version_is_newer(const struct ws_version *a, const struct ws_version *b);
bool ws_version_is_released(
    const struct ws_version *v); /* of the release that is under way, or was the last */
/* May it not be evicted: current, previous, pinned, retained, or among the newest options.keep, and no spare copy
 * (one_copy.h)? */
bool ws_version_is_protected(const struct ws_version *v);
/* After anything that names depend on has changed: resolves which lineage is live, renames what is
 * superseded, retires versions that neither a source nor this mount has, and those that hold a source's
 * memory for no use. */
void ws_model_reconcile(struct ws_model *m, struct ws_store_events *ev);
/* Bytes of its largest version; 0: none is known. */
uint64_t ws_model_largest(const struct ws_model *m);
/* Only the first part: which lineage is live. */
void ws_model_resolve_lineage(struct ws_model *m);
/* Takes hidden models of parts that are gone (ws_model_is_gone) out of the store. */
void ws_model_forget_parts(struct ws_store *s, struct ws_store_events *ev);
/* ws_model_reconcile for callers without store->lock; notifies the listeners. */
void ws_model_tidy(struct ws_model *m);

#endif
