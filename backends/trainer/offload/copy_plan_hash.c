/* The way of blocks that are only to be hashed and lie on a GPU: what is one stretch of memory is hashed
 * where it is, the rest is put together on the device first. Nothing but the hashes comes to the host. A
 * device without kernels, or without the memory for it, leaves its blocks to the other ways. */
#include "backends/trainer/offload/copy_plan_state.h"
#include "transports/device/block_hash.h"
#include <stdint.h>

#define BLOCKS  4U  /* of a round: 50 MB of the device's memory in all, for as long as it takes */
#define ALIGNED 16U /* what the kernel wants to find where it is */

struct hash_run {
    struct ws_copy_plan *plan;
    struct ws_comparer *comparer;
    int device;
    size_t at; /* job */
    unsigned sent, done;
    struct {
        struct job *jobs[BLOCKS];
        unsigned n;
    } rounds[WS_COMPARER_ROUNDS];
};

/* One span a block: pieces are files of their own here. */
static const struct span *span_of(const struct ws_copy_plan *p, const struct job *j)
{
    return &p->spans[j->first];
}

static bool is_plain(const struct ws_runs *r)
{
    return r->conversion == WS_KEEP && r->n_loops == 0 && r->run_step == (int64_t)r->element_bytes;
}

static bool is_takable(const struct ws_copy_plan *p, const struct job *j, int device)
{
    const struct span *s = span_of(p, j);
    return !j->kept && j->whole && j->n == 1 && ws_copy_plan_device(p, s) == device &&
           ws_block_hash_takes((uint32_t)s->bytes) &&
           (is_plain(&p->pieces[s->piece].runs) || ws_copy_plan_takes(p, s, WS_GATHER_PACKED));
}

static bool next_job(struct hash_run *r)
{
    while (r->at < r->plan->n_jobs && !is_takable(r->plan, &r->plan->jobs[r->at], r->device))
        r->at++;
    return r->at < r->plan->n_jobs;
}

static int send_block(struct hash_run *r, const struct job *j, struct ws_error *err)
{
    struct ws_copy_plan *p = r->plan;
    const struct span *s = span_of(p, j);
    const struct piece *q = &p->pieces[s->piece];
    const unsigned char *at = ws_copy_plan_source(p, s) + s->from;
    const bool there = is_plain(&q->runs) && (uintptr_t)at % ALIGNED == 0; /* it is only read */
    unsigned char *bytes;
    int rc = ws_comparer_add(r->comparer, there ? (unsigned char *)(uintptr_t)at : NULL, (uint32_t)s->bytes,
                             false, NULL, 0, &bytes, err);
    ws_carrier_use(p->run->carrier, r->device);
    if (rc < 0 || there)
        return rc;
    return ws_carrier_within(p->run->carrier, r->device, &q->runs, ws_copy_plan_source(p, s), s->from,
                             s->bytes, (unsigned char *)((uintptr_t)bytes - s->first), q->source, err);
}

static int send_round(struct hash_run *r, struct ws_error *err)
{
    const unsigned k = r->sent++, slot = k % WS_COMPARER_ROUNDS;
    int rc = 0;
    r->rounds[slot].n = 0;
    ws_carrier_round(r->plan->run->carrier, k);
    ws_comparer_round(r->comparer, k);
    while (rc == 0 && !ws_comparer_full(r->comparer) && next_job(r)) {
        struct job *j = &r->plan->jobs[r->at++];
        r->rounds[slot].jobs[r->rounds[slot].n++] = j;
        rc = send_block(r, j, err);
    }
    if (rc == 0)
        rc = ws_carrier_send(r->plan->run->carrier, err);
    if (rc == 0)
        rc = ws_comparer_send(r->comparer, r->plan->run->carrier, k, err);
    return rc == 0 ? ws_comparer_bring(r->comparer, k, err) : rc;
}

static int finish_round(struct hash_run *r, struct ws_error *err)
{
    const unsigned k = r->done++, slot = k % WS_COMPARER_ROUNDS;
    int rc = ws_comparer_wait(r->comparer, k, err);
    for (unsigned i = 0; rc == 0 && i < r->rounds[slot].n; i++) {
        struct job *j = r->rounds[slot].jobs[i];
        j->hash = ws_comparer_hash(r->comparer, k, i);
        j->hashed = j->kept = true;
    }
    return rc;
}

static int run_device(struct hash_run *r, struct ws_error *err)
{
    int rc = 0;
    while (rc == 0 && (next_job(r) || r->done < r->sent)) {
        if (next_job(r) && r->sent - r->done < WS_COMPARER_ROUNDS)
            rc = send_round(r, err);
        else
            rc = finish_round(r, err);
    }
    if (rc < 0) {
        ws_carrier_stop(r->plan->run->carrier);
        ws_comparer_stop(r->comparer);
    }
    return rc;
}

/* The next higher device that a job's bytes are on; -1: there is none. */
static int device_after(const struct ws_copy_plan *p, int device)
{
    int next = -1;
    for (size_t i = 0; i < p->n_jobs; i++) {
        const int d = ws_copy_plan_device(p, span_of(p, &p->jobs[i]));
        if (d > device && (next < 0 || d < next))
            next = d;
    }
    return next;
}

int ws_copy_plan_run_hashes(struct ws_copy_plan *p, struct ws_error *err)
{
    int rc = 0;
    for (int d = device_after(p, -1); rc == 0 && d >= 0; d = device_after(p, d)) {
        struct hash_run r = {.plan = p, .device = d};
        if (!ws_carrier_gathers(p->run->carrier, d) || ws_comparer_new(&r.comparer, d, BLOCKS, NULL) < 0)
            continue;
        rc = run_device(&r, err);
        ws_comparer_free(r.comparer);
    }
    return rc;
}
