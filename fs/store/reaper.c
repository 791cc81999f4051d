/* A thread of its own, because the reclaim hook closes backing ids and may wait for the kernel. The thread
 * that puts the last reference, perhaps a FUSE worker, must not wait. While the hook runs the version has one
 * reference again, so that the hook may use it. */
#include "fs/store/reaper.h"
#include "fs/store/content.h"
#include "fs/store/handover.h"
#include "fs/store/keeper.h"
#include "fs/store/poller.h"
#include "fs/store/version.h"
#include "transports/base/workers.h"
#include <assert.h>
#include <string.h>

/* An imported region is only closed. When the source may write its memory again, the kernel's lease decides,
 * which counts this mapping until here. */
static void give_back_memory(struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct ws_store *s = v->store;

    for (size_t i = 0; m && i < m->n_files; i++) {
        struct ws_region *r = ws_content_region(v, i);
        if (v->mapped_from)
            ws_region_free(r);
        else
            ws_pool_put(s->pool, r);
    }
    if (v->mapped_from) {
        ws_source_unmap(v->mapped_from->source, m->model, m->version, m->lineage);
        ws_poller_put(v->mapped_from);
        v->mapped_from = NULL;
    }
}

static void reap(struct ws_version *v, bool with_hook)
{
    struct ws_store *s = v->store;
    struct ws_version **at;

    atomic_store(&v->refs, 1);
    if (with_hook && s->reclaim)
        s->reclaim(s->reclaim_arg, v);
    assert(atomic_load(&v->refs) == 1);
    ws_keeper_forget(v);
    if (!ws_handover_resolve(v))
        give_back_memory(v);
    pthread_mutex_lock(&s->lock);
    s->used_bytes -= v->own_bytes;
    s->waiting_bytes -= v->own_bytes;
    for (at = &s->ids[v->serial % WS_ID_BUCKETS]; *at != v; at = &(*at)->next_id)
        ;
    *at = v->next_id;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    ws_version_delete(v);
}

/* With s->lock, which is released meanwhile. */
static void reap_all(struct ws_store *s, bool with_hook)
{
    while (s->dead) {
        struct ws_version *v = s->dead;
        s->dead = v->next;
        if (!s->dead)
            s->last_dead = &s->dead;
        v->next = NULL;
        pthread_mutex_unlock(&s->lock);
        reap(v, with_hook);
        pthread_mutex_lock(&s->lock);
    }
}

void ws_reaper_add_locked(struct ws_version *v)
{
    struct ws_store *s = v->store;

    assert(!v->named && !v->next);
    v->dying = true;
    *s->last_dead = v;
    s->last_dead = &v->next;
    pthread_cond_signal(&s->reaper_changed);
}

void ws_reaper_add(struct ws_version *v)
{
    struct ws_store *s = v->store;

    atomic_fetch_add(&s->refs, 1); /* the version's own may be the last */
    pthread_mutex_lock(&s->lock);
    ws_reaper_add_locked(v);
    if (s->reaper_over)
        reap_all(s, false);
    pthread_mutex_unlock(&s->lock);
    ws_store_put(s);
}

static void *reaper_main(void *arg)
{
    struct ws_store *s = arg;

    pthread_mutex_lock(&s->lock);
    while (!s->threads_stop || s->dead) {
        if (!s->dead)
            pthread_cond_wait(&s->reaper_changed, &s->lock);
        reap_all(s, true);
    }
    s->reaper_over = true;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int ws_reaper_start(struct ws_store *s, struct ws_error *err)
{
    int rc = ws_thread_start(&s->reaper, reaper_main, s);

    if (rc < 0)
        return ws_error_set(err, -rc, "cannot start the store's reaper thread: %s", strerror(-rc));
    return 0;
}

void ws_reaper_stop(struct ws_store *s)
{
    pthread_join(s->reaper, NULL);
}
