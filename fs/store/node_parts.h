/* Node parts: a trainer that spans nodes has an agent on each, which lists what its node holds of a version
 * as a version of the model "MODEL@INDEX.COUNT" (transports/format/node_part.h). The store has these as
 * hidden models: they are polled and pulled like others, each from its own sources, but no listener, file or
 * status shows them. A version of MODEL exists when each of its parts is listed or held here; pull/assemble.h
 * has them pulled into its memory (part_view.h). A mount that serves offers the parts, too: who pulls from it
 * gets deltas, signatures and what has come so far, as from the agents. */
#ifndef WS_FS_STORE_NODE_PARTS_H
#define WS_FS_STORE_NODE_PARTS_H
#include "fs/store/events.h"
#include "fs/store/state.h"

/* The hidden model of that name, counted; NULL: there is none. Without store->lock. */
struct ws_model *ws_node_parts_find(struct ws_store *s, const char *name);

/* All others with store->lock. */

bool ws_model_is_hidden(const struct ws_model *m);
/* A source lists a part of m: json is its entry. Records which agent has which part. */
void ws_node_parts_record(struct ws_model *m, const json_t *json);
/* What this mount's listing says of a hidden model beside its versions, a new reference; as an agent's does. */
json_t *ws_node_parts_to_json(const struct ws_model *part);
/* After listings have changed: finds out which versions of m exist by their parts, and writes into m->missing
 * which parts the newest version lacks. */
void ws_node_parts_reconcile(struct ws_model *m, struct ws_store_events *ev);
/* Takes the parts of a model out of the store, before the model itself. */
void ws_node_parts_unlist(struct ws_model *m, struct ws_store_events *ev);
/* The part i of a version that is in parts, not counted: one that a source lists, that is here, or that can be had again.
 * NULL: there is none. */
struct ws_version *ws_node_parts_lookup(const struct ws_version *v, unsigned i);
/* The part i that is shown in the version's memory, not counted; NULL: it is not. */
struct ws_version *ws_node_parts_shown(const struct ws_version *whole, unsigned i);
/* The version's part i of n, counted. NULL: no source has it any more; err names the agent that had it. */
struct ws_version *ws_node_parts_get(struct ws_version *v, unsigned i, unsigned n, struct ws_error *err);
/* Is it to be made of its parts? So it is while a source that is up does not have it whole, or has its parts, too: those
 * come with deltas. */
bool ws_version_comes_in_parts(const struct ws_version *v);
/* The model that a hidden one has parts of, not counted; NULL: it is gone. */
struct ws_model *ws_node_parts_base(const struct ws_model *part);
/* The version that a part is of, not counted; NULL: there is none. */
struct ws_version *ws_node_parts_whole(const struct ws_version *part);
/* The whole version loses its name: so do the parts that are shown in its memory. */
void ws_node_parts_retire(struct ws_version *whole, struct ws_store_events *ev);
/* The first part of a version that is being pulled, not counted; NULL: none is. */
struct ws_version *ws_node_parts_late(const struct ws_version *whole);
/* The pull of the whole version has failed: takes out those who wait for parts that have no pull of their own
 * (ws_waiters_complete). */
struct ws_waiter *ws_node_parts_give_up(const struct ws_version *whole, int rc);
/* Can this mount serve the part: is it in memory here, or can it come? */
bool ws_node_parts_can_serve(const struct ws_version *part);
/* Does any source offer it, whole or in parts, or what this mount makes it of (derived.h)? */
bool ws_version_is_offered(const struct ws_version *v);

#endif
