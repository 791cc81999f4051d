#include "fs/pull/version_memory.h"
#include "fs/store/cache_budget.h"

void ws_version_memory_return(struct ws_version *v, struct ws_region **regions, size_t n)
{
    struct ws_store *s = v->store;

    for (size_t i = 0; i < n; i++)
        ws_pool_put(s->pool, regions[i]);
    pthread_mutex_lock(&s->lock);
    s->used_bytes -= v->own_bytes;
    if (!v->named)
        s->waiting_bytes -= v->own_bytes;
    v->own_bytes = 0;
    v->took_from_pool = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

int ws_version_memory_take(struct ws_source_select *sel, const struct ws_manifest *m,
                           struct ws_region **regions, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    struct ws_store *s = v->store;
    int rc = ws_cache_budget_claim(v, m->total_bytes, &sel->stop, err);

    for (size_t i = 0; i < m->n_files && rc == 0; i++)
        if (m->files[i].size_bytes)
            rc = ws_pool_get(s->pool, m->files[i].size_bytes, &regions[i], err);
    if (rc < 0)
        return rc;
    v->took_from_pool = true;
    ws_cache_budget_trim_pool(s);
    return 0;
}
