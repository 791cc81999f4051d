/* Arrivals: how the last versions of a model came to this mount, and when its engines had them. A pull that fails again and
 * again is one entry, so that it takes no other's place. All with store->lock held, but for ws_model_arrivals. */
#ifndef WS_FS_STORE_ARRIVALS_H
#define WS_FS_STORE_ARRIVALS_H
#include "fs/store/state.h"

/* All of the version came, or its pull failed with v->error. Without memory nothing is kept. */
void ws_arrivals_add(struct ws_version *v);
/* It is what the engines serve: the last entry of it says so, where that is the first time. */
void ws_arrivals_loaded(const struct ws_version *v);
void ws_arrivals_free(struct ws_model *m);

#endif
