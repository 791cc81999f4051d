/* The models of an agent and the life of their versions: models.h. */
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/slots.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool ws_agent_wait(struct ws_agent *a, uint64_t deadline_ns)
{
    if (atomic_load(&a->stop))
        return false;
    return ws_cond_wait_until(&a->changed, &a->lock, deadline_ns) != ETIMEDOUT;
}

void ws_agent_announce(struct ws_agent *a)
{
    struct ws_tcp_server *tcp = atomic_load(&a->tcp);
    atomic_fetch_add(&a->seq, 1);
    if (tcp)
        ws_tcp_server_wake(tcp);
    pthread_mutex_lock(&a->lock); /* the socket's server goes first, while requests by TCP still announce */
    struct ws_ipc_server *ipc = atomic_load(&a->ipc);
    if (ipc)
        ws_ipc_server_wake(ipc);
    ws_features_announced(a);
    pthread_mutex_unlock(&a->lock);
}

/* --- models --- */

struct ws_agent_model *ws_agent_find(struct ws_agent *a, const char *name)
{
    for (struct ws_agent_model *m = a->models; m; m = m->next)
        if (strcmp(m->name, name) == 0)
            return m;
    return NULL;
}

struct ws_agent_model *ws_agent_find_or_add(struct ws_agent *a, const char *name)
{
    struct ws_agent_model *m = ws_agent_find(a, name), **at = &a->models;
    unsigned n = 0;
    if (m)
        return m;
    for (const struct ws_agent_model *i = a->models; i; i = i->next)
        n++;
    m = n < WS_MAX_MODELS ? calloc(1, sizeof(*m)) : NULL;
    if (!m || !(m->name = strdup(name))) {
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

/* No rank remembers the slot, which the next version may get. */
static void end_writing(struct ws_agent *a, struct ws_agent_model *m)
{
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->ranks && m->ranks[r])
            m->ranks[r]->committed = NULL;
    m->writing = NULL;
    m->n_begun = m->n_committed = m->n_left = 0;
    pthread_cond_broadcast(&a->changed);
}

void ws_agent_say_why(struct ws_agent_model *m, const char *why)
{
    char text[WS_ERROR_TEXT]; /* why may be m->why */
    if (m->writing)
        snprintf(text, sizeof(text), "version %" PRIu64 " of %s was abandoned: %s", m->writing_version,
                 m->name, why);
    else
        snprintf(text, sizeof(text), "%s", why);
    memcpy(m->why, text, sizeof(m->why));
}

void ws_agent_discard(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_slot *s = m->writing;
    m->given_up = ws_mark_of(m->writing_version, s->run);
    ws_slot_clear(s);
    s->state = WS_SLOT_RETIRED;
    m->abandoned++;
    ws_log(WS_LOG_WARN, "agent", "version abandoned model=%s version=%" PRIu64 " why=\"%s\"", m->name,
           m->writing_version, m->why);
    ws_features_discarded(a, m);
    end_writing(a, m);
}

void ws_agent_abandon(struct ws_agent *a, struct ws_agent_model *m, const char *why)
{
    struct ws_slot *s = m->writing;
    if (!s || s->state != WS_SLOT_WRITING)
        return; /* all ranks have committed: it will be published */
    ws_agent_say_why(m, why);
    for (unsigned r = 0; r < m->world_size; r++) {
        if (m->ranks && m->ranks[r] && m->ranks[r]->writing) {
            m->ranks[r]->writing = false;
            m->ranks[r]->lost = true;
        }
    }
    ws_agent_discard(a, m);
    ws_features_abandoned(a, m, why);
}

/* --- leases --- */

int ws_agent_hold(void *self, const char *model, uint64_t version, const char *run, const char *holder,
                  void (*revoked)(void *), void *arg, struct ws_hold **out, struct ws_error *err)
{
    struct ws_agent *a = self;
    struct ws_slot_hold *h = NULL;
    int rc = 0;
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = ws_agent_find(a, model);
    for (unsigned i = 0; m && i < m->n_slots && !h && rc == 0; i++) {
        struct ws_slot *s = m->slots[i];
        if (s->state != WS_SLOT_SERVED || s->version != version || strcmp(s->run, run ? run : m->run) != 0)
            continue;
        h = ws_slot_take(s, holder, revoked, arg);
        if (!h)
            rc = ws_error_set(err, ENOMEM, "no memory for a lease");
    }
    if (!h && rc == 0 && m)
        rc = ws_features_want(a, m, version, run ? run : m->run, err);
    if (!m || !m->any)
        rc = ws_error_set(err, ENOENT, "there is no model '%s' here", model);
    else if (!h && rc == 0 && m->owner && m->owner != m)
        rc = ws_error_set(err, EOPNOTSUPP,
                          "the trainer of %s spans nodes, and this agent has only its node's part: read it "
                          "through a mount of all of them",
                          model);
    else if (!h && rc == 0 && run && strcmp(run, m->run) == 0 && version > m->newest)
        rc = ws_error_set(err, ENOENT, "%s/%" PRIu64 " was not published yet; the newest is %" PRIu64, model,
                          version, m->newest);
    else if (!h && rc == 0 && !run && version > m->newest)
        rc = ws_error_set(err, ENOENT, "%s has no version %" PRIu64 "; the newest is %" PRIu64, model,
                          version, m->newest);
    else if (!h && rc == 0)
        rc = ws_error_set(err, ESTALE, "%s/%" PRIu64 " is not here (any more): the newest is %" PRIu64, model,
                          version, m->newest);
    pthread_mutex_unlock(&a->lock);
    if (h)
        *out = &h->base;
    return rc;
}

void ws_agent_drop(void *self, struct ws_hold *hold)
{
    struct ws_agent *a = self;
    pthread_mutex_lock(&a->lock);
    ws_slot_drop((struct ws_slot_hold *)hold);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

/* --- publishing --- */

static void note_newest(struct ws_agent_model *m, uint64_t version, const char *run)
{
    snprintf(m->run, sizeof(m->run), "%s", run);
    m->newest = version;
    m->any = true;
    m->published++;
}

/* A model that changes between whole and in parts: what it had the other way goes. */
static void leave_others(struct ws_agent *a, const struct ws_agent_model *m)
{
    char base[WS_MAX_NAME + 1];
    for (struct ws_agent_model *o = a->models; o; o = o->next) {
        if (o == m->owner ||
            (o != m && !(ws_name_is_part(o->name, base, NULL, NULL) && !strcmp(base, m->name))))
            continue;
        ws_agent_give_up_slots(a, o);
        o->any = o->any && o == m;
    }
}

void ws_agent_publish(struct ws_agent *a, struct ws_agent_model *m)
{
    struct ws_slot *s = m->writing;
    struct ws_agent_model *owner = m->owner;
    s->fresh = false;
    s->has = ws_mark_of(s->version, s->run);
    s->state = WS_SLOT_SERVED;
    if (!ws_features_written(a, m, s)) {
        ws_features_published(a, m, s);
        note_newest(owner, s->version, s->run);
        if (owner != m)
            note_newest(m, s->version, s->run);
        leave_others(a, m);
    }
    ws_rank_records_free(s->records); /* no delta is made of them any more */
    s->records = NULL;
    ws_log(WS_LOG_INFO, "agent", "published model=%s version=%" PRIu64 " run=%s bytes=%" PRIu64 " digest=%s",
           owner->name, s->version, s->run, s->manifest->total_bytes, s->manifest->digest);
    end_writing(a, m);
}

void ws_agent_publish_unmade(struct ws_agent *a, struct ws_agent_model *m, uint64_t version, const char *run)
{
    note_newest(m, version, run);
    leave_others(a, m);
    ws_log(WS_LOG_INFO, "agent", "published model=%s version=%" PRIu64 " run=%s on-demand", m->name, version,
           run);
}

/* --- the end --- */

static void free_model(const struct ws_agent *a, struct ws_agent_model *m)
{
    for (unsigned i = 0; i < m->n_slots; i++)
        ws_slot_free(m->slots[i]);
    ws_features_free(a, m);
    ws_placement_free(m->placement);
    ws_placement_free(m->share);
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
