#include "fs/pull/fill.h"
#include "fs/pull/broadcast.h"
#include "fs/pull/delta_apply.h"
#include "fs/pull/delta_bases.h"
#include "fs/pull/signatures.h"
#include "fs/pull/transfer.h"
#include "fs/store/cache_budget.h"
#include "fs/store/content.h"
#include "fs/store/version.h"
#include "transports/base/number.h"
#include <errno.h>
#include <stdio.h>

#define WAY_TRIES 3

static int get_regions(struct ws_source_select *sel, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    struct ws_store *s = v->store;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    int rc = 0;

    if (v->own_bytes == 0)
        rc = ws_cache_budget_claim(v, m->total_bytes, &sel->stop, err);
    for (size_t i = 0; i < m->n_files && rc == 0; i++) {
        struct ws_region *region = NULL;
        if (m->files[i].size_bytes == 0 || ws_content_region(v, i))
            continue;
        rc = ws_pool_get(s->pool, m->files[i].size_bytes, &region, err);
        if (rc == 0) {
            atomic_store(&v->files[i].region, region);
            v->took_from_pool = true;
        }
    }
    if (rc == 0)
        ws_cache_budget_trim_pool(s);
    return rc;
}

static bool comes_whole(struct ws_version *v)
{
    bool whole;

    pthread_mutex_lock(&v->store->lock);
    whole = ws_version_comes_whole(v);
    pthread_mutex_unlock(&v->store->lock);
    return whole;
}

/* How it is to come; *apply NULL: from the source. A delta base may be evicted before it is used, and is then
 * pulled again. */
static int choose_way(struct ws_source_select *sel, const atomic_int *priority, struct ws_delta_apply **apply,
                      char why[WS_HOW_CHARS], struct ws_error *err)
{
    struct ws_version *v = sel->version;

    for (int tries = 0; tries < WAY_TRIES; tries++) {
        int rc = ws_delta_bases_pull(sel, priority, err);
        if (rc < 0)
            return rc;
        bool whole = comes_whole(v);
        *apply = whole && ws_version_has_bytes(v) ? NULL : ws_delta_apply_new(sel, why);
        if (whole || *apply)
            return 0;
    }
    return ws_error_set(err, ENOSPC,
                        "%s/%lu is at its sources only as a delta, and what it is made of did not stay here: "
                        "cache= must have room for two versions",
                        v->model->name, v->number);
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
    int rc = choose_way(sel, priority, &apply, why, err);

    const bool by_delta = apply != NULL;
    if (!by_delta)
        atomic_store(&v->way_chosen, true);
    if (rc == 0)
        rc = get_regions(sel, err);
    if (rc == 0 && apply) {
        ws_delta_apply_run(apply, &patched);
        if (!comes_whole(v))
            rc = ws_delta_apply_result(apply, err);
    }
    ws_delta_apply_free(apply);
    if (rc == 0 && ws_content_bytes(v) < ((struct ws_manifest *)atomic_load(&v->manifest))->total_bytes)
        rc = ws_signatures_get_tree(sel, err);
    if (rc == 0 && !by_delta)
        ws_pull_broadcast(sel, priority, broadcast);
    by_broadcast = atomic_load(&v->moved_bytes) - before;
    if (rc == 0)
        rc = ws_transfer_run(sel, priority, &transport, err);
    if (by_delta) {
        ws_number_size_text(atomic_load(&v->moved_bytes) - before, moved);
        ws_number_size_text(((struct ws_manifest *)atomic_load(&v->manifest))->total_bytes, total);
        snprintf(how, WS_HOW_CHARS, "%s%s%.60s: %s instead of %s%s", patched, patched[0] ? " " : "", why,
                 moved, total, transport[0] ? ", the rest whole" : "");
    } else {
        describe_full(how, broadcast, transport, atomic_load(&v->moved_bytes) - before - by_broadcast, why);
    }
    if (broadcast[0])
        atomic_store(&sel->used, WS_WAY_BROADCAST);
    return rc;
}

/* The next version will most likely have the same files. A version that took over the memory of another
 * leaves the regions that were prepared for it in the pool, so nothing is prepared after it: else each
 * version that is patched in place would add regions. */
void ws_fill_prepare_next(struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    if (v->own_bytes && v->took_from_pool)
        ws_cache_budget_prepare_next(v->store, m);
    v->took_from_pool = false;
}
