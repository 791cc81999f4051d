/* Which slot the next version gets: never the newest; one that nobody can read any more. */
#include "backends/trainer/agent/core/slots.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/sessions.h"
#include "transports/base/clock.h"
#include "transports/memory/available.h"
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NORMAL_SLOTS  2
#define REVOKE_NS     5000000000ULL /* a cut connection lets go within that */
#define STEP_NS       20000000ULL
#define RESERVE_BYTES (256UL << 20) /* of memory that is left to others */

bool ws_agent_is_newest(const struct ws_agent_model *m, const struct ws_slot *s)
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
        if (ws_agent_is_newest(m, s) || !can_take(s))
            continue;
        if (s->state == WS_SLOT_FREE)
            return s;
        if (!best || age_of(s) < age_of(best))
            best = s;
    }
    return best;
}

/* --- what ranks keep mapped --- */

/* Of one that is being prepared the number tells: it is another one already where its regions will be. */
static bool stays(const struct ws_agent_model *m, const struct ws_slot *s)
{
    const struct ws_placement *l = ws_agent_layout(m);
    if (s->state == WS_SLOT_WRITING && s != m->writing)
        return true;
    return ws_slot_stays(s) && l && ws_slot_fits(s, l);
}

json_t *ws_agent_slots_that_stay(const struct ws_agent_model *m)
{
    json_t *all = json_array();
    for (unsigned i = 0; m->owner && i < m->owner->n_slots; i++)
        if (stays(m, m->owner->slots[i]))
            json_array_append_new(all, json_integer((json_int_t)m->owner->slots[i]->id));
    return all;
}

bool ws_agent_is_in(const json_t *slots, const json_t *slot)
{
    size_t i = 0;
    while (i < json_array_size(slots) && !json_equal(json_array_get(slots, i), slot))
        i++;
    return i < json_array_size(slots);
}

bool ws_agent_keeps_others(const struct ws_session *c)
{
    json_t *all = c->kept && c->model ? ws_agent_slots_that_stay(c->model) : NULL;
    bool others = false;
    for (size_t i = 0; all && !others && i < json_array_size(c->kept); i++)
        others = !ws_agent_is_in(all, json_array_get(c->kept, i));
    json_decref(all);
    return others;
}

static bool another_keeps_others(const struct ws_agent_model *m, const struct ws_session *c)
{
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->ranks[r] && m->ranks[r] != c && ws_agent_keeps_others(m->ranks[r]))
            return true;
    return false;
}

/* --- memory --- */

struct list {
    char text[WS_ERROR_TEXT / 2];
    size_t n;
};

__attribute__((format(printf, 2, 3))) static void add(struct list *l, const char *format, ...)
{
    va_list args;
    if (l->n >= sizeof(l->text))
        return;
    va_start(args, format);
    int n = vsnprintf(l->text + l->n, sizeof(l->text) - l->n, format, args);
    va_end(args);
    l->n += n > 0 ? (size_t)n : 0;
}

bool ws_agent_is_settled(const struct ws_agent *a, const struct ws_slot *s)
{
    bool begun = s->state != WS_SLOT_WRITING;
    for (const struct ws_agent_model *m = a->models; m && !begun; m = m->next)
        begun = m->writing == s;
    return begun;
}

/* "; actor has 2 of 10 bytes in all, version 3 held by ipc pid 7" */
static void say_slots(const struct ws_agent *a, const struct ws_agent_model *m, struct list *out)
{
    uint64_t bytes = 0;
    unsigned n = 0;
    char who[160];
    for (unsigned i = 0; i < m->n_slots; i++)
        if (ws_agent_is_settled(a, m->slots[i]) && m->slots[i]->total_bytes > 0) {
            bytes += m->slots[i]->total_bytes;
            n++;
        }
    if (n == 0)
        return;
    add(out, "; %s has %u of %" PRIu64 " bytes in all", m->name, n, bytes);
    for (unsigned i = 0; i < m->n_slots; i++) {
        ws_slot_holders(m->slots[i], who, sizeof(who));
        if (who[0])
            add(out, ", version %" PRIu64 " held by %s", m->slots[i]->version, who);
    }
}

static void say_who(const struct ws_agent *a, uint64_t left, struct list *out)
{
    for (const struct ws_agent_model *m = a->models; m; m = m->next)
        say_slots(a, m, out);
    if (left == 0)
        return;
    add(out, "; %" PRIu64 " bytes of versions that are gone are still held by readers of them", left);
    for (const struct ws_agent_model *m = a->models; m; m = m->next)
        for (unsigned r = 0; r < m->world_size; r++)
            if (m->ranks[r] && ws_agent_keeps_others(m->ranks[r]))
                add(out, ", or by rank %u of %s (process %d)", r, m->name, (int)m->ranks[r]->pid);
}

/* What ranks keep that cannot be told would be in the way for good, of every model: nobody can tell whose is
 * what is left, and it is not counted. */
static bool has_deaf_ranks(const struct ws_agent *a)
{
    for (const struct ws_agent_model *m = a->models; m; m = m->next)
        for (unsigned r = 0; r < m->world_size; r++)
            if (m->ranks[r] && m->ranks[r]->deaf)
                return true;
    return false;
}

int ws_agent_check_budget(const struct ws_agent *a, uint64_t bytes, struct ws_error *err)
{
    char text[WS_ERROR_TEXT] = "";
    struct list who = {0};
    const uint64_t left = has_deaf_ranks(a) ? 0 : ws_region_left_bytes(), used = a->slot_bytes + left;
    uint64_t has;
    if (a->options.memory_bytes) {
        has = used < a->options.memory_bytes ? a->options.memory_bytes - used : 0;
        snprintf(text, sizeof(text), "--memory leaves %" PRIu64 " bytes", has);
    } else {
        has = ws_memory_available(text);
        const size_t n = strlen(text);
        if (has != UINT64_MAX)
            snprintf(text + n, sizeof(text) - n, ", of which %lu MiB stay free for others",
                     RESERVE_BYTES >> 20);
        has = has > RESERVE_BYTES ? has - RESERVE_BYTES : 0;
    }
    if (bytes <= has)
        return 0;
    say_who(a, left, &who);
    return ws_error_set(
        err, ENOMEM,
        "a slot of %" PRIu64 " bytes does not fit: %.400s (slots take %" PRIu64
        " bytes now%s); raise the limit, end who holds memory, or use fewer slots or a smaller "
        "model",
        bytes, text, used, who.text);
}

/* The same, after other ranks have let go of what is of no use: they are told when they begin. The rank that
 * asks is told by its answer. */
static int find_room(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *c, uint64_t bytes,
                     uint64_t deadline_ns, struct ws_error *err)
{
    int rc;
    while ((rc = ws_agent_check_budget(a, bytes, err)) < 0 && !ws_agent_keeps_others(c) &&
           another_keeps_others(m, c)) {
        if (!m->wants_room)
            pthread_cond_broadcast(&a->changed);
        m->wants_room = true;
        if (!ws_session_wait(a, c, deadline_ns))
            break;
    }
    m->wants_room = false;
    return rc;
}

static int add_slot(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *c,
                    struct ws_slot **out, uint64_t deadline_ns, struct ws_error *err)
{
    struct ws_agent_model *owner = m->owner;
    const uint64_t bytes = ws_agent_layout(m)->total_bytes;
    int rc = owner->n_slots < NORMAL_SLOTS ? find_room(a, m, c, bytes, deadline_ns, err)
                                           : ws_agent_check_budget(a, bytes, err);
    if (rc < 0)
        return rc;
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return ws_error_set(err, ENOMEM, "no memory for a slot");
    owner->slots[owner->n_slots++] = *out;
    return 0;
}

/* full: why there cannot be a slot more, where it is not for their number. */
static int busy(struct ws_agent_model *m, const struct ws_error *full, struct ws_error *err)
{
    char text[WS_ERROR_TEXT / 2] = "";
    size_t n = 0;
    for (unsigned i = 0; i < m->n_slots && n < sizeof(text); i++) {
        char who[200];
        if (ws_agent_is_newest(m, m->slots[i]))
            continue;
        ws_slot_holders(m->slots[i], who, sizeof(who));
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%sversion %" PRIu64 " (%s) is held by %s",
                              n ? "; " : "", m->slots[i]->version, ws_slot_state_name(m->slots[i]->state),
                              who[0] ? who : "a rank");
    }
    const char *remedy =
        "write 'drop N' to the ctl of a mount that keeps version N (one of wsync 0.1.0 gives "
        "none back by itself), end another reader,";
    if (full->code)
        return ws_error_set(err, EBUSY, "no free slot for %s: %s; %s or make room: %.400s", m->name, text,
                            remedy, full->text);
    return ws_error_set(err, EBUSY,
                        "no free slot for %s: %s; %s or allow more slots (agent --slots, at most %u now)",
                        m->name, text, remedy, m->max_slots);
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

int ws_agent_take_slot(struct ws_agent *a, struct ws_agent_model *group, const struct ws_session *c,
                       struct ws_slot **out, uint64_t deadline_ns, struct ws_error *err)
{
    struct ws_agent_model *m = group->owner;
    for (;;) {
        struct ws_slot *s = m->n_slots >= NORMAL_SLOTS ? oldest_that_can_be_taken(m) : NULL;
        if (!s && m->n_slots < NORMAL_SLOTS)
            for (unsigned i = 0; i < m->n_slots; i++)
                if (m->slots[i]->state == WS_SLOT_FREE)
                    s = m->slots[i];
        struct ws_error full = {0};
        if (!s && m->n_slots < m->max_slots) {
            int rc = add_slot(a, group, c, &s, deadline_ns, &full);
            if (rc < 0 && m->n_slots < NORMAL_SLOTS)
                return ws_error_set(err, -rc, "%s", full.text);
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
        if (step > deadline_ns || ws_ipc_peer_has_left(c->peer))
            return busy(m, &full, err);
        (void)ws_agent_wait(a, step);
        if (atomic_load(&a->stop))
            return ws_error_set(err, ESHUTDOWN, "the agent is stopping");
    }
}

static int take_room(void *arg, uint64_t bytes, struct ws_error *err)
{
    struct ws_agent *a = arg;
    pthread_mutex_lock(&a->lock);
    int rc = ws_agent_check_budget(a, bytes, err);
    a->slot_bytes += rc == 0 ? bytes : 0;
    pthread_mutex_unlock(&a->lock);
    return rc;
}

static void give_room(void *arg, uint64_t bytes)
{
    struct ws_agent *a = arg;
    pthread_mutex_lock(&a->lock);
    a->slot_bytes -= bytes;
    pthread_mutex_unlock(&a->lock);
}

/* What has to be laid out anew gives its memory back first, and is then budgeted like a new slot. */
static int lay_out(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *c,
                   struct ws_slot *s, uint64_t deadline_ns, struct ws_error *err)
{
    const struct ws_placement *l = ws_agent_layout(m);
    a->slot_bytes -= s->total_bytes;
    pthread_mutex_unlock(&a->lock); /* giving gigabytes back takes a while */
    ws_slot_empty(s);
    pthread_mutex_lock(&a->lock);
    int rc = find_room(a, m, c, l->total_bytes, deadline_ns, err);
    if (rc < 0)
        return rc;
    a->slot_bytes += l->total_bytes;
    pthread_mutex_unlock(&a->lock);
    rc = ws_slot_lay_out(s, l, a->options.n_threads, err);
    pthread_mutex_lock(&a->lock);
    a->slot_bytes -= rc < 0 ? l->total_bytes : 0;
    return rc;
}

int ws_agent_prepare_slot(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *c,
                          struct ws_slot *s, bool changes, uint64_t deadline_ns, struct ws_error *err)
{
    const struct ws_placement *l = ws_agent_layout(m);
    const struct ws_slot_room room = {take_room, give_room, a};
    ws_slot_rebase(s, l);
    if (ws_slot_fits(s, l) && ws_slot_idle(s) == 0)
        return 0;
    s->id = ws_clock_day_ns(); /* from now on ranks that have it mapped have others' memory */
    if (ws_slot_has_use(s, l, changes)) {
        pthread_mutex_unlock(&a->lock);
        int rc = ws_slot_exchange(s, l, a->options.n_threads, &room, err);
        pthread_mutex_lock(&a->lock);
        if (rc == 0 || ws_agent_keeps_others(c)) /* it lets go, and begins again */
            return rc;
    }
    return lay_out(a, m, c, s, deadline_ns, err);
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
