/* Which slot the next version gets: never the newest; one that nobody can read any more. */
#include "backends/trainer/agent_state.h"
#include "transports/clock.h"
#include "transports/log.h"
#include "transports/memory.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NORMAL_SLOTS  2
#define REVOKE_NS     5000000000ULL /* a cut connection lets go within that */
#define STEP_NS       20000000ULL
#define RESERVE_BYTES (256UL << 20) /* of memory that is left to others */

static bool is_newest(const struct ws_agent_model *m, const struct ws_slot *s)
{
    return s->state == WS_SLOT_SERVED && s->version == m->newest && strcmp(s->run, m->run) == 0;
}

/* Has it no reader that we could not cut? Not asked of slots in work. */
static bool can_take(const struct ws_slot *s)
{
    if (s->state == WS_SLOT_WRITING || s->state == WS_SLOT_HASHING || s->state == WS_SLOT_SEALED)
        return false;
    return !ws_slot_has_firm_holds(s) && ws_slot_idle(s) != -EBUSY;
}

/* When it was committed; an abandoned one comes first. */
static uint64_t age_of(const struct ws_slot *s)
{
    return s->manifest ? s->manifest->created_ns : 0;
}

static struct ws_slot *oldest_that_can_be_taken(struct ws_agent_model *m)
{
    struct ws_slot *best = NULL;
    for (unsigned i = 0; i < m->n_slots; i++) {
        struct ws_slot *s = m->slots[i];
        if (is_newest(m, s) || !can_take(s))
            continue;
        if (s->state == WS_SLOT_FREE)
            return s;
        if (!best || age_of(s) < age_of(best))
            best = s;
    }
    return best;
}

static int check_budget(struct ws_agent *a, const struct ws_placement *l, struct ws_error *err)
{
    char text[WS_ERROR_TEXT] = "";
    uint64_t has, used = a->slot_bytes + ws_region_left_bytes(); /* readers keep what we have closed */
    if (a->options.memory_bytes) {
        has = used < a->options.memory_bytes ? a->options.memory_bytes - used : 0;
        snprintf(text, sizeof(text), "--memory leaves %" PRIu64 " bytes", has);
    } else {
        has = ws_memory_available(text);
        has = has > RESERVE_BYTES ? has - RESERVE_BYTES : 0;
    }
    if (l->total_bytes <= has)
        return 0;
    return ws_error_set(err, ENOMEM,
                        "a slot of %" PRIu64 " bytes does not fit: %s (slots take %" PRIu64
                        " bytes now); raise the limit, or use fewer slots or a smaller model",
                        l->total_bytes, text, used);
}

static int add_slot(struct ws_agent *a, struct ws_agent_model *m, const struct ws_placement *l,
                    struct ws_slot **out, struct ws_error *err)
{
    int rc = check_budget(a, l, err);
    if (rc < 0)
        return rc;
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return ws_error_set(err, ENOMEM, "no memory for a slot");
    m->slots[m->n_slots++] = *out;
    return 0;
}

static int busy(struct ws_agent_model *m, struct ws_error *err)
{
    char text[WS_ERROR_TEXT / 2] = "";
    size_t n = 0;
    for (unsigned i = 0; i < m->n_slots && n < sizeof(text); i++) {
        char who[200];
        if (is_newest(m, m->slots[i]))
            continue;
        ws_slot_holders(m->slots[i], who, sizeof(who));
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%sversion %" PRIu64 " (%s) is held by %s",
                              n ? "; " : "", m->slots[i]->version, ws_slot_state_name(m->slots[i]->state),
                              who[0] ? who : "a rank");
    }
    return ws_error_set(
        err, EBUSY,
        "no free slot for %s: %s; end that reader, or allow more slots (agent --slots, at most %u now)",
        m->name, text, m->max_slots);
}

/* Makes the slot ours: its names are gone, its readers are cut, nobody maps it. */
static int retire(struct ws_agent *a, struct ws_slot *s)
{
    uint64_t deadline = ws_clock_ns() + REVOKE_NS;
    bool was_served = s->state == WS_SLOT_SERVED;
    s->state = WS_SLOT_RETIRED;
    ws_slot_revoke(s);
    if (was_served) {
        pthread_mutex_unlock(&a->lock);
        ws_agent_announce(a);
        pthread_mutex_lock(&a->lock);
    }
    while (s->n_holds > 0)
        if (!ws_agent_wait(a, deadline))
            break;
    if (s->n_holds > 0 || ws_slot_idle(s) == -EBUSY)
        return -EBUSY; /* stays retired: it is tried again by the next version */
    ws_slot_clear(s);
    s->state = WS_SLOT_WRITING;
    return 0;
}

int ws_agent_take_slot(struct ws_agent *a, struct ws_agent_model *m, const struct ws_placement *l,
                       struct ws_slot **out, uint64_t deadline_ns, struct ws_error *err)
{
    for (;;) {
        struct ws_slot *s = m->n_slots >= NORMAL_SLOTS ? oldest_that_can_be_taken(m) : NULL;
        if (!s && m->n_slots < NORMAL_SLOTS)
            for (unsigned i = 0; i < m->n_slots; i++)
                if (m->slots[i]->state == WS_SLOT_FREE)
                    s = m->slots[i];
        if (!s && m->n_slots < m->max_slots) {
            int rc = add_slot(a, m, l, &s, err);
            if (rc < 0 && m->n_slots < NORMAL_SLOTS)
                return rc;
            if (rc < 0)
                s = NULL; /* a slot more does not fit: wait for a reader to end */
        }
        if (s && s->state == WS_SLOT_FREE) {
            s->state = WS_SLOT_WRITING;
            *out = s;
            return 0;
        }
        if (s && retire(a, s) == 0) {
            *out = s;
            return 0;
        }
        uint64_t step = ws_clock_ns() + STEP_NS;
        if (step > deadline_ns)
            return busy(m, err);
        (void)ws_agent_wait(a, step);
        if (atomic_load(&a->stop))
            return ws_error_set(err, ESHUTDOWN, "the agent is stopping");
    }
}

/* A slot that has to be laid out anew gives its memory back first, and is then budgeted like a new one. One
 * whose regions are exchanged takes as much as before: nobody has the old ones mapped any more. */
static int reserve(struct ws_agent *a, struct ws_slot *s, const struct ws_placement *l, struct ws_error *err)
{
    int rc = 0;
    if (!ws_slot_fits(s, l)) {
        a->slot_bytes -= s->total_bytes;
        pthread_mutex_unlock(&a->lock); /* giving gigabytes back takes a while */
        ws_slot_empty(s);
        pthread_mutex_lock(&a->lock);
        rc = check_budget(a, l, err);
        a->slot_bytes += rc == 0 ? l->total_bytes : 0;
    }
    return rc;
}

int ws_agent_prepare_slot(struct ws_agent *a, struct ws_slot *s, const struct ws_placement *l,
                          bool changes_only, struct ws_error *err)
{
    int rc = reserve(a, s, l, err);
    if (rc < 0)
        return rc;
    pthread_mutex_unlock(&a->lock);
    rc = ws_slot_prepare(s, l, changes_only, a->options.n_threads, err);
    pthread_mutex_lock(&a->lock);
    a->slot_bytes -= rc < 0 ? l->total_bytes : 0; /* it has no memory any more */
    return rc;
}

void ws_agent_give_up_slots(struct ws_agent *a, struct ws_agent_model *m)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < m->n_slots; i++) {
        struct ws_slot *s = m->slots[i];
        if (s->state == WS_SLOT_SERVED) {
            s->state = WS_SLOT_RETIRED;
            ws_slot_revoke(s);
        }
        if (can_take(s) && s->n_holds == 0) {
            a->slot_bytes -= s->total_bytes;
            ws_slot_free(s);
        } else {
            m->slots[kept++] = s;
        }
    }
    m->n_slots = kept;
}
