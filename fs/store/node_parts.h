/* Parts: a trainer that spans nodes has an agent on each, and each lists what its node holds of a version as
 * a version of the model "MODEL@INDEX.COUNT" (transports/format/node_part.h). The store has those as hidden
 * models: nobody sees them, but they are watched and pulled like any other, each from its own sources. A
 * version of MODEL itself is there when every part of it is listed or held; pull/assemble.h makes it of
 * them. */
#ifndef WS_FS_STORE_NODE_PARTS_H
#define WS_FS_STORE_NODE_PARTS_H
#include "fs/store/events.h"
#include "fs/store/state.h"

/* All with store->lock. */

bool ws_model_is_hidden(const struct ws_model *m);
/* A source lists a part of m: json is its entry. Notes who has which part. */
void ws_parts_note(struct ws_model *m, const json_t *json);
/* After listings have changed: which versions of m there are by their parts; what lacks is noted in
 * m->lacking.
 */
void ws_parts_settle(struct ws_model *m, struct ws_changes *c);
/* Takes the parts of a model out of the store, before the model itself. */
void ws_parts_unlist(struct ws_model *m, struct ws_changes *c);
/* The version's part i, counted; NULL and err: it is not there (any more), with who has it. */
struct ws_version *ws_parts_get(struct ws_version *v, unsigned i, struct ws_error *err);
/* Has it to be made of its parts: nobody has it whole? */
bool ws_version_comes_in_parts(const struct ws_version *v);
/* Does any source offer it, whole or in parts? */
bool ws_version_is_offered(const struct ws_version *v);

#endif
