#include "fs/store/comparison.h"
#include "fs/store/content.h"
#include "fs/store/version.h"
#include <assert.h>

void ws_comparison_begin(struct ws_comparison *c, struct ws_version *base, struct ws_version *target)
{
    assert(base->named && target->named);
    c->base = ws_version_get(base);
    c->target = ws_version_get(target);
    atomic_init(&c->stop, atomic_load(&target->store->stop));
    LIST_INSERT_HEAD(&target->store->comparisons, c, entry);
}

void ws_comparisons_stop(struct ws_store *s, const struct ws_version *of)
{
    struct ws_comparison *c;

    LIST_FOREACH(c, &s->comparisons, entry)
    if (!of || c->base == of || c->target == of)
        atomic_store(&c->stop, true);
}

void ws_comparison_end(struct ws_comparison *c)
{
    struct ws_store *s = c->target->store;

    pthread_mutex_lock(&s->lock);
    LIST_REMOVE(c, entry);
    pthread_mutex_unlock(&s->lock);
    ws_version_put(c->base);
    ws_version_put(c->target);
}

struct ws_delta_side ws_comparison_side(struct ws_version *v, const unsigned char **files)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    for (size_t i = 0; i < m->n_files; i++) {
        struct ws_region *r = ws_content_region(v, i);
        files[i] = r ? ws_region_data(r) : NULL;
    }
    return (struct ws_delta_side){.manifest = m, .files = files};
}
