#include "fs/pull/fill.h"
#include "fs/pull/broadcast.h"
#include "fs/pull/delta_apply.h"
#include "fs/pull/delta_bases.h"
#include "fs/pull/transfer.h"
#include "fs/store/cache_budget.h"
#include "fs/store/content.h"
#include "fs/store/version.h"
#include <errno.h>
#include <stdio.h>

#define WAY_TRIES 3

static int get_regions(struct ws_route *r, struct ws_error *err)
{
    struct ws_version *v = r->version;
    struct ws_store *s = v->store;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    int rc = 0;

    if (v->own_bytes == 0)
        rc = ws_room_take(v, m->total_bytes, &r->stop, err);
    for (size_t i = 0; i < m->n_files && rc == 0; i++) {
        struct ws_region *region = NULL;
        if (m->files[i].size_bytes == 0 || ws_content_region(v, i))
            continue;
        rc = ws_pool_get(s->pool, m->files[i].size_bytes, &region, err);
        if (rc == 0) {
            atomic_store(&v->files[i].region, region);
            v->emptied_pool = true;
        }
    }
    if (rc == 0)
        ws_room_trim(s);
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

/* How it is to come; *replay NULL: from the source. What a version hangs on may be evicted before it is
 * taken, and is then brought again. */
static int choose_way(struct ws_route *r, const atomic_int *priority, struct ws_replay **replay,
                      char why[WS_HOW_CHARS], struct ws_error *err)
{
    struct ws_version *v = r->version;

    for (int tries = 0; tries < WAY_TRIES; tries++) {
        int rc = ws_stones_lay(r, priority, err);
        if (rc < 0)
            return rc;
        bool whole = comes_whole(v);
        *replay = whole && ws_version_has_bytes(v) ? NULL : ws_replay_new(r, why);
        if (whole || *replay)
            return 0;
    }
    return ws_error_set(err, ENOSPC,
                        "%s/%lu is at its sources only as a delta, and what it is made of did not stay here: "
                        "cache= must have room for two versions",
                        v->model->name, v->number);
}

/* "broadcast to 4 at 38.2 GB/s, then tcp 12 MB"; "tcp full: why no delta" */
static void tell_full(char how[WS_HOW_CHARS], const char *rounds, const char *transport, uint64_t bytes,
                      const char *why)
{
    char moved[16];

    ws_room_text(bytes, moved);
    if (rounds[0] && transport[0])
        snprintf(how, WS_HOW_CHARS, "%.100s, then %s %s", rounds, transport, moved);
    else if (rounds[0])
        snprintf(how, WS_HOW_CHARS, "%s", rounds);
    else if (transport[0])
        snprintf(how, WS_HOW_CHARS, "%s full%s%.100s", transport, why[0] ? ": " : "", why);
}

int ws_fill_run(struct ws_route *r, const atomic_int *priority, char how[WS_HOW_CHARS], struct ws_error *err)
{
    struct ws_version *v = r->version;
    const char *patched = "", *transport = "";
    const uint64_t before = atomic_load(&v->moved_bytes);
    char why[WS_HOW_CHARS] = "", rounds[WS_HOW_CHARS] = "", moved[16], total[16];
    uint64_t by_rounds;
    struct ws_replay *replay = NULL;
    int rc = choose_way(r, priority, &replay, why, err);

    if (!replay)
        atomic_store(&v->decided, true);
    if (rc == 0)
        rc = get_regions(r, err);
    if (rc == 0 && replay) {
        ws_replay_run(replay, &patched);
        if (!comes_whole(v))
            rc = ws_replay_result(replay, err);
    }
    ws_replay_free(replay);
    if (rc == 0 && !replay)
        ws_rounds_run(r, priority, rounds);
    by_rounds = atomic_load(&v->moved_bytes) - before;
    if (rc == 0)
        rc = ws_transfer_run(r, priority, &transport, err);
    if (replay) {
        ws_room_text(atomic_load(&v->moved_bytes) - before, moved);
        ws_room_text(((struct ws_manifest *)atomic_load(&v->manifest))->total_bytes, total);
        snprintf(how, WS_HOW_CHARS, "%s%s%.60s: %s instead of %s%s", patched, patched[0] ? " " : "", why,
                 moved, total, transport[0] ? ", the rest whole" : "");
    } else {
        tell_full(how, rounds, transport, atomic_load(&v->moved_bytes) - before - by_rounds, why);
    }
    if (rounds[0])
        atomic_store(&r->used, WS_WAY_BROADCAST);
    return rc;
}

/* The next version will most likely have the same files. One that took over the memory of another has left
 * in the pool what was reserved for it: versions that are patched in place would reserve without end. */
void ws_fill_prepare_next(struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    if (v->own_bytes && v->emptied_pool)
        ws_room_reserve(v->store, m);
    v->emptied_pool = false;
}
