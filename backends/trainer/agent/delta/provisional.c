#include "backends/trainer/agent/delta/provisional.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/rank_deltas.h"
#include "backends/trainer/agent/core/slots.h"
#include "backends/trainer/agent/delta/encoder.h"
#include "transports/base/machine.h"
#include "transports/base/number.h"
#include <stdlib.h>
#include <string.h>

struct provisional {
    struct ws_delta *delta;   /* NULL: there is none */
    const struct ws_slot *of; /* the slot that is written; its version had one, which may have ended */
    uint64_t most_bytes;
};

static struct provisional *state_of(const struct ws_agent_model *m)
{
    return m->feature_state[WS_FEATURE_provisional];
}

static void end(struct provisional *p)
{
    if (p->delta)
        ws_delta_end(p->delta, WS_DELTA_GIVEN_UP);
    ws_delta_put(p->delta);
    p->delta = NULL;
}

/* The base must stay the model's newest version while the other is written. */
static const struct ws_slot *base_of(const struct ws_agent_model *m)
{
    const struct ws_version_id newest = ws_version_id_make(m->newest, m->lineage);
    const struct ws_slot *base = m->has_published ? ws_slots_find(m, &newest) : NULL;
    return base && base != m->writing && base->manifest ? base : NULL;
}

static void begin(const struct ws_agent *a, const struct ws_agent_model *m, const struct ws_slot *base)
{
    struct provisional *p = state_of(m);
    const struct ws_manifest *target = m->writing->manifest; /* not sealed: without a total */
    uint64_t bytes = 0;
    int level;
    p->of = m->writing;
    for (size_t i = 0; i < target->n_files; i++)
        bytes += target->files[i].size_bytes;
    if (!ws_encoder_is_taken(m) || !ws_encoder_terms(a, m, bytes, &level, &p->most_bytes))
        return;
    struct ws_delta_link l = {.base = ws_version_id_make(base->version, base->lineage),
                              .target = ws_version_id_make(m->writing->version, m->writing->lineage)};
    memcpy(l.base_digest, base->manifest->digest, sizeof(l.base_digest));
    memcpy(l.target_digest, WS_PROVISIONAL_DIGEST, sizeof(l.target_digest));
    if (ws_delta_new(&p->delta, &l, target, NULL) < 0)
        p->delta = NULL;
}

/* Records are sent as they are, since those who read them wait, and are checked again when the delta is made. */
static bool recorded(struct ws_agent *a, struct ws_agent_model *m, const struct ws_rank_deltas *r)
{
    struct provisional *p = state_of(m);
    struct ws_delta_stats f;
    if (m->slot_owner != m || m->spans_nodes)
        return false;
    const struct ws_slot *base = base_of(m);
    const bool is_new = base && p->of != m->writing;
    if (is_new)
        begin(a, m, base);
    if (!p->delta)
        return false;
    const struct ws_version_id *from = &ws_delta_link(p->delta)->base;
    if (!base || base->version != from->version || strcmp(base->lineage, from->lineage) != 0) {
        end(p);
        return !is_new;
    }
    (void)ws_rank_deltas_add(r, p->delta, base->manifest, m->writing->manifest, 0, p->most_bytes, NULL);
    ws_delta_stats(p->delta, &f);
    if (f.bytes <= p->most_bytes)
        return is_new;
    end(p);
    return !is_new;
}

static void forget(struct ws_agent_model *m)
{
    struct provisional *p = state_of(m);
    end(p);
    p->of = NULL;
}

static void filled(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s)
{
    (void)a;
    (void)s;
    forget(m);
}

static void stop(struct ws_agent *a)
{
    pthread_mutex_lock(&a->lock);
    for (struct ws_agent_model *m = a->models; m; m = m->next)
        end(state_of(m));
    pthread_mutex_unlock(&a->lock);
}

static void list(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out)
{
    const struct provisional *p = state_of(m);
    (void)a;
    if (!p->delta)
        return;
    const struct ws_delta_link *l = ws_delta_link(p->delta);
    json_object_set_new(out, "coming",
                        json_pack("{s:I,s:s,s:I,s:s,s:s,s:I,s:o}", "version", (json_int_t)l->target.version,
                                  "run", l->target.lineage, "base", (json_int_t)l->base.version, "base_run",
                                  l->base.lineage, "base_digest", l->base_digest, "blocks",
                                  (json_int_t)ws_delta_blocks(p->delta), "machine",
                                  ws_number_hash(ws_machine_hash())));
}

uint64_t ws_provisional_bytes(const struct ws_agent_model *m)
{
    const struct provisional *p = state_of(m);
    struct ws_delta_stats f = {0};
    if (p->delta)
        ws_delta_stats(p->delta, &f);
    return f.bytes;
}

struct ws_delta *ws_provisional_find(const struct ws_agent_model *m, const struct ws_version_id *base,
                                     const struct ws_version_id *target)
{
    struct ws_delta *d = state_of(m)->delta;
    return d && ws_version_id_equal(&ws_delta_link(d)->base, base) &&
                   ws_version_id_equal(&ws_delta_link(d)->target, target)
               ? d
               : NULL;
}

const struct ws_agent_feature ws_feature_provisional = {
    .model_bytes = sizeof(struct provisional),
    .stop = stop,
    .free = forget,
    .recorded = recorded,
    .filled = filled,
    .discarded = forget,
    .list = list,
};
