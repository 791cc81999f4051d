/* The routes of ranks, by the unix socket only, all POST to /v1/local/. A rank's requests, in order:
 *
 *   register   {api, release, model, run?, new_run, rank, world_size, shard_bytes, max_slots, params, base,
 *              base_id?, sidecars, audit?, audit_warns?, begun?, begins?}
 *     begun      the rank comes back: it had places before, and this is the last version that it began; 0: none
 *     begins     of a rank that comes back: the version that it begins next
 *     waits for all ranks, and replies
 *              {api, run, epoch, part, files: [{name, bytes, header_bytes}..],
 *              places: [[file, begin, writes]..], base: [..], sidecars: [file..]}
 *
 *   begin      {version, run, keep, kept?, changes?, compare?, max_fds?}
 *     keep       the rank may keep what it maps
 *     kept       ids of the slots that it has mapped
 *     changes    where the slot holds a version, the rank will only write what changed
 *     compare    the rank will compare with the version before, if it gets that: "made": where a delta is made, "taken":
 *                where readers take deltas, too; else it does not
 *     replies    {fresh, holds, base?, records?, slot, slots, audit: [[param, first, n]..]}, and a writable descriptor for each
 *                file that is not empty; then, with base, a read-only one for each of those files in the version before
 *     holds      {version, run, digest} that the slot holds all of; null: unknown
 *     base       {version, run, digest} of the version before, which has the same places
 *     records    true, with base: the rank may give its records before it commits
 *     slot       id of this slot's memory
 *     slots      ids of all slots that will be written again: the rank must unmap the others
 *     audit      chunks of its pieces that the rank is to hash (tensor/audit.h)
 *     or replies {again: true, slots}: memory is short, and the rank has other slots mapped. It unmaps them, and
 *                begins again
 *
 *   commit     {hashes: [[file, block, "hex"]..], how?, audit?: [[param, chunk, "hex"]..],
 *              records?: [[file, block, offset, bytes, "hex"]..]}
 *     records    what changed in blocks, in the file of the descriptor that comes along (core/rank_deltas.h)
 *     how        how the rank copied, for the status
 *     replies    {slots}. Where commit is refused the version is abandoned
 *
 *   records    {hashes, records?}, as in commit: of blocks that are done, where begin's reply had records. The others'
 *              follow with the commit, whose hashes are of all blocks
 *
 *   abandon    {}
 *
 *   wait       {version, run, what: "published" | "delta" | "loaded", who, timeout_ms}
 *
 * The routes of what is shared on GPUs: gpu/routes.c. */
#include "backends/trainer/agent/ranks/routes.h"
#include "backends/trainer/agent/audit/audit.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/sessions.h"
#include "backends/trainer/agent/core/slots.h"
#include "backends/trainer/agent/delta/encoder.h"
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

#define MAX_RECORDS      1024U               /* libwsync gives them 257 times at most */
#define TEARDOWN_NS      (10 * WS_SECOND_NS) /* for the rest of a process to be torn down */
#define RESTART_NS       (5 * WS_SECOND_NS)  /* for a launcher that starts the one rank anew */
#define TEARDOWN_POLL_NS (50 * WS_MS_NS)

/* --- begin --- */

static int may_write(const struct ws_agent_model *m, uint64_t version, const char *lineage, bool on_demand,
                     struct ws_error *err)
{
    return on_demand ? ws_gpu_on_demand_may_write(m, version, lineage, err)
                     : ws_session_check_version(m, version, lineage, err);
}

/* The first rank's thread takes and prepares the slot; the others wait for it. Under lock. */
static int prepare(struct ws_agent *a, const struct ws_session *c, uint64_t version, const char *lineage,
                   bool on_demand, bool changes, uint64_t deadline, struct ws_error *err)
{
    struct ws_agent_model *m = c->model;
    struct ws_slot *s = NULL;
    m->preparing = true;
    struct ws_agent_model *owner = m->slot_owner;
    owner->max_slots = m->max_slots;
    ws_group_begun(m);
    int rc = ws_slots_acquire(a, m, c, &s, deadline, err);
    if (rc == 0) {
        s->is_pinned = false;
        rc = ws_slots_prepare(a, m, c, s, changes, deadline, err);
        if (rc == 0) /* what was read back out of the archive meanwhile may have the number */
            rc = may_write(m, version, lineage, on_demand, err);
        if (rc == 0)
            rc = ws_slot_begin(s, ws_agent_model_local_placement(m), owner->name, version, lineage, err);
        if (rc < 0) {
            ws_slot_clear(s);
            s->state = WS_SLOT_FREE;
        }
    }
    m->preparing = false;
    if (rc == 0) {
        m->writing = s;
        s->begun_ns = ws_clock_day_ns();
        m->writing_version = version;
        m->n_begun = m->n_committed = 0;
        ws_agent_audit_begin(m);
    }
    pthread_cond_broadcast(&a->changed);
    return rc;
}

/* access: WRITE or COPY; with LEND the rank keeps them mapped when it has committed (publisher/pinned_slots.h). */
#define LEND (-1)
static int open_all(const struct ws_slot *s, int access, int *fds, size_t max, size_t *n,
                    struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < s->n_files; i++) {
        if (!s->regions[i])
            continue;
        if (*n == max)
            return ws_error_set(err, E2BIG,
                                "a version of over %zu files cannot be published; use larger shards", max);
        rc = access == LEND ? ws_region_lend(s->regions[i], &fds[*n], err)
                            : ws_region_open(s->regions[i], (enum ws_region_access)access, &fds[*n], err);
        *n += rc == 0;
    }
    return rc;
}

/* Waits while the version before is hashed, or copied by slower ranks; while another rank prepares this one's
 * slot; or while a rank that died comes back. -EAGAIN: the rank that prepares the slot needs memory that this
 * rank keeps. */
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
            spans ? !m->writing && ws_group_is_busy(a, m) : m->n_registered + m->n_ended < m->world_size;
        if (!m->preparing && !before && !absent)
            return 0;
        if (m->preparing && m->wants_memory && ws_slots_session_maps_stale(c))
            return -EAGAIN;
        if (ws_session_wait(a, c, deadline)) {
            rc = ws_session_check(c, err);
            continue;
        }
        ws_group_describe_missing(a, m, before, missing, sizeof(missing));
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

/* Is the version being written this rank's, too? One that the rank has skipped can never be complete. */
static int join_version(struct ws_agent *a, struct ws_session *c, uint64_t version, const char *lineage,
                        struct ws_error *err)
{
    struct ws_agent_model *m = c->model;
    char why[160];
    if (strcmp(m->writing->lineage, lineage) != 0)
        return ws_error_set(err, EPROTO, "rank %u begins run %s of %s while others write run %s", c->rank,
                            lineage, m->name, m->writing->lineage);
    if (version < m->writing_version)
        return ws_error_set(err, EPROTO,
                            "rank %u begins version %" PRIu64 " of %s while others write %" PRIu64
                            ": give every rank the same version",
                            c->rank, version, m->name, m->writing_version);
    snprintf(why, sizeof(why),
             "rank %u went on to version %" PRIu64 " without it: give every rank the same version", c->rank,
             version);
    if (version > m->writing_version)
        ws_agent_model_abandon(a, m, why);
    return 0;
}

/* If the rank has skipped the version being written, that version is given up, and the rank waits until its
 * round is over; on a secondary, the primary ends it. Returns as wait_for_turn. */
static int wait_and_join(struct ws_agent *a, struct ws_session *c, uint64_t version, const char *lineage,
                         bool on_demand, uint64_t deadline, struct ws_error *err)
{
    struct ws_agent_model *m = c->model;
    bool joins = false;
    int rc = 0;
    do {
        rc = wait_for_turn(a, c, version, deadline, err);
        if (rc == 0)
            rc = may_write(m, version, lineage, on_demand, err);
        joins = rc == 0 && m->writing;
        if (joins)
            rc = join_version(a, c, version, lineage, err);
    } while (rc == 0 && joins && !m->writing);
    return rc;
}

static json_t *content_json(const struct ws_slot *s)
{
    if (!s->content_before.lineage[0])
        return json_null();
    return json_pack("{s:I,s:s,s:s}", "version", (json_int_t)s->content_before.version, "run",
                     s->content_before.lineage, "digest", s->content_digest);
}

/* Adds the version before to the reply, if the rank asked for it, a delta from it will be made, and it fits in. The
 * rank has it open until it commits: that keeps its memory from being written again (ws_region_idle), whatever becomes of
 * the slot. */
static void add_base(const struct ws_agent *a, const struct ws_agent_model *m, const json_t *body,
                     const struct ws_rank_call *q, size_t max)
{
    const char *asked = json_string_value(json_object_get(body, "compare"));
    const struct ws_agent_model *owner = m->slot_owner;
    const bool made = asked && strcmp(asked, "made") == 0, taken = asked && strcmp(asked, "taken") == 0;
    const struct ws_version_id newest = ws_version_id_make(owner->newest, owner->lineage);
    if ((!made && !taken) || !ws_encoder_is_on(a, owner) || (taken && !ws_encoder_is_taken(owner)))
        return;
    struct ws_slot *s = ws_slots_find(owner, &newest);
    const size_t before = *q->n_fds;
    struct ws_error ignored;
    if (!s || s == m->writing || !ws_slot_fits(s, ws_agent_model_local_placement(m)))
        return;
    if (open_all(s, WS_REGION_COPY, q->fds, max, q->n_fds, &ignored) < 0) {
        while (*q->n_fds > before)
            close(q->fds[--*q->n_fds]);
        return;
    }
    if (ws_encoder_is_taken(owner) && owner == m && !m->spans_nodes)
        json_object_set_new(*q->reply, "records", json_true());
    json_object_set_new(*q->reply, "base",
                        json_pack("{s:I,s:s,s:s}", "version", (json_int_t)s->version, "run", s->lineage,
                                  "digest", s->manifest->digest));
}

static void set_mapped_slots(struct ws_agent *a, struct ws_session *c, json_t *kept)
{
    bool less = false;
    for (size_t i = 0; !less && i < json_array_size(c->mapped_slots); i++)
        less = !ws_slots_ids_contain(kept, json_array_get(c->mapped_slots, i));
    json_decref(c->mapped_slots);
    c->mapped_slots = kept;
    if (less) /* another rank may wait for memory that this one had */
        pthread_cond_broadcast(&a->changed);
}

/* The rank knows which slots stay, and unmaps the rest. writing: the slot that it writes, which stays, or
 * NULL. */
static void retain_mapped_slots(struct ws_agent *a, struct ws_session *c, const json_t *slots,
                                const struct ws_slot *writing)
{
    json_t *kept = json_array();
    for (size_t i = 0; i < json_array_size(c->mapped_slots); i++)
        if (ws_slots_ids_contain(slots, json_array_get(c->mapped_slots, i)))
            json_array_append(kept, json_array_get(c->mapped_slots, i));
    if (writing)
        json_array_append_new(kept, json_integer((json_int_t)writing->id));
    set_mapped_slots(a, c, kept);
}

/* Logged once an agent. Mounts get copies of the slots that the rank keeps: slots with descriptors at mounts
 * would be exchanged, and the rank does not unmap what was exchanged. */
static void log_never_unmaps(const struct ws_session *c)
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
    struct ws_session *c = q->session;
    const json_t *body = q->body;
    uint64_t version = ws_agent_number(body, "version", 0), deadline = ws_rank_deadline(body);
    const char *lineage = json_string_value(json_object_get(body, "run"));
    const bool keep = json_is_true(json_object_get(body, "keep"));
    const uint64_t takes = ws_agent_number(body, "max_fds", WS_MAX_FDS_PER_FRAME);
    const size_t max = takes < q->max ? takes : q->max;
    char why[WS_ERROR_TEXT];
    if (!lineage || !ws_lineage_is_safe(lineage))
        return ws_error_set(err, EINVAL, "begin needs the run of the registration");
    pthread_mutex_lock(&a->lock);
    c->lost = false;
    set_mapped_slots(a, c, json_copy(json_object_get(body, "kept")));
    c->never_unmaps = keep && !c->mapped_slots;
    int rc = ws_session_check(c, err);
    struct ws_agent_model *m = c->model;
    if (rc == 0 && c->writing)
        rc = ws_error_set(err, EALREADY, "version %" PRIu64 " is begun and neither committed nor abandoned",
                          m->writing_version);
    if (rc == 0) {
        ws_group_refresh(a, m, deadline);
        rc = ws_session_check(c, err);
    }
    const bool on_demand = json_is_true(json_object_get(body, "demanded"));
    if (rc == 0)
        rc = wait_and_join(a, c, version, lineage, on_demand, deadline, err);
    bool again = rc == -EAGAIN;
    bool first = rc == 0 && !m->writing;
    if (first)
        rc = prepare(a, c, version, lineage, on_demand, json_is_true(json_object_get(body, "changes")),
                     deadline, err);
    again = again || (first && rc == -ENOMEM && ws_slots_session_maps_stale(c));
    if (again) {
        *q->reply = json_pack("{s:b,s:o}", "again", 1, "slots", ws_slots_reusable_ids(m));
        pthread_mutex_unlock(&a->lock);
        return 0;
    }
    if (rc == 0) {
        c->last_begun = version;
        c->given_up_until = 0;
    }
    if (first && rc == 0 && ws_group_is_over(a, m, why, sizeof(why))) {
        m->n_begun++; /* this rank gets the error, and so do later ones */
        ws_agent_model_abandon(a, m, why);
    }
    if (first && rc == 0 && m->n_registered == 0) /* the next ranks need not write this version */
        ws_agent_model_abandon(a, m, "all ranks ended while its slot was prepared");
    if (rc == 0)
        rc = ws_session_check(c, err);
    if (rc == 0 && (!m->writing || m->writing->state != WS_SLOT_WRITING || m->writing_version != version))
        rc = ws_error_set(err, ECANCELED, "%s; the next version may be offloaded", m->why);
    if (rc == 0)
        rc = open_all(m->writing, keep ? LEND : (int)WS_REGION_WRITE, q->fds, max, q->n_fds, err);
    if (rc == 0 && c->never_unmaps) {
        log_never_unmaps(c);
        m->writing->is_pinned = true;
    }
    if (rc == 0) {
        c->writing = true;
        c->n_records = 0;
        c->committed = NULL;
        m->n_begun++;
        *q->reply = json_pack("{s:b,s:o,s:o,s:I,s:o}", "fresh", (int)m->writing->fresh, "holds",
                              content_json(m->writing), "audit", ws_agent_audit_request(m, c), "slot",
                              (json_int_t)m->writing->id, "slots", ws_slots_reusable_ids(m));
        add_base(a, m, body, q, max);
        if (keep && c->mapped_slots)
            retain_mapped_slots(a, c, json_object_get(*q->reply, "slots"), m->writing);
    }
    pthread_mutex_unlock(&a->lock);
    if (rc < 0) {
        while (*q->n_fds > 0)
            close(q->fds[--*q->n_fds]);
    }
    return rc;
}

/* --- commit, abandon --- */

/* Without its hashes the rank's copy is not used: the version is abandoned as if the rank had given it up. */
static void refuse(struct ws_agent *a, struct ws_session *c, const char *what, bool replies,
                   struct ws_error *err)
{
    char why[WS_ERROR_TEXT];
    if (!c->model || !c->writing)
        return;
    snprintf(why, sizeof(why), "the %s of rank %u was refused: %.800s", what, c->rank, err->text);
    ws_agent_model_abandon(a, c->model, why);
    c->lost = !replies; /* else the reply says so */
    ws_error_set(err, err->code, "%s; the next version may be offloaded", c->model->why);
}

static int read_records(const json_t *body, const int *fds, size_t n_fds, struct ws_rank_deltas **out,
                        struct ws_error *err)
{
    const json_t *list = json_object_get(body, "records");
    if (!list && n_fds == 0)
        return 0;
    if (!list || n_fds != 1)
        return ws_error_set(err, EINVAL, "the records in commit come with one descriptor, here with %zu",
                            n_fds);
    return ws_rank_deltas_read(out, list, fds[0], err);
}

/* Under lock; the rank has begun the version. */
static int record_hashes(struct ws_slot *s, const json_t *hashes, struct ws_error *err)
{
    const json_t *h;
    size_t i;
    json_array_foreach(hashes, i, h)
    {
        uint64_t hash;
        if (ws_text_hash(json_string_value(json_array_get(h, 2)), &hash) < 0 ||
            !json_is_integer(json_array_get(h, 0)) || !json_is_integer(json_array_get(h, 1)) ||
            ws_slot_record_hash(s, (uint64_t)json_integer_value(json_array_get(h, 0)),
                                (uint64_t)json_integer_value(json_array_get(h, 1)), hash))
            return ws_error_set(err, EINVAL, "a block's hash in commit is malformed");
    }
    return 0;
}

/* The slot owns the records from here on, also on failure. listed: set where the listing has changed; NULL: nobody is to get
 * them before the version's delta. Under lock. */
static int add_records(struct ws_agent *a, struct ws_agent_model *m, struct ws_rank_deltas *r, bool *listed,
                       struct ws_error *err)
{
    const int rc = r ? ws_rank_deltas_check(r, m->writing->manifest, m->writing->hashed, err) : 0;
    if (rc < 0) {
        ws_rank_deltas_free(r);
        return rc;
    }
    if (listed)
        *listed = r && ws_features_recorded(a, m, r);
    m->writing->rank_deltas = ws_rank_deltas_join(r, m->writing->rank_deltas);
    return 0;
}

/* A version that was given up meanwhile is no fault of the rank: its commit is told why. */
static int do_records(struct ws_rank_call *q, struct ws_error *err)
{
    struct ws_agent *a = q->a;
    struct ws_session *c = q->session;
    struct ws_rank_deltas *records = NULL;
    bool listed = false;
    int rc = read_records(q->body, q->fds_in, q->n_in, &records, err);
    pthread_mutex_lock(&a->lock);
    const bool has_begun = c->model && c->writing;
    if (rc == 0 && !has_begun)
        rc = ws_error_set(err, EINVAL, "nothing is begun");
    const bool too_often = rc == 0 && c->n_records == MAX_RECORDS; /* each keeps a mapping */
    if (too_often)
        rc =
            ws_error_set(err, EINVAL, "a rank gives records %u times before its commit at most", MAX_RECORDS);
    c->n_records += rc == 0;
    if (rc == 0)
        rc = record_hashes(c->model->writing, json_object_get(q->body, "hashes"), err);
    if (rc == 0) {
        rc = add_records(a, c->model, records, &listed, err);
        records = NULL;
    }
    if (rc < 0 && has_begun && !too_often)
        refuse(a, c, "list of records", false, err); /* the rank goes on, and its commit is told */
    pthread_mutex_unlock(&a->lock);
    if (listed)
        ws_agent_announce(a);
    ws_rank_deltas_free(records);
    return rc;
}

static int do_commit(struct ws_rank_call *q, struct ws_error *err)
{
    struct ws_agent *a = q->a;
    struct ws_session *c = q->session;
    const json_t *body = q->body;
    struct ws_rank_deltas *records = NULL;
    bool listed; /* it is announced when the version is published */
    int rc = read_records(body, q->fds_in, q->n_in, &records, err);
    pthread_mutex_lock(&a->lock);
    if (rc == 0)
        rc = ws_session_check(c, err);
    struct ws_agent_model *m = c->model;
    if (rc == 0 && !c->writing)
        rc = ws_error_set(err, EINVAL, "nothing is begun");
    assert(rc < 0 || m); /* the session was checked */
    if (rc == 0)
        rc = record_hashes(m->writing, json_object_get(body, "hashes"), err);
    if (rc == 0)
        rc = ws_agent_audit_record(m, c, body, err);
    if (rc == 0) {
        /* The last rank's are in the version's own delta at once, and those of one that gave none before may be all of it. */
        const bool early = c->n_records > 0 && m->n_committed + 1 < m->n_local;
        rc = add_records(a, m, records, early ? &listed : NULL, err);
        records = NULL;
    }
    if (rc == 0) {
        c->writing = false;
        c->committed = m->writing;
        const char *how = json_string_value(json_object_get(body, "how"));
        snprintf(m->how, sizeof(m->how), "%s", how ? how : "");
        *q->reply = json_pack("{s:o}", "slots", ws_slots_reusable_ids(m));
        if (c->mapped_slots)
            retain_mapped_slots(a, c, json_object_get(*q->reply, "slots"), NULL);
        if (++m->n_committed == m->n_local) {
            const uint64_t version = m->writing_version;
            rc = ws_agent_audit_check(m, NULL, version, err);
            if (rc < 0)
                ws_agent_model_abandon(a, m, err->text);
            else
                ws_group_committed(a, m);
            pthread_cond_broadcast(&a->changed);
        }
    } else {
        refuse(a, c, "commit", true, err);
    }
    pthread_mutex_unlock(&a->lock);
    ws_rank_deltas_free(records);
    return rc;
}

static int do_abandon(struct ws_rank_call *q, struct ws_error *err)
{
    struct ws_agent *a = q->a;
    struct ws_session *c = q->session;
    char why[64];
    (void)err;
    pthread_mutex_lock(&a->lock);
    snprintf(why, sizeof(why), "rank %u gave it up", c->rank);
    if (c->model && c->writing)
        ws_agent_model_abandon(a, c->model, why);
    c->lost = false;
    pthread_mutex_unlock(&a->lock);
    return 0;
}

/* --- dispatch --- */

const struct ws_rank_route ws_rank_routes[] = {
    WS_RANK_ROUTE("register", PUBLISH, ws_rank_register),
    WS_RANK_ROUTE("begin", PUBLISH, do_begin),
    WS_RANK_ROUTE("records", PUBLISH, do_records),
    WS_RANK_ROUTE("commit", PUBLISH, do_commit),
    WS_RANK_ROUTE("wait", PUBLISH, ws_rank_wait),
    WS_RANK_ROUTE("abandon", PUBLISH, do_abandon),
    {0},
};

static const struct ws_rank_route *find_route(const struct ws_agent *a, const char *verb)
{
    for (const struct ws_rank_route *r = ws_rank_routes; r->verb; r++)
        if (strcmp(r->verb, verb) == 0)
            return r;
    return ws_features_rank_route(a, verb);
}

static int local_call(void *self, struct ws_ipc_peer *peer, const char *method, const char *path,
                      json_t *body, const int *fds_in, size_t n_fds_in, json_t **reply, int *fds, size_t max,
                      size_t *n_fds, struct ws_error *err)
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
    if (!route)
        return ws_error_set(err, ENOENT, "there is no /v1/local/%.100s", verb);
    const int rc = ws_identity_check(&peer->who, route->role, NULL, path, err);
    return rc < 0 ? rc : route->handle(&q, err);
}

/* A rank whose connection ended before it began a version that others write. A publisher that was closed may
 * be opened again and begin it; a process that is dead cannot, and the other ranks get the error. Its
 * connection ends a little before the process does. A launcher that restarts the rank has RESTART_NS: the
 * new process begins the version, and what the other ranks have committed is used. */
static void report_death(struct ws_agent *a, struct ws_agent_model *m, unsigned rank,
                         const struct ws_ipc_peer *peer, const struct ws_version_id *version)
{
    const uint64_t began = ws_clock_ns(), until = began + TEARDOWN_NS + RESTART_NS;
    char why[128];
    snprintf(why, sizeof(why), "rank %u (process %d) ended before it had begun", rank, (int)peer->pid);
    pthread_mutex_lock(&a->lock);
    for (bool dead = false; !dead && !atomic_load(&a->stop) && ws_clock_ns() < until;) {
        if (!m->writing || m->writing_version != version->version ||
            strcmp(m->writing->lineage, version->lineage) != 0 || rank >= m->world_size || m->ranks[rank])
            break; /* the version has ended, or the rank came back */
        dead = ws_clock_ns() - began >= RESTART_NS && ws_ipc_peer_is_dead(peer);
        if (dead)
            ws_agent_model_abandon(a, m, why);
        else
            (void)ws_agent_wait(a, ws_clock_ns() + TEARDOWN_POLL_NS);
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
    struct ws_version_id version = {0};
    if (awaited)
        version = ws_version_id_make(m->writing_version, m->writing->lineage);
    ws_session_end(a, c, "ended");
    json_decref(c->mapped_slots);
    pthread_mutex_unlock(&a->lock);
    ws_features_gone(a, c); /* wakes waiting calls, which find nothing begun any more */
    if (awaited)
        report_death(a, m, c->rank, peer, &version);
    free(c);
    peer->state = NULL;
    ws_memory_trim(); /* registrations of 100,000 tensors leave much behind */
}

const struct ws_ipc_handler ws_rank_handler = {.call = local_call, .gone = local_gone};
