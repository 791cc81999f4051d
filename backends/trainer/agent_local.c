/* The publishers' routes, by the unix socket only. A rank's calls, in order:
 *   POST /v1/local/register {model, run?, new_run, rank, world_size, shard_bytes, max_slots, params, base,
 * sidecars} waits for all ranks -> {run, epoch, files: [{name, bytes, header_bytes}], places: [[file, begin,
 * writes]..], base: [..], sidecars: [file..], newest} POST /v1/local/begin {version} -> {fresh}, descriptors:
 * one writable a file (size 0: none) POST /v1/local/commit {hashes: [[file, block, "hex"]..]} POST
 * /v1/local/abandon {} POST /v1/local/wait {version, what: "published"|"loaded", timeout_ms} */
#include "backends/trainer/agent_state.h"
#include "transports/api.h"
#include "transports/copy.h"
#include "transports/log.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define DEFAULT_WAIT_MS 60000

static uint64_t number(const json_t *body, const char *key, uint64_t fallback)
{
    const json_t *v = json_object_get(body, key);
    return json_is_integer(v) && json_integer_value(v) >= 0 ? (uint64_t)json_integer_value(v) : fallback;
}

static uint64_t deadline_of(const json_t *body)
{
    return ws_agent_now_ns() + number(body, "timeout_ms", DEFAULT_WAIT_MS) * 1000000ULL;
}

static bool run_is_good(const char *run)
{
    size_t n = strspn(run, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return n > 0 && n <= WS_RUN_CHARS && run[n] == 0;
}

static void random_run(char out[WS_RUN_CHARS + 1])
{
    unsigned char bytes[8];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
        uint64_t now = ws_agent_now_ns() ^ ((uint64_t)getpid() << 40);
        memcpy(bytes, &now, sizeof(bytes));
    }
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

/* --- register --- */

static void forget_registration(struct ws_agent *a, struct ws_session *c, const char *how)
{
    struct ws_agent_model *m = c->model;
    char why[128];
    snprintf(why, sizeof(why), "rank %u (process %d) %s before it had committed", c->rank, (int)c->pid, how);
    /* Half of what it writes may be there. Where it has not begun, it may come back and do so. */
    if (m && c->writing)
        ws_agent_abandon(a, m, why);
    c->writing = false;
    c->committed = NULL;
    c->placed = c->stale = false;
    c->told = 0;
    if (m && m->ranks && c->rank < m->world_size && m->ranks[c->rank] == c) {
        m->ranks[c->rank] = NULL;
        m->n_registered--;
        snprintf(why, sizeof(why), "all ranks have ended, rank %u (process %d) as the last", c->rank,
                 (int)c->pid);
        if (m->n_registered == 0)
            ws_agent_abandon(a, m, why);
        pthread_cond_broadcast(&a->changed);
    }
    c->model = NULL;
    ws_registration_free(c->registration); /* also one that was refused before it joined a group */
    c->registration = NULL;
}

/* Where a rank's pieces go, and which of them it writes. */
static uint64_t places_of(const struct ws_agent_model *m, const struct ws_registration *r)
{
    uint64_t h = ws_hash(m->placement->id, sizeof(m->placement->id));
    for (size_t i = 0; i < r->n_entries + r->n_base; i++) {
        const struct ws_entry *e = i < r->n_entries ? &r->entries[i] : &r->base[i - r->n_entries];
        const uint64_t place[] = {h, e->file_index, e->tensor.begin, e->writes};
        h = ws_hash(place, sizeof(place));
    }
    return h ? h : 1;
}

static int make_placement(struct ws_agent_model *m, struct ws_error *err)
{
    struct ws_registration **regs = calloc(m->world_size, sizeof(struct ws_registration *));
    if (!regs)
        return ws_error_set(err, ENOMEM, "no memory for %u ranks", m->world_size);
    for (unsigned r = 0; r < m->world_size; r++)
        regs[r] = m->ranks[r]->registration;
    ws_placement_free(m->placement);
    m->placement = NULL;
    int rc = ws_placement_make(regs, m->world_size, m->shard_bytes, &m->placement, err);
    free(regs);
    m->epoch++;
    for (unsigned r = 0; rc == 0 && r < m->world_size; r++) {
        struct ws_session *c = m->ranks[r];
        c->placed = true;
        c->stale = c->told && c->told != places_of(m, c->registration);
    }
    return rc;
}

/* A rank that was told its places before is told at its next begin that they are others, and registers again:
 * until then what it holds may be out of date. */
static bool some_register_again(const struct ws_agent_model *m)
{
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->ranks[r] && m->ranks[r]->told && (!m->placement || m->ranks[r]->stale))
            return true;
    return false;
}

/* The last rank is there: what all of them hold is laid out, or all who wait are told why it cannot be. A
 * version that others are writing goes on if it fits, and is not one that this rank has committed before it
 * ended. */
static void place(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *last)
{
    struct ws_error err = {0};
    char why[96];
    int rc = make_placement(m, &err);
    unsigned committed = 0;
    for (unsigned r = 0; m->writing && r < m->world_size; r++)
        committed += m->ranks[r]->committed == m->writing;
    snprintf(why, sizeof(why), "rank %u (process %d) came back, and it has to be written anew", last->rank,
             (int)last->pid);
    if (m->writing && (rc < 0 || some_register_again(m) || committed != m->n_committed ||
                       strcmp(m->writing->placement_id, m->placement->id) != 0))
        ws_agent_abandon(a, m, why);
    if (rc < 0)
        for (unsigned r = 0; r < m->world_size; r++) {
            m->ranks[r]->placed = false;
            m->ranks[r]->refused = err.code;
            snprintf(m->ranks[r]->refusal, sizeof(m->ranks[r]->refusal), "%s", err.text);
        }
    pthread_cond_broadcast(&a->changed);
}

/* "; missing: rank 1, 3": ranks that are not there, that have not registered again, or (writing) not
 * committed. */
static const char *missing_ranks(const struct ws_agent_model *m, bool writing, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = 0;
    for (unsigned r = 0; r < m->world_size && n + 32 < cap; r++) {
        const struct ws_session *c = m->ranks[r];
        if (c && (writing ? c->committed == m->writing : !c->stale && (m->placement || !c->told)))
            continue;
        n += (size_t)snprintf(out + n, cap - n, n ? ", %u" : "; missing: rank %u", r);
    }
    return out;
}

/* Until all ranks are there, and none of them works by an older placement. */
static int wait_for_placement(struct ws_agent *a, struct ws_agent_model *m, struct ws_session *c,
                              uint64_t deadline, struct ws_error *err)
{
    char missing[WS_ERROR_TEXT / 2];
    while (!c->placed || m->n_registered < m->world_size || some_register_again(m)) {
        if (m->ranks[c->rank] != c)
            return ws_error_set(err, ESTALE, "rank %u of %s was registered again by another process", c->rank,
                                m->name);
        if (c->refused && !some_register_again(m))
            return ws_error_set(err, c->refused, "%s", c->refusal);
        if (ws_agent_wait(a, deadline))
            continue;
        if (c->refused)
            return ws_error_set(err, c->refused, "%s", c->refusal);
        return ws_error_set(
            err, ETIMEDOUT,
            "waited for the ranks of %s: %u of %u are here%s; all ranks have to offload within the "
            "timeout, with the same world_size, and to register again where tensors have changed",
            m->name, m->n_registered, m->world_size, missing_ranks(m, false, missing, sizeof(missing)));
    }
    return 0;
}

/* The lineage that a group of ranks writes: the first of them settles it. */
static int set_run(struct ws_agent_model *m, const json_t *body, struct ws_error *err)
{
    const char *run = json_string_value(json_object_get(body, "run"));
    bool new_run = json_is_true(json_object_get(body, "new_run"));
    if (run && !run_is_good(run))
        return ws_error_set(err, EINVAL, "'%.80s' is no run id: 1 to %d of letters, digits, '.', '_', '-'",
                            run, WS_RUN_CHARS);
    if (run && m->any && strcmp(run, m->run) != 0 && !new_run)
        return ws_error_set(err, EEXIST, "%s has the lineage %s; to supersede it by %s say so (--new-run)",
                            m->name, m->run, run);
    if (run && m->any && strcmp(run, m->run) == 0 && new_run)
        return ws_error_set(err, EEXIST, "%s has the lineage %s already; a new one needs another id", m->name,
                            run);
    if (m->n_registered > 0 && run && strcmp(run, m->group_run) != 0)
        return ws_error_set(err, EPROTO,
                            "the ranks of %s name different runs, %s and %s: give all of them the same",
                            m->name, m->group_run, run);
    if (m->n_registered > 0)
        return 0;
    if (run)
        snprintf(m->group_run, sizeof(m->group_run), "%s", run);
    else if (m->any && !new_run)
        memcpy(m->group_run, m->run, sizeof(m->group_run));
    else
        random_run(m->group_run);
    return 0;
}

/* Who keeps a rank from joining: the one that has its number, or any of a group of another size. */
static const struct ws_session *in_the_way(const struct ws_agent_model *m, unsigned rank, unsigned world_size)
{
    if (m->world_size == world_size)
        return m->ranks[rank];
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->ranks[r])
            return m->ranks[r];
    return NULL;
}

/* Nobody is ever displaced: a publisher that runs is waited for, and so is one that was killed a moment ago
 * and whose end was not noticed yet. A group of another size begins when the old one is empty. */
static int join_group(struct ws_agent *a, struct ws_agent_model *m, struct ws_session *c, unsigned world_size,
                      uint64_t deadline, const json_t *body, struct ws_error *err)
{
    for (const struct ws_session *other; (other = in_the_way(m, c->rank, world_size)) || m->preparing;)
        if (!ws_agent_wait(a, deadline))
            return !other ? ws_error_set(err, EBUSY, "a slot of %s is being prepared", m->name)
                   : m->world_size != world_size
                       ? ws_error_set(
                             err, EBUSY,
                             "rank %u says that %s has %u ranks, and process %d publishes it as rank %u of "
                             "%u; it did not end in time: give all ranks the same world_size, or end it",
                             c->rank, m->name, world_size, (int)other->pid, other->rank, m->world_size)
                       : ws_error_set(
                             err, EBUSY,
                             "process %d publishes %s already, as rank %u of %u; it did not end in time: "
                             "end it, or give each rank a number of its own",
                             (int)other->pid, m->name, other->rank, m->world_size);
    if (m->world_size != world_size) {
        struct ws_session **ranks = calloc(world_size, sizeof(struct ws_session *));
        if (!ranks)
            return ws_error_set(err, ENOMEM, "no memory for %u ranks", world_size);
        free(m->ranks);
        m->ranks = ranks;
        m->world_size = world_size;
        m->n_registered = 0;
        ws_placement_free(m->placement);
        m->placement = NULL;
    }
    int rc = set_run(m, body, err);
    if (rc < 0)
        return rc;
    assert(m->ranks); /* world_size is at least 1 */
    m->ranks[c->rank] = c;
    m->n_registered++;
    c->model = m;
    return 0;
}

static json_t *places_json(const struct ws_entry *e, size_t n)
{
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(all, json_pack("[I,I,b]", (json_int_t)e[i].file_index,
                                             (json_int_t)e[i].tensor.begin, (int)e[i].writes));
    return all;
}

static json_t *placement_json(const struct ws_agent_model *m, const struct ws_session *c)
{
    const struct ws_placement *l = m->placement;
    const struct ws_registration *r = c->registration;
    json_t *files = json_array(), *sidecars = json_array();
    for (size_t i = 0; i < l->n_files; i++)
        json_array_append_new(files, json_pack("{s:s,s:I,s:I}", "name", l->files[i].name, "bytes",
                                               (json_int_t)l->files[i].size_bytes, "header_bytes",
                                               (json_int_t)l->files[i].header_bytes));
    for (size_t i = 0; i < r->n_sidecars; i++)
        for (size_t k = 0; k < l->n_files; k++)
            if (strcmp(l->files[k].name, r->sidecars[i].name) == 0)
                json_array_append_new(sidecars, json_integer((json_int_t)k));
    return json_pack("{s:i,s:s,s:I,s:o,s:o,s:o,s:o}", "api", WS_LOCAL_API, "run", m->group_run, "epoch",
                     (json_int_t)m->epoch, "files", files, "places", places_json(r->entries, r->n_entries),
                     "base", places_json(r->base, r->n_base), "sidecars", sidecars);
}

static int do_register(struct ws_agent *a, struct ws_session *c, const json_t *body, json_t **reply,
                       struct ws_error *err)
{
    const char *name = json_string_value(json_object_get(body, "model"));
    uint64_t world = number(body, "world_size", 1), rank = number(body, "rank", 0),
             deadline = deadline_of(body);
    struct ws_registration *r = NULL;
    const char *release = json_string_value(json_object_get(body, "release"));
    if (number(body, "api", 0) != WS_LOCAL_API)
        return ws_error_set(err, EPROTO,
                            "rank %" PRIu64
                            " has libwsync of release %s, and this agent is of release %s, which it cannot "
                            "work with: use agent and libwsync of one release",
                            rank, release ? release : "0.0", WS_VERSION);
    if (!name || !ws_name_is_model(name))
        return ws_error_set(err, EINVAL, "'%.100s' cannot be a model: %s", name ? name : "",
                            WS_MODEL_NAME_RULE);
    if (world == 0 || world > WS_MAX_RANKS || rank >= world)
        return ws_error_set(err, EINVAL, "rank %" PRIu64 " of %" PRIu64 " makes no sense; at most %d ranks",
                            rank, world, WS_MAX_RANKS);
    int rc = ws_registration_of(body, (unsigned)rank, &r, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&a->lock);
    forget_registration(a, c, "registered anew");
    struct ws_agent_model *m = ws_agent_find_or_add(a, name);
    c->rank = (unsigned)rank;
    c->registration = r;
    c->lost = false;
    c->refused = 0;
    if (!m)
        rc = ws_error_set(err, ENOMEM, "no room for the model %s; at most %d", name, WS_MAX_MODELS);
    if (rc == 0)
        rc = join_group(a, m, c, (unsigned)world, deadline, body, err);
    if (rc == 0) {
        unsigned slots = (unsigned)number(body, "max_slots", 0);
        m->shard_bytes = number(body, "shard_bytes", 0);
        m->max_slots = slots >= 2 && slots <= a->options.max_slots ? slots : a->options.max_slots;
        if (m->n_registered == m->world_size)
            place(a, m, c);
        rc = wait_for_placement(a, m, c, deadline, err);
    }
    if (rc == 0) {
        c->told = places_of(m, c->registration);
        *reply = placement_json(m, c);
        pthread_cond_broadcast(&a->changed);
    } else {
        forget_registration(a, c, "could not register");
    }
    pthread_mutex_unlock(&a->lock);
    return rc;
}

/* --- begin --- */

static int check_version(const struct ws_agent_model *m, uint64_t version, const char *run,
                         struct ws_error *err)
{
    if (m->any && strcmp(run, m->run) == 0 && version <= m->newest)
        return ws_error_set(
            err, EEXIST,
            "version %" PRIu64 " of %s is not higher than the newest, %" PRIu64
            " (run %s); a trainer that resumes from an older step opens a new lineage (new_run, --new-run)",
            version, m->name, m->newest, m->run);
    return 0;
}

/* The first rank's thread takes and prepares the slot; the others wait for it. Under lock. */
static int prepare(struct ws_agent *a, struct ws_agent_model *m, uint64_t version, const char *run,
                   uint64_t deadline, struct ws_error *err)
{
    struct ws_slot *s = NULL;
    m->preparing = true;
    int rc = ws_agent_take_slot(a, m, &s, deadline, err);
    if (rc == 0) {
        a->slot_bytes -= s->total_bytes;
        pthread_mutex_unlock(&a->lock);
        rc = ws_slot_prepare(s, m->placement, a->options.n_threads, err);
        if (rc == 0)
            rc = ws_slot_begin(s, m->placement, m->name, version, run, err);
        pthread_mutex_lock(&a->lock);
        a->slot_bytes += s->total_bytes;
        if (rc < 0) {
            ws_slot_clear(s);
            s->state = WS_SLOT_FREE;
        }
    }
    m->preparing = false;
    m->prepare_error = -rc;
    if (rc < 0) {
        snprintf(m->prepare_text, sizeof(m->prepare_text), "%s", err ? err->text : "");
    } else {
        m->writing = s;
        m->writing_version = version;
        m->n_begun = m->n_committed = 0;
    }
    pthread_cond_broadcast(&a->changed);
    return rc;
}

static int check_session(struct ws_session *c, struct ws_error *err)
{
    if (!c->model)
        return ws_error_set(err, EINVAL, "this rank is not registered");
    if (c->lost && c->model->placement && !c->stale) {
        c->lost = false;
        return ws_error_set(err, ECANCELED, "%s; the next version may be offloaded", c->model->why);
    }
    if (!c->model->ranks || c->rank >= c->model->world_size || c->model->ranks[c->rank] != c ||
        !c->model->placement || c->stale)
        return ws_error_set(err, ESTALE, "the group of ranks of %s has changed: register again",
                            c->model->name);
    return 0;
}

static int open_all(const struct ws_slot *s, int *fds, size_t max, size_t *n, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < s->n_files; i++) {
        if (!s->regions[i])
            continue;
        if (*n == max)
            return ws_error_set(err, E2BIG,
                                "a version of over %zu files cannot be published; use larger shards", max);
        rc = ws_region_open(s->regions[i], true, &fds[*n], err);
        *n += rc == 0;
    }
    return rc;
}

/* The version before may still be hashed, or copied by ranks that are slower than this one; another rank
 * prepares this one; or one has died, and comes back. */
static int wait_for_turn(struct ws_agent *a, struct ws_session *c, uint64_t version, uint64_t deadline,
                         struct ws_error *err)
{
    struct ws_agent_model *m = c->model;
    char missing[WS_ERROR_TEXT / 2];
    int rc = 0;
    while (rc == 0) {
        bool before = m->writing && (m->writing->state == WS_SLOT_HASHING || c->committed == m->writing);
        if (!m->preparing && !before && m->n_registered == m->world_size)
            return 0;
        if (ws_agent_wait(a, deadline))
            rc = check_session(c, err);
        else if (before)
            rc = ws_error_set(err, ETIMEDOUT,
                              "rank %u waited with version %" PRIu64 " of %s for version %" PRIu64
                              ", which not all ranks have offloaded%s",
                              c->rank, version, m->name, m->writing_version,
                              missing_ranks(m, true, missing, sizeof(missing)));
        else
            rc = ws_error_set(err, ETIMEDOUT,
                              "rank %u waited with version %" PRIu64 " of %s for the other ranks%s", c->rank,
                              version, m->name, missing_ranks(m, false, missing, sizeof(missing)));
    }
    return rc;
}

/* Is the version on its way this rank's, too? One that it has passed by can never become whole. */
static int join_version(struct ws_agent *a, struct ws_session *c, uint64_t version, const char *run,
                        struct ws_error *err)
{
    struct ws_agent_model *m = c->model;
    char why[160];
    if (!m->writing)
        return 0;
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

static int do_begin(struct ws_agent *a, struct ws_session *c, const json_t *body, json_t **reply, int *fds,
                    size_t max, size_t *n_fds, struct ws_error *err)
{
    uint64_t version = number(body, "version", 0), deadline = deadline_of(body);
    const char *run = json_string_value(json_object_get(body, "run"));
    if (!run || !run_is_good(run))
        return ws_error_set(err, EINVAL, "begin needs the run of the registration");
    pthread_mutex_lock(&a->lock);
    c->lost = false;
    int rc = check_session(c, err);
    struct ws_agent_model *m = c->model;
    if (rc == 0 && c->writing)
        rc = ws_error_set(err, EALREADY, "version %" PRIu64 " is begun and neither committed nor abandoned",
                          m->writing_version);
    if (rc == 0)
        rc = wait_for_turn(a, c, version, deadline, err);
    if (rc == 0)
        rc = check_version(m, version, run, err);
    if (rc == 0)
        rc = join_version(a, c, version, run, err);
    if (rc == 0 && !m->writing)
        rc = prepare(a, m, version, run, deadline, err);
    if (rc == 0)
        rc = check_session(c, err);
    if (rc == 0 && (!m->writing || m->writing->state != WS_SLOT_WRITING || m->writing_version != version))
        rc = ws_error_set(err, ECANCELED, "%s; the next version may be offloaded", m->why);
    if (rc == 0)
        rc = open_all(m->writing, fds, max, n_fds, err);
    if (rc == 0) {
        c->writing = true;
        c->committed = NULL;
        m->n_begun++;
        *reply = json_pack("{s:b}", "fresh", (int)m->writing->fresh);
    }
    pthread_mutex_unlock(&a->lock);
    if (rc < 0) {
        while (*n_fds > 0)
            close(fds[--*n_fds]);
    }
    return rc;
}

/* --- commit, abandon, wait --- */

static int do_commit(struct ws_agent *a, struct ws_session *c, const json_t *body, struct ws_error *err)
{
    const json_t *hashes = json_object_get(body, "hashes"), *h;
    size_t i;
    pthread_mutex_lock(&a->lock);
    int rc = check_session(c, err);
    struct ws_agent_model *m = c->model;
    if (rc == 0 && !c->writing)
        rc = ws_error_set(err, EINVAL, "nothing is begun");
    json_array_foreach(hashes, i, h)
    {
        const char *hex = json_string_value(json_array_get(h, 2));
        if (rc < 0)
            break;
        if (!hex ||
            ws_slot_note_hash(m->writing, (uint64_t)json_integer_value(json_array_get(h, 0)),
                              (uint64_t)json_integer_value(json_array_get(h, 1)), strtoull(hex, NULL, 16)))
            rc = ws_error_set(err, EINVAL, "a block's hash in commit is malformed");
    }
    if (rc == 0) {
        c->writing = false;
        c->committed = m->writing;
        if (++m->n_committed == m->world_size) {
            m->writing->state = WS_SLOT_HASHING;
            pthread_cond_broadcast(&a->changed);
        }
    }
    pthread_mutex_unlock(&a->lock);
    return rc;
}

static void do_abandon(struct ws_agent *a, struct ws_session *c)
{
    pthread_mutex_lock(&a->lock);
    char why[64];
    snprintf(why, sizeof(why), "rank %u gave it up", c->rank);
    if (c->model && c->writing)
        ws_agent_abandon(a, c->model, why);
    c->lost = false;
    pthread_mutex_unlock(&a->lock);
}

static bool is_loaded(const struct ws_agent_model *m, uint64_t version, const char *who, char *missing,
                      size_t cap)
{
    struct ws_mark to = {.version = version};
    snprintf(to.run, sizeof(to.run), "%s", m->run);
    return ws_fleet_serves(&m->fleet, &to, who, ws_agent_now_ns(), missing, cap);
}

/* A mount that falls silent counts no more, and nothing tells of that. */
static uint64_t look_again(uint64_t deadline)
{
    uint64_t soon = ws_agent_now_ns() + 500000000UL;
    return soon < deadline ? soon : deadline;
}

/* Of a version that is announced, under lock: 0: its delta is made; 1: not yet; else there will be none. */
static int delta_state(const struct ws_agent_model *m, uint64_t version, struct ws_error *err)
{
    const struct ws_mark target = ws_mark_of(version, m->run);
    json_t *all = ws_delta_set_leading_to(&m->deltas, &target);
    const char *state = json_string_value(json_object_get(json_array_get(all, 0), "state"));
    int rc = !state                          ? -ENODATA
             : strcmp(state, "growing") == 0 ? 1
             : strcmp(state, "whole") == 0   ? 0
                                             : -ENODATA;
    json_decref(all);
    if (rc < 0)
        return ws_error_set(err, ENODATA,
                            "there is no delta that leads to version %" PRIu64
                            " of %s: it is the first, too much "
                            "has changed, or its slot was wanted",
                            version, m->name);
    return rc;
}

/* Without a timeout_ms there is no limit: a year, so that the clock's arithmetic stays in range. */
static uint64_t patient_deadline_of(const json_t *body)
{
    uint64_t ms = number(body, "timeout_ms", UINT64_MAX);
    return ws_agent_now_ns() + (ms > 31536000000ULL ? 31536000000ULL : ms) * 1000000ULL;
}

static int do_wait(struct ws_agent *a, struct ws_session *c, const json_t *body, struct ws_error *err)
{
    uint64_t version = number(body, "version", 0), deadline = patient_deadline_of(body);
    const char *what = json_string_value(json_object_get(body, "what"));
    bool loaded = what && strcmp(what, "loaded") == 0;
    const char *who = json_string_value(json_object_get(body, "who"));
    char missing[WS_ERROR_TEXT] = "";
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = c->model;
    int rc = m ? 0 : ws_error_set(err, EINVAL, "this rank is not registered");
    const char *run = json_string_value(json_object_get(body, "run"));
    while (rc == 0 && !(m->any && (!run || strcmp(run, m->run) == 0) && m->newest >= version &&
                        (!loaded || is_loaded(m, version, who ? who : "all", missing, sizeof(missing))))) {
        bool pending =
            m->writing && m->writing_version == version && (!run || strcmp(run, m->writing->run) == 0);
        if (!pending && !loaded)
            rc = ws_error_set(err, ECANCELED, "version %" PRIu64 " of %s was abandoned or never begun%s%s",
                              version, m->name, m->why[0] ? "; the last that was: " : "", m->why);
        else if (!ws_agent_wait(a, look_again(deadline)) &&
                 (atomic_load(&a->stop) || ws_agent_now_ns() >= deadline))
            rc = atomic_load(&a->stop) ? ws_error_set(err, ECONNRESET, "the agent is stopping")
                 : loaded
                     ? ws_error_set(err, ETIMEDOUT, "version %" PRIu64 " of %s was not loaded in time%s%s",
                                    version, m->name, missing[0] ? ": " : "", missing)
                     : ws_error_set(err, ETIMEDOUT,
                                    "version %" PRIu64 " of %s was not published in time: not all ranks have "
                                    "offloaded it, or it is still hashed%s",
                                    version, m->name, missing_ranks(m, true, missing, sizeof(missing)));
    }
    pthread_mutex_unlock(&a->lock);
    return rc;
}

/* After do_wait for the version itself. */
static int wait_delta(struct ws_agent *a, struct ws_session *c, const json_t *body, struct ws_error *err)
{
    uint64_t version = number(body, "version", 0), deadline = patient_deadline_of(body);
    int rc;
    pthread_mutex_lock(&a->lock);
    while ((rc = delta_state(c->model, version, err)) == 1) {
        if (ws_agent_wait(a, look_again(deadline)) ||
            (!atomic_load(&a->stop) && ws_agent_now_ns() < deadline))
            continue;
        rc = ws_error_set(err, ETIMEDOUT, "the delta to version %" PRIu64 " of %s was not made in time",
                          version, c->model->name);
        break;
    }
    pthread_mutex_unlock(&a->lock);
    return rc;
}

/* --- dispatch --- */

static int local_call(void *self, struct ws_ipc_peer *peer, const char *method, const char *path,
                      const json_t *body, const int *fds_in, size_t n_fds_in, json_t **reply, int *fds,
                      size_t max, size_t *n_fds, struct ws_error *err)
{
    struct ws_agent *a = self;
    struct ws_session *c = peer->state;
    (void)fds_in;
    (void)n_fds_in;
    if (strcmp(method, "POST") != 0)
        return ws_error_set(err, EOPNOTSUPP, "%s takes POST", path);
    if (!c) {
        c = peer->state = calloc(1, sizeof(*c));
        if (!c)
            return ws_error_set(err, ENOMEM, "no memory for a publisher");
        c->pid = peer->pid;
    }
    const char *verb = path + strlen("/v1/local/");
    if (strcmp(verb, "register") == 0)
        return do_register(a, c, body, reply, err);
    if (strcmp(verb, "begin") == 0)
        return do_begin(a, c, body, reply, fds, max, n_fds, err);
    if (strcmp(verb, "commit") == 0)
        return do_commit(a, c, body, err);
    if (strcmp(verb, "wait") == 0) {
        const char *what = json_string_value(json_object_get(body, "what"));
        int rc = do_wait(a, c, body, err);
        return rc == 0 && what && strcmp(what, "delta") == 0 ? wait_delta(a, c, body, err) : rc;
    }
    if (strcmp(verb, "abandon") == 0) {
        do_abandon(a, c);
        return 0;
    }
    return ws_error_set(err, ENOENT, "there is no %s", path);
}

static void local_gone(void *self, struct ws_ipc_peer *peer)
{
    struct ws_agent *a = self;
    struct ws_session *c = peer->state;
    if (!c)
        return;
    pthread_mutex_lock(&a->lock);
    forget_registration(a, c, "ended");
    pthread_mutex_unlock(&a->lock);
    free(c);
    peer->state = NULL;
    (void)malloc_trim(0); /* registrations of 100,000 tensors leave much behind */
}

const struct ws_ipc_handler ws_agent_local = {.call = local_call, .gone = local_gone};
