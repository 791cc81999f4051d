/* Changes are few at a time (a listing that is new, a state): the first eight need no memory. */
#include "fs/store/events.h"
#include "fs/store/node_parts.h"
#include "transports/base/log.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

void ws_changes_init(struct ws_changes *c)
{
    c->items = c->first;
    c->n = 0;
    c->max = sizeof(c->first) / sizeof(c->first[0]);
}

static int grow(struct ws_changes *c)
{
    struct ws_change_item *more;

    more = reallocarray(c->items == c->first ? NULL : c->items, c->max * 2, sizeof(*more));
    if (!more)
        return -1;
    if (c->items == c->first)
        memcpy(more, c->first, sizeof(c->first));
    c->items = more;
    c->max *= 2;
    return 0;
}

void ws_changes_add(struct ws_changes *c, enum ws_change change, struct ws_model *m, struct ws_version *v)
{
    if (c->n == c->max && grow(c) < 0) {
        ws_log(WS_LOG_ERROR, "store", "out of memory: a change is not told model=%s", m->name);
        return;
    }
    c->items[c->n++] = (struct ws_change_item){
        .change = change,
        .model = ws_model_get(m),
        .version = v ? ws_version_get(v) : NULL,
    };
}

void ws_changes_tell(struct ws_changes *c, struct ws_store *s)
{
    for (size_t i = 0; i < c->n; i++) {
        struct ws_change_item *item = &c->items[i];
        bool hidden = ws_model_is_hidden(item->model); /* nobody knows of it */
        for (unsigned k = 0; !hidden && k < atomic_load(&s->n_listeners); k++)
            s->listeners[k].listener(s->listeners[k].arg, item->change, item->model, item->version);
        if (item->version)
            ws_version_put(item->version);
        ws_model_put(item->model);
    }
    if (c->items != c->first)
        free(c->items);
    ws_changes_init(c);
}
