/* Way back: what the one copy of a model (one_copy.h) needs to become again what it was before. It is a delta from the
 * version that is here to one that was here, made while the new bytes replaced the old ones (fs/pull/undo.h), and it is
 * exact whatever the sources have by then. Going back makes a delta of the same kind, by which the copy can go forward
 * again. As many are kept as versions would be (keep=), the newest first; they count for cache=.
 *
 * A delta is growing while its base, the version that replaces the bytes, is not complete. It can be used then, too, if
 * no pull is running: every block that was overwritten has its record, and every other one is as it was.
 *
 * Of a version in parts each part has its own, in the part's hidden model: the version can be had again where all parts
 * can.
 *
 * All with store->lock held. */
#ifndef WS_FS_STORE_WAY_BACK_H
#define WS_FS_STORE_WAY_BACK_H
#include "fs/store/state.h"

/* Takes the reference over. */
void ws_way_back_add(struct ws_model *m, struct ws_delta *d);
/* After a delta was added or has grown: what is too old goes, and the cache is charged for what is left. */
void ws_way_back_settle(struct ws_model *m);
/* The version is here whole: what led to it from elsewhere is not needed. */
void ws_way_back_arrived(const struct ws_version *v);
/* The steps from bytes that are here, of the version of that manifest, to another, newest first as a chain is walked
 * (pull/delta_chain.h), borrowed. 0: there is no way. */
size_t ws_way_back_find(const struct ws_manifest *from, const struct ws_version *to,
                        struct ws_delta *steps[WS_MAX_DELTA_ENTRIES]);
/* The one whose base is that version and that is still growing; borrowed, or NULL. */
struct ws_delta *ws_way_back_growing(struct ws_model *m, const struct ws_version_id *base,
                                     const char *digest);
/* The version before it, to which its growing way leads, or, of a part, that still lies in its place. False: none. */
bool ws_way_back_before(const struct ws_version *v, struct ws_version_id *out);
/* Does any lead to the version, or lies it where the one copy has gone on? Then it keeps its name, though no source lists
 * it. Of a version in parts: to all of them. */
bool ws_way_back_leads_to(const struct ws_version *v);
/* The bytes become those of another version, and were not all of `from` yet: what began there goes, but where that way is
 * gone now, by the pull that has it, the ones before go on. */
void ws_way_back_go(struct ws_version *to, const struct ws_version_id *from, const char *digest);
/* All of them: they begin at the version that is here. Those of its parts, too. */
void ws_way_back_clear(struct ws_model *m);
/* Memory of the cache that the model's take, with those of its parts. */
uint64_t ws_way_back_bytes(const struct ws_model *m);

#endif
