#include "fs/pull/assemble_in_place.h"
#include "fs/pull/delta_plan.h"
#include "fs/store/delta_cache.h"
#include "fs/store/handover.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdlib.h>

int ws_assemble_in_place_list(struct ws_source_select *sel, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    struct ws_delta_chain *chain = calloc(1, sizeof(*chain));
    struct ws_error none = {0};

    if (!chain)
        return ws_error_set(err, ENOMEM, "out of memory for a list of deltas");
    if (ws_delta_chain_query(sel, chain, &none) < 0)
        ws_log(WS_LOG_DEBUG, "store", "no list of deltas model=%s version=%lu error=\"%s\"", v->model->name,
               v->number, none.text);
    free(atomic_exchange(&v->listed_deltas, chain));
    return 0;
}

/* By the way back, or by deltas. With store->lock. */
static bool is_patched(const struct ws_version *holder, unsigned i, struct ws_version *part)
{
    static const struct ws_delta_chain none;
    struct ws_delta_step steps[WS_MAX_DELTA_CHAIN];
    const struct ws_delta_chain *chain = atomic_load(&part->listed_deltas);
    const struct ws_version *there = ws_node_parts_shown(holder, i);
    const struct ws_part_base *base = there ? ws_part_base(there) : NULL;
    const struct ws_manifest *from = base ? base->manifest : there ? atomic_load(&there->manifest) : NULL;

    if (!from || !atomic_load(&part->manifest))
        return false;
    if (base && ws_part_base_is(base, part))
        return true;
    const size_t n = ws_delta_plan_find(part, from, chain ? chain : &none, steps);
    return n > 0 &&
           (steps[0].is_way_back || ws_model_delta_room(part->model) > 0 || !ws_version_comes_whole(part, 0));
}

bool ws_assemble_in_place_is_possible(const struct ws_version *holder, struct ws_version *const *parts,
                                      unsigned n, unsigned *which)
{
    unsigned n_patched = 0;

    *which = n;
    for (unsigned i = 0; i < n; i++) {
        if (is_patched(holder, i, parts[i])) {
            n_patched++;
            continue;
        }
        const bool whole = ws_version_comes_whole(parts[i], 0);
        if (*which == n || !whole)
            *which = i;
        if (!whole)
            return false;
    }
    return n_patched > 0;
}

/* --- in the place of a version that nobody wants --- */

static bool is_patched_at_no_cost(const struct ws_version *unread, unsigned i, struct ws_version *part)
{
    struct ws_delta_step steps[WS_MAX_DELTA_CHAIN]; /* newest first */
    const struct ws_delta_chain *chain = atomic_load(&part->listed_deltas);
    const struct ws_version *there = ws_node_parts_shown(unread, i);
    const struct ws_manifest *from = there ? atomic_load(&there->manifest) : NULL;

    if (!from || !chain || ws_part_base(there) || ws_model_delta_room(part->model) == 0)
        return false;
    const size_t n = ws_delta_plan_find(part, from, chain, steps);
    bool is_held = n > 0;
    for (size_t k = 1; k < n; k++)
        is_held = is_held && steps[k].held;
    return is_held && ws_delta_plan_pays(part, n, steps);
}

struct ws_version *ws_assemble_in_place_unread(const struct ws_version *v, const struct ws_node_part_map *map,
                                               struct ws_version *const *parts, unsigned n)
{
    struct ws_version *unread = NULL;

    for (struct ws_version *w = v->model->versions; w; w = w->next) {
        bool fits = w != v && w->parts && w->parts->map == map && w->parts->n == n &&
                    !atomic_load(&w->parts->is_wrong) && w->own_bytes > 0 && ws_version_is_complete(w) &&
                    ws_handover_may_go(w) && !ws_handover_was_read(w);
        for (unsigned i = 0; fits && i < n; i++)
            fits = is_patched_at_no_cost(w, i, parts[i]);
        if (fits && (!unread || ws_version_is_newer(w, unread)))
            unread = w;
    }
    return unread;
}

/* What the parts are shown with. */
struct places {
    struct ws_part_base *base[WS_MAX_NODE_PARTS];
    struct ws_part_view *view[WS_MAX_NODE_PARTS];
};

static void free_places(struct places *p, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        ws_part_base_free(p->base[i]);
        free(p->view[i]);
    }
}

/* All blocks of it are here. With store->lock. */
static bool make_places(struct places *p, const struct ws_version *unread, unsigned n)
{
    bool ok = true;

    for (unsigned i = 0; ok && i < n; i++) {
        const struct ws_version *there = ws_node_parts_shown(unread, i);
        const struct ws_manifest *m = atomic_load(&there->manifest);
        p->base[i] = ws_part_base_new(there);
        p->view[i] = calloc(1, sizeof(*p->view[i]));
        ok = p->base[i] && p->view[i];
        for (size_t f = 0; ok && f < m->n_files; f++)
            for (size_t w = 0; w < (m->files[f].n_blocks + 63) / 64; w++)
                atomic_store(&p->base[i]->here[f][w], atomic_load(&there->files[f].here[w]));
    }
    return ok;
}

/* With store->lock. */
static int show_places(struct places *p, struct ws_version *v, struct ws_version *const *parts, unsigned n,
                       struct ws_error *err)
{
    if (!v->named) /* the parts are those of the version that has its name now */
        return ws_error_set(err, ECANCELED, "%s/%lu was dropped", v->model->name, v->number);
    for (unsigned i = 0; i < n; i++) {
        ws_part_view_show(parts[i], v, i, p->base[i], &p->view[i]);
        p->base[i] = NULL;
    }
    return 0;
}

int ws_assemble_in_place_take(struct ws_source_select *sel, const struct ws_node_part_map *map,
                              struct ws_version *const *parts, unsigned n, bool *handed, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    struct ws_store *s = v->store;
    const size_t n_files = ((struct ws_manifest *)atomic_load(&v->manifest))->n_files;
    struct ws_handover *handover = NULL;
    _Atomic(uint64_t) **here = NULL;
    struct ws_store_events events;
    struct places places = {0};
    uint64_t number = 0;
    int rc = 0;

    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    struct ws_version *unread =
        v->own_bytes == 0 && v->named ? ws_assemble_in_place_unread(v, map, parts, n) : NULL;
    if (unread && make_places(&places, unread, n)) {
        number = unread->number;
        handover = ws_handover_new(unread, v, true, &events);
    }
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
    *handed = handover && ws_handover_wait(handover, &sel->stop, &here);
    if (handover && !*handed && !atomic_load(&sel->stop))
        ws_log(WS_LOG_INFO, "store", "version %lu of %s was or is read: its memory is not patched in place",
               number, v->model->name);
    for (size_t i = 0; here && i < n_files; i++) /* all of it was here */
        free(here[i]);
    free(here);
    if (*handed) {
        pthread_mutex_lock(&s->lock);
        rc = show_places(&places, v, parts, n, err);
        pthread_mutex_unlock(&s->lock);
    }
    free_places(&places, n);
    return rc;
}
