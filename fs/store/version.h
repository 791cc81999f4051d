/* Version, inside the store: its life, its name, its state. content.h knows which of its bytes are here. */
#ifndef WS_FS_STORE_VERSION_H
#define WS_FS_STORE_VERSION_H
#include "fs/store/events.h"
#include "fs/store/state.h"

/* All with store->lock held. */

/* A new version in the model's list, KNOWN, with the name's reference. NULL: no memory, or the model has
 * WS_MAX_VERSIONS. The caller adds the event. */
struct ws_version *ws_version_new(struct ws_model *m, uint64_t number, const char *lineage);
/* The version of that number and lineage in the model's list, not counted; or NULL. */
struct ws_version *ws_version_lookup(struct ws_model *m, uint64_t number, const char *lineage);
void ws_version_set_state(struct ws_version *v, enum ws_version_state state, struct ws_store_events *ev);
/* Takes the name away. If a source still lists the version and its lineage is live, a new version takes the
 * name, KNOWN, with a new id: memory that readers of the old one have is never filled again. */
void ws_version_retire(struct ws_version *v, struct ws_store_events *ev);
/* Takes its memory away from it: the name goes to a new version, KNOWN, that has its manifest, its headers and what
 * else is known of it, and is current or previous where this one was. Its regions, which the caller has taken, are not
 * its any more. manifest: a copy, the new version's, or NULL: none is known yet; headers: by file, parsed, the new version's,
 * too, or NULL. No reader has it
 * (one_copy.h). NULL: no memory, and v is as it was; the manifest is freed, the headers are still the caller's. */
struct ws_version *ws_version_go_on(struct ws_version *v, struct ws_manifest *manifest,
                                    struct ws_safetensors **headers, struct ws_store_events *ev);
bool ws_version_is_live(const struct ws_version *v);
/* Has it regions, filled or not? Takes no lock. */
bool ws_version_has_bytes(const struct ws_version *v);
/* Has a source that is up all of it, not only a delta to it? If no source is up: does any list it whole? refused, by
 * index: sources that do not count, as they will not serve it. */
bool ws_version_comes_whole(const struct ws_version *v, uint64_t refused);
bool ws_version_is_archived(const struct ws_version *v); /* does an archive, or a folder, list it? */
void ws_version_put_locked(struct ws_version *v);

/* Frees what ws_version_new made; the reaper's, when nothing refers to it any more. */
void ws_version_delete(struct ws_version *v);

/* So many bytes of it came over the network. Any thread, without a lock. */
void ws_version_moved(struct ws_version *v, uint64_t n);

#endif
