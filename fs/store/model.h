/* Model, inside the store: the list of a model's named versions and the rules by which names come
 * and go. */
#ifndef WS_FS_STORE_MODEL_H
#define WS_FS_STORE_MODEL_H
#include "fs/store/events.h"
#include "fs/store/state.h"

/* All but tidy with store->lock held. */

/* The listed model of that name, not counted; made where there is none and c is given. NULL: there is none,
 * out of memory, or there are WS_MAX_MODELS. */
struct ws_model *ws_model_at(struct ws_store *s, const char *name, struct ws_changes *c);
/* Takes a model out of the store with all its versions; its pulls are told to stop. */
void ws_model_unlist(struct ws_model *m, struct ws_changes *c);
/* Is a newer than b? The live lineage is newer than any other. */
bool ws_version_is_newer(const struct ws_version *a, const struct ws_version *b);
/* Must it stay: current, previous, pinned, kept by fs, among the newest options.keep? */
bool ws_version_is_protected(const struct ws_version *v);
/* After anything that names depend on has changed: settles which lineage is live, renames what is
 * superseded, retires what neither a source has nor we, and what holds a source's memory for
 * nothing. */
void ws_model_settle(struct ws_model *m, struct ws_changes *c);
/* Only the first part: which lineage is live. */
void ws_model_settle_lineage(struct ws_model *m);
/* Parts that are gone (ws_model_is_gone): nobody else knows of them. With store->lock. */
void ws_model_forget_parts(struct ws_store *s, struct ws_changes *c);
/* Settles without the lock held, and tells the changes. */
void ws_model_tidy(struct ws_model *m);

/* Without store->lock. The deltas that are kept and lead to a version (delta/listing.h), a new reference, and
 * one of them, counted; NULL: none, or no memory. run NULL: the live lineage, and of base the version's own.
 */
json_t *ws_model_deltas(struct ws_model *m, uint64_t version, const char *run);
struct ws_delta *ws_model_delta(struct ws_model *m, uint64_t version, const char *run,
                                const struct ws_mark *base);

#endif
