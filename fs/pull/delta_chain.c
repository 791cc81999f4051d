#include "fs/pull/delta_chain.h"
#include "fs/store/model.h"
#include "fs/store/parents.h"
#include <errno.h>
#include <poll.h>
#include <string.h>

#define MAX_QUERIES 100 /* of a source that does not know its deltas yet */
#define PAUSE_MS    20

static int query_one(const struct ws_source_select *sel, const struct ws_source_attempt *attempt,
                     struct ws_delta_chain *chain, struct ws_error *err)
{
    const struct ws_version *v = sel->version;
    struct ws_version_id id = ws_version_id(v);
    int rc, tries = 0;

    /* A mount does not know its deltas before it has chosen how its own pull comes. */
    do
        rc = ws_source_deltas(attempt->poller->source, ws_model_source_name(v->model), &id, &attempt->leave,
                              chain->entries, &chain->n, err);
    while (rc == -EAGAIN && ++tries < MAX_QUERIES && !atomic_load(&attempt->leave) &&
           poll(NULL, 0, PAUSE_MS) == 0);
    if (rc < 0)
        chain->n = 0;
    return rc;
}

/* A parent of other stripes. It may be waiting for this mount in the same way, so it is no more than the last resort. */
static bool is_of_others(const struct ws_source_attempt *attempt)
{
    struct ws_store *s = attempt->selection->version->store;

    pthread_mutex_lock(&s->lock);
    const bool is =
        ws_parent_rank(attempt->selection->version, attempt->stripe, attempt->poller) == WS_PARENT_OF_OTHERS;
    pthread_mutex_unlock(&s->lock);
    return is;
}

int ws_delta_chain_query(struct ws_source_select *sel, struct ws_delta_chain *chain, struct ws_error *err)
{
    struct ws_source_attempt attempt = {.any_strategy = true, .optional = true};
    int rc = ws_source_select_next(sel, &attempt, err);
    bool any_answered = false;

    chain->n = 0;
    while (attempt.poller) { /* until one knows of any */
        if (any_answered && is_of_others(&attempt)) {
            ws_source_select_end(&attempt);
            break;
        }
        rc = query_one(sel, &attempt, chain, err);
        any_answered = any_answered || rc == 0;
        attempt.skip |= ws_bit(attempt.poller->index);
        if (atomic_load(&attempt.leave))
            ws_source_select_defer(sel, &attempt); /* another source is asked first for the bytes, too */
        else
            ws_source_select_end(&attempt);
        if (chain->n > 0 || ws_source_select_next(sel, &attempt, &(struct ws_error){0}) < 0)
            break;
    }
    return chain->n > 0 ? 0 : rc;
}

static bool leads_to(const struct ws_delta_link *l, const struct ws_version_id *target, const char *digest)
{
    return ws_version_id_equal(&l->target, target) && strcmp(l->target_digest, digest) == 0;
}

bool ws_delta_chain_find(const struct ws_model *m, const struct ws_delta_chain *chain,
                         const struct ws_version_id *target, const char *digest, struct ws_delta_step *out)
{
    for (size_t i = 0; i < m->deltas.n; i++) {
        struct ws_delta *d = m->deltas.list[i];
        if (ws_delta_state(d) == WS_DELTA_WHOLE && leads_to(ws_delta_link(d), target, digest)) {
            *out = (struct ws_delta_step){.entry = {.link = *ws_delta_link(d)}, .held = d};
            return true;
        }
    }
    for (size_t i = 0; i < chain->n; i++) {
        if (leads_to(&chain->entries[i].link, target, digest) &&
            chain->entries[i].stats.state != WS_DELTA_GIVEN_UP) {
            *out = (struct ws_delta_step){.entry = chain->entries[i]};
            return true;
        }
    }
    return false;
}
