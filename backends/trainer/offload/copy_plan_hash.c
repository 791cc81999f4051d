/* Hashes blocks on the GPU that they lie on, in runs that only hash. A contiguous block is hashed in place;
 * others are put together on the device first. Only hashes are copied to the host. A device without kernels,
 * or without the memory, leaves its blocks to the other ways. */
#include "backends/trainer/offload/copy_plan_state.h"
#include "transports/device/block_hash.h"
#include <stdint.h>

#define BLOCKS  4U  /* of a round: 50 MB of the device's memory in all, for as long as it takes */
#define ALIGNED 16U /* what the kernel needs to hash in place */

struct hash_run {
    struct ws_copy_plan *plan;
    struct ws_compare *compare;
    int device;
    size_t at; /* job */
    unsigned sent, done;
    struct {
        struct ws_copy_job *jobs[BLOCKS];
        unsigned n;
    } rounds[WS_COMPARE_ROUNDS];
};

/* One span a block: pieces are files of their own here. */
static const struct ws_copy_span *span_of(const struct ws_copy_plan *p, const struct ws_copy_job *j)
{
    return &p->spans.ptr[j->first];
}

static bool is_plain(const struct ws_box_extents *r)
{
    return r->conversion == WS_SAME_TYPE && r->n_loops == 0 && r->extent_step == (int64_t)r->element_bytes;
}

static bool is_takable(const struct ws_copy_plan *p, const struct ws_copy_job *j, int device)
{
    const struct ws_copy_span *s = span_of(p, j);
    return !j->done && j->whole && j->n == 1 && ws_copy_plan_device(p, s) == device &&
           ws_block_hash_supports((uint32_t)s->bytes) &&
           (is_plain(&p->pieces.ptr[s->piece].runs) || ws_copy_plan_can_gather(p, s, WS_GATHER_PACKED));
}

static bool next_job(struct hash_run *r)
{
    while (r->at < r->plan->jobs.len && !is_takable(r->plan, &r->plan->jobs.ptr[r->at], r->device))
        r->at++;
    return r->at < r->plan->jobs.len;
}

static int send_block(struct hash_run *r, const struct ws_copy_job *j, struct ws_error *err)
{
    struct ws_copy_plan *p = r->plan;
    const struct ws_copy_span *s = span_of(p, j);
    const struct ws_copy_piece *q = &p->pieces.ptr[s->piece];
    const unsigned char *at = ws_copy_plan_source(p, s) + s->from;
    const bool there = is_plain(&q->runs) && (uintptr_t)at % ALIGNED == 0; /* it is only read */
    unsigned char *bytes;
    int rc = ws_compare_add(r->compare, there ? (unsigned char *)(uintptr_t)at : NULL, (uint32_t)s->bytes,
                            false, NULL, 0, &bytes, err);
    ws_d2h_use_device(p->run->d2h, r->device);
    if (rc < 0 || there)
        return rc;
    return ws_d2h_copy_on_device(p->run->d2h, r->device, &q->runs, ws_copy_plan_source(p, s), s->from,
                                 s->bytes, (unsigned char *)((uintptr_t)bytes - s->first), q->source, err);
}

static int send_round(struct hash_run *r, struct ws_error *err)
{
    const unsigned k = r->sent++, slot = k % WS_COMPARE_ROUNDS;
    int rc = 0;
    r->rounds[slot].n = 0;
    ws_d2h_begin_round(r->plan->run->d2h, k);
    ws_compare_begin_round(r->compare, k);
    while (rc == 0 && !ws_compare_is_full(r->compare) && next_job(r)) {
        struct ws_copy_job *j = &r->plan->jobs.ptr[r->at++];
        r->rounds[slot].jobs[r->rounds[slot].n++] = j;
        rc = send_block(r, j, err);
    }
    if (rc == 0)
        rc = ws_d2h_send(r->plan->run->d2h, err);
    if (rc == 0)
        rc = ws_compare_send(r->compare, r->plan->run->d2h, k, err);
    return rc == 0 ? ws_compare_copy_changes(r->compare, k, err) : rc;
}

static int finish_round(struct hash_run *r, struct ws_error *err)
{
    const unsigned k = r->done++, slot = k % WS_COMPARE_ROUNDS;
    int rc = ws_compare_wait(r->compare, k, err);
    for (unsigned i = 0; rc == 0 && i < r->rounds[slot].n; i++) {
        struct ws_copy_job *j = r->rounds[slot].jobs[i];
        j->hash = ws_compare_hash(r->compare, k, i);
        j->hashed = j->done = true;
    }
    return rc;
}

static int run_device(struct hash_run *r, struct ws_error *err)
{
    int rc = 0;
    while (rc == 0 && (next_job(r) || r->done < r->sent)) {
        if (next_job(r) && r->sent - r->done < WS_COMPARE_ROUNDS)
            rc = send_round(r, err);
        else
            rc = finish_round(r, err);
    }
    if (rc < 0) {
        ws_d2h_stop(r->plan->run->d2h);
        ws_compare_stop(r->compare);
    }
    return rc;
}

/* The next higher device that a job's bytes are on; -1: there is none. */
static int device_after(const struct ws_copy_plan *p, int device)
{
    int next = -1;
    for (size_t i = 0; i < p->jobs.len; i++) {
        const int d = ws_copy_plan_device(p, span_of(p, &p->jobs.ptr[i]));
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
        if (!ws_d2h_has_kernels(p->run->d2h, d) || ws_compare_new(&r.compare, d, BLOCKS, NULL) < 0)
            continue;
        rc = run_device(&r, err);
        ws_compare_free(r.compare);
    }
    return rc;
}
