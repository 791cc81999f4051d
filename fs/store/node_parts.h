/* Node parts: a trainer that spans nodes has an agent on each, which lists what its node holds of a version
 * as a version of the model "MODEL@INDEX.COUNT" (transports/format/node_part.h). The store has these as
 * hidden models: they are polled and pulled like others, each from its own sources, but no listener, file or
 * status shows them. A version of MODEL exists when each of its parts is listed or held here; pull/assemble.h
 * makes it of them. */
#ifndef WS_FS_STORE_NODE_PARTS_H
#define WS_FS_STORE_NODE_PARTS_H
#include "fs/store/events.h"
#include "fs/store/state.h"

/* All with store->lock. */

bool ws_model_is_hidden(const struct ws_model *m);
/* A source lists a part of m: json is its entry. Records which agent has which part. */
void ws_node_parts_record(struct ws_model *m, const json_t *json);
/* After listings have changed: finds out which versions of m exist by their parts, and writes into m->missing
 * which parts the newest version lacks. */
void ws_node_parts_reconcile(struct ws_model *m, struct ws_store_events *ev);
/* Takes the parts of a model out of the store, before the model itself. */
void ws_node_parts_unlist(struct ws_model *m, struct ws_store_events *ev);
/* The version's part i, counted. NULL: no source has it any more; err names the agent that had it. */
struct ws_version *ws_node_parts_get(struct ws_version *v, unsigned i, struct ws_error *err);
/* Does it have to be made of its parts, because no source that is up has it whole? */
bool ws_version_comes_in_parts(const struct ws_version *v);
/* Does any source offer it, whole or in parts? */
bool ws_version_is_offered(const struct ws_version *v);

#endif
