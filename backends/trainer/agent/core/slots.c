/* Slots: the next version gets a slot that no reader can read any more, and never the newest. */
#include "backends/trainer/agent/core/slots.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/sessions.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/memory/available.h"
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NORMAL_SLOTS  2
#define REVOKE_NS     5000000000ULL /* a closed connection's leases are dropped within that */
#define STEP_NS       20000000ULL
#define RESERVE_BYTES (256UL << 20) /* of memory that is left to others */

struct ws_slot *ws_slots_find(const struct ws_agent_model *m, const struct ws_version_id *id)
{
    for (unsigned i = 0; i < m->n_slots; i++)
        if (m->slots[i]->state == WS_SLOT_SERVED && m->slots[i]->version == id->version &&
            strcmp(m->slots[i]->lineage, id->lineage) == 0)
            return m->slots[i];
    return NULL;
}

bool ws_slots_is_newest(const struct ws_agent_model *m, const struct ws_slot *s)
{
    return s->state == WS_SLOT_SERVED && s->version == m->newest && strcmp(s->lineage, m->lineage) == 0;
}

/* Can all its readers be cut? Never true of slots in work. */
static bool is_available(const struct ws_slot *s)
{
    if (s->state == WS_SLOT_WRITING || s->state == WS_SLOT_HASHING || s->state == WS_SLOT_SEALED)
        return false;
    return !ws_slot_has_firm_leases(s) && ws_slot_idle(s) != -EBUSY;
}

/* 0: abandoned, so it comes first. */
static uint64_t created_ns(const struct ws_slot *s)
{
    return s->manifest ? s->manifest->created_ns : 0;
}

static struct ws_slot *oldest_available(struct ws_agent_model *m)
{
    struct ws_slot *best = NULL;
    for (unsigned i = 0; i < m->n_slots; i++) {
        struct ws_slot *s = m->slots[i];
        if (ws_slots_is_newest(m, s) || !is_available(s))
            continue;
        if (s->state == WS_SLOT_FREE)
            return s;
        if (!best || created_ns(s) < created_ns(best))
            best = s;
    }
    return best;
}

/* --- what ranks keep mapped --- */

/* A slot that is being prepared counts: its id changed already where its regions will be exchanged. */
static bool is_reusable(const struct ws_agent_model *m, const struct ws_slot *s)
{
    const struct ws_placement *l = ws_agent_model_local_placement(m);
    if (s->state == WS_SLOT_WRITING && s != m->writing)
        return true;
    return ws_slot_is_reusable(s) && l && ws_slot_fits(s, l);
}

json_t *ws_slots_reusable_ids(const struct ws_agent_model *m)
{
    json_t *all = json_array();
    for (unsigned i = 0; m->slot_owner && i < m->slot_owner->n_slots; i++)
        if (is_reusable(m, m->slot_owner->slots[i]))
            json_array_append_new(all, json_integer((json_int_t)m->slot_owner->slots[i]->id));
    return all;
}

bool ws_slots_ids_contain(const json_t *slots, const json_t *slot)
{
    size_t i = 0;
    while (i < json_array_size(slots) && !json_equal(json_array_get(slots, i), slot))
        i++;
    return i < json_array_size(slots);
}

bool ws_slots_session_maps_stale(const struct ws_session *c)
{
    json_t *all = c && c->mapped_slots && c->model ? ws_slots_reusable_ids(c->model) : NULL;
    bool others = false;
    for (size_t i = 0; all && !others && i < json_array_size(c->mapped_slots); i++)
        others = !ws_slots_ids_contain(all, json_array_get(c->mapped_slots, i));
    json_decref(all);
    return others;
}

static bool another_maps_stale(const struct ws_agent_model *m, const struct ws_session *c)
{
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->ranks[r] && m->ranks[r] != c && ws_slots_session_maps_stale(m->ranks[r]))
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

bool ws_slots_is_prepared(const struct ws_agent *a, const struct ws_slot *s)
{
    bool begun = s->state != WS_SLOT_WRITING;
    for (const struct ws_agent_model *m = a->models; m && !begun; m = m->next)
        begun = m->writing == s;
    return begun;
}

/* "; actor has 2 of 10 bytes in all, version 3 held by ipc pid 7" */
static void describe_slots(const struct ws_agent *a, const struct ws_agent_model *m, struct list *out)
{
    uint64_t bytes = 0;
    unsigned n = 0;
    char who[160];
    for (unsigned i = 0; i < m->n_slots; i++)
        if (ws_slots_is_prepared(a, m->slots[i]) && m->slots[i]->total_bytes > 0) {
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

static void describe_holders(const struct ws_agent *a, uint64_t left, struct list *out)
{
    for (const struct ws_agent_model *m = a->models; m; m = m->next)
        describe_slots(a, m, out);
    if (a->restoring_bytes > 0)
        add(out, "; %" PRIu64 " bytes are for what is being read back out of the archive",
            a->restoring_bytes);
    if (left == 0)
        return;
    add(out, "; %" PRIu64 " bytes of versions that are gone are still held by readers of them", left);
    for (const struct ws_agent_model *m = a->models; m; m = m->next)
        for (unsigned r = 0; r < m->world_size; r++)
            if (m->ranks[r] && ws_slots_session_maps_stale(m->ranks[r]))
                add(out, ", or by rank %u of %s (process %d)", r, m->name, (int)m->ranks[r]->pid);
}

/* Ranks of libwsync 0.1.0 never unmap slots. The memory of closed regions is not known by owner, so it would
 * block all models forever; where such ranks exist it is not counted. */
static bool has_ranks_that_never_unmap(const struct ws_agent *a)
{
    for (const struct ws_agent_model *m = a->models; m; m = m->next)
        for (unsigned r = 0; r < m->world_size; r++)
            if (m->ranks[r] && m->ranks[r]->never_unmaps)
                return true;
    return false;
}

int ws_slots_check_budget(const struct ws_agent *a, uint64_t bytes, struct ws_error *err)
{
    char text[WS_ERROR_TEXT] = "";
    struct list who = {0};
    const uint64_t left = has_ranks_that_never_unmap(a) ? 0 : ws_region_left_bytes(),
                   used = a->slot_bytes + left;
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
    describe_holders(a, left, &who);
    return ws_error_set(
        err, ENOMEM,
        "a slot of %" PRIu64 " bytes does not fit: %.400s (slots take %" PRIu64
        " bytes now%s); raise the limit, end readers that hold memory, or use fewer slots or a "
        "smaller model",
        bytes, text, used, who.text);
}

/* Takes the slot from its readers: it is not listed any more, leases are revoked, no process maps it. */
static int retire(struct ws_agent *a, struct ws_slot *s)
{
    uint64_t deadline = ws_clock_ns() + REVOKE_NS;
    bool was_served = s->state == WS_SLOT_SERVED;
    ws_slot_retire(s);
    ws_slot_revoke(s);
    if (was_served) {
        pthread_mutex_unlock(&a->lock);
        ws_agent_announce(a);
        pthread_mutex_lock(&a->lock);
    }
    while (s->n_leases > 0)
        if (!ws_agent_wait(a, deadline))
            break;
    if (s->n_leases > 0 || ws_slot_idle(s) == -EBUSY)
        return -EBUSY; /* stays retired: it is tried again by the next version */
    ws_slot_clear(s);
    s->state = WS_SLOT_WRITING;
    return 0;
}

/* A slot of a view that can be taken from its readers, the oldest first and the newest version's last. Not of one that is
 * being made: its slots are the deriver's. */
static struct ws_slot *find_slot_of_view(const struct ws_agent *a, struct ws_agent_model **of)
{
    struct ws_slot *best = NULL;
    bool newest = false;
    for (struct ws_agent_model *m = a->models; m; m = m->next) {
        if (m->preparing || !ws_name_is_view(m->name, NULL, NULL))
            continue;
        for (unsigned i = 0; i < m->n_slots; i++) {
            struct ws_slot *s = m->slots[i];
            const bool is_newest = ws_slots_is_newest(m, s);
            if (!is_available(s) || (best && is_newest > newest) ||
                (best && is_newest == newest && created_ns(s) >= created_ns(best)))
                continue;
            best = s;
            newest = is_newest;
            *of = m;
        }
    }
    return best;
}

/* A slot in work ends by itself: the deriver's, the finisher's, or one that is read back out of an archive. */
static bool is_view_being_made(const struct ws_agent *a)
{
    for (const struct ws_agent_model *m = a->models; m; m = m->next) {
        if (!ws_name_is_view(m->name, NULL, NULL))
            continue;
        bool works = m->preparing;
        for (unsigned i = 0; i < m->n_slots; i++)
            works = works || m->slots[i]->state == WS_SLOT_WRITING || m->slots[i]->state == WS_SLOT_HASHING;
        if (works)
            return true;
    }
    return false;
}

/* Takes a slot from a view, for a model that ranks publish. False: none could be taken. */
static bool take_from_view(struct ws_agent *a, const struct ws_agent_model *m, const struct ws_session *c,
                           uint64_t deadline_ns)
{
    struct ws_agent_model *view = NULL;
    struct ws_slot *s = find_slot_of_view(a, &view);
    if (!s)
        return is_view_being_made(a) &&
               (c ? ws_session_wait(a, c, deadline_ns) : ws_agent_wait(a, deadline_ns));
    const uint64_t version = s->version;
    view->preparing =
        true; /* the lock is left meanwhile: the deriver, and who removes the model, stay away */
    const int rc = retire(a, s);
    if (rc == 0) {
        a->slot_bytes -= s->total_bytes;
        pthread_mutex_unlock(&a->lock); /* giving gigabytes back takes a while */
        ws_slot_empty(s);
        pthread_mutex_lock(&a->lock);
    }
    view->preparing = false;
    pthread_cond_broadcast(&a->changed);
    if (rc < 0)
        return false;
    unsigned i = 0;
    while (view->slots[i] != s)
        i++;
    view->slots[i] = view->slots[--view->n_slots];
    ws_slot_free(s);
    ws_log(WS_LOG_INFO, "agent", "view's slot taken model=%s version=%" PRIu64 " for=%s", view->name, version,
           m->name);
    return true;
}

/* What is read back of the model becomes a slot like others, or its memory is free again. False: nothing is, or the time is
 * over. */
static bool wait_for_restored(struct ws_agent *a, const struct ws_agent_model *m, const struct ws_session *c,
                              uint64_t deadline_ns)
{
    return strcmp(a->restoring, m->slot_owner->name) == 0 &&
           (c ? ws_session_wait(a, c, deadline_ns) : ws_agent_wait(a, deadline_ns));
}

/* As ws_slots_check_budget, after views have given slots up: what ranks publish comes before them. */
static int check_budget_before_views(struct ws_agent *a, const struct ws_agent_model *m,
                                     const struct ws_session *c, uint64_t bytes, uint64_t deadline_ns,
                                     struct ws_error *err)
{
    int rc;
    do
        rc = ws_slots_check_budget(a, bytes, err);
    while (rc < 0 && !ws_name_is_view(m->name, NULL, NULL) &&
           (take_from_view(a, m, c, deadline_ns) || wait_for_restored(a, m, c, deadline_ns)));
    return rc;
}

/* As check_budget_before_views, after other ranks have unmapped slots that will not be written again: the replies
 * to their begin request it. The rank of this session is asked by its own reply. */
static int wait_for_memory(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *c,
                           uint64_t bytes, uint64_t deadline_ns, struct ws_error *err)
{
    int rc;
    while ((rc = check_budget_before_views(a, m, c, bytes, deadline_ns, err)) < 0 &&
           !ws_slots_session_maps_stale(c) && another_maps_stale(m, c)) {
        if (!m->wants_memory)
            pthread_cond_broadcast(&a->changed);
        m->wants_memory = true;
        if (!ws_session_wait(a, c, deadline_ns))
            break;
    }
    m->wants_memory = false;
    return rc;
}

static int add_slot(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *c,
                    struct ws_slot **out, uint64_t deadline_ns, struct ws_error *err)
{
    struct ws_agent_model *owner = m->slot_owner;
    const uint64_t bytes = ws_agent_model_local_placement(m)->total_bytes;
    const unsigned before = owner->n_slots;
    int rc = owner->n_slots < NORMAL_SLOTS ? wait_for_memory(a, m, c, bytes, deadline_ns, err)
                                           : ws_slots_check_budget(a, bytes, err);
    if (owner->n_slots != before)
        return -EAGAIN; /* one was read back while this waited */
    if (rc < 0)
        return rc;
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return ws_error_set(err, ENOMEM, "no memory for a slot");
    owner->slots[owner->n_slots++] = *out;
    return 0;
}

/* full: why no slot can be added, where their number is not the reason. */
static int refuse_busy(struct ws_agent_model *m, const struct ws_error *full, struct ws_error *err)
{
    char text[WS_ERROR_TEXT / 2] = "";
    size_t n = 0;
    for (unsigned i = 0; i < m->n_slots && n < sizeof(text); i++) {
        char who[200];
        if (ws_slots_is_newest(m, m->slots[i]))
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

int ws_slots_acquire(struct ws_agent *a, struct ws_agent_model *group, const struct ws_session *c,
                     struct ws_slot **out, uint64_t deadline_ns, struct ws_error *err)
{
    struct ws_agent_model *m = group->slot_owner;
    for (;;) {
        struct ws_slot *s = m->n_slots >= NORMAL_SLOTS ? oldest_available(m) : NULL;
        if (!s && m->n_slots < NORMAL_SLOTS)
            for (unsigned i = 0; i < m->n_slots; i++)
                if (m->slots[i]->state == WS_SLOT_FREE)
                    s = m->slots[i];
        struct ws_error full = {0};
        if (!s && m->n_slots < m->max_slots) {
            int rc = add_slot(a, group, c, &s, deadline_ns, &full);
            if (rc == -EAGAIN)
                continue;
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
        if (step > deadline_ns || (c && ws_ipc_peer_is_gone(c->peer)))
            return refuse_busy(m, &full, err);
        (void)ws_agent_wait(a, step);
        if (atomic_load(&a->stop))
            return ws_error_set(err, ESHUTDOWN, "the agent is stopping");
    }
}

static int reserve_bytes(void *arg, uint64_t bytes, struct ws_error *err)
{
    struct ws_agent *a = arg;
    pthread_mutex_lock(&a->lock);
    int rc = ws_slots_check_budget(a, bytes, err);
    a->slot_bytes += rc == 0 ? bytes : 0;
    pthread_mutex_unlock(&a->lock);
    return rc;
}

static void release_bytes(void *arg, uint64_t bytes)
{
    struct ws_agent *a = arg;
    pthread_mutex_lock(&a->lock);
    a->slot_bytes -= bytes;
    pthread_mutex_unlock(&a->lock);
}

/* A slot that is laid out anew frees its memory first, and is then budgeted like a new one. */
static int lay_out(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *c,
                   struct ws_slot *s, uint64_t deadline_ns, struct ws_error *err)
{
    const struct ws_placement *l = ws_agent_model_local_placement(m);
    a->slot_bytes -= s->total_bytes;
    pthread_mutex_unlock(&a->lock); /* giving gigabytes back takes a while */
    ws_slot_empty(s);
    pthread_mutex_lock(&a->lock);
    int rc = wait_for_memory(a, m, c, l->total_bytes, deadline_ns, err);
    if (rc < 0)
        return rc;
    a->slot_bytes += l->total_bytes;
    pthread_mutex_unlock(&a->lock);
    rc = ws_slot_lay_out(s, l, a->options.n_threads, err);
    pthread_mutex_lock(&a->lock);
    a->slot_bytes -= rc < 0 ? l->total_bytes : 0;
    return rc;
}

int ws_slots_prepare(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *c,
                     struct ws_slot *s, bool changes, uint64_t deadline_ns, struct ws_error *err)
{
    const struct ws_placement *l = ws_agent_model_local_placement(m);
    const struct ws_slot_budget budget = {reserve_bytes, release_bytes, a};
    ws_slot_rebase(s, l);
    if (ws_slot_fits(s, l) && ws_slot_idle(s) == 0)
        return 0;
    s->id = ws_clock_day_ns(); /* from now on what ranks have mapped of it is other memory */
    if (ws_slot_is_useful(s, l, changes)) {
        pthread_mutex_unlock(&a->lock);
        int rc = ws_slot_exchange(s, l, a->options.n_threads, &budget, err);
        pthread_mutex_lock(&a->lock);
        if (rc == 0 || ws_slots_session_maps_stale(c)) /* the rank unmaps them, and begins again */
            return rc;
    }
    return lay_out(a, m, c, s, deadline_ns, err);
}

void ws_slots_retire_all(struct ws_agent *a, struct ws_agent_model *m)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < m->n_slots; i++) {
        struct ws_slot *s = m->slots[i];
        if (s->state == WS_SLOT_SERVED) {
            ws_slot_retire(s);
            ws_slot_revoke(s);
        }
        if (is_available(s) && s->n_leases == 0) {
            a->slot_bytes -= s->total_bytes;
            ws_slot_free(s);
        } else {
            m->slots[kept++] = s;
        }
    }
    m->n_slots = kept;
}
