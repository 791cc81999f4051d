/* The publishers' routes, by the unix socket only. A rank's calls, in order, all POST to /v1/local/:
 *
 *   register {api, release, model, run?, new_run, rank, world_size, shard_bytes, max_slots, params, base,
 *       base_id?, sidecars, audit?, audit_warns?} waits for all ranks;
 *       replies {api, run, epoch, part, files: [{name, bytes, header_bytes}],
 *       places: [[file, begin, writes]..], base: [..], sidecars: [file..]}
 *
 *   begin {version, run, keep, kept?, changes?, max_fds?}
 *       replies {fresh, holds, slot, slots, audit: [[param, first, n]..]} and descriptors, one writable
 *       a file (size 0: none); keep: ones that may stay mapped; changes: where they hold a version, only
 *       what changed will be written; holds: {version, run} that they hold all of, null: nobody knows;
 *       slot: a number of this memory; slots: those of all that will be written again: the rest must not
 *       stay mapped; audit: chunks of what it holds that it is to hash (tensor/audit.h).
 *       kept: the slots that it has mapped. Where memory is short and others are among them it replies
 *       {again: true, slots}: the rest is to be let go, and begin to be asked again
 *
 *   commit {hashes: [[file, block, "hex"]..], audit?: [[param, chunk, "hex"]..],
 *       records?: [[file, block, offset, bytes, "hex"]..]}, or abandon {}
 *       commit replies {slots}; records: what changed in blocks, in the file of the descriptor that comes
 *       along (core/rank_deltas.h); where commit is refused the version is abandoned
 *
 *   wait {version, run, what: "published" | "delta" | "loaded", who, timeout_ms}
 *
 * What is shared on GPUs: gpu/routes.c. */
#include "backends/trainer/agent/ranks/routes.h"
#include "backends/trainer/agent/audit/audit.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/sessions.h"
#include "backends/trainer/agent/core/slots.h"
#include "backends/trainer/agent/gpu/share.h"
#include "backends/trainer/agent/group/group.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include "transports/memory/available.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DYING_NS       (10 * WS_SECOND_NS) /* for the rest of a process to be torn down */
#define COMING_BACK_NS (5 * WS_SECOND_NS)  /* for a launcher that starts the one rank anew */
#define DYING_STEP_NS  (50 * WS_MS_NS)

/* --- begin --- */

/* The first rank's thread takes and prepares the slot; the others wait for it. Under lock. */
static int prepare(struct ws_agent *a, const struct ws_session *c, uint64_t version, const char *run,
                   bool changes, uint64_t deadline, struct ws_error *err)
{
    struct ws_agent_model *m = c->model;
    struct ws_slot *s = NULL;
    m->preparing = true;
    struct ws_agent_model *owner = m->owner;
    owner->max_slots = m->max_slots;
    ws_group_begun(m);
    int rc = ws_agent_take_slot(a, m, c, &s, deadline, err);
    if (rc == 0) {
        s->kept = false;
        rc = ws_agent_prepare_slot(a, m, c, s, changes, deadline, err);
        if (rc == 0)
            rc = ws_slot_begin(s, ws_agent_layout(m), owner->name, version, run, err);
        if (rc < 0) {
            ws_slot_clear(s);
            s->state = WS_SLOT_FREE;
        }
    }
    m->preparing = false;
    if (rc == 0) {
        m->writing = s;
        m->writing_version = version;
        m->n_begun = m->n_committed = 0;
        ws_agent_audit_begin(m);
    }
    pthread_cond_broadcast(&a->changed);
    return rc;
}

/* keep: the rank keeps them mapped when it has committed (publisher/pinned_slots.h). */
static int open_all(const struct ws_slot *s, bool keep, int *fds, size_t max, size_t *n, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < s->n_files; i++) {
        if (!s->regions[i])
            continue;
        if (*n == max)
            return ws_error_set(err, E2BIG,
                                "a version of over %zu files cannot be published; use larger shards", max);
        rc = keep ? ws_region_lend(s->regions[i], &fds[*n], err)
                  : ws_region_open(s->regions[i], WS_REGION_WRITE, &fds[*n], err);
        *n += rc == 0;
    }
    return rc;
}

/* The version before may still be hashed, or copied by ranks that are slower than this one; another rank
 * prepares this one; or one has died, and comes back. -EAGAIN: the one that prepares needs memory that this
 * one keeps. */
static int wait_for_turn(struct ws_agent *a, struct ws_session *c, uint64_t version, uint64_t deadline,
                         struct ws_error *err)
{
    struct ws_agent_model *m = c->model;
    char missing[WS_ERROR_TEXT / 2];
    int rc = 0;
    while ((rc = rc ? rc : ws_session_check_late(c, version, err)) == 0) {
        bool spans = m->spans_nodes;
        bool before = m->writing && (m->writing->state != WS_SLOT_WRITING || c->committed == m->writing);
        bool absent =
            spans ? !m->writing && ws_group_is_busy(a, m) : m->n_registered + m->n_left < m->world_size;
        if (!m->preparing && !before && !absent)
            return 0;
        if (m->preparing && m->wants_room && ws_agent_keeps_others(c))
            return -EAGAIN;
        if (ws_session_wait(a, c, deadline)) {
            rc = ws_session_check(c, err);
            continue;
        }
        ws_group_missing(a, m, before, missing, sizeof(missing));
        if (before)
            rc = ws_error_set(err, ETIMEDOUT,
                              "rank %u waited with version %" PRIu64 " of %s for version %" PRIu64
                              ", which not all ranks have offloaded%s",
                              c->rank, version, m->name, m->writing_version, missing);
        else
            rc = ws_error_set(
                err, ETIMEDOUT, "rank %u waited with version %" PRIu64 " of %s for the other ranks%s%s%s",
                c->rank, version, m->name, missing, spans && m->why[0] ? "; " : "", spans ? m->why : "");
    }
    return rc;
}

/* Is the version on its way this rank's, too? One that it has passed by can never become whole. */
static int join_version(struct ws_agent *a, struct ws_session *c, uint64_t version, const char *run,
                        struct ws_error *err)
{
    struct ws_agent_model *m = c->model;
    char why[160];
    if (strcmp(m->writing->run, run) != 0)
        return ws_error_set(err, EPROTO, "rank %u begins run %s of %s while others write run %s", c->rank,
                            run, m->name, m->writing->run);
    if (version < m->writing_version)
        return ws_error_set(err, EPROTO,
                            "rank %u begins version %" PRIu64 " of %s while others write %" PRIu64
                            ": give every rank the same version",
                            c->rank, version, m->name, m->writing_version);
    snprintf(why, sizeof(why),
             "rank %u went on to version %" PRIu64 " without it: give every rank the same version", c->rank,
             version);
    if (version > m->writing_version)
        ws_agent_abandon(a, m, why);
    return 0;
}

/* Where it gives up what it has passed by, its turn comes once that round is over: on a secondary the primary
 * hears of it first. As wait_for_turn. */
static int take_turn(struct ws_agent *a, struct ws_session *c, uint64_t version, const char *run,
                     bool demanded, uint64_t deadline, struct ws_error *err)
{
    struct ws_agent_model *m = c->model;
    bool joins = false;
    int rc = 0;
    do {
        rc = wait_for_turn(a, c, version, deadline, err);
        if (rc == 0)
            rc = demanded ? ws_gpu_may_make(m, version, run, err)
                          : ws_session_check_version(m, version, run, err);
        joins = rc == 0 && m->writing;
        if (joins)
            rc = join_version(a, c, version, run, err);
    } while (rc == 0 && joins && !m->writing);
    return rc;
}

static json_t *holds_json(const struct ws_slot *s)
{
    if (!s->had.run[0])
        return json_null();
    return json_pack("{s:I,s:s}", "version", (json_int_t)s->had.version, "run", s->had.run);
}

static void set_kept(struct ws_agent *a, struct ws_session *c, json_t *kept)
{
    bool less = false;
    for (size_t i = 0; !less && i < json_array_size(c->kept); i++)
        less = !ws_agent_is_in(kept, json_array_get(c->kept, i));
    json_decref(c->kept);
    c->kept = kept;
    if (less) /* another rank may wait for memory that this one had */
        pthread_cond_broadcast(&a->changed);
}

/* It was told which slots stay, and lets go of the rest; with the one that it writes, unless that is NULL. */
static void keep_those(struct ws_agent *a, struct ws_session *c, const json_t *slots,
                       const struct ws_slot *writing)
{
    json_t *kept = json_array();
    for (size_t i = 0; i < json_array_size(c->kept); i++)
        if (ws_agent_is_in(slots, json_array_get(c->kept, i)))
            json_array_append(kept, json_array_get(c->kept, i));
    if (writing)
        json_array_append_new(kept, json_integer((json_int_t)writing->id));
    set_kept(a, c, kept);
}

/* Once an agent. Mounts get copies of what it keeps: what they had descriptors of would be exchanged, and the
 * rank lets go of nothing that is. */
static void say_deaf(const struct ws_session *c)
{
    static atomic_bool said;
    if (!atomic_exchange(&said, true))
        ws_log(
            WS_LOG_WARN, "agent",
            "rank %u of %s (process %d) has libwsync 0.1.0, which keeps slots pinned for some versions, also "
            "beyond --memory: mounts by unix: get copies; use agent and libwsync of one release",
            c->rank, c->model->name, (int)c->pid);
}

static int do_begin(struct ws_rank_call *q, struct ws_error *err)
{
    struct ws_agent *a = q->a;
    struct ws_session *c = q->c;
    const json_t *body = q->body;
    uint64_t version = ws_agent_number(body, "version", 0), deadline = ws_rank_deadline(body);
    const char *run = json_string_value(json_object_get(body, "run"));
    const bool keep = json_is_true(json_object_get(body, "keep"));
    const uint64_t takes = ws_agent_number(body, "max_fds", WS_MAX_FDS_PER_FRAME);
    const size_t max = takes < q->max ? takes : q->max;
    char why[WS_ERROR_TEXT];
    if (!run || !ws_run_is_safe(run))
        return ws_error_set(err, EINVAL, "begin needs the run of the registration");
    pthread_mutex_lock(&a->lock);
    c->lost = false;
    set_kept(a, c, json_copy(json_object_get(body, "kept")));
    c->deaf = keep && !c->kept;
    int rc = ws_session_check(c, err);
    struct ws_agent_model *m = c->model;
    if (rc == 0 && c->writing)
        rc = ws_error_set(err, EALREADY, "version %" PRIu64 " is begun and neither committed nor abandoned",
                          m->writing_version);
    if (rc == 0) {
        ws_group_hear(a, m, deadline);
        rc = ws_session_check(c, err);
    }
    if (rc == 0)
        rc = take_turn(a, c, version, run, json_is_true(json_object_get(body, "demanded")), deadline, err);
    bool again = rc == -EAGAIN;
    bool first = rc == 0 && !m->writing;
    if (first)
        rc = prepare(a, c, version, run, json_is_true(json_object_get(body, "changes")), deadline, err);
    again = again || (first && rc == -ENOMEM && ws_agent_keeps_others(c));
    if (again) {
        *q->reply = json_pack("{s:b,s:o}", "again", 1, "slots", ws_agent_slots_that_stay(m));
        pthread_mutex_unlock(&a->lock);
        return 0;
    }
    if (rc == 0) {
        c->began = version;
        c->late = 0;
    }
    if (first && rc == 0 && ws_group_is_over(a, m, why, sizeof(why))) {
        m->n_begun++; /* this rank is told, and so are those that come later */
        ws_agent_abandon(a, m, why);
    }
    if (first && rc == 0 && m->n_registered == 0) /* who comes next need not write this one */
        ws_agent_abandon(a, m, "all ranks ended while its slot was prepared");
    if (rc == 0)
        rc = ws_session_check(c, err);
    if (rc == 0 && (!m->writing || m->writing->state != WS_SLOT_WRITING || m->writing_version != version))
        rc = ws_error_set(err, ECANCELED, "%s; the next version may be offloaded", m->why);
    if (rc == 0)
        rc = open_all(m->writing, keep, q->fds, max, q->n_fds, err);
    if (rc == 0 && c->deaf) {
        say_deaf(c);
        m->writing->kept = true;
    }
    if (rc == 0) {
        c->writing = true;
        c->committed = NULL;
        m->n_begun++;
        *q->reply = json_pack("{s:b,s:o,s:o,s:I,s:o}", "fresh", (int)m->writing->fresh, "holds",
                              holds_json(m->writing), "audit", ws_agent_audit_ask(m, c), "slot",
                              (json_int_t)m->writing->id, "slots", ws_agent_slots_that_stay(m));
        if (keep && c->kept)
            keep_those(a, c, json_object_get(*q->reply, "slots"), m->writing);
    }
    pthread_mutex_unlock(&a->lock);
    if (rc < 0) {
        while (*q->n_fds > 0)
            close(q->fds[--*q->n_fds]);
    }
    return rc;
}

/* --- commit, abandon --- */

/* What the rank has copied is not used without its hashes: it is as if it had given the version up. */
static void refuse_commit(struct ws_agent *a, struct ws_session *c, struct ws_error *err)
{
    char why[WS_ERROR_TEXT];
    if (!c->model || !c->writing)
        return;
    snprintf(why, sizeof(why), "the commit of rank %u was refused: %.800s", c->rank, err->text);
    ws_agent_abandon(a, c->model, why);
    c->lost = false; /* it is told now */
    ws_error_set(err, err->code, "%s; the next version may be offloaded", c->model->why);
}

static int read_records(const json_t *body, const int *fds, size_t n_fds, struct ws_rank_records **out,
                        struct ws_error *err)
{
    const json_t *list = json_object_get(body, "records");
    if (!list && n_fds == 0)
        return 0;
    if (!list || n_fds != 1)
        return ws_error_set(err, EINVAL, "the records in commit come with one descriptor, here with %zu",
                            n_fds);
    return ws_rank_records_read(out, list, fds[0], err);
}

static int do_commit(struct ws_rank_call *q, struct ws_error *err)
{
    struct ws_agent *a = q->a;
    struct ws_session *c = q->c;
    const json_t *body = q->body;
    const json_t *hashes = json_object_get(body, "hashes"), *h;
    struct ws_rank_records *records = NULL;
    size_t i;
    int rc = read_records(body, q->fds_in, q->n_in, &records, err);
    pthread_mutex_lock(&a->lock);
    if (rc == 0)
        rc = ws_session_check(c, err);
    struct ws_agent_model *m = c->model;
    if (rc == 0 && !c->writing)
        rc = ws_error_set(err, EINVAL, "nothing is begun");
    json_array_foreach(hashes, i, h)
    {
        uint64_t hash;
        if (rc < 0)
            break;
        assert(m); /* the session was checked */
        if (ws_text_hash(json_string_value(json_array_get(h, 2)), &hash) < 0 ||
            !json_is_integer(json_array_get(h, 0)) || !json_is_integer(json_array_get(h, 1)) ||
            ws_slot_note_hash(m->writing, (uint64_t)json_integer_value(json_array_get(h, 0)),
                              (uint64_t)json_integer_value(json_array_get(h, 1)), hash))
            rc = ws_error_set(err, EINVAL, "a block's hash in commit is malformed");
    }
    if (rc == 0 && records)
        rc = ws_rank_records_check(records, m->writing->manifest, m->writing->hashed, err);
    if (rc == 0)
        rc = ws_agent_audit_take(m, c, body, err);
    if (rc == 0) {
        m->writing->records = ws_rank_records_join(records, m->writing->records);
        records = NULL;
        c->writing = false;
        c->committed = m->writing;
        *q->reply = json_pack("{s:o}", "slots", ws_agent_slots_that_stay(m));
        if (c->kept)
            keep_those(a, c, json_object_get(*q->reply, "slots"), NULL);
        if (++m->n_committed == m->n_local) {
            const uint64_t version = m->writing_version;
            rc = ws_agent_audit_check(m, NULL, version, err);
            if (rc < 0)
                ws_agent_abandon(a, m, err->text);
            else
                ws_group_committed(a, m);
            pthread_cond_broadcast(&a->changed);
        }
    } else {
        refuse_commit(a, c, err);
    }
    pthread_mutex_unlock(&a->lock);
    ws_rank_records_free(records);
    return rc;
}

static int do_abandon(struct ws_rank_call *q, struct ws_error *err)
{
    struct ws_agent *a = q->a;
    struct ws_session *c = q->c;
    char why[64];
    (void)err;
    pthread_mutex_lock(&a->lock);
    snprintf(why, sizeof(why), "rank %u gave it up", c->rank);
    if (c->model && c->writing)
        ws_agent_abandon(a, c->model, why);
    c->lost = false;
    pthread_mutex_unlock(&a->lock);
    return 0;
}

/* --- dispatch --- */

static const struct ws_rank_route routes[] = {
    {"register", ws_agent_register}, {"begin", do_begin},     {"commit", do_commit},
    {"wait", ws_agent_wait_version}, {"abandon", do_abandon},
};

static const struct ws_rank_route *find_route(const struct ws_agent *a, const char *verb)
{
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++)
        if (strcmp(routes[i].verb, verb) == 0)
            return &routes[i];
    return ws_features_rank_route(a, verb);
}

static int local_call(void *self, struct ws_ipc_peer *peer, const char *method, const char *path,
                      const json_t *body, const int *fds_in, size_t n_fds_in, json_t **reply, int *fds,
                      size_t max, size_t *n_fds, struct ws_error *err)
{
    struct ws_agent *a = self;
    struct ws_session *c = peer->state;
    if (strcmp(method, "POST") != 0)
        return ws_error_set(err, EOPNOTSUPP, "%s takes POST", path);
    if (!c) {
        c = peer->state = calloc(1, sizeof(*c));
        if (!c)
            return ws_error_set(err, ENOMEM, "no memory for a publisher");
        c->peer = peer;
        c->pid = peer->pid;
    }
    const char *verb = path + strlen("/v1/local/");
    const struct ws_rank_route *route = find_route(a, verb);
    struct ws_rank_call q = {a, peer, c, body, fds_in, n_fds_in, reply, fds, max, n_fds};
    return route ? route->handle(&q, err) : ws_error_set(err, ENOENT, "there is no /v1/local/%.100s", verb);
}

/* A rank whose connection ended before it began a version that others write. A publisher that was closed may
 * be opened again and begin it; a process that is dead does not, and the others are told. Its connection ends
 * a little before it does. Who starts it anew, maybe since it ended in the version before, has a moment: its
 * successor begins the version, and what the others have committed is of use. */
static void tell_of_death(struct ws_agent *a, struct ws_agent_model *m, unsigned rank,
                          const struct ws_ipc_peer *peer, const struct ws_mark *version)
{
    const uint64_t began = ws_clock_ns(), until = began + DYING_NS + COMING_BACK_NS;
    char why[128];
    snprintf(why, sizeof(why), "rank %u (process %d) ended before it had begun", rank, (int)peer->pid);
    pthread_mutex_lock(&a->lock);
    for (bool dead = false; !dead && !atomic_load(&a->stop) && ws_clock_ns() < until;) {
        if (!m->writing || m->writing_version != version->version ||
            strcmp(m->writing->run, version->run) != 0 || rank >= m->world_size || m->ranks[rank])
            break; /* it is over, or the rank came back */
        dead = ws_clock_ns() - began >= COMING_BACK_NS && ws_ipc_peer_is_dead(peer);
        if (dead)
            ws_agent_abandon(a, m, why);
        else
            (void)ws_agent_wait(a, ws_clock_ns() + DYING_STEP_NS);
    }
    pthread_mutex_unlock(&a->lock);
}

static void local_gone(void *self, struct ws_ipc_peer *peer)
{
    struct ws_agent *a = self;
    struct ws_session *c = peer->state;
    if (!c)
        return;
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = c->model;
    const bool awaited = m && !m->spans_nodes && m->writing && !c->writing && c->committed != m->writing;
    struct ws_mark version = {0};
    if (awaited)
        version = ws_mark_of(m->writing_version, m->writing->run);
    ws_session_forget(a, c, "ended");
    json_decref(c->kept);
    pthread_mutex_unlock(&a->lock);
    ws_features_gone(a, c); /* tells those who wait, who find nothing begun any more */
    if (awaited)
        tell_of_death(a, m, c->rank, peer, &version);
    free(c);
    peer->state = NULL;
    ws_memory_trim(); /* registrations of 100,000 tensors leave much behind */
}

const struct ws_ipc_handler ws_agent_local = {.call = local_call, .gone = local_gone};
