#include "fs/pull/copy_turn.h"
#include "fs/pull/delta_bases.h"
#include "fs/store/node_parts.h"
#include "fs/store/one_copy.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "fs/store/way_back.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdio.h>

/* What the copy was before its version, whose pull was cut: all of its parts, where it has any. */
static bool find_before(const struct ws_version *holder, struct ws_version_id *out)
{
    const unsigned n = holder->parts ? holder->parts->n : 0;
    struct ws_version_id id;

    if (n == 0)
        return ws_way_back_before(holder, out);
    for (unsigned i = 0; i < n; i++) {
        const struct ws_version *part = ws_node_parts_shown(holder, i);
        if (!part || !ws_way_back_before(part, &id) || (i > 0 && !ws_version_id_equal(&id, out)))
            return false;
        *out = id;
    }
    return true;
}

/* What has to be here before it: a version before whose pull was cut leaves a copy that is neither, from which the way
 * leads only back. NULL: nothing. */
static struct ws_version *find_first(struct ws_version *v)
{
    struct ws_version *holder = ws_one_copy_holder(v), *first = NULL;
    struct ws_version_id before;

    if (holder && !ws_version_is_complete(holder) && find_before(holder, &before))
        first = ws_version_lookup(v->model, before.version, before.lineage);
    return first && first != v && first != holder ? ws_version_get(first) : NULL;
}

int ws_copy_turn_ask(struct ws_source_select *sel, const atomic_int *priority, bool *one_copy,
                     struct ws_error *err)
{
    struct ws_version *v = sel->version, *first = NULL;
    int rc = 0;

    pthread_mutex_lock(&v->store->lock);
    *one_copy = v->own_bytes == 0 && ws_one_copy_applies(v) && ws_one_copy_holder(v);
    if (*one_copy) {
        rc = ws_one_copy_may_take(v, err);
        first = rc == 0 ? find_first(v) : NULL;
    }
    sel->turned_away = rc < 0;
    pthread_mutex_unlock(&v->store->lock);
    if (!first)
        return rc;
    struct ws_error none;
    if (ws_delta_bases_pull_first(sel, first, (enum ws_priority)atomic_load(priority), &none) < 0)
        ws_log(WS_LOG_WARN, "store", "the way back was not gone model=%s version=%lu error=\"%s\"",
               v->model->name, first->number, none.text);
    ws_version_put(first);
    return atomic_load(&sel->stop) ? ws_source_select_canceled(sel, err) : 0;
}

int ws_copy_turn_make_room(struct ws_source_select *sel, const char *why_whole, struct ws_error *err)
{
    struct ws_version *v = sel->version, *holder;
    char why[WS_ERROR_TEXT];

    pthread_mutex_lock(&v->store->lock);
    holder = v->own_bytes == 0 ? ws_one_copy_holder(v) : NULL;
    if (holder)
        ws_version_get(holder);
    pthread_mutex_unlock(&v->store->lock);
    if (!holder)
        return 0;
    snprintf(why, sizeof(why),
             "the one copy of %.200s went on from %lu to %lu, which is pulled whole (%.200s): there is no "
             "way back to %lu but "
             "to pull it again",
             v->model->name, holder->number, v->number, why_whole[0] ? why_whole : "no delta leads to it",
             holder->number);
    if (ws_version_is_complete(holder))
        ws_log(WS_LOG_WARN, "store", "%s", why);
    int rc = ws_one_copy_move(holder, v, &sel->stop, NULL, why, err);
    ws_version_put(holder);
    return rc == -ENOENT ? 0 : rc;
}
