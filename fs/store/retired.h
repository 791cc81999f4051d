/* Retired versions: the trainer's framework has deleted their folders, and says so by the agents (the listing's "retired").
 * Nobody there will name them again, so their names are gone here at once, and their memory as soon as nothing here needs
 * it: not the engines, an operator's pin, a release, a pull or a reader, and not the next version, which comes as a delta
 * on the newest one that is here whole.
 *
 * The version itself stays in its model's list while it is here or a source lists it, so that a follower that is late
 * finds the newest one, a switch can go to it, and other mounts get it. With a name again it is while engines serve it, or are
 * switched to it, or it is pinned: they open its files by that. What an archive lists, too, is the archive's to show.
 *
 * All with store->lock held. */
#ifndef WS_FS_STORE_RETIRED_H
#define WS_FS_STORE_RETIRED_H
#include "fs/store/events.h"
#include "fs/store/state.h"
#include <jansson.h>

/* A source's entry of the model, or of a part of it. What is malformed in it is passed over. */
void ws_retired_record(struct ws_model *m, const json_t *entry, struct ws_store_events *ev);
/* Is a version of the model, or what it is a view of, retired, as far as the last WS_MAX_RETIRED tell? */
bool ws_retired_has(const struct ws_model *m, uint64_t number, const char *lineage);
/* What this mount's own listing says of the model, a new reference; NULL: nothing. */
json_t *ws_retired_to_json(const struct ws_model *m);
/* Has it lost its name? */
bool ws_retired_hides(const struct ws_version *v);
/* Is it retired, here, and needed by nothing here? */
bool ws_retired_is_over(struct ws_version *v);

#endif
