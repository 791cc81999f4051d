/* Store events: what happened while store->lock was held, for the listeners, who hear of it after the lock is
 * released. A list lives on the stack of the thread that makes the changes. */
#ifndef WS_FS_STORE_EVENTS_H
#define WS_FS_STORE_EVENTS_H
#include "fs/store/state.h"
#include "transports/base/vector.h"

struct ws_store_event_item {
    enum ws_store_event event;
    struct ws_model *model;     /* counted */
    struct ws_version *version; /* counted, or NULL */
};
WS_VECTOR(ws_store_events, struct ws_store_event_item);

void ws_store_events_init(struct ws_store_events *ev);
/* With store->lock held. An event for which there is no memory is lost, with a line in the log. */
void ws_store_events_add(struct ws_store_events *ev, enum ws_store_event event, struct ws_model *m,
                         struct ws_version *v);
/* Without any lock: calls the listeners in the order of the events, and empties the list. */
void ws_store_events_notify(struct ws_store_events *ev, struct ws_store *s);

#endif
