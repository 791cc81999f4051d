/* Does a reader on this host get a slot's own memory, or is he to copy it? What he has the trainer cannot
 * write again, and nobody can take it from him. So two slots of a model are never lent, the one of the newest
 * version and the one that is written next, whatever readers do: of N slots, N - 2 are. Readers of 0.1.0
 * cannot copy; they get what they ask for, as they did, and can stop the trainer. */
#include "backends/trainer/agent/core/slots.h"
#include "transports/base/log.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#define OWN_SLOTS 2

/* A lease that ended with its connection is seen by the kernel: the memory may still be mapped. */
static bool is_lent(const struct ws_slot *s)
{
    for (const struct ws_slot_hold *h = s->holds; h; h = h->next)
        if (h->lent)
            return true;
    return (s->state == WS_SLOT_SERVED || s->state == WS_SLOT_RETIRED) && !ws_slot_stays(s) &&
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
            bytes += ws_agent_is_settled(a, o->slots[i]) ? o->slots[i]->total_bytes : 0;
    return bytes;
}

/* Has the trainer a slot to go on with where this one is lent, too? */
static int leaves_a_slot(const struct ws_agent *a, const struct ws_agent_model *m, const struct ws_slot *s,
                         struct ws_error *err)
{
    unsigned n = 1, newest = !ws_agent_is_newest(m, s);
    for (unsigned i = 0; i < m->n_slots; i++)
        if (m->slots[i] != s && is_lent(m->slots[i])) {
            n++;
            newest -= ws_agent_is_newest(m, m->slots[i]);
        }
    if (n + OWN_SLOTS > m->max_slots)
        return ws_error_set(err, EOPNOTSUPP, "of %u slots (agent --slots) readers may keep %u", m->max_slots,
                            m->max_slots - OWN_SLOTS);
    const unsigned all = m->n_slots > n + OWN_SLOTS ? m->n_slots : n + OWN_SLOTS;
    if (a->options.memory_bytes && all * s->total_bytes + bytes_of_others(a, m) > a->options.memory_bytes)
        return ws_error_set(err, EOPNOTSUPP, "--memory has no room for %u slots of %" PRIu64 " bytes", all,
                            (uint64_t)s->total_bytes);
    /* What the machine has left may be too little for copies, too: readers that give back are enough. */
    const unsigned least = n + newest + 1 > OWN_SLOTS ? n + newest + 1 : OWN_SLOTS + 1;
    return m->n_slots < least ? ws_agent_check_budget(a, (least - m->n_slots) * s->total_bytes, err) : 0;
}

int ws_agent_lend(void *self, struct ws_hold *hold, bool can_copy, struct ws_error *err)
{
    struct ws_agent *a = self;
    struct ws_slot_hold *h = (struct ws_slot_hold *)hold;
    struct ws_error why = {0};
    int rc = 0;
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = model_of(a, h->slot);
    assert(m); /* a slot that is held stays its model's */
    if (can_copy && h->slot->kept)
        rc = ws_error_set(&why, EOPNOTSUPP, "a publisher of libwsync 0.1.0 keeps it mapped");
    else if (can_copy)
        rc = leaves_a_slot(a, m, h->slot, &why);
    h->lent = rc == 0;
    if (rc < 0 && !m->said_copies) {
        m->said_copies = true;
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
