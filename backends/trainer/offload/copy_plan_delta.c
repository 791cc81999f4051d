/* Copies blocks that have a shadow on a device. Their new bytes are put together on the device, compared with
 * the shadow and hashed, and only what has changed is copied to the host. There it becomes the block's delta.
 * The slot mostly holds a version that is two older, so a chain of deltas patches it.
 *
 * A block is copied whole where too much has changed, where it is unknown what the slot holds, and where the
 * patched block has another hash than the device found.
 *
 * Rounds are pipelined: while the CPU patches one, the changes of the next are copied, and the one after that
 * is compared. */
#include "backends/trainer/offload/copy_plan_state.h"
#include "transports/device/block_hash.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define ROOM_SHARE 16    /* of a device: that much of it stays free */
#define SHORT      4096U /* a block of fewer bytes is not worth it */

/* One worker's memory. */
struct scratch {
    struct ws_patcher *patcher;
    unsigned char out[WS_BLOCK_BYTES];
};
struct ws_copy_plan_scratch {
    unsigned n;
    struct scratch *of[]; /* by worker; NULL: it has finished no block yet */
};

struct delta_round {
    unsigned number;
    size_t n;
    struct entry {
        struct ws_copy_job *job;
        size_t index;
        bool compared, whole, wrong;
    } entries[WS_COMPARE_BLOCKS];
};

struct delta_run {
    struct ws_copy_plan *plan;
    struct ws_copy_plan_delta *d;
    struct ws_copy_plan_device_state *k; /* of the device */
    size_t chain; /* how many sets of records lead from the slot's version to this one; 0: none do */
    size_t at;    /* job */
    unsigned sent, fetched, done;
    struct delta_round rounds[WS_COMPARE_ROUNDS];
    struct delta_round *now;
};

/* --- workers' memory --- */

static void free_scratch(struct scratch *t)
{
    if (t)
        ws_patcher_free(t->patcher);
    free(t);
}

void ws_copy_plan_scratch_free(struct ws_copy_plan_scratch *all)
{
    for (unsigned i = 0; all && i < all->n; i++)
        free_scratch(all->of[i]);
    free(all);
}

/* NULL: no memory. */
static struct scratch *scratch_of(struct ws_copy_plan_scratch *all, unsigned worker)
{
    struct scratch *t = all->of[worker];
    if (t)
        return t;
    t = malloc(sizeof(*t));
    if (t && !(t->patcher = ws_patcher_new())) {
        free(t);
        t = NULL;
    }
    return all->of[worker] = t;
}

/* --- which blocks --- */

static size_t index_of(const struct ws_copy_plan *p, const struct ws_copy_plan_device_state *k,
                       const struct ws_copy_job *j)
{
    const struct ws_copy_span *s = &p->spans.ptr[j->first];
    return ws_shadow_index(k->shadow, s->file, s->block);
}

static uint32_t len_of(const struct delta_run *r, const struct ws_copy_job *j)
{
    return ws_shadow_at(r->k->shadow, index_of(r->plan, r->k, j))->len;
}

/* Is the block filled by this rank alone, all of it from this device's memory, by kernels and plain copies?
 * */
static bool can_be_kept(const struct ws_copy_plan *p, const struct ws_copy_plan_device_state *k,
                        const struct ws_copy_job *j)
{
    const struct ws_copy_span *s = &p->spans.ptr[j->first];
    const int device = ws_shadow_device(k->shadow);
    bool can = j->whole && p->run->pinned[s->file] && ws_copy_plan_device(p, s) == device &&
               ws_shadow_at(k->shadow, index_of(p, k, j))->len >= SHORT;
    for (size_t i = 0; can && i < j->n; i++) {
        const struct ws_box_extents *r = &p->pieces.ptr[s[i].piece].runs;
        const bool plain =
            r->conversion == WS_SAME_TYPE && r->n_loops == 0 && r->extent_step == (int64_t)r->element_bytes;
        can = ws_copy_plan_device(p, &s[i]) == device &&
              (plain || ws_copy_plan_can_gather(p, &s[i], WS_GATHER_PLACED));
    }
    return can;
}

/* Leaves a part of the device to the trainer and to what else is shared of a version. */
static int leave_room(const struct ws_shadow *k, struct ws_error *why)
{
    struct ws_device_info d;
    int rc = ws_device_by_kind(WS_CUDA)->describe(ws_shadow_device(k), &d, why);
    if (rc == 0 && d.free_bytes < ws_shadow_bytes(k) + d.total_bytes / ROOM_SHARE)
        rc = ws_error_set(
            why, ENOMEM,
            "device %d has %zu MiB free of %zu, and beside the %zu MiB for what was published last "
            "a %dth is left alone",
            ws_shadow_device(k), (size_t)d.free_bytes >> 20, (size_t)d.total_bytes >> 20,
            (size_t)ws_shadow_bytes(k) >> 20, ROOM_SHARE);
    return rc;
}

/* At the first version: allocates the memory for shadows, on the device and on the host. Without enough
 * memory there are none, which is no failure. */
static void set_up(struct ws_copy_plan *p, struct ws_copy_plan_device_state *k)
{
    struct ws_error why = {0};
    if (k->compare || k->why[0])
        return;
    for (size_t i = 0; i < p->jobs.len; i++)
        if (can_be_kept(p, k, &p->jobs.ptr[i]))
            ws_shadow_select(k->shadow, index_of(p, k, &p->jobs.ptr[i]));
    const size_t n = ws_shadow_n_selected(k->shadow);
    int rc = n > 0
                 ? ws_compare_new(&k->compare, ws_shadow_device(k->shadow),
                                  n < WS_COMPARE_BLOCKS ? (unsigned)n : WS_COMPARE_BLOCKS, &why)
                 : ws_error_set(&why, ENODATA,
                                "this rank writes no whole block of 4 MiB of a pinned slot out of device %d",
                                ws_shadow_device(k->shadow));
    if (rc == 0)
        rc = leave_room(k->shadow, &why);
    if (rc == 0)
        rc = ws_shadow_allocate(k->shadow, &why);
    if (rc == 0)
        return;
    snprintf(k->why, sizeof(k->why), "%.*s", (int)sizeof(k->why) - 1, why.text);
    ws_compare_free(k->compare);
    k->compare = NULL;
}

static int make_scratch(struct ws_copy_plan_delta *d, unsigned n, struct ws_error *err)
{
    if (d->scratch && d->scratch->n >= n)
        return 0;
    ws_copy_plan_scratch_free(d->scratch);
    d->scratch = calloc(1, sizeof(*d->scratch) + n * sizeof(d->scratch->of[0]));
    if (!d->scratch)
        return ws_error_set(err, ENOMEM, "no memory for patching blocks");
    d->scratch->n = n;
    return 0;
}

/* --- sending --- */

static int send_block(struct delta_run *r, struct ws_copy_job *j, size_t index, struct ws_error *err)
{
    struct ws_copy_plan *p = r->plan;
    const struct ws_copy_span *s = &p->spans.ptr[j->first];
    const uint64_t begin = s->block * WS_BLOCK_BYTES;
    struct ws_shadow_block *b = ws_shadow_at(r->k->shadow, index);
    const bool compared = ws_shadow_holds_base(r->k->shadow, b);
    unsigned char *bytes;
    r->now->entries[r->now->n++] = (struct entry){.job = j, .index = index, .compared = compared};
    int rc =
        ws_compare_add(r->k->compare, b->bytes, b->len, compared, r->d->widths[s->file], begin, &bytes, err);
    for (size_t i = 0; rc == 0 && i < j->n; i++) {
        const struct ws_copy_piece *q = &p->pieces.ptr[s[i].piece];
        unsigned char *tensor = (unsigned char *)((uintptr_t)bytes + q->begin - begin);
        rc = ws_d2h_copy_on_device(p->run->d2h, ws_shadow_device(r->k->shadow), &q->runs,
                                   ws_copy_plan_source(p, &s[i]), s[i].from, s[i].bytes, tensor, q->source,
                                   err);
    }
    return rc;
}

/* The next job at or after r->at whose block has a shadow. */
static bool next_job(struct delta_run *r)
{
    const struct ws_copy_plan *p = r->plan;
    for (; r->at < p->jobs.len; r->at++) {
        const struct ws_copy_job *j = &p->jobs.ptr[r->at];
        if (ws_shadow_at(r->k->shadow, index_of(p, r->k, j))->bytes && can_be_kept(p, r->k, j))
            return true;
    }
    return false;
}

static int send_round(struct delta_run *r, struct ws_error *err)
{
    const unsigned k = r->sent++;
    int rc = 0;
    r->now = &r->rounds[k % WS_COMPARE_ROUNDS];
    r->now->number = k;
    r->now->n = 0;
    ws_d2h_begin_round(r->plan->run->d2h, k);
    ws_compare_begin_round(r->k->compare, k);
    while (rc == 0 && !ws_compare_is_full(r->k->compare) && next_job(r)) {
        struct ws_copy_job *j = &r->plan->jobs.ptr[r->at++];
        j->done = true;
        rc = send_block(r, j, index_of(r->plan, r->k, j), err);
    }
    if (rc == 0)
        rc = ws_d2h_send(r->plan->run->d2h, err);
    return rc == 0 ? ws_compare_send(r->k->compare, r->plan->run->d2h, k, err) : rc;
}

/* --- fetching --- */

static unsigned char *place_of(const struct ws_copy_plan *p, const struct ws_copy_job *j)
{
    const struct ws_copy_span *s = &p->spans.ptr[j->first];
    return p->run->data[s->file] + s->block * WS_BLOCK_BYTES;
}

/* Whether there will be a delta for it, and there are deltas for the versions that the slot missed. The begun
 * version's delta does not exist yet, so only earlier sets are checked. */
static bool can_patch(const struct delta_run *r, const struct entry *e, unsigned number, unsigned block)
{
    return r->chain > 0 && e->compared && ws_compare_can_encode(r->k->compare, number, block) &&
           ws_history_is_complete(r->d->history, e->index, r->chain);
}

static int fetch_round(struct delta_run *r, struct ws_error *err)
{
    struct delta_round *round = &r->rounds[r->fetched++ % WS_COMPARE_ROUNDS];
    int rc = ws_compare_wait_counts(r->k->compare, round->number, err);
    for (unsigned i = 0; rc == 0 && i < round->n; i++) {
        struct entry *e = &round->entries[i];
        e->whole = !can_patch(r, e, round->number, i);
        if (e->whole)
            rc = ws_compare_copy_whole(r->k->compare, round->number, i, place_of(r->plan, e->job), err);
        else
            r->d->patched_bytes += len_of(r, e->job);
    }
    return rc == 0 ? ws_compare_copy_changes(r->k->compare, round->number, err) : rc;
}

/* --- on the CPU --- */

static void record_delta(struct delta_run *r, const struct delta_round *round, unsigned i, struct scratch *t)
{
    const struct entry *e = &round->entries[i];
    const struct ws_copy_span *s = &r->plan->spans.ptr[e->job->first];
    struct ws_delta_record *record = NULL;
    size_t bytes;
    uint32_t changed;
    if (!e->compared || !ws_compare_can_encode(r->k->compare, round->number, i) ||
        ws_compare_encode(r->k->compare, round->number, i, t->out, &bytes, &changed, NULL) < 0)
        return;
    if (bytes > 0) {
        record = ws_delta_record_make((uint32_t)s->file, (uint32_t)s->block, WS_DELTA_EDIT, changed, t->out,
                                      (uint32_t)bytes, 0);
        if (!record)
            return;
    }
    ws_history_record(r->d->history, e->index, record, ws_shadow_at(r->k->shadow, e->index)->hash);
}

static bool patch(struct delta_run *r, const struct entry *e, struct scratch *t, uint64_t *hash)
{
    const struct ws_delta_record *chain[WS_MAX_DELTA_CHAIN];
    return ws_history_chain(r->d->history, e->index, r->chain, chain) &&
           ws_patcher_block(t->patcher, place_of(r->plan, e->job), NULL, len_of(r, e->job), chain, r->chain,
                            hash, NULL) == 0;
}

static void finish_block(void *arg, size_t i, unsigned worker)
{
    struct delta_run *r = arg;
    struct entry *e = &r->now->entries[i];
    const uint64_t hash = ws_compare_hash(r->k->compare, r->now->number, (unsigned)i);
    uint64_t has = ~hash;
    struct scratch *t = scratch_of(r->d->scratch, worker);
    if (t) {
        record_delta(r, r->now, (unsigned)i, t);
        if (!e->whole && !patch(r, e, t, &has))
            has = ~hash;
    }
    if (e->whole)
        has = ws_hash(place_of(r->plan, e->job), len_of(r, e->job));
    e->wrong = has != hash;
    e->job->hash = hash;
    e->job->hashed = true;
}

/* What the slot holds was not what it was said to hold, or memory was short. */
static int mend(struct delta_run *r, unsigned i, struct ws_error *err)
{
    const struct entry *e = &r->now->entries[i];
    unsigned char *at = place_of(r->plan, e->job);
    const uint32_t len = len_of(r, e->job);
    int rc = ws_compare_copy_again(r->k->compare, r->now->number, i, at, err);
    if (!e->whole)
        r->d->patched_bytes -= len;
    if (rc < 0 || ws_hash(at, len) == e->job->hash)
        return rc;
    return ws_error_set(err, EIO,
                        "block %zu of file %zu has other bytes on the host than on GPU %d, also when it is "
                        "copied whole: its memory or the link is broken",
                        r->plan->spans.ptr[e->job->first].block, r->plan->spans.ptr[e->job->first].file,
                        ws_shadow_device(r->k->shadow));
}

static int finish_round(struct delta_run *r, struct ws_workers *workers, struct ws_error *err)
{
    r->now = &r->rounds[r->done++ % WS_COMPARE_ROUNDS];
    int rc = ws_compare_wait(r->k->compare, r->now->number, err);
    if (rc < 0)
        return rc;
    ws_workers_run_indexed(workers, finish_block, r, r->now->n);
    for (unsigned i = 0; rc == 0 && i < r->now->n; i++) {
        const struct entry *e = &r->now->entries[i];
        if (e->wrong)
            rc = mend(r, i, err);
        if (rc == 0)
            ws_shadow_record(r->k->shadow, ws_shadow_at(r->k->shadow, e->index), e->job->hash);
    }
    r->plan->n_done += r->now->n;
    ws_copy_plan_report_progress(r->plan, r->plan->n_done);
    return rc;
}

/* --- all of it --- */

static int run_device(struct delta_run *r, struct ws_workers *workers, struct ws_error *err)
{
    uint64_t came, whole;
    int rc = 0;
    while (rc == 0 && (next_job(r) || r->done < r->sent)) {
        if (next_job(r) && r->sent - r->done < WS_COMPARE_ROUNDS)
            rc = send_round(r, err);
        else if (r->fetched < r->sent && r->fetched - r->done < WS_COMPARE_ROUNDS - 1)
            rc = fetch_round(r, err);
        else
            rc = finish_round(r, workers, err);
    }
    if (rc < 0) {
        ws_d2h_stop(r->plan->run->d2h);
        ws_compare_stop(r->k->compare);
    }
    ws_compare_copied_bytes(r->k->compare, &came, &whole);
    r->d->copied_bytes += came;
    r->d->whole_bytes += whole;
    return rc;
}

/* The version that the blocks of all devices were made from. */
static const struct ws_version_id *base_of(const struct ws_copy_plan_delta *d)
{
    const struct ws_version_id *base = ws_shadow_base(d->devices[0].shadow);
    for (size_t i = 1; i < d->n_devices && !base->lineage[0]; i++)
        base = ws_shadow_base(d->devices[i].shadow);
    return base;
}

int ws_copy_plan_run_delta(struct ws_copy_plan *p, struct ws_workers *workers, struct ws_error *err)
{
    struct ws_copy_plan_delta *d = p->run->delta;
    struct delta_run *r = calloc(1, sizeof(*r));
    int rc = r ? make_scratch(d, ws_workers_count(workers), err)
               : ws_error_set(err, ENOMEM, "no memory for copies from a GPU");
    d->copied_bytes = d->whole_bytes = d->patched_bytes = 0;
    if (rc == 0)
        rc = ws_history_begin(d->history, base_of(d), err);
    for (size_t i = 0; rc == 0 && i < d->n_devices; i++) {
        set_up(p, &d->devices[i]);
        if (!d->devices[i].compare)
            continue;
        *r = (struct delta_run){
            .plan = p, .d = d, .k = &d->devices[i], .chain = ws_history_length_from(d->history, &d->slot)};
        rc = run_device(r, workers, err);
    }
    free(r);
    return rc;
}
