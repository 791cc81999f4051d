#include "transports/delta/set.h"
#include <string.h>

static void drop(struct ws_delta_set *s, size_t i)
{
    ws_delta_drop(s->list[i]);
    s->n--;
    memmove(&s->list[i], &s->list[i + 1], (s->n - i) * sizeof(s->list[0]));
}

void ws_delta_set_drop(struct ws_delta_set *s, const struct ws_delta *d)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->list[i] == d) {
            drop(s, i);
            return;
        }
}

void ws_delta_set_drop_oldest(struct ws_delta_set *s)
{
    if (s->n > 0)
        drop(s, s->n - 1);
}

void ws_delta_set_clear(struct ws_delta_set *s)
{
    while (s->n > 0)
        drop(s, s->n - 1);
}

void ws_delta_set_add(struct ws_delta_set *s, struct ws_delta *d)
{
    const struct ws_delta_link *l = ws_delta_link(d);
    for (size_t i = 0; i < s->n; i++) {
        const struct ws_delta_link *other = ws_delta_link(s->list[i]);
        if (ws_version_id_equal(&other->base, &l->base) && ws_version_id_equal(&other->target, &l->target))
            drop(s, i--);
    }
    if (s->n == WS_MAX_DELTA_ENTRIES)
        ws_delta_set_drop_oldest(s);
    memmove(&s->list[1], &s->list[0], s->n * sizeof(s->list[0]));
    s->list[0] = d;
    s->n++;
}

struct ws_delta *ws_delta_set_find(const struct ws_delta_set *s, const struct ws_version_id *base,
                                   const struct ws_version_id *target)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct ws_delta_link *l = ws_delta_link(s->list[i]);
        if (ws_version_id_equal(&l->base, base) && ws_version_id_equal(&l->target, target))
            return s->list[i];
    }
    return NULL;
}

json_t *ws_delta_set_chain_json(const struct ws_delta_set *s, const struct ws_version_id *target)
{
    json_t *out = json_array();
    struct ws_version_id to = *target;
    for (size_t i = 0; i < s->n; i++) { /* a base is older than what was made from it */
        const struct ws_delta_link *l = ws_delta_link(s->list[i]);
        if (!ws_version_id_equal(&l->target, &to))
            continue;
        json_array_append_new(out, ws_delta_entry_json(s->list[i]));
        to = l->base;
    }
    return out;
}

uint64_t ws_delta_set_bytes(const struct ws_delta_set *s)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < s->n; i++) {
        struct ws_delta_stats f;
        ws_delta_stats(s->list[i], &f);
        bytes += f.bytes;
    }
    return bytes;
}
