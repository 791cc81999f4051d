#include "fs/store/arrivals.h"
#include "fs/store/content.h"
#include "transports/base/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ws_arrivals {
    struct ws_arrival entries[WS_ARRIVALS];
    uint64_t known_ns[WS_ARRIVALS]; /* 0: not known when; by the monotonic clock */
    unsigned n;                     /* that were added: the last one is at (n - 1) % WS_ARRIVALS */
};

static struct ws_arrival *last_of(const struct ws_model *m, const struct ws_version_id *id, unsigned *index)
{
    struct ws_arrivals *h = m->arrivals;

    for (unsigned i = 0; h && i < h->n && i < WS_ARRIVALS; i++) {
        *index = (h->n - 1 - i) % WS_ARRIVALS;
        if (ws_version_id_equal(&h->entries[*index].id, id))
            return &h->entries[*index];
    }
    return NULL;
}

void ws_arrivals_add(struct ws_version *v)
{
    struct ws_model *m = v->model;
    const struct ws_manifest *manifest = ws_version_files(v);
    const struct ws_version_id id = ws_version_id_make(v->number, v->lineage);
    struct ws_arrival *e;
    unsigned at;

    if (!m->arrivals && !(m->arrivals = calloc(1, sizeof(*m->arrivals))))
        return;
    e = last_of(m, &id, &at);
    if (!e || !e->error[0]) {
        at = m->arrivals->n++ % WS_ARRIVALS;
        e = &m->arrivals->entries[at];
        *e = (struct ws_arrival){.id = id};
    }
    e->pulls++;
    e->ended_ns = ws_clock_day_ns();
    e->bytes = manifest ? manifest->total_bytes : v->listed_bytes;
    e->moved_bytes = atomic_load(&v->moved_bytes);
    e->seconds = v->pull_seconds;
    e->first_seconds = v->first_seconds;
    e->stalls = v->stalls;
    e->stalled_seconds = v->stalled_seconds;
    e->strategy = v->strategy;
    e->loaded_seconds = -1;
    snprintf(e->how, sizeof(e->how), "%s", v->error ? "" : v->how);
    snprintf(e->why_not, sizeof(e->why_not), "%s", v->why_not ? v->why_not : "");
    snprintf(e->error, sizeof(e->error), "%s", v->error ? v->error : "");
    m->arrivals->known_ns[at] = v->known_ns;
}

void ws_arrivals_loaded(const struct ws_version *v)
{
    unsigned at;
    const struct ws_version_id id = ws_version_id_make(v->number, v->lineage);
    struct ws_arrival *e = last_of(v->model, &id, &at);

    if (e && !e->error[0] && e->loaded_seconds < 0 && v->model->arrivals->known_ns[at])
        e->loaded_seconds = (double)(ws_clock_ns() - v->model->arrivals->known_ns[at]) / 1e9;
}

void ws_arrivals_free(struct ws_model *m)
{
    free(m->arrivals);
}

bool ws_model_arrival(struct ws_model *m, const struct ws_version_id *id, struct ws_arrival *out)
{
    unsigned at;

    pthread_mutex_lock(&m->store->lock);
    const struct ws_arrival *e = last_of(m, id, &at);
    if (e)
        *out = *e;
    pthread_mutex_unlock(&m->store->lock);
    return e;
}

size_t ws_model_arrivals(struct ws_model *m, struct ws_arrival **out)
{
    size_t n = 0;

    *out = NULL;
    pthread_mutex_lock(&m->store->lock);
    const struct ws_arrivals *h = m->arrivals;
    const size_t there = !h ? 0 : h->n < WS_ARRIVALS ? h->n : WS_ARRIVALS;
    if (there && (*out = malloc(there * sizeof(**out))))
        for (; n < there; n++)
            (*out)[n] = h->entries[(h->n - there + n) % WS_ARRIVALS];
    pthread_mutex_unlock(&m->store->lock);
    return n;
}
