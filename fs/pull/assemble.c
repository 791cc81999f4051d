#include "fs/pull/assemble.h"
#include "fs/pull/assemble_in_place.h"
#include "fs/pull/copy_turn.h"
#include "fs/pull/version_memory.h"
#include "fs/store/content.h"
#include "fs/store/handover.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/one_copy.h"
#include "fs/store/part_description.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/number.h"
#include "transports/format/subset.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP_NS   500000000UL
#define WAY_TRIES 3

struct assembly {
    struct ws_source_select *selection;
    struct ws_version *version;
    const atomic_int *priority;
    unsigned n;
    struct ws_version *parts[WS_MAX_NODE_PARTS]; /* counted, and retained */
    char from[WS_MAX_NODE_PARTS][300];
};

/* --- the parts --- */

/* With store->lock. Counts and retains all parts. */
static int get_parts(struct assembly *a, struct ws_error *err)
{
    struct ws_version *v = a->version;
    const unsigned n = v->parts ? v->parts->n : v->in_parts;

    for (unsigned i = 0; i < n; i++) {
        struct ws_version *w = ws_node_parts_get(v, i, n, err);
        if (!w)
            return -ESTALE;
        atomic_fetch_add(&w->retained, 1);
        a->parts[a->n++] = w;
        snprintf(a->from[i], sizeof(a->from[i]), "%s",
                 v->model->nodes[i] ? v->model->nodes[i] : w->model->name);
    }
    if (n == 0)
        return ws_error_set(err, ESTALE, "%s/%lu is gone: %s", v->model->name, v->number,
                            v->model->missing[0] ? v->model->missing
                                                 : "no agent lists a part of it any more");
    return 0;
}

static bool has_come(struct ws_version *w, enum ws_goal goal)
{
    if (goal == WS_GOAL_ALL)
        return ws_version_is_complete(w);
    if (goal == WS_GOAL_DELTAS)
        return atomic_load(&w->listed_deltas) || !w->sources;
    return goal == WS_GOAL_HEADERS ? ws_content_has_headers(w) : ws_version_has_manifest(w);
}

/* With store->lock. 0: part i is here as far as the goal; -EAGAIN: its pull runs; else why it failed. */
static int check_part(struct assembly *a, unsigned i, enum ws_goal goal, struct ws_error *err)
{
    struct ws_version *w = a->parts[i];
    int code = w->error_code ? w->error_code : ESTALE;

    if (has_come(w, goal))
        return 0;
    if (w->pull) { /* how urgent it is may have risen */
        const uint64_t came = w->store->puller->progress_ns(w->pull);
        if (came > atomic_load(&a->selection->pace.last_ns))
            ws_pace_note(&a->selection->pace, came);
        int rc = w->store->puller->request(w, goal, (enum ws_priority)atomic_load(a->priority));
        return rc < 0 && !w->pull ? rc : -EAGAIN;
    }
    if (goal == WS_GOAL_HEADERS && !w->error_code && !ws_version_comes_whole(w, 0))
        return 0; /* its base, which is described as it is, was pulled instead */
    if (a->version->model->need)
        return ws_error_set(err, code, "what is needed of %s/%lu cannot be pulled: %s",
                            a->version->model->name, w->number,
                            w->error ? w->error : "its source has it no more");
    return ws_error_set(err, code, "part %u of %u of %s/%lu cannot be pulled from the agent %s: %s", i + 1,
                        a->n, a->version->model->name, w->number, a->from[i],
                        w->error ? w->error : "the agent has it no more");
}

/* Has all parts pulled as far as the goal, at the same time. */
static int pull_parts(struct assembly *a, enum ws_goal goal, struct ws_error *err)
{
    struct ws_store *s = a->version->store;
    int rc = -EAGAIN;

    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < a->n; i++)
        if (s->puller->request(a->parts[i], goal, (enum ws_priority)atomic_load(a->priority)) <
            0) /* its error says why */
            ws_log(WS_LOG_DEBUG, "store", "no pull started model=%s version=%lu", a->parts[i]->model->name,
                   a->version->number);
    while (rc == -EAGAIN && !atomic_load(&a->selection->stop)) {
        const uint64_t until = ws_clock_ns() + STEP_NS;
        rc = 0;
        for (unsigned i = 0; i < a->n && (rc == 0 || rc == -EAGAIN); i++) {
            int one = check_part(a, i, goal, err);
            rc = one ? one : rc;
        }
        if (rc == -EAGAIN)
            (void)ws_cond_wait_until(&s->changed, &s->lock, until);
    }
    pthread_mutex_unlock(&s->lock);
    atomic_store(&a->selection->progress_ns, ws_clock_ns());
    if (atomic_load(&a->selection->stop))
        return ws_source_select_canceled(a->selection, err);
    return rc;
}

/* --- the map --- */

/* Is what describes a part the same in both, as far as that can be said before the bytes of tensors are here? The rest
 * is compared as it comes (ws_part_view_write). */
static bool is_described_alike(const struct ws_manifest *x, const struct ws_manifest *y)
{
    bool alike = x->n_files == y->n_files;

    for (size_t i = 0; alike && i < x->n_files; i++) {
        const struct ws_manifest_file *f = &x->files[i], *g = &y->files[i];
        alike = strcmp(f->name, g->name) == 0 && f->size_bytes == g->size_bytes &&
                f->header_bytes == g->header_bytes;
        if (alike && ws_node_part_described(f) == f->size_bytes)
            alike = memcmp(f->hashes, g->hashes, f->n_blocks * sizeof(*f->hashes)) == 0;
    }
    return alike;
}

/* Is base here in as many parts, so that the version may be laid out like it? With store->lock. */
static bool is_in_parts(const struct assembly *a, const struct ws_version *base)
{
    return base != a->version && !a->version->model->layout_changed && base->parts &&
           base->parts->n == a->n && !atomic_load(&base->parts->is_wrong) &&
           (ws_version_is_complete(base) || ws_one_copy_applies(a->version));
}

/* Is the version laid out like base? With store->lock. */
static bool is_laid_out_alike(const struct assembly *a, const struct ws_version *base)
{
    bool alike = is_in_parts(a, base);

    for (unsigned i = 0; alike && i < a->n; i++) {
        struct ws_version *w = ws_version_lookup(a->parts[i]->model, base->number, base->lineage);
        const struct ws_part_view *view = w ? ws_part_view(w) : NULL;
        alike = view && view->whole == base &&
                is_described_alike(atomic_load(&w->manifest), atomic_load(&a->parts[i]->manifest));
    }
    return alike;
}

/* The map of a version that is here, so that nothing has to be fetched for one; NULL: none fits. */
static struct ws_node_part_map *find_map(const struct assembly *a)
{
    const struct ws_version *base = NULL;
    struct ws_node_part_map *map;
    struct ws_model *m = a->version->model;

    pthread_mutex_lock(&m->store->lock);
    for (struct ws_version *w = m->versions; w; w = w->next)
        if (is_laid_out_alike(a, w))
            base = w;
    map = base ? ws_node_part_map_get(base->parts->map) : NULL;
    pthread_mutex_unlock(&m->store->lock);
    return map;
}

/* By file its memory, for a map; NULL: no memory. */
static const unsigned char **list_files(const struct ws_part_description *d)
{
    const unsigned char **files = calloc(d->n_files + 1, sizeof(const unsigned char *));

    for (size_t i = 0; files && i < d->n_files; i++)
        files[i] = d->files[i].bytes;
    return files;
}

static int make_subset(const struct assembly *a, const struct ws_node_part_source *source,
                       struct ws_node_part_map **map, struct ws_error *err)
{
    const int rc = ws_subset_map_new(map, source, a->version->model->need, err);

    if (rc < 0)
        ws_error_prefix(err, "%s/%lu, of which need= takes a part", a->version->model->name,
                        a->version->number);
    return rc;
}

static int make_map(struct assembly *a, struct ws_node_part_map **map, struct ws_error *err)
{
    struct ws_node_part_source sources[WS_MAX_NODE_PARTS];
    struct ws_part_description *d[WS_MAX_NODE_PARTS] = {NULL};
    const unsigned char **files[WS_MAX_NODE_PARTS] = {NULL};
    int rc = 0;

    pthread_mutex_lock(&a->version->store->lock);
    for (unsigned i = 0; i < a->n; i++)
        d[i] = atomic_load(&a->parts[i]->is_described) ? ws_part_description_get(a->parts[i]) : NULL;
    pthread_mutex_unlock(&a->version->store->lock);
    for (unsigned i = 0; i < a->n && rc == 0; i++) {
        files[i] = d[i] ? list_files(d[i]) : NULL;
        if (files[i])
            sources[i] = (struct ws_node_part_source){
                .from = a->from[i], .manifest = atomic_load(&a->parts[i]->manifest), .files = files[i]};
        else if (d[i])
            rc = ws_error_set(err, ENOMEM, "out of memory for the parts of %s/%lu", a->version->model->name,
                              a->version->number);
        else
            rc = ws_error_set(err, ENODATA,
                              "part %u of %u of %s/%lu is at its sources only as a delta, and no version of "
                              "the same layout is here in parts",
                              i + 1, a->n, a->version->model->name, a->version->number);
    }
    if (rc == 0 && a->version->model->need)
        rc = make_subset(a, &sources[0], map, err);
    else if (rc == 0)
        rc = ws_node_part_map_new(map, sources, a->n, &a->selection->stop, err);
    for (unsigned i = 0; i < a->n; i++) {
        free(files[i]);
        ws_part_description_put(d[i]);
    }
    return rc;
}

static bool may_find_map(const struct assembly *a)
{
    struct ws_model *m = a->version->model;
    bool may = false;

    pthread_mutex_lock(&m->store->lock);
    for (struct ws_version *w = m->versions; w && !may; w = w->next)
        may = is_in_parts(a, w);
    pthread_mutex_unlock(&m->store->lock);
    return may;
}

static int get_map(struct assembly *a, struct ws_node_part_map **map, struct ws_error *err)
{
    const bool may_find = may_find_map(a); /* else manifests come with what describes their parts */
    int rc = may_find ? pull_parts(a, WS_GOAL_MANIFEST, err) : 0;

    *map = rc == 0 && may_find ? find_map(a) : NULL;
    if (rc < 0 || *map)
        return rc;
    rc = pull_parts(a, WS_GOAL_HEADERS, err);
    *map = rc == 0 ? find_map(a) : NULL; /* of a base that was pulled for it */
    return rc < 0 || *map ? rc : make_map(a, map, err);
}

/* --- memory --- */

/* Has the version the files of the map, from when it was here before? */
static bool has_these_files(const struct ws_version *v, const struct ws_node_part_map *map)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    bool same = m->n_files == ws_node_part_map_n_files(map);

    for (size_t i = 0; same && i < m->n_files; i++) {
        const struct ws_node_part_file *f = ws_node_part_map_file(map, i);
        same = strcmp(f->name, m->files[i].name) == 0 && f->size_bytes == m->files[i].size_bytes;
    }
    return same;
}

/* Shows the files of the map, which have no memory yet. */
static int show_files(struct assembly *a, const struct ws_node_part_map *map, struct ws_error *err)
{
    const struct ws_manifest *manifests[WS_MAX_NODE_PARTS];
    struct ws_version *v = a->version;
    struct ws_manifest *m = NULL;
    int rc;

    if (ws_version_has_files(v))
        return has_these_files(v, map)
                   ? 0
                   : ws_error_set(err, ESTALE, "the parts of %s/%lu are of other files than they were before",
                                  v->model->name, v->number);
    for (unsigned i = 0; i < a->n; i++)
        manifests[i] = atomic_load(&a->parts[i]->manifest);
    rc = ws_node_part_map_manifest(map, v->model->name, manifests, &m, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&v->store->lock);
    v->created_ns = m->created_ns;
    rc = ws_content_set_unsealed(v, m, err);
    pthread_mutex_unlock(&v->store->lock);
    return rc;
}

/* Shows the parts in the version's files. The regions are the version's from then on. With store->lock. On failure nothing has
 * changed. */
static int show_parts(struct assembly *a, struct ws_node_part_map *map, struct ws_region **regions,
                      struct ws_error *err)
{
    struct ws_version *v = a->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct ws_part_view *views[WS_MAX_NODE_PARTS] = {0};
    bool ok = true;

    if (!v->named) /* the parts are those of the version that has its name now */
        return ws_error_set(err, ECANCELED, "%s/%lu was dropped", v->model->name, v->number);
    for (size_t i = 0; i < m->n_files; i++)
        atomic_store(&v->files[i].region, regions[i]);
    for (unsigned i = 0; ok && i < a->n; i++)
        ok = (views[i] = calloc(1, sizeof(*views[i])));
    int rc =
        ok ? ws_parts_new(v, ws_node_part_map_get(map), a->n, err)
           : ws_error_set(err, ENOMEM, "out of memory for the parts of %s/%lu", v->model->name, v->number);
    for (unsigned i = 0; rc == 0 && i < a->n; i++)
        ws_part_view_show(a->parts[i], v, i, NULL, &views[i]);
    for (size_t i = 0; rc < 0 && i < m->n_files; i++)
        atomic_store(&v->files[i].region, NULL);
    for (unsigned i = 0; i < a->n; i++)
        free(views[i]);
    return rc;
}

/* Memory of the cache for the files. */
static int make_files(struct assembly *a, struct ws_node_part_map *map, struct ws_error *err)
{
    struct ws_version *v = a->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct ws_region **regions = calloc(m->n_files + 1, sizeof(struct ws_region *));
    int rc = regions ? ws_version_memory_take(a->selection, m, regions, err)
                     : ws_error_set(err, ENOMEM, "out of memory for %s/%lu", m->model, m->version);

    if (rc == 0) {
        pthread_mutex_lock(&v->store->lock);
        rc = show_parts(a, map, regions, err);
        pthread_mutex_unlock(&v->store->lock);
    }
    if (rc < 0 && regions)
        ws_version_memory_return(v, regions, m->n_files);
    free(regions);
    return rc;
}

/* --- the one copy of the model --- */

/* What has the one copy, if that is another version, counted. why: empty where it is laid out as the map says, else why it
 * cannot go on in place. */
static struct ws_version *find_holder(const struct assembly *a, const struct ws_node_part_map *map,
                                      char why[WS_HOW_CHARS])
{
    struct ws_version *v = a->version, *holder = NULL;

    pthread_mutex_lock(&v->store->lock);
    if (v->own_bytes == 0 && ws_one_copy_applies(v))
        holder = ws_one_copy_holder(v);
    if (holder)
        ws_version_get(holder);
    snprintf(why, WS_HOW_CHARS, "%s",
             !holder || !holder->parts   ? "it comes in parts, as that did not"
             : holder->parts->map != map ? "its parts are laid out otherwise"
                                         : "");
    pthread_mutex_unlock(&v->store->lock);
    return holder;
}

/* 0: the parts can be made where those in memory lie; 1: they cannot, as why says; -EAGAIN: what they are made of has been
 * pulled first. */
static int look_at_parts(struct assembly *a, const struct ws_version *holder, char why[WS_HOW_CHARS],
                         struct ws_error *err)
{
    struct ws_store *s = a->version->store;
    unsigned which = 0;
    bool possible, whole = true;

    for (unsigned i = 0; i < a->n; i++) /* of an earlier pull, when there may have been fewer */
        free(atomic_exchange(&a->parts[i]->listed_deltas, NULL));
    int rc = pull_parts(a, WS_GOAL_DELTAS, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&s->lock);
    possible = ws_assemble_in_place_is_possible(holder, a->parts, a->n, &which);
    if (!possible) {
        whole = ws_version_comes_whole(a->parts[which], 0);
        snprintf(why, WS_HOW_CHARS, "no delta leads to part %u of %u", which + 1, a->n);
    }
    pthread_mutex_unlock(&s->lock);
    if (possible || whole)
        return !possible;
    rc = pull_parts(a, WS_GOAL_HEADERS, err);
    return rc < 0 ? rc : -EAGAIN;
}

/* The memory of the version before goes on to this one, with its parts, or is given back. *in_place: it went on. */
static int take_copy(struct assembly *a, const struct ws_node_part_map *map, bool *in_place,
                     struct ws_error *err)
{
    struct ws_source_select *sel = a->selection;

    *in_place = false;
    for (int tries = 0; tries < WAY_TRIES; tries++) {
        char why[WS_HOW_CHARS];
        struct ws_version *holder = find_holder(a, map, why);
        if (!holder)
            return 0;
        int rc = why[0] ? 1 : look_at_parts(a, holder, why, err);
        if (rc == 0) {
            rc = ws_one_copy_move_parts(holder, a->version, a->parts, &sel->stop, err);
            *in_place = rc == 0;
        }
        ws_version_put(holder);
        if (rc == 1)
            rc = ws_copy_turn_make_room(sel, why, err);
        if (rc != -ENOENT && rc != -EAGAIN)
            return rc;
    }
    return ws_error_set(
        err, ENODATA,
        "%s/%lu is at its sources only as a delta, and what it is made of did not stay in the one "
        "copy (copies) of its model",
        a->version->model->name, a->version->number);
}

/* The memory of a version that nobody wants goes on to this one, with its parts. *in_place: it went on. */
static int take_unread(struct assembly *a, const struct ws_node_part_map *map, bool *in_place,
                       struct ws_error *err)
{
    struct ws_version *v = a->version;
    bool any = false;

    pthread_mutex_lock(&v->store->lock);
    for (const struct ws_version *w = v->model->versions; w && !ws_one_copy_applies(v); w = w->next)
        any = any || (w != v && w->parts && w->parts->map == map && ws_handover_may_go(w));
    any = any && v->own_bytes == 0;
    pthread_mutex_unlock(&v->store->lock);
    if (!any)
        return 0;
    for (unsigned i = 0; i < a->n; i++) /* of an earlier pull, when there may have been fewer */
        free(atomic_exchange(&a->parts[i]->listed_deltas, NULL));
    int rc = pull_parts(a, WS_GOAL_DELTAS, err);
    return rc < 0 ? rc : ws_assemble_in_place_take(a->selection, map, a->parts, a->n, in_place, err);
}

static void drop_description(struct ws_version *w)
{
    pthread_mutex_lock(&w->store->lock);
    struct ws_part_description *d = atomic_exchange(&w->description, NULL);
    pthread_mutex_unlock(&w->store->lock);
    ws_part_description_put(d);
}

/* One that cannot be stored comes again, and is refused then. */
static void store_block(struct ws_version *w, size_t file, size_t block, const unsigned char *src, uint64_t n)
{
    if (!ws_part_view_write(w, file, block * WS_BLOCK_BYTES, n, src))
        return;
    ws_content_arrived(w, file, block);
    ws_part_view_arrived(w, file, block);
    ws_version_moved(w, n);
}

/* What describes a part came in blocks, which are stored. Mounts that ask for one find it in one place or the other. */
static void store_description(struct ws_version *w)
{
    const struct ws_manifest *m = atomic_load(&w->manifest);

    pthread_mutex_lock(&w->store->lock);
    struct ws_part_description *d = ws_part_description_get(w);
    pthread_mutex_unlock(&w->store->lock);
    for (size_t i = 0; d && i < d->n_files; i++) {
        const size_t n_blocks = ws_manifest_count_blocks(d->files[i].described);
        for (size_t b = 0; b < n_blocks; b++)
            if (ws_part_description_has(d, i, b, 1) && !ws_content_has(w, i, b, 1))
                store_block(w, i, b, d->files[i].bytes + b * WS_BLOCK_BYTES,
                            ws_manifest_block_bytes(&m->files[i], b));
    }
    ws_part_description_put(d);
    drop_description(w);
    atomic_store(&ws_part_view(w)->is_ready, true);
}

/* Those of a subset were made here. */
static int parse_made(struct ws_version *v, struct ws_error *err)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    int rc = 0;

    for (size_t i = 0; i < m->n_files && rc == 0; i++)
        if (m->files[i].header_bytes)
            rc = ws_content_parse_header(v, i, ws_region_data(ws_content_region(v, i)),
                                         m->files[i].header_bytes, err);
    return rc;
}

/* The headers of the whole are a part's files, or the same as in the version before: they can be read at once. */
static int parse_headers(struct assembly *a, struct ws_error *err)
{
    struct ws_version *v = a->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    int rc = 0;

    if (v->model->need)
        return parse_made(v, err);

    for (unsigned k = 0; k < a->n && rc == 0; k++) {
        const struct ws_manifest *part = atomic_load(&a->parts[k]->manifest);
        for (size_t i = 0; i < m->n_files && rc == 0; i++) {
            char name[WS_MAX_NAME + sizeof(WS_NODE_PART_HEADER)];
            snprintf(name, sizeof(name), "%s" WS_NODE_PART_HEADER, m->files[i].name);
            const struct ws_manifest_file *f = ws_manifest_find(part, name);
            if (f && ws_content_has(a->parts[k], (size_t)(f - part->files), 0, f->n_blocks))
                rc = ws_content_parse_header(v, i, ws_region_data(ws_content_region(v, i)),
                                             m->files[i].header_bytes, err);
        }
    }
    return rc;
}

static int begin(struct assembly *a, struct ws_error *err)
{
    struct ws_node_part_map *map = NULL;
    bool one_copy, in_place = false;
    int rc = ws_copy_turn_ask(a->selection, a->priority, &one_copy, err);

    if (rc == 0)
        rc = get_map(a, &map, err);
    if (rc == 0)
        rc = show_files(a, map, err);
    if (rc == 0)
        rc = take_copy(a, map, &in_place, err);
    if (rc == 0 && !in_place)
        rc = take_unread(a, map, &in_place, err);
    if (rc == 0 && !in_place)
        rc = make_files(a, map, err);
    ws_node_part_map_put(map);
    if (rc == 0 && a->version->model->need)
        rc = ws_part_view_write_made(a->parts[0], err);
    for (unsigned i = 0; rc == 0 && i < a->n; i++) {
        struct ws_part_view *view = ws_part_view(a->parts[i]);
        if (in_place) /* what a block was is kept before it is written */
            drop_description(a->parts[i]);
        if (in_place && view)
            atomic_store(&view->is_ready, true);
        else if (view)
            store_description(a->parts[i]);
    }
    if (rc == 0)
        rc = parse_headers(a, err);
    if (rc == 0)
        ws_waiters_wake(a->version);
    return rc;
}

/* --- the end --- */

/* A version whose parts are no longer those that it began with, or laid out otherwise, goes. If it is still offered, it
 * comes back without any bytes. */
static int begin_anew(struct assembly *a, bool layout_changed, struct ws_error *err)
{
    struct ws_version *v = a->version;
    struct ws_store_events events;

    ws_store_events_init(&events);
    pthread_mutex_lock(&v->store->lock);
    v->model->layout_changed = v->model->layout_changed || layout_changed;
    if (v->named && v != v->model->current)
        ws_version_retire(v, &events);
    pthread_mutex_unlock(&v->store->lock);
    ws_store_events_notify(&events, v->store);
    return ws_error_set(err, ESTALE,
                        "the parts of %s/%lu are not those that its pull began with; pull it again",
                        v->model->name, v->number);
}

static bool has_views(const struct assembly *a)
{
    bool has = a->version->parts;

    for (unsigned i = 0; has && i < a->n; i++)
        has = ws_part_view(a->parts[i]) && ws_part_view(a->parts[i])->whole == a->version;
    return has;
}

static int seal(struct assembly *a, struct ws_error *err)
{
    struct ws_version *v = a->version;
    int rc;

    pthread_mutex_lock(&v->store->lock);
    rc = ws_content_seal(v, err);
    if (rc == 0)
        v->model->layout_changed = false;
    pthread_mutex_unlock(&v->store->lock);
    if (rc == 0)
        ws_waiters_wake(v);
    return rc;
}

static void put_parts(struct assembly *a)
{
    for (unsigned i = 0; i < a->n; i++) {
        ws_version_retain(a->parts[i], -1);
        ws_version_put(a->parts[i]);
    }
}

/* "2 parts: tcp full; tcp delta from 41 in place: 30 MB instead of 3.4 GB" */
static void describe_how(const struct assembly *a, char how[WS_HOW_CHARS])
{
    struct ws_store *s = a->version->store;
    char whole[WS_NUMBER_CHARS];
    size_t used;

    if (a->version->model->need) {
        ws_number_size_text(((struct ws_manifest *)atomic_load(&a->parts[0]->manifest))->total_bytes, whole);
        used = (size_t)snprintf(how, WS_HOW_CHARS, "needed of %s", whole);
    } else {
        used = (size_t)snprintf(how, WS_HOW_CHARS, "%u parts", a->n);
    }
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < a->n && used < WS_HOW_CHARS; i++)
        used += (size_t)snprintf(how + used, WS_HOW_CHARS - used, "%s%s", i ? "; " : ": ", a->parts[i]->how);
    if (a->n && a->parts[0]->why_not)
        snprintf(a->selection->part_why_not, sizeof(a->selection->part_why_not), "%s", a->parts[0]->why_not);
    if (a->n)
        atomic_store(&a->selection->used, a->parts[0]->strategy);
    pthread_mutex_unlock(&s->lock);
}

int ws_assemble_run(struct ws_source_select *sel, const atomic_int *priority, char how[WS_HOW_CHARS],
                    struct ws_error *err)
{
    struct ws_version *v = sel->version;
    struct assembly *a = calloc(1, sizeof(*a));
    int rc;

    if (!a)
        return ws_error_set(err, ENOMEM, "out of memory for the parts of %s/%lu", v->model->name, v->number);
    a->selection = sel;
    a->version = v;
    a->priority = priority;
    pthread_mutex_lock(&v->store->lock);
    rc = get_parts(a, err);
    pthread_mutex_unlock(&v->store->lock);
    if (rc == 0 && !v->parts)
        rc = begin(a, err);
    if (rc == 0 && !has_views(a))
        rc = begin_anew(a, false, err);
    if (rc == 0)
        rc = pull_parts(a, WS_GOAL_ALL, err);
    if (rc < 0 && v->parts && atomic_load(&v->parts->is_wrong))
        rc = begin_anew(a, true, err);
    if (rc == 0)
        rc = seal(a, err);
    if (rc == 0)
        describe_how(a, how);
    for (unsigned i = 0; i < a->n; i++)
        atomic_fetch_add(&v->moved_bytes, rc == 0 ? atomic_load(&a->parts[i]->moved_bytes) : 0);
    put_parts(a);
    free(a);
    return rc;
}
