#include "fs/store/way_back.h"
#include "fs/store/node_parts.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include <string.h>

void ws_way_back_settle(struct ws_model *m)
{
    struct ws_store *s = m->store;
    size_t most = s->options.keep > 2 ? s->options.keep - 1 : 1;

    for (size_t i = 0; i < m->way_back.n; i++)
        if (ws_delta_state(m->way_back.list[i]) == WS_DELTA_GROWING) {
            most++; /* it takes the place of another when it is whole */
            break;
        }
    while (m->way_back.n > most)
        ws_delta_set_drop_oldest(&m->way_back);
    const uint64_t bytes = ws_delta_set_bytes(&m->way_back);
    s->used_bytes = s->used_bytes - m->way_back_bytes + bytes;
    m->way_back_bytes = bytes;
    pthread_cond_broadcast(&s->changed);
}

void ws_way_back_arrived(const struct ws_version *v)
{
    struct ws_model *m = v->model;
    const struct ws_version_id id = ws_version_id(v);

    for (size_t i = m->way_back.n; i-- > 0;)
        if (ws_version_id_equal(&ws_delta_link(m->way_back.list[i])->target, &id))
            ws_delta_set_drop(&m->way_back, m->way_back.list[i]);
    ws_way_back_settle(m);
}

void ws_way_back_add(struct ws_model *m, struct ws_delta *d)
{
    ws_delta_set_add(&m->way_back, d);
    ws_way_back_settle(m);
}

static bool is_usable(const struct ws_delta *d)
{
    return ws_delta_state(d) != WS_DELTA_GIVEN_UP;
}

/* The one that ends at a version. */
static struct ws_delta *find_step(const struct ws_model *m, const struct ws_version_id *target,
                                  const char *digest)
{
    for (size_t i = 0; i < m->way_back.n; i++) {
        const struct ws_delta_link *l = ws_delta_link(m->way_back.list[i]);
        if (is_usable(m->way_back.list[i]) && ws_version_id_equal(&l->target, target) &&
            strcmp(l->target_digest, digest) == 0)
            return m->way_back.list[i];
    }
    return NULL;
}

size_t ws_way_back_find(const struct ws_manifest *from, const struct ws_version *to,
                        struct ws_delta *steps[WS_MAX_DELTA_ENTRIES])
{
    const struct ws_version_id begin = ws_version_id_make(from->version, from->lineage);
    const struct ws_model *m = to->model;
    struct ws_version_id at = ws_version_id(to);
    const char *digest = to->digest;

    for (size_t n = 0; n < m->way_back.n && (steps[n] = find_step(m, &at, digest)); n++) {
        at = ws_delta_link(steps[n])->base;
        digest = ws_delta_link(steps[n])->base_digest;
        if (ws_version_id_equal(&at, &begin))
            return strcmp(digest, from->digest) == 0 ? n + 1 : 0;
    }
    return 0;
}

/* One that begins at that version. */
static struct ws_delta *find_from(const struct ws_model *m, const struct ws_version_id *base,
                                  const char *digest)
{
    for (size_t i = 0; i < m->way_back.n; i++) {
        const struct ws_delta_link *l = ws_delta_link(m->way_back.list[i]);
        if (is_usable(m->way_back.list[i]) && ws_version_id_equal(&l->base, base) &&
            strcmp(l->base_digest, digest) == 0)
            return m->way_back.list[i];
    }
    return NULL;
}

struct ws_delta *ws_way_back_growing(struct ws_model *m, const struct ws_version_id *base, const char *digest)
{
    struct ws_delta *d = find_from(m, base, digest);

    return d && ws_delta_state(d) == WS_DELTA_GROWING ? d : NULL;
}

bool ws_way_back_before(const struct ws_version *v, struct ws_version_id *out)
{
    const struct ws_version_id id = ws_version_id(v);
    const struct ws_part_base *base = ws_part_base(v);
    const struct ws_delta *d = base ? NULL : find_from(v->model, &id, v->digest);

    if (base)
        *out = ws_version_id_make(base->manifest->version, base->manifest->lineage);
    else if (d)
        *out = ws_delta_link(d)->target;
    return base || d;
}

/* Are its bytes those that another part has in its place? */
static bool lies_here(const struct ws_version *part)
{
    for (const struct ws_version *w = part->model->versions; w; w = w->next)
        if (ws_part_base(w) && ws_part_base_is(ws_part_base(w), part))
            return true;
    return false;
}

bool ws_way_back_leads_to(const struct ws_version *v)
{
    const struct ws_version_id id = ws_version_id(v);

    if (!ws_model_is_hidden(v->model) && v->in_parts) {
        for (unsigned i = 0; i < v->in_parts; i++) {
            const struct ws_version *part = ws_node_parts_lookup(v, i);
            if (!part || !ws_way_back_leads_to(part))
                return false;
        }
        return true;
    }
    return find_step(v->model, &id, v->digest) || lies_here(v);
}

void ws_way_back_go(struct ws_version *to, const struct ws_version_id *from, const char *digest)
{
    const struct ws_delta *growing = ws_way_back_growing(to->model, from, digest);
    const struct ws_version_id id = ws_version_id(to);

    if (!growing || !ws_version_id_equal(&ws_delta_link(growing)->target, &id)) {
        ws_way_back_clear(to->model);
        return;
    }
    ws_delta_set_drop(&to->model->way_back, growing);
    ws_way_back_settle(to->model);
}

void ws_way_back_clear(struct ws_model *m)
{
    for (struct ws_model *part = m->store->models; part; part = part->next)
        if (part->way_back.n > 0 && ws_node_parts_base(part) == m)
            ws_way_back_clear(part);
    ws_delta_set_clear(&m->way_back);
    ws_way_back_settle(m);
}

uint64_t ws_way_back_bytes(const struct ws_model *m)
{
    uint64_t bytes = m->way_back_bytes;

    for (const struct ws_model *part = m->store->models; part; part = part->next)
        if (part->way_back_bytes > 0 && ws_node_parts_base(part) == m)
            bytes += part->way_back_bytes;
    return bytes;
}
