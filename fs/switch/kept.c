#include "fs/switch/kept.h"
#include "fs/switch/settings.h"
#include <string.h>

/* Under the control's lock. */
static size_t find(const struct ws_kept_versions *kept, const struct ws_version_id *id)
{
    size_t i = 0;
    while (i < kept->len && !ws_version_id_equal(&kept->ptr[i].id, id))
        i++;
    return i;
}

/* Without locks: a version that nobody holds any more may go at once. */
static void let_go(struct ws_version *v)
{
    if (!v)
        return;
    ws_version_end_switch(v);
    ws_version_put(v);
}

void ws_kept_remove(struct ws_control *c, struct ws_controller *ctl, const struct ws_version_id *id)
{
    struct ws_kept_versions *kept = &ctl->adapters.kept;
    struct ws_version *v = NULL;
    pthread_mutex_lock(&c->lock);
    const size_t i = find(kept, id);
    if (i < kept->len) {
        v = kept->ptr[i].version;
        ws_kept_versions_remove(kept, i);
    }
    pthread_mutex_unlock(&c->lock);
    let_go(v);
}

void ws_kept_push(struct ws_control *c, struct ws_controller *ctl, struct ws_version *v)
{
    const struct ws_version_id id = ws_version_id(v);
    struct ws_kept_versions *kept = &ctl->adapters.kept;
    struct ws_version *oldest = NULL;
    ws_kept_remove(c, ctl, &id);
    if (ws_version_begin_switch(v, NULL) < 0)
        return; /* its name is gone: no path leads to it */
    pthread_mutex_lock(&c->lock);
    const bool holds =
        !atomic_load(&c->stop) &&
        ws_kept_versions_insert(kept, (struct ws_kept_version){.id = id, .version = v}, 0) == 0;
    if (holds && kept->len > WS_MAX_KEPT)
        oldest = kept->ptr[--kept->len].version;
    pthread_mutex_unlock(&c->lock);
    if (holds)
        ws_version_get(v);
    else
        ws_version_end_switch(v);
    let_go(oldest);
}

void ws_kept_restore(struct ws_control *c, struct ws_controller *ctl, struct ws_version *v)
{
    const struct ws_version_id id = ws_version_id(v);
    struct ws_kept_versions *kept = &ctl->adapters.kept;
    pthread_mutex_lock(&c->lock);
    size_t i = find(kept, &id);
    const bool due = i < kept->len && !kept->ptr[i].version && !atomic_load(&c->stop);
    pthread_mutex_unlock(&c->lock);
    if (!due || ws_version_begin_switch(v, NULL) < 0)
        return;
    ws_version_get(v);
    pthread_mutex_lock(&c->lock);
    i = find(kept, &id);
    const bool holds = i < kept->len && !kept->ptr[i].version && !atomic_load(&c->stop);
    if (holds)
        kept->ptr[i].version = v;
    pthread_mutex_unlock(&c->lock);
    if (holds)
        ws_version_start(v, WS_PRIORITY_BACKGROUND);
    else
        let_go(v);
}

/* Under the lock: does an engine list it, as far as is known? */
static bool is_listed(struct ws_control *c, const struct ws_controller *ctl, const struct ws_version_id *id)
{
    ws_adapter_name name;
    bool is = false;
    ws_adapters_name(&ctl->adapters, ctl->name, id, name);
    for (struct ws_engine_at at = {0}; !is && ws_engine_next_of(c, ctl->name, &at);)
        is = at.member && ws_adapter_list_has(at.engine->listed, name);
    return is;
}

/* Under the lock: the first that is not to be kept. */
static size_t find_useless(struct ws_control *c, struct ws_controller *ctl)
{
    const struct ws_kept_versions *kept = &ctl->adapters.kept;
    const unsigned most = ws_engine_most_kept(c, ctl->name);
    for (size_t i = 0; i < kept->len; i++)
        if (kept->ptr[i].missed > WS_KEPT_PATIENCE || (i + 1 >= most && !is_listed(c, ctl, &kept->ptr[i].id)))
            return i;
    return kept->len;
}

/* Those that a daemon before has kept, and no source lists. */
static void count_missed(struct ws_control *c, struct ws_controller *ctl, bool counts)
{
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < ctl->adapters.kept.len; i++) {
        struct ws_kept_version *k = &ctl->adapters.kept.ptr[i];
        k->missed = k->version || !counts ? 0 : k->missed + 1;
    }
    pthread_mutex_unlock(&c->lock);
}

void ws_kept_trim(struct ws_control *c, struct ws_controller *ctl)
{
    struct ws_kept_versions *kept = &ctl->adapters.kept;
    bool changed = false;
    pthread_mutex_lock(&c->lock);
    const bool any = kept->len > 0;
    pthread_mutex_unlock(&c->lock);
    if (!any)
        return;
    struct ws_model *m = ws_store_find(c->store, ctl->name);
    struct ws_version *current = m ? ws_model_current(m) : NULL;
    count_missed(c, ctl, current != NULL);
    for (;;) {
        struct ws_version *v = NULL;
        pthread_mutex_lock(&c->lock);
        const size_t i = ctl->switching ? kept->len : find_useless(c, ctl);
        const bool found = i < kept->len;
        if (found) {
            v = kept->ptr[i].version;
            ws_kept_versions_remove(kept, i);
        }
        pthread_mutex_unlock(&c->lock);
        if (!found)
            break;
        let_go(v);
        changed = true;
    }
    if (changed)
        ws_settings_save(c);
    if (current)
        ws_version_put(current);
    if (m)
        ws_model_put(m);
}

void ws_kept_release_all(struct ws_control *c)
{
    pthread_mutex_lock(&c->lock);
    struct ws_controller *ctl = c->controllers;
    pthread_mutex_unlock(&c->lock);
    for (; ctl; ctl = ctl->next) {
        pthread_mutex_lock(&c->lock);
        struct ws_kept_versions all = ctl->adapters.kept;
        ctl->adapters.kept = (struct ws_kept_versions){0};
        pthread_mutex_unlock(&c->lock);
        for (size_t i = 0; i < all.len; i++)
            let_go(all.ptr[i].version);
        ws_kept_versions_reset(&all);
    }
}

static bool is_here(struct ws_version *v)
{
    return v && ws_version_is_complete(v) && ws_version_is_named(v);
}

bool ws_kept_find_wanted(struct ws_control *c, struct ws_controller *ctl, unsigned keep,
                         struct ws_wanted_adapters *out)
{
    struct ws_model *m = ws_store_find(c->store, ctl->name);
    struct ws_version *current = m ? ws_model_current(m) : NULL;
    out->n = 0;
    if (current) {
        out->items[out->n].id = ws_version_id(current);
        out->items[out->n++].is_here = is_here(current);
        ws_version_put(current);
    }
    if (m)
        ws_model_put(m);
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; out->n > 0 && i < ctl->adapters.kept.len && out->n < keep; i++) {
        const struct ws_kept_version *k = &ctl->adapters.kept.ptr[i];
        out->items[out->n].id = k->id;
        out->items[out->n++].is_here = is_here(k->version);
    }
    for (size_t i = 0; i < out->n; i++)
        ws_adapters_name(&ctl->adapters, ctl->name, &out->items[i].id, out->items[i].name);
    pthread_mutex_unlock(&c->lock);
    return out->n > 0;
}
