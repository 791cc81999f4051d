#include "fs/pull/fill.h"
#include "fs/pull/broadcast.h"
#include "fs/pull/copy_turn.h"
#include "fs/pull/delta_apply.h"
#include "fs/pull/delta_bases.h"
#include "fs/pull/signatures.h"
#include "fs/pull/spare.h"
#include "fs/pull/transfer.h"
#include "fs/pull/undo.h"
#include "fs/store/cache_budget.h"
#include "fs/store/content.h"
#include "fs/store/one_copy.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "fs/store/wants.h"
#include "fs/store/way_back.h"
#include "transports/base/log.h"
#include "transports/base/number.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define WAY_TRIES 3

static int get_regions(struct ws_source_select *sel, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    struct ws_store *s = v->store;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    int rc = 0;

    if (ws_part_view(v))
        return 0; /* the whole version's */
    const uint64_t bytes = ws_version_wanted_bytes(v);
    if (v->own_bytes < bytes) /* the memory may be that of a version of which less came */
        rc = ws_cache_budget_claim(v, bytes - v->own_bytes, &sel->stop, err);
    for (size_t i = 0; i < m->n_files && rc == 0; i++) {
        struct ws_region *region = NULL;
        if (m->files[i].size_bytes == 0 || ws_content_region(v, i))
            continue;
        /* The pool's have all of their pages. */
        const bool is_sparse = atomic_load(&v->wanted);
        rc = is_sparse ? ws_region_new(&region, m->files[i].size_bytes, err)
                       : ws_pool_get(s->pool, m->files[i].size_bytes, &region, err);
        if (rc == 0) {
            atomic_store(&v->files[i].region, region);
            v->took_from_pool = v->took_from_pool || !is_sparse;
        }
    }
    if (rc == 0)
        ws_cache_budget_trim_pool(s);
    return rc;
}

bool ws_fill_knows_way(struct ws_version *v)
{
    bool knows;

    pthread_mutex_lock(&v->store->lock);
    knows = ws_one_copy_knows_way(v);
    pthread_mutex_unlock(&v->store->lock);
    return knows;
}

static bool comes_whole(struct ws_source_select *sel)
{
    struct ws_store *s = sel->version->store;
    bool whole;

    pthread_mutex_lock(&s->lock);
    whole = ws_source_select_comes_whole(sel);
    pthread_mutex_unlock(&s->lock);
    return whole;
}

/* Has a pull chosen how it comes, and did some of it? The memory of a part is there before. The one copy goes on by
 * deltas as it began. */
static bool has_begun(struct ws_version *v)
{
    pthread_mutex_lock(&v->store->lock);
    const bool goes_on = ws_one_copy_untouched(v);
    pthread_mutex_unlock(&v->store->lock);
    if (goes_on)
        return false;
    return ws_part_view(v) ? atomic_load(&v->way_chosen) : ws_version_has_bytes(v);
}

/* How it is to come; *apply NULL: from the source. A delta base may be evicted before it is used, and is then
 * pulled again. */
static int choose_way(struct ws_source_select *sel, const atomic_int *priority, struct ws_delta_apply **apply,
                      char why[WS_HOW_CHARS], struct ws_error *err)
{
    struct ws_version *v = sel->version;

    for (int tries = 0; tries < WAY_TRIES; tries++) {
        bool whole = comes_whole(sel) || ws_fill_knows_way(v) || ws_part_has_base(v);
        int rc = whole ? 0 : ws_delta_bases_pull(sel, priority, err);
        if (rc < 0)
            return rc;
        whole = whole || comes_whole(sel);
        if (!whole || !has_begun(v))
            rc = ws_delta_apply_new(apply, sel, why, err);
        if (rc < 0)
            return rc;
        if (whole || *apply)
            return 0;
    }
    return ws_error_set(err, ENOSPC,
                        "%s/%lu is at its sources only as a delta, and what it is made of did not stay here: "
                        "cache= must have room for two versions",
                        v->model->name, v->number);
}

/* Blocks that lie in a part's place and are its own: the version before has the same, or was to be patched from it and
 * never had them. The base stays while its part has this pull. True: all that lay there was whole. */
static bool take_what_lies_there(struct ws_version *v, struct ws_part_base *base)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    bool whole = true;

    for (size_t i = 0; i < m->n_files; i++) {
        for (size_t b = 0; b < m->files[i].n_blocks; b++) {
            const bool is_here = atomic_load(&base->here[i][b / 64]) & 1UL << (b % 64);
            whole = whole && is_here;
            if (!is_here || !ws_version_wants(v, i, b) ||
                base->manifest->files[i].hashes[b] != m->files[i].hashes[b])
                continue;
            ws_content_arrived(v, i, b);
            ws_part_view_arrived(v, i, b);
        }
    }
    atomic_store(&v->way_chosen, true);
    ws_waiters_wake(v);
    return whole;
}

/* The version before that was to be patched from what lies in the part's place has not begun. */
static bool adopt(struct ws_version *v)
{
    pthread_mutex_lock(&v->store->lock);
    struct ws_part_base *base = ws_part_base(v);
    const bool is_its_own = base && ws_part_base_is(base, v);
    pthread_mutex_unlock(&v->store->lock);
    if (is_its_own) {
        (void)take_what_lies_there(v, base);
        ws_part_base_forget(v);
    }
    return is_its_own;
}

/* A part comes whole into its place, where others of its version are patched: no delta leads to it. What a block was is kept
 * as by a delta, if it was all of one version. False: it is no such part. */
static bool fill_in_place(struct ws_source_select *sel, char why[WS_HOW_CHARS])
{
    struct ws_version *v = sel->version;

    pthread_mutex_lock(&v->store->lock);
    struct ws_part_base *base = ws_part_base(v);
    pthread_mutex_unlock(&v->store->lock);
    if (!base)
        return false;
    snprintf(why, WS_HOW_CHARS, "in place, what differs from %lu", base->manifest->version);
    const bool was_whole = ws_manifest_has_same_files(base->manifest, atomic_load(&v->manifest)) &&
                           take_what_lies_there(v, base);
    if (was_whole && base->is_wanted) {
        ws_undo_begin(sel, base->manifest);
    } else if (base->is_wanted) {
        ws_log(WS_LOG_WARN, "store",
               "%s/%lu is pulled whole over a part that is half another version's: there is no way back to "
               "%lu but to pull it again",
               v->model->name, v->number, base->manifest->version);
        pthread_mutex_lock(&v->store->lock);
        ws_way_back_clear(v->model);
        pthread_mutex_unlock(&v->store->lock);
    }
    ws_part_base_forget(v);
    return true;
}

/* "broadcast to 4 at 38.2 GB/s, then tcp 12 MB"; "tcp full: why no delta" */
static void describe_full(char how[WS_HOW_CHARS], const char *broadcast, const char *transport,
                          uint64_t bytes, const char *why)
{
    char moved[WS_NUMBER_CHARS];

    ws_number_size_text(bytes, moved);
    if (broadcast[0] && transport[0])
        snprintf(how, WS_HOW_CHARS, "%.100s, then %s %s", broadcast, transport, moved);
    else if (broadcast[0])
        snprintf(how, WS_HOW_CHARS, "%s", broadcast);
    else if (transport[0])
        snprintf(how, WS_HOW_CHARS, "%s full%s%.100s", transport, why[0] ? ": " : "", why);
}

int ws_fill_run(struct ws_source_select *sel, const atomic_int *priority, char how[WS_HOW_CHARS],
                struct ws_error *err)
{
    struct ws_version *v = sel->version;
    const char *patched = "", *transport = "";
    const uint64_t before = atomic_load(&v->moved_bytes);
    char why[WS_HOW_CHARS] = "", broadcast[WS_HOW_CHARS] = "", moved[WS_NUMBER_CHARS], total[WS_NUMBER_CHARS];
    uint64_t by_broadcast;
    struct ws_delta_apply *apply = NULL;
    bool one_copy;
    int rc = ws_copy_turn_ask(sel, priority, &one_copy, err);

    bool was_here = rc == 0 && adopt(v);
    struct ws_spare_delta *spare = NULL;
    const bool by_spare = rc == 0 && !was_here && ws_spare_take(sel, &spare);
    if (rc == 0)
        rc = choose_way(sel, priority, &apply, why, err);
    if (rc == 0 && !apply)
        was_here = fill_in_place(sel, why) || was_here;
    if (rc == 0 && one_copy && !apply)
        rc = ws_copy_turn_make_room(sel, why, err);
    const bool by_delta = apply != NULL;
    if (!by_delta)
        atomic_store(&v->way_chosen, true);
    if (rc == 0)
        rc = get_regions(sel, err);
    if (rc == 0 && apply) {
        ws_delta_apply_run(apply, &patched);
        if (!comes_whole(sel))
            rc = ws_delta_apply_result(apply, err);
    }
    ws_delta_apply_free(apply);
    if (rc == 0 && !ws_version_has_wanted(v))
        rc = ws_signatures_get_tree(sel, err);
    if (rc == 0 && !by_delta && !by_spare && !ws_part_view(v) && !atomic_load(&v->wanted) &&
        !ws_undo_is_needed(v))
        ws_pull_broadcast(sel, priority, broadcast);
    by_broadcast = atomic_load(&v->moved_bytes) - before;
    if (rc == 0)
        rc = ws_transfer_run(sel, priority, &transport, err);
    if (rc == 0)
        ws_undo_end(v);
    ws_spare_delta_end(spare, v, &sel->stop);
    if (by_delta) {
        ws_number_size_text(atomic_load(&v->moved_bytes) - before, moved);
        ws_number_size_text(ws_version_wanted_bytes(v), total);
        snprintf(how, WS_HOW_CHARS, "%s%s%.60s: %s instead of %s%s", patched, patched[0] ? " " : "", why,
                 moved, total, transport[0] ? ", the rest whole" : "");
    } else {
        describe_full(how, broadcast, transport, atomic_load(&v->moved_bytes) - before - by_broadcast, why);
    }
    if (by_spare) {
        ws_number_size_text(atomic_load(&v->moved_bytes), moved);
        ws_number_size_text(ws_version_wanted_bytes(v), total);
        snprintf(how, WS_HOW_CHARS, "patched while it was written: %s instead of %s%s", moved, total,
                 transport[0] ? ", the rest whole" : "");
    }
    if (was_here && !transport[0])
        snprintf(how, WS_HOW_CHARS, "was there");
    if (broadcast[0])
        atomic_store(&sel->used, WS_WAY_BROADCAST);
    return rc;
}

/* The next version will most likely have the same files. A version that took over the memory of another
 * leaves the regions that were prepared for it in the pool, so nothing is prepared after it: else each
 * version that is patched in place would add regions. Nor where less may come of the next (need=learn). */
void ws_fill_prepare_next(struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    pthread_mutex_lock(&v->store->lock);
    const bool one_copy = ws_one_copy_applies(v);
    pthread_mutex_unlock(&v->store->lock);
    if (v->own_bytes && v->took_from_pool && !one_copy && !ws_model_learns(v->model))
        ws_cache_budget_prepare_next(v->store, m);
    v->took_from_pool = false;
}
