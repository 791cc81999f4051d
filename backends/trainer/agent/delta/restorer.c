/* Restorer: the newest version of each model in the archive comes back into a slot when the agent starts, on a thread
 * of its own, so that mounts that come while no trainer runs are served from memory, by deltas too. An anchor is read
 * and the deltas on it are applied; each block is compared with the manifest that the trainer's agent wrote. Ranks
 * go first: what they publish meanwhile stays, and what is of a lineage that they have left is not shown. */
#include "backends/trainer/agent/delta/restorer.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/slots.h"
#include "backends/trainer/agent/delta/archiver.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/delta/patcher.h"
#include "transports/dir/archive.h"
#include "transports/s3/place.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The agent's. */
struct restorer {
    pthread_t thread;
    bool runs;
    bool ended; /* guarded by the agent's lock */
};

/* One version on its way back. */
struct restoring {
    struct ws_agent *agent;
    struct ws_source *source;
    struct ws_lane *lane;
    struct ws_manifest *manifest; /* the slot's, once it is there */
    struct ws_slot *slot;
    uint64_t reserved_bytes; /* of the agent's slots */
    struct ws_version_id anchor;
    unsigned depth; /* deltas that lead to it from the anchor */
    char why[300];  /* it is read, and not served */
};

static struct restorer *restorer_of(const struct ws_agent *a)
{
    return a->feature_state[WS_FEATURE_restore];
}

static int on_block(void *arg, size_t block, uint64_t hash)
{
    (void)arg;
    (void)block;
    (void)hash; /* the source has compared it with the manifest */
    return 0;
}

/* --- what is read; not under lock --- */

static int make_regions(struct restoring *r, struct ws_error *err)
{
    struct ws_agent *a = r->agent;
    const struct ws_manifest *m = r->manifest;
    pthread_mutex_lock(&a->lock);
    int rc = ws_slots_check_budget(a, m->total_bytes, err);
    if (rc == 0) {
        r->reserved_bytes = m->total_bytes;
        a->slot_bytes += r->reserved_bytes;
        a->restoring_bytes = r->reserved_bytes;
        snprintf(a->restoring, sizeof(a->restoring), "%s", m->model);
    }
    pthread_mutex_unlock(&a->lock);
    struct ws_slot *s = rc == 0 ? calloc(1, sizeof(*s)) : NULL;
    if (rc == 0 && (!s || !(s->regions = calloc(m->n_files + 1, sizeof(struct ws_region *)))))
        rc = ws_error_set(err, ENOMEM, "no memory for a slot");
    r->slot = s;
    if (rc < 0)
        return rc;
    s->n_files = m->n_files;
    s->id = ws_clock_day_ns();
    s->total_bytes = m->total_bytes;
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        if (m->files[i].size_bytes == 0)
            continue;
        rc = ws_region_new(&s->regions[i], m->files[i].size_bytes, err);
        if (rc == 0)
            rc = ws_region_prefault(s->regions[i], a->options.n_threads, err);
    }
    return rc;
}

/* The file of that name and size in the version's slot; SIZE_MAX: it has none. */
static size_t find_file(const struct ws_manifest *m, const struct ws_manifest_file *f)
{
    const struct ws_manifest_file *same = ws_manifest_find(m, f->name);
    return same && same->size_bytes == f->size_bytes ? (size_t)(same - m->files) : SIZE_MAX;
}

static int read_anchor(struct restoring *r, const struct ws_manifest *anchor, struct ws_error *err)
{
    int rc = anchor->n_files == r->manifest->n_files
                 ? 0
                 : ws_error_set(err, EBADMSG, "version %" PRIu64 " has other files", anchor->version);
    for (size_t i = 0; rc == 0 && i < anchor->n_files; i++) {
        const size_t to = find_file(r->manifest, &anchor->files[i]);
        if (to != i)
            return ws_error_set(err, EBADMSG, "version %" PRIu64 " has other files", anchor->version);
        if (anchor->files[i].n_blocks == 0)
            continue;
        const struct ws_fetch f = {.manifest = anchor,
                                   .file = i,
                                   .n = anchor->files[i].n_blocks,
                                   .dst = ws_region_data(r->slot->regions[i]),
                                   .block = on_block,
                                   .cancel = &r->agent->stop};
        rc = ws_lane_fetch(r->lane, &f, err);
    }
    return rc;
}

static int on_record(void *arg, struct ws_delta_record *record)
{
    return ws_delta_add(arg, record);
}

/* Patches the blocks of the version before. Only what the whole chain makes of them is compared. */
static int patch(struct restoring *r, const struct ws_delta *d, struct ws_error *err)
{
    const struct ws_manifest *m = r->manifest;
    struct ws_patcher *p = ws_patcher_new();
    int rc = p ? 0 : ws_error_set(err, ENOMEM, "no memory for the version's deltas");
    for (size_t i = 0; rc == 0 && i < m->n_files; i++)
        for (size_t b = 0; rc == 0 && b < m->files[i].n_blocks; b++) {
            const struct ws_delta_record *record = ws_delta_at(d, i, b);
            unsigned char *at = ws_region_data(r->slot->regions[i]) + b * WS_BLOCK_BYTES;
            uint64_t hash;
            if (record)
                rc = ws_patcher_block(p, at, NULL, ws_manifest_block_bytes(&m->files[i], b), &record, 1,
                                      &hash, err);
        }
    ws_patcher_free(p);
    return rc;
}

static int apply_delta(struct restoring *r, const char *model, const struct ws_delta_entry *e,
                       struct ws_error *err)
{
    struct ws_delta *d = NULL;
    int rc = ws_delta_new(&d, &e->link, r->manifest, err);
    if (rc < 0)
        return rc;
    const struct ws_delta_fetch f = {.model = model,
                                     .link = e->link,
                                     .n_blocks = e->n_blocks,
                                     .parts = 1,
                                     .sink = {.record = on_record, .arg = d},
                                     .cancel = &r->agent->stop};
    rc = ws_lane_delta(r->lane, &f, err);
    ws_delta_end(d, rc == 0 ? WS_DELTA_WHOLE : WS_DELTA_GIVEN_UP);
    if (rc == 0)
        rc = patch(r, d, err);
    ws_delta_put(d);
    return rc;
}

static int compare(const struct restoring *r, struct ws_error *err)
{
    const struct ws_manifest *m = r->manifest;
    for (size_t i = 0; i < m->n_files; i++)
        for (size_t b = 0; b < m->files[i].n_blocks; b++) {
            const unsigned char *at = ws_region_data(r->slot->regions[i]) + b * WS_BLOCK_BYTES;
            if (atomic_load(&r->agent->stop))
                return ws_error_set(err, ECANCELED, "the agent is stopping");
            if (ws_hash(at, ws_manifest_block_bytes(&m->files[i], b)) != m->files[i].hashes[b])
                return ws_error_set(err, EBADMSG,
                                    "block %zu of %s is not the manifest's: the archive is damaged", b,
                                    m->files[i].name);
        }
    return 0;
}

static int read_version(struct restoring *r, const char *model, uint64_t version, const char *lineage,
                        struct ws_error *err)
{
    struct ws_delta_entry chain[WS_MAX_DELTA_ENTRIES];
    const struct ws_version_id target = ws_version_id_make(version, lineage);
    struct ws_manifest *anchor = NULL;
    const atomic_bool *stop = &r->agent->stop;
    size_t n = 0;
    int rc = ws_source_manifest(r->source, model, version, lineage, stop, &r->manifest, err);
    if (rc == 0)
        rc = ws_source_deltas(r->source, model, &target, stop, chain, &n, err);
    r->depth = (unsigned)n;
    r->anchor = n > 0 ? chain[n - 1].link.base : target;
    if (rc == 0)
        rc = make_regions(r, err);
    if (rc == 0 && n == 0)
        return read_anchor(r, r->manifest, err);
    if (rc == 0) /* the last link comes first */
        rc = ws_source_manifest(r->source, model, chain[n - 1].link.base.version,
                                chain[n - 1].link.base.lineage, stop, &anchor, err);
    if (rc == 0)
        rc = read_anchor(r, anchor, err);
    for (size_t i = n; rc == 0 && i > 0; i--)
        rc = apply_delta(r, model, &chain[i - 1], err);
    ws_manifest_free(anchor);
    return rc < 0 ? rc : compare(r, err);
}

/* --- what is served; under lock --- */

/* What ranks have made of the model since, and what the agent before knew: does the archive's version still belong to
 * it? why: why not. */
static bool is_wanted(const struct ws_agent_model *m, const struct ws_manifest *v, char why[300])
{
    const struct ws_version_id id = ws_version_id_make(v->version, v->lineage);
    why[0] = 0;
    if (m->has_published && strcmp(m->lineage, v->lineage) != 0)
        snprintf(why, 300,
                 "it is of run %s, and the agent goes on with run %s, whose newest is %" PRIu64
                 ": the trainer's next version is the first that is served",
                 v->lineage, m->lineage, m->newest);
    else if (m->writing && m->writing_version <= v->version)
        snprintf(why, 300, "ranks write version %" PRIu64, m->writing_version);
    else if (m->n_slots >= m->max_slots)
        snprintf(why, 300, "ranks have taken all %u slots meanwhile", m->max_slots);
    for (unsigned i = 0; i < m->n_slots; i++)
        if (m->slots[i]->version == id.version && strcmp(m->slots[i]->lineage, id.lineage) == 0)
            snprintf(why, 300, "ranks have published it meanwhile");
    return !why[0];
}

/* What the agent before kept in memory is newer than what it has archived, or the same. Not under lock. */
static bool is_served(struct ws_agent *a, const char *model)
{
    pthread_mutex_lock(&a->lock);
    const struct ws_agent_model *m = ws_agent_model_find(a, model);
    bool served = false;
    for (unsigned i = 0; m && i < m->n_slots; i++)
        served = served || ws_slots_is_newest(m, m->slots[i]);
    pthread_mutex_unlock(&a->lock);
    return served;
}

/* The agent before may have announced what it was about to, too. */
static void report_lost(const struct ws_agent_model *m, const struct ws_manifest *v)
{
    const bool announced = strcmp(m->reserved.lineage, v->lineage) == 0 && m->reserved.version > m->newest;
    const uint64_t newest = announced ? m->reserved.version : m->newest;
    if (m->has_published && newest > v->version)
        ws_log(WS_LOG_WARN, "agent",
               "what was published after it is not in the archive model=%s version=%" PRIu64
               " newest=%" PRIu64 ": mounts that come now get %" PRIu64 " until the trainer publishes again",
               v->model, v->version, newest, v->version);
}

/* Nothing waits for its memory any more. Under lock. */
static void end_restoring(struct restoring *r)
{
    if (r->reserved_bytes > 0) {
        r->agent->restoring_bytes = 0;
        r->agent->restoring[0] = '\0';
    }
    r->reserved_bytes = 0;
}

static bool adopt(struct restoring *r, const char *model)
{
    struct ws_agent *a = r->agent;
    struct ws_slot *s = r->slot;
    struct ws_agent_model *m = ws_agent_model_find_or_add(a, model);
    if (!m)
        snprintf(r->why, sizeof(r->why), "there is no memory for the model");
    if (!m || !is_wanted(m, r->manifest, r->why))
        return false;
    report_lost(m, r->manifest);
    s->manifest = r->manifest;
    const struct ws_version_id id = ws_version_id_make(s->manifest->version, s->manifest->lineage);
    ws_archiver_restored(m, &id, &r->anchor, r->depth);
    ws_agent_model_raise(m, id.version, id.lineage);
    ws_agent_model_adopt(a, m, s);
    r->slot = NULL;
    r->manifest = NULL;
    end_restoring(r);
    return true;
}

/* --- the thread --- */

static void free_restoring(struct restoring *r)
{
    struct ws_agent *a = r->agent;
    if (r->slot)
        ws_slot_free(r->slot);
    ws_manifest_free(r->manifest);
    ws_lane_close(r->lane);
    pthread_mutex_lock(&a->lock);
    a->slot_bytes -= r->reserved_bytes;
    end_restoring(r);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

/* While a view is read back its memory is one that ranks wait for (core/slots.c): they come first, and would get it from
 * a view that is served. */
static void set_preparing(struct ws_agent *a, const char *model, uint64_t version, bool preparing)
{
    if (!ws_name_is_view(model, NULL, NULL))
        return;
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = ws_agent_model_find_or_add(a, model);
    if (m) {
        m->preparing = preparing;
        m->writing_version = version;
    }
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void restore(struct ws_agent *a, struct ws_source *source, const char *model, uint64_t version,
                    const char *lineage)
{
    struct restoring r = {.agent = a, .source = source};
    struct ws_error err = {0};
    const uint64_t began = ws_clock_ns();
    bool served = false;
    int rc = ws_lane_open(source, &r.lane, &err);
    if (rc == 0)
        rc = read_version(&r, model, version, lineage, &err);
    if (rc == 0)
        rc = ws_manifest_to_json(r.manifest, &r.slot->json, &r.slot->json_bytes, &err);
    pthread_mutex_lock(&a->lock);
    if (rc == 0)
        served = adopt(&r, model);
    pthread_mutex_unlock(&a->lock);
    if (served) {
        ws_log(WS_LOG_INFO, "agent", "read from the archive model=%s version=%" PRIu64 " seconds=%.3f", model,
               version, (double)(ws_clock_ns() - began) / 1e9);
        ws_agent_announce(a);
    } else if (rc == 0) {
        ws_log(WS_LOG_WARN, "agent", "the archive's version is not served model=%s version=%" PRIu64 ": %s",
               model, version, r.why);
    } else if (rc != -ECANCELED) {
        ws_log(WS_LOG_WARN, "agent", "cannot serve the archive's version model=%s version=%" PRIu64 ": %s",
               model, version, err.text);
    }
    free_restoring(&r);
}

static void restore_newest(struct ws_agent *a, struct ws_source *source, const json_t *model)
{
    const char *name = json_string_value(json_object_get(model, "name"));
    const char *lineage = json_string_value(json_object_get(model, "run"));
    const json_t *version;
    uint64_t newest = 0, number;
    bool found = false;
    size_t i;
    if (!name || !lineage)
        return;
    json_array_foreach(json_object_get(model, "versions"), i, version)
    {
        const char *run = json_string_value(json_object_get(version, "run"));
        if (!run || strcmp(run, lineage) != 0 ||
            ws_number_read(json_object_get(version, "version"), &number) < 0)
            continue;
        newest = !found || number > newest ? number : newest;
        found = true;
    }
    if (!found || atomic_load(&a->stop) || is_served(a, name))
        return;
    set_preparing(a, name, newest, true);
    restore(a, source, name, newest, lineage);
    set_preparing(a, name, newest, false);
}

static void *restorer_main(void *arg)
{
    struct ws_agent *a = arg;
    struct ws_source *source = NULL;
    struct ws_error err = {0};
    char url[WS_MAX_URL + 8];
    json_t *listing = NULL;
    const json_t *model;
    size_t i;
    ws_thread_nice(a->options.nice);
    const struct ws_source_options options = {.insecure = a->options.archive_insecure, .stop = &a->stop};
    snprintf(url, sizeof(url), "%s%s", ws_s3_is_url(a->options.archive) ? "" : "dir:", a->options.archive);
    int rc = ws_source_open_by(&ws_archive_ops, url, &options, &source, &err);
    if (rc == 0)
        rc = ws_source_models(source, NULL, 0, 0, &a->stop, &listing, &err);
    if (rc < 0)
        ws_log(WS_LOG_WARN, "agent", "cannot serve what is archived: %s", err.text);
    json_array_foreach(json_object_get(listing, "models"), i, model)
    {
        restore_newest(a, source, model);
    }
    json_decref(listing);
    ws_source_close(source);
    pthread_mutex_lock(&a->lock);
    restorer_of(a)->ended = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

bool ws_restorer_has_ended(const struct ws_agent *a)
{
    return !restorer_of(a)->runs || restorer_of(a)->ended;
}

static int start(struct ws_agent *a, struct ws_error *err)
{
    struct restorer *r = restorer_of(a);
    if (!a->options.archive || (!ws_s3_is_url(a->options.archive) && !ws_archive_exists(a->options.archive)))
        return 0;
    r->runs = ws_thread_start(&r->thread, restorer_main, a) == 0;
    return r->runs ? 0 : ws_error_set(err, EAGAIN, "cannot start the agent's threads");
}

static void stop(struct ws_agent *a)
{
    if (restorer_of(a)->runs)
        pthread_join(restorer_of(a)->thread, NULL);
}

const struct ws_agent_feature ws_feature_restore = {
    .agent_bytes = sizeof(struct restorer),
    .start = start,
    .stop = stop,
};
