#include "fs/store/events.h"
#include "fs/store/node_parts.h"
#include "transports/base/log.h"

void ws_store_events_init(struct ws_store_events *ev)
{
    *ev = (struct ws_store_events){0};
}

void ws_store_events_add(struct ws_store_events *ev, enum ws_store_event event, struct ws_model *m,
                         struct ws_version *v)
{
    if (ws_model_is_hidden(m)) { /* listeners do not know of it, but of what it may have changed */
        event = WS_MODEL_OFFERS;
        v = NULL;
        m = ws_node_parts_base(m);
        if (!m)
            return;
    }
    const struct ws_store_event_item item = {.event = event, .model = m, .version = v};

    if (ws_store_events_append(ev, item) < 0) {
        ws_log(WS_LOG_ERROR, "store", "out of memory: an event is lost model=%s", m->name);
        return;
    }
    ws_model_get(m);
    if (v)
        ws_version_get(v);
}

void ws_store_events_notify(struct ws_store_events *ev, struct ws_store *s)
{
    for (size_t i = 0; i < ev->len; i++) {
        const struct ws_store_event_item *item = &ev->ptr[i];
        for (unsigned k = 0; k < atomic_load(&s->n_listeners); k++)
            s->listeners[k].listener(s->listeners[k].arg, item->event, item->model, item->version);
        if (item->version)
            ws_version_put(item->version);
        ws_model_put(item->model);
    }
    ws_store_events_reset(ev);
}
