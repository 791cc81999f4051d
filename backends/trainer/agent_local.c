/* The publishers' routes, by the unix socket only. A rank's calls, in order:
 *   POST /v1/local/register {model, run?, new_run, rank, world_size, shard_bytes, max_slots, params, base,
 * sidecars} waits for all ranks -> {run, epoch, files: [{name, bytes, header_bytes}], places: [[file, begin,
 * writes]..], base: [..], sidecars: [file..], newest} POST /v1/local/begin {version} -> {fresh}, descriptors:
 * one writable a file (size 0: none) POST /v1/local/commit {hashes: [[file, block, "hex"]..]} POST
 * /v1/local/abandon {} POST /v1/local/wait {version, what: "published"|"loaded", timeout_ms} */
#include "backends/trainer/agent_group.h"
#include "backends/trainer/agent_state.h"
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

static void forget_registration(struct ws_agent *a, struct ws_session *c)
{
    struct ws_agent_model *m = c->model;
    char why[64];
    snprintf(why, sizeof(why), "rank %u ended, or registered anew", c->rank);
    if (m && c->placed)
        snprintf(m->why, sizeof(m->why), "%s", why);
    /* A version cannot become whole without a rank that has not committed. */
    if (m && m->writing && m->writing->state == WS_SLOT_WRITING && c->committed != m->writing)
        ws_agent_abandon(a, m, why);
    c->committed = NULL;
    if (m && m->ranks && c->rank < m->world_size && m->ranks[c->rank] == c) {
        m->ranks[c->rank] = NULL;
        m->n_registered--;
        pthread_cond_broadcast(&a->changed);
        ws_group_left(a, m);
    }
    c->model = NULL;
    c->placed = false;
    ws_registration_free(c->registration); /* also one that was refused before it joined a group */
    c->registration = NULL;
}

int ws_agent_set_run(struct ws_agent_model *m, const char *run, bool new_run, bool first,
                     struct ws_error *err)
{
    if (run && !run_is_good(run))
        return ws_error_set(err, EINVAL, "'%.80s' is no run id: 1 to %d of letters, digits, '.', '_', '-'",
                            run, WS_RUN_CHARS);
    if (run && m->any && strcmp(run, m->run) != 0 && !new_run)
        return ws_error_set(err, EEXIST, "%s has the lineage %s; to supersede it by %s say so (--new-run)",
                            m->name, m->run, run);
    if (run && m->any && strcmp(run, m->run) == 0 && new_run)
        return ws_error_set(err, EEXIST, "%s has the lineage %s already; a new one needs another id", m->name,
                            run);
    if (!first && run && strcmp(run, m->group_run) != 0)
        return ws_error_set(err, EPROTO, "the ranks of %s name different runs: %s and %s", m->name,
                            m->group_run, run);
    if (!first)
        return 0;
    if (run)
        snprintf(m->group_run, sizeof(m->group_run), "%s", run);
    else if (m->any && !new_run)
        memcpy(m->group_run, m->run, sizeof(m->group_run));
    else
        random_run(m->group_run);
    return 0;
}

/* On a node that is not the primary's the primary settles it. */
static int set_run(struct ws_agent *a, struct ws_agent_model *m, const json_t *body, struct ws_error *err)
{
    const char *run = json_string_value(json_object_get(body, "run"));
    bool new_run = json_is_true(json_object_get(body, "new_run"));
    struct ws_group *g = m->group;
    if (!a->primary)
        return ws_agent_set_run(m, run, new_run, ws_group_n_here(m) == 0, err);
    if (run && !run_is_good(run))
        return ws_agent_set_run(m, run, new_run, true, err);
    if (run && m->n_registered > 0 && g->asked_run[0] && strcmp(run, g->asked_run) != 0)
        return ws_error_set(err, EPROTO, "the ranks of %s name different runs: %s and %s", m->name,
                            g->asked_run, run);
    if (m->n_registered == 0)
        g->asked_run[0] = '\0';
    g->new_run = new_run;
    if (run)
        snprintf(g->asked_run, sizeof(g->asked_run), "%s", run);
    return 0;
}

/* Nobody of a group of another size is left. */
int ws_agent_set_world(struct ws_agent_model *m, unsigned world_size, struct ws_error *err)
{
    if (m->world_size == world_size)
        return 0;
    struct ws_session **ranks = calloc(world_size, sizeof(struct ws_session *));
    struct ws_remote *remotes = m->group ? calloc(world_size, sizeof(*remotes)) : NULL;
    if (!ranks || (m->group && !remotes)) {
        free(ranks);
        free(remotes);
        return ws_error_set(err, ENOMEM, "no memory for %u ranks", world_size);
    }
    free(m->ranks);
    m->ranks = ranks;
    if (m->group) {
        free(m->group->remotes);
        m->group->remotes = remotes;
    }
    m->world_size = world_size;
    m->n_registered = 0;
    ws_placement_free(m->placement);
    ws_placement_free(m->share);
    m->placement = m->share = NULL;
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

/* The same of ranks on other nodes, at the primary. */
static const struct ws_node *other_node(const struct ws_agent_model *m, unsigned rank, unsigned world_size)
{
    if (m->world_size == world_size)
        return ws_group_holder(m, rank);
    for (unsigned r = 0; r < m->world_size; r++)
        if (ws_group_holder(m, r))
            return ws_group_holder(m, r);
    return NULL;
}

/* Nobody is ever displaced: a publisher that runs is waited for, and so is one that was killed a moment ago
 * and whose end was not noticed yet. A group of another size begins when the old one is empty. */
static int join_group(struct ws_agent *a, struct ws_agent_model *m, struct ws_session *c, unsigned world_size,
                      uint64_t deadline, const json_t *body, struct ws_error *err)
{
    const struct ws_node *node = NULL;
    for (const struct ws_session *other; (other = in_the_way(m, c->rank, world_size)) ||
                                         (node = other_node(m, c->rank, world_size)) || m->preparing;)
        if (!ws_agent_wait(a, deadline))
            return node ? ws_error_set(
                              err, EBUSY,
                              "the node %s publishes %s already, with rank %u or with another number of "
                              "ranks than %u; it did not end in time",
                              node->name, m->name, c->rank, world_size)
                   : other ? ws_error_set(
                                 err, EBUSY,
                                 "process %d publishes %s already, as rank %u of %u; it did not end in time",
                                 (int)other->pid, m->name, other->rank, m->world_size)
                           : ws_error_set(err, EBUSY, "a slot of %s is being prepared", m->name);
    if (m->writing && m->writing->state == WS_SLOT_WRITING)
        ws_agent_abandon(a, m, "a rank joined: its placement is about to change");
    int rc = ws_agent_set_world(m, world_size, err);
    if (rc == 0)
        rc = set_run(a, m, body, err);
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
    const struct ws_placement *l = ws_agent_layout(m);
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
    return json_pack("{s:s,s:I,s:b,s:o,s:o,s:o,s:o}", "run", m->group_run, "epoch", (json_int_t)m->epoch,
                     "part", (int)(m->share != NULL), "files", files, "places",
                     places_json(r->entries, r->n_entries), "base", places_json(r->base, r->n_base),
                     "sidecars", sidecars);
}

/* Until all ranks are there, wherever, and it is known what each of them writes. */
static int wait_for_placement(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *c,
                              uint64_t deadline, struct ws_error *err)
{
    char missing[WS_ERROR_TEXT / 2];
    while (!c->placed) {
        if (m->ranks[c->rank] != c)
            return ws_error_set(err, ESTALE, "rank %u of %s was registered again by another process", c->rank,
                                m->name);
        if (c->refused && c->refused != EBUSY)
            return ws_error_set(err, c->refused, "%s", c->refusal);
        if (ws_agent_wait(a, deadline))
            continue;
        if (c->refused)
            return ws_error_set(err, c->refused, "%s", c->refusal);
        ws_group_missing(a, m, missing, sizeof(missing));
        return ws_error_set(err, ETIMEDOUT, "waited for the ranks of %s: %u of %u are here%s", m->name,
                            ws_group_n_here(m), m->world_size, missing);
    }
    return 0;
}

static int do_register(struct ws_agent *a, struct ws_session *c, const json_t *body, json_t **reply,
                       struct ws_error *err)
{
    const char *name = json_string_value(json_object_get(body, "model"));
    uint64_t world = number(body, "world_size", 1), rank = number(body, "rank", 0),
             deadline = deadline_of(body);
    struct ws_registration *r = NULL;
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
    forget_registration(a, c);
    struct ws_agent_model *m = ws_agent_find_or_add(a, name);
    c->rank = (unsigned)rank;
    c->registration = r;
    c->lost = false;
    c->refused = 0;
    if (!m)
        rc = ws_error_set(err, ENOMEM, "no room for the model %s; at most %d", name, WS_MAX_MODELS);
    if (rc == 0 && a->primary)
        rc = ws_group_have(m, err);
    if (rc == 0)
        rc = join_group(a, m, c, (unsigned)world, deadline, body, err);
    if (rc == 0) {
        unsigned slots = (unsigned)number(body, "max_slots", 0);
        m->shard_bytes = number(body, "shard_bytes", 0);
        m->max_slots = slots >= 2 && slots <= a->options.max_slots ? slots : a->options.max_slots;
        c->ticket = ++a->last_ticket;
        ws_group_joined(a, m);
        pthread_cond_broadcast(&a->changed);
        rc = wait_for_placement(a, m, c, deadline, err);
    }
    if (rc == 0) {
        memcpy(c->layout, ws_agent_layout(m)->id, sizeof(c->layout));
        *reply = placement_json(m, c);
    } else {
        forget_registration(a, c);
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
            " (run %s); a trainer that resumes from an older step opens a new lineage (--new-run)",
            version, m->name, m->newest, m->run);
    return 0;
}

/* The first rank's thread takes and prepares the slot; the others wait for it. Under lock. */
static int prepare(struct ws_agent *a, struct ws_agent_model *m, uint64_t version, const char *run,
                   uint64_t deadline, struct ws_error *err)
{
    struct ws_slot *s = NULL;
    m->preparing = true;
    struct ws_agent_model *owner = m->owner;
    owner->max_slots = m->max_slots;
    ws_group_begun(m);
    int rc = ws_agent_take_slot(a, owner, ws_agent_layout(m), &s, deadline, err);
    const struct ws_placement *l = ws_agent_layout(m);
    if (rc == 0) {
        a->slot_bytes -= s->total_bytes;
        pthread_mutex_unlock(&a->lock);
        rc = ws_slot_prepare(s, l, a->options.n_threads, err);
        if (rc == 0)
            rc = ws_slot_begin(s, l, owner->name, version, run, err);
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
    const struct ws_placement *l = ws_agent_layout(c->model);
    if (!c->model->ranks || c->rank >= c->model->world_size || c->model->ranks[c->rank] != c || !l ||
        strcmp(l->id, c->layout) != 0)
        return ws_error_set(err, ESTALE, "the group of ranks of %s has changed: register again",
                            c->model->name);
    if (c->lost) {
        c->lost = false;
        return ws_error_set(err, ECANCELED, "the version was abandoned: %s", c->model->why);
    }
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
    /* The version before may still be hashed, or another rank prepares this one. */
    while (rc == 0 && (m->preparing || (m->writing && m->writing->state != WS_SLOT_WRITING) ||
                       (!m->writing && ws_group_is_busy(a, m)))) {
        char missing[WS_ERROR_TEXT / 2];
        if (!ws_agent_wait(a, deadline)) {
            ws_group_missing(a, m, missing, sizeof(missing));
            if (ws_group_is_whole(a, m))
                rc = ws_error_set(err, ETIMEDOUT, "waited for the version before %" PRIu64 " of %s%s",
                                  version, m->name, missing);
            else
                rc = ws_error_set(err, ETIMEDOUT, "waited for all ranks of %s to be there again: %s%s",
                                  m->name, m->why, missing);
        } else {
            rc = check_session(c, err);
        }
    }
    if (rc == 0)
        rc = check_version(m, version, run, err);
    if (rc == 0 && m->writing && strcmp(m->writing->run, run) != 0)
        rc = ws_error_set(err, EPROTO, "rank %u begins run %s of %s while others write run %s", c->rank, run,
                          m->name, m->writing->run);
    if (rc == 0 && m->writing && m->writing_version != version)
        rc = ws_error_set(err, EPROTO, "rank %u begins version %" PRIu64 " of %s while others write %" PRIu64,
                          c->rank, version, m->name, m->writing_version);
    if (rc == 0 && !m->writing && !ws_group_is_whole(a, m)) /* where others may come back it was waited for */
        rc = ws_error_set(err, ECANCELED, "not all ranks are there (any more): %s", m->why);
    if (rc == 0 && !m->writing)
        rc = prepare(a, m, version, run, deadline, err);
    if (rc == 0 && !ws_group_is_whole(a, m)) { /* a rank left meanwhile */
        char why[WS_ERROR_TEXT];
        snprintf(why, sizeof(why), "%s", m->why[0] ? m->why : "another rank died");
        ws_agent_abandon(a, m, why);
        rc = ws_error_set(err, ECANCELED, "the version was abandoned: %s", why);
    }
    if (rc == 0)
        rc = check_session(c, err);
    if (rc == 0 && (!m->writing || m->writing->state != WS_SLOT_WRITING))
        rc = ws_error_set(err, ECANCELED, "the version was abandoned: %s", m->why);
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
        if (++m->n_committed == m->n_local) {
            ws_group_committed(a, m);
            pthread_cond_broadcast(&a->changed);
        }
    }
    pthread_mutex_unlock(&a->lock);
    return rc;
}

static void do_abandon(struct ws_agent *a, struct ws_session *c)
{
    pthread_mutex_lock(&a->lock);
    if (c->model && c->writing)
        ws_agent_abandon(a, c->model, "a rank gave it up");
    c->lost = false;
    pthread_mutex_unlock(&a->lock);
}

/* A secondary asks the primary, which the mounts report to; the lock is given up meanwhile. */
static bool is_loaded_there(struct ws_agent *a, const struct ws_agent_model *m, uint64_t version,
                            const char *who, char *missing, size_t cap)
{
    char path[WS_API_PATH_BYTES];
    struct ws_error err = {0};
    json_t *reply = NULL;
    ws_api_loaded_path(path, m->name, version, who);
    pthread_mutex_unlock(&a->lock);
    int rc = ws_source_call(a->primary, "GET", path, NULL, &reply, &err);
    pthread_mutex_lock(&a->lock);
    const char *told = json_string_value(json_object_get(reply, "missing"));
    snprintf(missing, cap, "%s", rc < 0 ? err.text : told ? told : "");
    bool loaded = rc == 0 && json_is_true(json_object_get(reply, "loaded"));
    json_decref(reply);
    return loaded;
}

static bool is_loaded(struct ws_agent *a, const struct ws_agent_model *m, uint64_t version, const char *who,
                      char *missing, size_t cap)
{
    struct ws_mark to = {.version = version};
    if (a->primary && m->owner != m)
        return is_loaded_there(a, m, version, who, missing, cap);
    snprintf(to.run, sizeof(to.run), "%s", m->run);
    return ws_fleet_serves(&m->fleet, &to, who, ws_agent_now_ns(), missing, cap);
}

/* A mount that falls silent counts no more, and nothing tells of that. */
static uint64_t look_again(uint64_t deadline)
{
    uint64_t soon = ws_agent_now_ns() + 500000000UL;
    return soon < deadline ? soon : deadline;
}

static int do_wait(struct ws_agent *a, struct ws_session *c, const json_t *body, struct ws_error *err)
{
    uint64_t version = number(body, "version", 0), ms = number(body, "timeout_ms", UINT64_MAX);
    const char *what = json_string_value(json_object_get(body, "what"));
    bool loaded = what && strcmp(what, "loaded") == 0;
    const char *who = json_string_value(json_object_get(body, "who"));
    char missing[WS_ERROR_TEXT] = "";
    /* no limit is a year: the clock's arithmetic stays in range */
    uint64_t deadline = ws_agent_now_ns() + (ms > 31536000000ULL ? 31536000000ULL : ms) * 1000000ULL;
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = c->model;
    int rc = m ? 0 : ws_error_set(err, EINVAL, "this rank is not registered");
    const char *run = json_string_value(json_object_get(body, "run"));
    while (rc == 0 && !(m->any && (!run || strcmp(run, m->run) == 0) && m->newest >= version &&
                        (!loaded || is_loaded(a, m, version, who ? who : "all", missing, sizeof(missing))))) {
        bool pending =
            m->writing && m->writing_version == version && (!run || strcmp(run, m->writing->run) == 0);
        if (!pending && !loaded)
            rc = ws_error_set(err, ECANCELED, "version %" PRIu64 " of %s was abandoned or never begun%s%s",
                              version, m->name, m->why[0] ? "; the last one that was abandoned: " : "",
                              m->why);
        else if (!ws_agent_wait(a, look_again(deadline)) &&
                 (atomic_load(&a->stop) || ws_agent_now_ns() >= deadline))
            rc = atomic_load(&a->stop)
                     ? ws_error_set(err, ECONNRESET, "the agent is stopping")
                     : ws_error_set(err, ETIMEDOUT, "version %" PRIu64 " of %s was not %s in time%s%s",
                                    version, m->name, loaded ? "loaded" : "published", missing[0] ? ": " : "",
                                    missing);
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
    if (strcmp(verb, "wait") == 0)
        return do_wait(a, c, body, err);
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
    forget_registration(a, c);
    pthread_mutex_unlock(&a->lock);
    free(c);
    peer->state = NULL;
    (void)malloc_trim(0); /* registrations of 100,000 tensors leave much behind */
}

const struct ws_ipc_handler ws_agent_local = {.call = local_call, .gone = local_gone};
