/* Leases: readers of this host may be lent a slot's own memory, or have to copy it. What a reader has been
 * lent, the trainer cannot write again and no process can take back. So two slots of a model are never lent,
 * whatever readers do: the one of the newest version, and the one that is written next. Of N slots, N - 2 may
 * be lent. Readers of 0.1.0 cannot copy; they get what they ask for, as they did, and can stop the trainer. */
#include "backends/trainer/agent/core/leases.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/slots.h"
#include "transports/base/log.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* --- lending --- */

#define OWN_SLOTS 2

/* Where a lease ended with its connection the kernel still knows: the memory may be mapped. */
static bool is_lent(const struct ws_slot *s)
{
    for (const struct ws_slot_lease *h = s->leases; h; h = h->next)
        if (h->lent)
            return true;
    return (s->state == WS_SLOT_SERVED || s->state == WS_SLOT_RETIRED) && !ws_slot_is_reusable(s) &&
           ws_slot_idle(s) == -EBUSY;
}

static struct ws_agent_model *model_of(const struct ws_agent *a, const struct ws_slot *s)
{
    for (struct ws_agent_model *m = a->models; m; m = m->next)
        for (unsigned i = 0; i < m->n_slots; i++)
            if (m->slots[i] == s)
                return m;
    return NULL;
}

static uint64_t bytes_of_others(const struct ws_agent *a, const struct ws_agent_model *m)
{
    uint64_t bytes = 0;
    for (const struct ws_agent_model *o = a->models; o; o = o->next)
        for (unsigned i = 0; o != m && i < o->n_slots; i++)
            bytes += ws_slots_is_prepared(a, o->slots[i]) ? o->slots[i]->total_bytes : 0;
    return bytes;
}

/* 0: the trainer has another slot to continue with if this one is lent too. -EOPNOTSUPP, -ENOMEM. */
static int leaves_a_slot(const struct ws_agent *a, const struct ws_agent_model *m, const struct ws_slot *s,
                         struct ws_error *err)
{
    unsigned n = 1, newest = !ws_slots_is_newest(m, s);
    for (unsigned i = 0; i < m->n_slots; i++)
        if (m->slots[i] != s && is_lent(m->slots[i])) {
            n++;
            newest -= ws_slots_is_newest(m, m->slots[i]);
        }
    if (n + OWN_SLOTS > m->max_slots)
        return ws_error_set(err, EOPNOTSUPP, "of %u slots (agent --slots) readers may keep %u", m->max_slots,
                            m->max_slots - OWN_SLOTS);
    const unsigned all = m->n_slots > n + OWN_SLOTS ? m->n_slots : n + OWN_SLOTS;
    if (a->options.memory_bytes && all * s->total_bytes + bytes_of_others(a, m) > a->options.memory_bytes)
        return ws_error_set(err, EOPNOTSUPP, "--memory has no room for %u slots of %" PRIu64 " bytes", all,
                            (uint64_t)s->total_bytes);
    /* The machine may have too little memory for copies, too; then it is enough that readers give back. */
    const unsigned least = n + newest + 1 > OWN_SLOTS ? n + newest + 1 : OWN_SLOTS + 1;
    return m->n_slots < least ? ws_slots_check_budget(a, (least - m->n_slots) * s->total_bytes, err) : 0;
}

int ws_agent_lease_lend(void *self, struct ws_lease *lease, bool can_copy, struct ws_error *err)
{
    struct ws_agent *a = self;
    struct ws_slot_lease *h = (struct ws_slot_lease *)lease;
    struct ws_error why = {0};
    int rc = 0;
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = model_of(a, h->slot);
    assert(m); /* a slot that is held stays its model's */
    if (can_copy && h->slot->is_pinned)
        rc = ws_error_set(&why, EOPNOTSUPP, "a publisher of libwsync 0.1.0 keeps it mapped");
    else if (can_copy)
        rc = leaves_a_slot(a, m, h->slot, &why);
    h->lent = rc == 0;
    if (rc < 0 && !m->logged_copies) {
        m->logged_copies = true;
        ws_log(WS_LOG_WARN, "agent",
               "readers on this host get copies of %s/%" PRIu64
               ", and of later versions where it is so again, "
               "to leave the trainer a slot: %s",
               m->name, h->slot->version, why.text);
    }
    if (rc < 0)
        rc = ws_error_set(err, EOPNOTSUPP,
                          "%s/%" PRIu64 " is only copied, to leave the trainer a slot: %.800s", m->name,
                          h->slot->version, why.text);
    pthread_mutex_unlock(&a->lock);
    return rc;
}

/* --- acquiring and releasing --- */

int ws_agent_lease_acquire(void *self, const char *model, uint64_t version, const char *lineage,
                           const char *holder, void (*revoked)(void *), void *arg, struct ws_lease **out,
                           struct ws_error *err)
{
    struct ws_agent *a = self;
    struct ws_slot_lease *h = NULL;
    int rc = 0;
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = ws_agent_model_find(a, model);
    for (unsigned i = 0; m && i < m->n_slots && !h && rc == 0; i++) {
        struct ws_slot *s = m->slots[i];
        if (s->state != WS_SLOT_SERVED || s->version != version ||
            strcmp(s->lineage, lineage ? lineage : m->lineage) != 0)
            continue;
        h = ws_slot_lease_new(s, holder, revoked, arg);
        if (!h)
            rc = ws_error_set(err, ENOMEM, "no memory for a lease");
    }
    if (!h && rc == 0 && m)
        rc = ws_features_want(a, m, version, lineage ? lineage : m->lineage, err);
    if (!m || !m->has_published)
        rc = ws_error_set(err, ENOENT, "there is no model '%s' here", model);
    else if (!h && rc == 0 && m->slot_owner && m->slot_owner != m)
        rc = ws_error_set(err, EOPNOTSUPP,
                          "the trainer of %s spans nodes, and this agent has only its node's part: read it "
                          "through a mount of all of them",
                          model);
    else if (!h && rc == 0 && lineage && strcmp(lineage, m->lineage) == 0 && version > m->newest)
        rc = ws_error_set(err, ENOENT, "%s/%" PRIu64 " was not published yet; the newest is %" PRIu64, model,
                          version, m->newest);
    else if (!h && rc == 0 && !lineage && version > m->newest)
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

void ws_agent_lease_release(void *self, struct ws_lease *lease)
{
    struct ws_agent *a = self;
    pthread_mutex_lock(&a->lock);
    ws_slot_lease_free((struct ws_slot_lease *)lease);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}
