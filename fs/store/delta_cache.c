#include "fs/store/delta_cache.h"
#include "fs/store/model.h"

#define SPARE      4 /* old deltas that are kept for mounts that pull from this one */
#define MOST_SHOWN 2 /* of those that were made for programs: to the version that is switched to, and back */

uint64_t ws_model_delta_room(const struct ws_model *m)
{
    const uint64_t given = m->store->options.delta_cache_bytes;
    const unsigned n = m->part_count ? m->part_count : 1; /* the parts of a model share its room */
    const struct ws_model *whole = m->part_count == 1 ? ws_model_lookup(m->store, m->base) : NULL;
    const uint64_t largest = ws_model_largest(whole ? whole : m); /* of what is needed */

    if (given != WS_DELTA_CACHE_GROWS)
        return given / n;
    return largest / 8 > WS_DELTA_CACHE_LEAST / n ? largest / 8 : WS_DELTA_CACHE_LEAST / n;
}

/* Is a switch going from its base? The engine's ranks ask for it, one after the other. */
static bool is_being_put(const struct ws_model *m, const struct ws_delta *d)
{
    for (const struct ws_version *v = m->versions; v; v = v->next)
        if (v->n_switches > 0 && v->number == ws_delta_link(d)->base.version &&
            strcmp(v->lineage, ws_delta_link(d)->base.lineage) == 0)
            return true;
    return false;
}

/* What stays though it is beyond delta-cache= stays the cache's. */
static void trim_shown(struct ws_model *m)
{
    const uint64_t room = ws_model_delta_room(m);
    while (m->shown.n > MOST_SHOWN || (m->shown.n > 0 && ws_delta_set_bytes(&m->shown) > room &&
                                       !(m->shown.n == 1 && is_being_put(m, m->shown.list[0]))))
        ws_delta_set_drop_oldest(&m->shown);
    const uint64_t bytes = ws_delta_set_bytes(&m->shown), over = bytes > room ? bytes - room : 0;
    if (m->shown_bytes > over) {
        m->store->used_bytes -= m->shown_bytes - over;
        m->shown_bytes = over;
        pthread_cond_broadcast(&m->store->changed);
    }
}

void ws_model_trim_deltas(struct ws_model *m)
{
    /* A mount with one copy serves no others. */
    const struct ws_store *s = m->store;
    const size_t spare = s->options.copies == WS_COPIES_ONE || s->keeps_one_copy ? 0 : SPARE;
    uint64_t oldest = UINT64_MAX;

    for (const struct ws_version *v = m->versions; v; v = v->next)
        if ((v->own_bytes || v->pull || v == m->current) && v->number < oldest)
            oldest = v->number; /* engines that hold the current one may be patched by what leads from it */
    while (m->deltas.n > spare && ws_delta_link(m->deltas.list[m->deltas.n - 1])->target.version <= oldest)
        ws_delta_set_drop_oldest(&m->deltas);
    while (m->deltas.n > 0 && ws_delta_set_bytes(&m->deltas) > ws_model_delta_room(m))
        ws_delta_set_drop_oldest(&m->deltas);
    trim_shown(m);
}

json_t *ws_model_deltas(struct ws_model *m, uint64_t version, const char *run)
{
    pthread_mutex_lock(&m->store->lock);
    const struct ws_version_id target = ws_version_id_make(version, run ? run : m->lineage);
    json_t *out = ws_delta_set_chain_json(&m->deltas, &target);
    pthread_mutex_unlock(&m->store->lock);
    return out;
}

struct ws_delta *ws_model_delta(struct ws_model *m, uint64_t version, const char *run,
                                const struct ws_version_id *base, unsigned level)
{
    pthread_mutex_lock(&m->store->lock);
    const struct ws_version_id target = ws_version_id_make(version, run ? run : m->lineage);
    const struct ws_version_id from =
        ws_version_id_make(base->version, base->lineage[0] ? base->lineage : target.lineage);
    struct ws_delta *d = ws_delta_set_find(&m->deltas, &from, &target);
    if (d)
        ws_delta_get(d);
    if (level > m->delta_level)
        m->delta_level = level;
    pthread_mutex_unlock(&m->store->lock);
    return d;
}
