/* Changes: what happened under the store's lock, told to the listeners after it is released. A list
 * lives on the stack of the thread that makes the changes; tell empties it. */
#ifndef WS_FS_STORE_EVENTS_H
#define WS_FS_STORE_EVENTS_H
#include "fs/store/state.h"

struct ws_changes {
    struct ws_change_item {
        enum ws_change change;
        struct ws_model *model;     /* counted */
        struct ws_version *version; /* counted, or NULL */
    } first[8], *items;
    size_t n, max;
};

void ws_changes_init(struct ws_changes *c);
/* With store->lock held. A change that finds no memory is lost with a line in the log. */
void ws_changes_add(struct ws_changes *c, enum ws_change change, struct ws_model *m, struct ws_version *v);
/* Without any lock: calls the listeners in the order of the changes, puts what was counted. */
void ws_changes_tell(struct ws_changes *c, struct ws_store *s);

#endif
