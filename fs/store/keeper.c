#include "fs/store/keeper.h"
#include "fs/store/content.h"
#include "fs/store/part_view.h"
#include "fs/store/state.h"
#include <stdio.h>

/* Digests differ where bytes do. */
static void label_of(struct ws_version *v, size_t file, char out[WS_KEEPER_LABEL])
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    snprintf(out, WS_KEEPER_LABEL, "%s/%lu@%s/%s/%zu", m->model, m->version, m->lineage, m->digest, file);
}

bool ws_keeper_applies(struct ws_version *v)
{
    const struct ws_store_options *o = &v->store->options;

    return o->keeper && o->copies == WS_COPIES_TWO && !ws_part_view(v) && !atomic_load(&v->wanted);
}

static bool can_be_kept(struct ws_version *v)
{
    bool can;

    pthread_mutex_lock(&v->store->lock);
    can = v->own_bytes > 0 && !v->mapped_from;
    pthread_mutex_unlock(&v->store->lock);
    return can && ws_keeper_applies(v);
}

void ws_keeper_keep(struct ws_version *v)
{
    const struct ws_store_keeper *k = v->store->options.keeper;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    char label[WS_KEEPER_LABEL];

    if (atomic_load(&v->is_kept) || !can_be_kept(v))
        return;
    atomic_store(&v->is_kept, true);
    for (size_t i = 0; i < m->n_files; i++) {
        const struct ws_region *r = ws_content_region(v, i);
        label_of(v, i, label);
        if (r)
            k->keep(label, ws_region_fd(r));
    }
}

void ws_keeper_forget(struct ws_version *v)
{
    const struct ws_store_keeper *k = v->store->options.keeper;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    char label[WS_KEEPER_LABEL];

    if (!k || !m || !atomic_exchange(&v->is_kept, false))
        return;
    for (size_t i = 0; i < m->n_files; i++) {
        label_of(v, i, label);
        if (m->files[i].size_bytes)
            k->forget(label);
    }
}

int ws_keeper_take(struct ws_version *v, unsigned file)
{
    char label[WS_KEEPER_LABEL];

    label_of(v, file, label);
    return v->store->options.keeper->take(label);
}

void ws_keeper_took(struct ws_version *v, uint64_t bytes)
{
    struct ws_store *s = v->store;

    atomic_store(&v->is_kept, true);
    pthread_mutex_lock(&s->lock);
    const uint64_t counted = bytes < s->kept_bytes ? bytes : s->kept_bytes;
    s->kept_bytes -= counted;
    s->used_bytes += bytes - counted;
    v->own_bytes += bytes;
    if (!v->named) /* it has lost its name meanwhile */
        s->waiting_bytes += bytes;
    pthread_mutex_unlock(&s->lock);
}

bool ws_keeper_drop(struct ws_store *s)
{
    uint64_t bytes;

    pthread_mutex_lock(&s->lock);
    bytes = s->kept_bytes;
    s->kept_bytes = 0;
    pthread_mutex_unlock(&s->lock);
    if (bytes == 0)
        return false;
    s->options.keeper->drop();
    pthread_mutex_lock(&s->lock);
    s->used_bytes -= bytes;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return true;
}

void ws_keeper_begin(struct ws_store *s)
{
    if (s->options.keeper)
        s->used_bytes = s->kept_bytes = s->options.keeper->left();
}
