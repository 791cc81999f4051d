/* The way of blocks that a device keeps the last published bytes of: their new bytes are put together there,
 * compared and hashed, and what has changed comes to the host. There it is the block's delta, and patches
 * what the slot holds, which is mostly two versions old, by a chain of records. The block comes whole where
 * too much has changed, where nobody knows what the slot holds, and where the result has not the hash that
 * the device found.
 *
 * Rounds are pipelined: while the CPU patches one, the changes of the next come, and the one after that is
 * compared. */
#include "backends/trainer/offload/copy_plan_state.h"
#include "transports/device/block_hash.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define ROOM_SHARE 16    /* of a device: that much of it stays free */
#define SHORT      4096U /* a block of fewer bytes is not worth it */

/* One worker's memory. */
struct tools {
    struct ws_patcher *patcher;
    unsigned char out[WS_BLOCK_BYTES];
};
struct ws_copy_plan_tools {
    unsigned n;
    struct tools *of[]; /* by worker; NULL: it has finished no block yet */
};

struct delta_round {
    unsigned number;
    size_t n;
    struct entry {
        struct job *job;
        size_t index;
        bool compared, whole, wrong;
    } entries[WS_COMPARER_BLOCKS];
};

struct delta_run {
    struct ws_copy_plan *plan;
    struct ws_copy_plan_delta *d;
    struct ws_copy_plan_kept *k; /* the device's */
    size_t chain; /* how many sets of records lead from the slot's version to this one; 0: none do */
    size_t at;    /* job */
    unsigned sent, brought, done;
    struct delta_round rounds[WS_COMPARER_ROUNDS];
    struct delta_round *now;
};

/* --- workers' memory --- */

static void free_tools(struct tools *t)
{
    if (t)
        ws_patcher_free(t->patcher);
    free(t);
}

void ws_copy_plan_tools_free(struct ws_copy_plan_tools *all)
{
    for (unsigned i = 0; all && i < all->n; i++)
        free_tools(all->of[i]);
    free(all);
}

/* NULL: no memory. */
static struct tools *tools_of(struct ws_copy_plan_tools *all, unsigned worker)
{
    struct tools *t = all->of[worker];
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

static size_t index_of(const struct ws_copy_plan *p, const struct ws_copy_plan_kept *k, const struct job *j)
{
    const struct span *s = &p->spans[j->first];
    return ws_kept_index(k->kept, s->file, s->block);
}

static uint32_t len_of(const struct delta_run *r, const struct job *j)
{
    return ws_kept_at(r->k->kept, index_of(r->plan, r->k, j))->len;
}

/* Filled by this rank alone, wholly from the one device's memory, by kernels and plain copies. */
static bool can_be_kept(const struct ws_copy_plan *p, const struct ws_copy_plan_kept *k, const struct job *j)
{
    const struct span *s = &p->spans[j->first];
    const int device = ws_kept_device(k->kept);
    bool can = j->whole && p->run->pinned[s->file] && ws_copy_plan_device(p, s) == device &&
               ws_kept_at(k->kept, index_of(p, k, j))->len >= SHORT;
    for (size_t i = 0; can && i < j->n; i++) {
        const struct ws_runs *r = &p->pieces[s[i].piece].runs;
        const bool plain =
            r->conversion == WS_KEEP && r->n_loops == 0 && r->run_step == (int64_t)r->element_bytes;
        can = ws_copy_plan_device(p, &s[i]) == device &&
              (plain || ws_copy_plan_takes(p, &s[i], WS_GATHER_PLACED));
    }
    return can;
}

/* The trainer, and what else is shared of a version, find some of the device left. */
static int leave_room(const struct ws_kept *k, struct ws_error *why)
{
    struct ws_device_info d;
    int rc = ws_device_of_kind(WS_CUDA)->describe(ws_kept_device(k), &d, why);
    if (rc == 0 && d.free_bytes < ws_kept_bytes(k) + d.total_bytes / ROOM_SHARE)
        rc = ws_error_set(
            why, ENOMEM,
            "device %d has %zu MiB free of %zu, and beside the %zu MiB for what was published last "
            "a %dth is left alone",
            ws_kept_device(k), (size_t)d.free_bytes >> 20, (size_t)d.total_bytes >> 20,
            (size_t)ws_kept_bytes(k) >> 20, ROOM_SHARE);
    return rc;
}

/* At the first version: memory for what can be kept, on both sides. What there is no room for is not kept;
 * that is no failure. */
static void set_up(struct ws_copy_plan *p, struct ws_copy_plan_kept *k)
{
    struct ws_error why = {0};
    if (k->comparer || k->why[0])
        return;
    for (size_t i = 0; i < p->n_jobs; i++)
        if (can_be_kept(p, k, &p->jobs[i]))
            ws_kept_want(k->kept, index_of(p, k, &p->jobs[i]));
    const size_t n = ws_kept_wanted(k->kept);
    int rc = n > 0
                 ? ws_comparer_new(&k->comparer, ws_kept_device(k->kept),
                                   n < WS_COMPARER_BLOCKS ? (unsigned)n : WS_COMPARER_BLOCKS, &why)
                 : ws_error_set(&why, ENODATA,
                                "this rank writes no whole block of 4 MiB of a pinned slot out of device %d",
                                ws_kept_device(k->kept));
    if (rc == 0)
        rc = leave_room(k->kept, &why);
    if (rc == 0)
        rc = ws_kept_take(k->kept, &why);
    if (rc == 0)
        return;
    snprintf(k->why, sizeof(k->why), "%.*s", (int)sizeof(k->why) - 1, why.text);
    ws_comparer_free(k->comparer);
    k->comparer = NULL;
}

static int make_tools(struct ws_copy_plan_delta *d, unsigned n, struct ws_error *err)
{
    if (d->tools && d->tools->n >= n)
        return 0;
    ws_copy_plan_tools_free(d->tools);
    d->tools = calloc(1, sizeof(*d->tools) + n * sizeof(d->tools->of[0]));
    if (!d->tools)
        return ws_error_set(err, ENOMEM, "no memory for patching blocks");
    d->tools->n = n;
    return 0;
}

/* --- sending --- */

static int send_block(struct delta_run *r, struct job *j, size_t index, struct ws_error *err)
{
    struct ws_copy_plan *p = r->plan;
    const struct span *s = &p->spans[j->first];
    const uint64_t begin = s->block * WS_BLOCK_BYTES;
    struct ws_kept_block *b = ws_kept_at(r->k->kept, index);
    const bool compared = ws_kept_knows(r->k->kept, b);
    unsigned char *bytes;
    r->now->entries[r->now->n++] = (struct entry){.job = j, .index = index, .compared = compared};
    int rc = ws_comparer_add(r->k->comparer, b->bytes, b->len, compared, r->d->widths[s->file], begin, &bytes,
                             err);
    for (size_t i = 0; rc == 0 && i < j->n; i++) {
        const struct piece *q = &p->pieces[s[i].piece];
        unsigned char *tensor = (unsigned char *)((uintptr_t)bytes + q->begin - begin);
        rc = ws_carrier_within(p->run->carrier, ws_kept_device(r->k->kept), &q->runs,
                               ws_copy_plan_source(p, &s[i]), s[i].from, s[i].bytes, tensor, q->source, err);
    }
    return rc;
}

/* The next job at or after r->at whose block is kept. */
static bool next_job(struct delta_run *r)
{
    const struct ws_copy_plan *p = r->plan;
    for (; r->at < p->n_jobs; r->at++) {
        const struct job *j = &p->jobs[r->at];
        if (ws_kept_at(r->k->kept, index_of(p, r->k, j))->bytes && can_be_kept(p, r->k, j))
            return true;
    }
    return false;
}

static int send_round(struct delta_run *r, struct ws_error *err)
{
    const unsigned k = r->sent++;
    int rc = 0;
    r->now = &r->rounds[k % WS_COMPARER_ROUNDS];
    r->now->number = k;
    r->now->n = 0;
    ws_carrier_round(r->plan->run->carrier, k);
    ws_comparer_round(r->k->comparer, k);
    while (rc == 0 && !ws_comparer_full(r->k->comparer) && next_job(r)) {
        struct job *j = &r->plan->jobs[r->at++];
        j->kept = true;
        rc = send_block(r, j, index_of(r->plan, r->k, j), err);
    }
    if (rc == 0)
        rc = ws_carrier_send(r->plan->run->carrier, err);
    return rc == 0 ? ws_comparer_send(r->k->comparer, r->plan->run->carrier, k, err) : rc;
}

/* --- bringing --- */

static unsigned char *place_of(const struct ws_copy_plan *p, const struct job *j)
{
    const struct span *s = &p->spans[j->first];
    return p->run->data[s->file] + s->block * WS_BLOCK_BYTES;
}

/* Will there be a record for it, and records for what the slot lacks before? The begun version's is not there
 * yet, so that of the sets before it is asked. */
static bool can_patch(const struct delta_run *r, const struct entry *e, unsigned number, unsigned block)
{
    return r->chain > 0 && e->compared && ws_comparer_packs(r->k->comparer, number, block) &&
           ws_records_leads(r->d->records, e->index, r->chain);
}

static int bring_round(struct delta_run *r, struct ws_error *err)
{
    struct delta_round *round = &r->rounds[r->brought++ % WS_COMPARER_ROUNDS];
    int rc = ws_comparer_count(r->k->comparer, round->number, err);
    for (unsigned i = 0; rc == 0 && i < round->n; i++) {
        struct entry *e = &round->entries[i];
        e->whole = !can_patch(r, e, round->number, i);
        if (e->whole)
            rc = ws_comparer_whole(r->k->comparer, round->number, i, place_of(r->plan, e->job), err);
        else
            r->d->patched += len_of(r, e->job);
    }
    return rc == 0 ? ws_comparer_bring(r->k->comparer, round->number, err) : rc;
}

/* --- on the CPU --- */

static void note_record(struct delta_run *r, const struct delta_round *round, unsigned i, struct tools *t)
{
    const struct entry *e = &round->entries[i];
    const struct span *s = &r->plan->spans[e->job->first];
    struct ws_delta_record *record = NULL;
    size_t bytes;
    uint32_t changed;
    if (!e->compared || !ws_comparer_packs(r->k->comparer, round->number, i) ||
        ws_comparer_encode(r->k->comparer, round->number, i, t->out, &bytes, &changed, NULL) < 0)
        return;
    if (bytes > 0) {
        record = ws_delta_record_make((uint32_t)s->file, (uint32_t)s->block, WS_DELTA_EDIT, changed, t->out,
                                      (uint32_t)bytes, 0);
        if (!record)
            return;
    }
    ws_records_note(r->d->records, e->index, record, ws_kept_at(r->k->kept, e->index)->hash);
}

static bool patch(struct delta_run *r, const struct entry *e, struct tools *t, uint64_t *hash)
{
    const struct ws_delta_record *chain[WS_MAX_CHAIN];
    return ws_records_chain(r->d->records, e->index, r->chain, chain) &&
           ws_patcher_block(t->patcher, place_of(r->plan, e->job), NULL, len_of(r, e->job), chain, r->chain,
                            hash, NULL) == 0;
}

static void finish_block(void *arg, size_t i, unsigned worker)
{
    struct delta_run *r = arg;
    struct entry *e = &r->now->entries[i];
    const uint64_t hash = ws_comparer_hash(r->k->comparer, r->now->number, (unsigned)i);
    uint64_t has = ~hash;
    struct tools *t = tools_of(r->d->tools, worker);
    if (t) {
        note_record(r, r->now, (unsigned)i, t);
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
    int rc = ws_comparer_again(r->k->comparer, r->now->number, i, at, err);
    if (!e->whole)
        r->d->patched -= len;
    if (rc < 0 || ws_hash(at, len) == e->job->hash)
        return rc;
    return ws_error_set(err, EIO,
                        "block %zu of file %zu has other bytes on the host than on GPU %d, also when it is "
                        "copied whole: its memory or the link is broken",
                        r->plan->spans[e->job->first].block, r->plan->spans[e->job->first].file,
                        ws_kept_device(r->k->kept));
}

static int finish_round(struct delta_run *r, struct ws_workers *workers, struct ws_error *err)
{
    r->now = &r->rounds[r->done++ % WS_COMPARER_ROUNDS];
    int rc = ws_comparer_wait(r->k->comparer, r->now->number, err);
    if (rc < 0)
        return rc;
    ws_workers_run_indexed(workers, finish_block, r, r->now->n);
    for (unsigned i = 0; rc == 0 && i < r->now->n; i++) {
        const struct entry *e = &r->now->entries[i];
        if (e->wrong)
            rc = mend(r, i, err);
        if (rc == 0)
            ws_kept_note(r->k->kept, ws_kept_at(r->k->kept, e->index), e->job->hash);
    }
    r->plan->n_kept += r->now->n;
    ws_copy_plan_tell(r->plan, r->plan->n_kept);
    return rc;
}

/* --- all of it --- */

static int run_device(struct delta_run *r, struct ws_workers *workers, struct ws_error *err)
{
    uint64_t came, whole;
    int rc = 0;
    while (rc == 0 && (next_job(r) || r->done < r->sent)) {
        if (next_job(r) && r->sent - r->done < WS_COMPARER_ROUNDS)
            rc = send_round(r, err);
        else if (r->brought < r->sent && r->brought - r->done < WS_COMPARER_ROUNDS - 1)
            rc = bring_round(r, err);
        else
            rc = finish_round(r, workers, err);
    }
    if (rc < 0) {
        ws_carrier_stop(r->plan->run->carrier);
        ws_comparer_stop(r->k->comparer);
    }
    ws_comparer_figures(r->k->comparer, &came, &whole);
    r->d->came += came;
    r->d->whole += whole;
    return rc;
}

/* What all devices' blocks were made from. */
static const struct ws_mark *base_of(const struct ws_copy_plan_delta *d)
{
    const struct ws_mark *base = ws_kept_base(d->devices[0].kept);
    for (size_t i = 1; i < d->n_devices && !base->run[0]; i++)
        base = ws_kept_base(d->devices[i].kept);
    return base;
}

int ws_copy_plan_run_delta(struct ws_copy_plan *p, struct ws_workers *workers, struct ws_error *err)
{
    struct ws_copy_plan_delta *d = p->run->delta;
    struct delta_run *r = calloc(1, sizeof(*r));
    int rc = r ? make_tools(d, ws_workers_count(workers), err)
               : ws_error_set(err, ENOMEM, "no memory for copies from a GPU");
    d->came = d->whole = d->patched = 0;
    if (rc == 0)
        rc = ws_records_begin(d->records, base_of(d), err);
    for (size_t i = 0; rc == 0 && i < d->n_devices; i++) {
        set_up(p, &d->devices[i]);
        if (!d->devices[i].comparer)
            continue;
        *r = (struct delta_run){
            .plan = p, .d = d, .k = &d->devices[i], .chain = ws_records_from(d->records, &d->slot)};
        rc = run_device(r, workers, err);
    }
    free(r);
    return rc;
}
