/* Version, inside the store: its life, its names, its state. What of its bytes is here: content.h. */
#ifndef WS_FS_STORE_VERSION_H
#define WS_FS_STORE_VERSION_H
#include "fs/store/events.h"
#include "fs/store/state.h"

/* All with store->lock held. */

/* A version of the model's list, KNOWN, with the name's reference. NULL: out of memory, or the
 * model has WS_MAX_VERSIONS. No change is noted. */
struct ws_version *ws_version_new(struct ws_model *m, uint64_t number, const char *run);
/* The named version (number, run), not counted; NULL. */
struct ws_version *ws_version_named(struct ws_model *m, uint64_t number, const char *run);
void ws_version_set_state(struct ws_version *v, enum ws_state state, struct ws_changes *c);
/* Takes the name away. A version that a source of the live lineage still lists comes back as a new
 * one, KNOWN, with a new id: what readers of the old one hold is never filled again. */
void ws_version_retire(struct ws_version *v, struct ws_changes *c);
bool ws_version_is_live(const struct ws_version *v);
/* Has it regions, filled or not? Callable without the lock. */
bool ws_version_has_bytes(const struct ws_version *v);
/* Has a source that is up all of it, not only a delta to it? Where none is up: has any? */
bool ws_version_comes_whole(const struct ws_version *v);
void ws_version_put_locked(struct ws_version *v);

/* Frees what ws_version_new made; the reaper's, when nothing refers to it any more. */
void ws_version_delete(struct ws_version *v);

#endif
