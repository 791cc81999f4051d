/* Models: finds and adds them, and leads their versions through publish, abandon and discard (models.h). */
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/journal.h"
#include "backends/trainer/agent/core/slots.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ws_agent_model *ws_agent_model_find(struct ws_agent *a, const char *name)
{
    for (struct ws_agent_model *m = a->models; m; m = m->next)
        if (strcmp(m->name, name) == 0)
            return m;
    return NULL;
}

struct ws_agent_model *ws_agent_model_find_or_add(struct ws_agent *a, const char *name)
{
    struct ws_agent_model *m = ws_agent_model_find(a, name), **at = &a->models;
    unsigned n = 0;
    if (m)
        return m;
    for (const struct ws_agent_model *i = a->models; i; i = i->next)
        n++;
    m = n < WS_MAX_MODELS ? calloc(1, sizeof(*m)) : NULL;
    if (!m)
        return NULL;
    if (!(m->name = strdup(name)) || ws_features_init_model(a, m) < 0) {
        free(m->name);
        free(m);
        return NULL;
    }
    m->max_slots = a->options.max_slots;
    while (*at && strcmp((*at)->name, name) < 0)
        at = &(*at)->next;
    m->next = *at;
    *at = m;
    return m;
}

/* Ranks forget the slot, which the next version may get. */
static void end_writing(struct ws_agent *a, struct ws_agent_model *m)
{
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->ranks && m->ranks[r])
            m->ranks[r]->committed = NULL;
    m->writing = NULL;
    m->n_begun = m->n_committed = m->n_ended = 0;
    pthread_cond_broadcast(&a->changed);
}

void ws_agent_model_record_why(struct ws_agent_model *m, const char *why)
{
    char text[WS_ERROR_TEXT]; /* why may be m->why */
    if (m->writing)
        snprintf(text, sizeof(text), "version %" PRIu64 " of %s was abandoned: %s", m->writing_version,
                 m->name, why);
    else
        snprintf(text, sizeof(text), "%s", why);
    memcpy(m->why, text, sizeof(m->why));
}

void ws_agent_model_discard(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_slot *s = m->writing;
    m->given_up = ws_version_id_make(m->writing_version, s->lineage);
    ws_slot_clear(s);
    ws_slot_retire(s);
    m->abandoned++;
    ws_log(WS_LOG_WARN, "agent", "version abandoned model=%s version=%" PRIu64 " why=\"%s\"", m->name,
           m->writing_version, m->why);
    ws_journal_version(m, "abandon", m->name, m->writing_version, m->why);
    ws_features_discarded(a, m);
    end_writing(a, m);
}

void ws_agent_model_abandon(struct ws_agent *a, struct ws_agent_model *m, const char *why)
{
    struct ws_slot *s = m->writing;
    if (!s || s->state != WS_SLOT_WRITING)
        return; /* all ranks have committed: it will be published */
    ws_agent_model_record_why(m, why);
    for (unsigned r = 0; r < m->world_size; r++) {
        if (m->ranks && m->ranks[r] && m->ranks[r]->writing) {
            m->ranks[r]->writing = false;
            m->ranks[r]->lost = true;
        }
    }
    ws_agent_model_discard(a, m);
    ws_features_abandoned(a, m, why);
}

/* --- publishing --- */

static void set_newest(struct ws_agent_model *m, uint64_t version, const char *lineage)
{
    snprintf(m->lineage, sizeof(m->lineage), "%s", lineage);
    m->newest = version;
    m->has_published = true;
    m->published++;
}

/* A model may change between whole and in parts of nodes: retires the slots of its other form. */
static void retire_other_form(struct ws_agent *a, const struct ws_agent_model *m)
{
    char base[WS_MAX_NAME + 1];
    for (struct ws_agent_model *o = a->models; o; o = o->next) {
        if (o == m->slot_owner ||
            (o != m && !(ws_name_is_node_part(o->name, base, NULL, NULL) && !strcmp(base, m->name))))
            continue;
        ws_slots_retire_all(a, o);
        o->has_published = o->has_published && o == m;
    }
}

void ws_agent_model_publish(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_slot *s = m->writing;
    struct ws_agent_model *owner = m->slot_owner;
    s->fresh = false;
    ws_slot_serve(s, owner->nodes);
    ws_features_filled(a, m, s);
    if (!ws_features_written(a, m, s)) {
        ws_features_published(a, m, s);
        set_newest(owner, s->version, s->lineage);
        if (owner != m)
            set_newest(m, s->version, s->lineage);
        retire_other_form(a, m);
    }
    ws_rank_deltas_free(s->rank_deltas); /* no delta is made of them any more */
    s->rank_deltas = NULL;
    ws_view_records_free(s->view_records);
    s->view_records = NULL;
    ws_log(WS_LOG_INFO, "agent", "published model=%s version=%" PRIu64 " run=%s bytes=%" PRIu64 " digest=%s",
           owner->name, s->version, s->lineage, s->manifest->total_bytes, s->manifest->digest);
    ws_journal_version(m, "publish", owner->name, s->version, NULL);
    end_writing(a, m);
}

void ws_agent_model_adopt(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s)
{
    s->version = s->manifest->version;
    snprintf(s->lineage, sizeof(s->lineage), "%s", s->manifest->lineage);
    ws_slot_serve(s, m->nodes);
    m->slots[m->n_slots++] = s;
    if (!m->slot_owner)
        m->slot_owner = m;
    ws_features_filled(a, m, s);
    pthread_cond_broadcast(&a->changed);
}

void ws_agent_model_raise(struct ws_agent_model *m, uint64_t version, const char *lineage)
{
    if (m->has_published && strcmp(m->lineage, lineage) == 0 && version <= m->newest)
        return;
    snprintf(m->lineage, sizeof(m->lineage), "%s", lineage);
    m->newest = version;
    m->has_published = true;
}

void ws_agent_model_publish_pending(struct ws_agent *a, struct ws_agent_model *m, uint64_t version,
                                    const char *lineage)
{
    set_newest(m, version, lineage);
    retire_other_form(a, m);
    ws_log(WS_LOG_INFO, "agent", "published model=%s version=%" PRIu64 " run=%s on-demand", m->name, version,
           lineage);
    ws_journal_version(m, "publish", m->name, version, NULL);
}

/* --- the end --- */

int ws_agent_model_remove(struct ws_agent *a, struct ws_agent_model *m, struct ws_error *err)
{
    char holders[300];
    if (m->writing || m->preparing)
        return ws_error_set(err, EBUSY, "version %" PRIu64 " of %s is being written", m->writing_version,
                            m->name);
    for (unsigned i = 0; i < m->n_slots; i++) {
        if (m->slots[i]->state == WS_SLOT_WRITING || m->slots[i]->state == WS_SLOT_HASHING ||
            m->slots[i]->state == WS_SLOT_SEALED)
            return ws_error_set(err, EBUSY, "a version of %s is being written", m->name);
        if (!ws_slot_has_firm_leases(m->slots[i]) && ws_slot_idle(m->slots[i]) != -EBUSY)
            continue;
        ws_slot_holders(m->slots[i], holders, sizeof(holders));
        return ws_error_set(err, EBUSY, "%s/%" PRIu64 " is in use by %s", m->name, m->slots[i]->version,
                            holders[0] ? holders : "a process of this host");
    }
    ws_slots_retire_all(a, m);
    m->has_published = false;
    m->newest = 0;
    m->lineage[0] = m->opened_lineage[0] = 0;
    pthread_cond_broadcast(&a->changed);
    return 0;
}

static void free_model(const struct ws_agent *a, struct ws_agent_model *m)
{
    for (unsigned i = 0; i < m->n_slots; i++)
        ws_slot_free(m->slots[i]);
    ws_features_free(a, m);
    ws_fleet_clear(&m->fleet);
    ws_placement_free(m->placement);
    ws_placement_free(m->node_placement);
    free(m->nodes);
    free(m->ranks);
    free(m->name);
    free(m);
}

void ws_agent_models_free(struct ws_agent *a)
{
    for (struct ws_agent_model *m = a->models, *next; m; m = next) {
        next = m->next;
        free_model(a, m);
    }
    a->models = NULL;
}
