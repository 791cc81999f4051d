/* Takeover: an agent that died has left its slots in the store of descriptors (base/descriptor_store.h), and this one goes on with them:
 * the same versions, with the same lineage and digest. It is sure of nothing else: a slot that was being written is dropped, as its record
 * says; each block of the others is hashed before it is served, since an agent that crashed may have written anywhere; and of the model's
 * numbers those are taken that a record has, whether its bytes are good or not. Where a record cannot be read it may be the newest
 * version's, whose number would be given to other bytes: so all are dropped, as if nothing had been kept.
 *
 * Of a model that spans nodes these are the parts that this node has. */
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/slot_record.h"
#include "transports/base/clock.h"
#include "transports/base/descriptor_store.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct takeover {
    struct ws_agent *agent;
    struct ws_kept_slot *all; /* by the time when they were committed */
    size_t n;
    size_t n_dropped;
};

/* Owns the slot, also on failure. */
static int add(struct takeover *t, struct ws_kept_slot *k, struct ws_error *err)
{
    struct ws_kept_slot *all = realloc(t->all, (t->n + 1) * sizeof(*all));
    const uint64_t created_ns = k->slot->manifest->created_ns;
    if (!all) {
        ws_kept_slot_release(k);
        return ws_error_set(err, ENOMEM, "no memory for the slots that were kept");
    }
    size_t at = t->n++;
    for (t->all = all; at > 0 && all[at - 1].slot->manifest->created_ns > created_ns; at--)
        all[at] = all[at - 1];
    all[at] = *k;
    return 0;
}

/* Takes the record of that name. What is not served is dropped, and is no error. */
static int read_record(struct takeover *t, const char *name, struct ws_error *err)
{
    struct ws_region *record = NULL;
    struct ws_kept_slot k;
    int rc = ws_region_take_over(&record, name, err);
    if (rc == 0)
        rc = ws_slot_record_read(record, &k, err);
    if (rc == 0)
        return add(t, &k, err);
    ws_region_free(record);
    t->n_dropped += rc == -EAGAIN;
    return rc == -EAGAIN ? 0 : rc;
}

static int read_records(struct takeover *t, struct ws_error *err)
{
    const char *next;
    int rc = 0;
    while (rc == 0 && (next = ws_descriptor_store_next(WS_SLOT_RECORD_PREFIX))) {
        char name[WS_DESCRIPTOR_NAME_CHARS + 1];
        snprintf(name, sizeof(name), "%s", next);
        rc = read_record(t, name, err);
    }
    return rc;
}

/* --- one slot --- */

static int take_regions(const struct ws_kept_slot *k, struct ws_error *err)
{
    struct ws_slot *s = k->slot;
    const struct ws_manifest *m = s->manifest;
    s->regions = calloc(m->n_files + 1, sizeof(struct ws_region *));
    if (!s->regions)
        return ws_error_set(err, ENOMEM, "no memory for a slot");
    s->n_files = m->n_files;
    s->total_bytes = m->total_bytes;
    for (size_t i = 0; i < m->n_files; i++) {
        const int rc = k->files[i] ? ws_region_take_over(&s->regions[i], k->files[i], err) : 0;
        if (rc < 0)
            return rc;
        if (k->files[i] && ws_region_size(s->regions[i]) != m->files[i].size_bytes)
            return ws_error_set(err, EBADMSG, "%s has another size", m->files[i].name);
    }
    return 0;
}

struct check {
    const struct ws_slot *slot;
    size_t file;
    const struct ws_agent_start *start;
    atomic_size_t n_bad;
};

static bool is_stopped(const struct ws_agent_start *start)
{
    return start && atomic_load(&start->stop);
}

static void check_block(void *arg, size_t block)
{
    struct check *c = arg;
    const struct ws_manifest_file *f = &c->slot->manifest->files[c->file];
    if (is_stopped(c->start))
        return;
    if (ws_hash(ws_region_data(c->slot->regions[c->file]) + block * WS_BLOCK_BYTES,
                ws_manifest_block_bytes(f, block)) != f->hashes[block])
        atomic_fetch_add(&c->n_bad, 1);
}

static int check_bytes(const struct ws_agent *a, const struct ws_slot *s, struct ws_error *err)
{
    for (size_t i = 0; i < s->n_files; i++) {
        struct check c = {.slot = s, .file = i, .start = a->options.start};
        ws_workers_run(a->workers, check_block, &c, s->manifest->files[i].n_blocks);
        const size_t bad = atomic_load(&c.n_bad);
        if (is_stopped(c.start))
            return ws_error_set(err, ECANCELED, "the agent was told to end before it had started");
        if (bad > 0)
            return ws_error_set(err, EBADMSG, "%zu blocks of %s are not the manifest's", bad,
                                s->manifest->files[i].name);
    }
    return 0;
}

/* Under lock: no other bytes get the number of a version that was served. Of a lineage that the state file does not go on with, none is
 * given. NULL: there is no room for the model. */
static struct ws_agent_model *remember(struct ws_agent *a, const char *name, const struct ws_manifest *v)
{
    struct ws_agent_model *m = ws_agent_model_find_or_add(a, name);
    const bool known = m && a->options.state && m->has_published;
    if (m && (!known || strcmp(v->lineage, m->lineage) == 0 || strcmp(v->lineage, m->reserved.lineage) == 0))
        ws_agent_model_raise(m, v->version, v->lineage);
    return m;
}

/* The same for a part of a model, which is a model of its own, and the model. */
static struct ws_agent_model *remember_all(struct ws_agent *a, struct ws_kept_slot *k)
{
    const struct ws_manifest *v = k->slot->manifest;
    char whole[WS_MAX_NAME + 1];
    struct ws_agent_model *m = remember(a, v->model, v);
    if (!m || !ws_name_is_node_part(v->model, whole, NULL, NULL))
        return m;
    free(m->nodes);
    m->nodes = k->nodes;
    k->nodes = NULL;
    return remember(a, whole, v) ? m : NULL;
}

/* Under lock. The slot is the model's then. */
static int adopt(struct ws_agent *a, struct ws_agent_model *m, struct ws_kept_slot *k, struct ws_error *err)
{
    if (!m)
        return ws_error_set(err, ENOMEM, "there is no room for the model");
    if (m->n_slots >= m->max_slots)
        return ws_error_set(err, EBUSY, "the model has %u slots now", m->max_slots);
    a->slot_bytes += k->slot->total_bytes;
    ws_agent_model_adopt(a, m, k->slot);
    k->slot = NULL;
    return 0;
}

static int take(struct takeover *t, struct ws_kept_slot *k)
{
    struct ws_agent *a = t->agent;
    const struct ws_manifest *v = k->slot->manifest;
    struct ws_error err = {0};
    int rc = take_regions(k, &err);
    if (rc == 0)
        rc = check_bytes(a, k->slot, &err);
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = remember_all(a, k);
    if (rc == 0)
        rc = adopt(a, m, k, &err);
    pthread_mutex_unlock(&a->lock);
    if (rc == 0)
        ws_log(WS_LOG_INFO, "agent",
               "taken over from the agent before model=%s version=%" PRIu64 " run=%s digest=%s", v->model,
               v->version, v->lineage, v->digest);
    else if (rc != -ECANCELED)
        ws_log(WS_LOG_WARN, "agent",
               "not taken over from the agent before model=%s version=%" PRIu64 " run=%s: %s", v->model,
               v->version, v->lineage, err.text);
    return rc;
}

/* --- all --- */

static void release(struct takeover *t)
{
    for (size_t i = 0; i < t->n; i++)
        ws_kept_slot_release(&t->all[i]);
    free(t->all);
}

static int start(struct ws_agent *a, struct ws_error *err)
{
    struct takeover t = {.agent = a};
    const uint64_t began = ws_clock_ns();
    size_t n = 0;
    int rc = read_records(&t, err);
    if (rc < 0) {
        ws_log(WS_LOG_ERROR, "agent",
               "nothing is taken over from the agent before, and this one begins without versions: %s",
               err->text);
        release(&t);
        t = (struct takeover){0};
    }
    rc = 0;
    for (size_t i = 0; i < t.n && rc != -ECANCELED; i++) {
        rc = take(&t, &t.all[i]);
        n += rc == 0;
    }
    if (n + t.n_dropped > 0)
        ws_log(WS_LOG_INFO, "agent", "takeover versions=%zu dropped_in_work=%zu seconds=%.3f", n, t.n_dropped,
               (double)(ws_clock_ns() - began) / 1e9);
    release(&t);
    if (rc == -ECANCELED)
        return ws_error_set(err, ECANCELED, "the agent was told to end before it had started");
    ws_descriptor_store_drop_rest();
    return 0;
}

static void put_status(const struct ws_agent *a, json_t *out)
{
    (void)a;
    json_object_set_new(out, "keeps_slots", json_boolean(ws_descriptor_store_is_on()));
}

const struct ws_agent_feature ws_feature_kept = {.start = start, .status = put_status};
