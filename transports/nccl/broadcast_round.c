#include "transports/nccl/broadcast_round.h"
#include "transports/base/clock.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#define PLACE_BYTES 256UL    /* blocks of a bucket begin at multiples of it */
#define SPIN_NS     2000000L /* looks often for so long, then seldom */
#define OFTEN_NS    50000L
#define SELDOM_NS   1000000L

static const struct ws_device_ops *const dev = &ws_cuda_device;

/* --- waiting --- */

static int check_stop(const struct ws_broadcast_plan *p, struct ws_error *err)
{
    if ((p->stop && atomic_load(p->stop)) || (p->cancel && atomic_load(p->cancel)))
        return ws_error_set(err, ECANCELED, "the broadcast was stopped");
    return 0;
}

/* Until nothing of the communicator is under way and the event (NULL: none) is reached. */
static int wait_for(struct ws_broadcast_round *r, struct ws_device_event *m, const char *what,
                    struct ws_error *err)
{
    const struct ws_broadcast_plan *p = r->plan;
    uint64_t began = ws_clock_ns();
    for (;;) {
        int rc = ws_nccl_comm_poll(r->comm, err);
        if (rc == 0 && m)
            rc = dev->event_done(m, err);
        if (rc != -EAGAIN)
            return rc;
        rc = check_stop(p, err);
        if (rc < 0)
            return rc;
        uint64_t waited = ws_clock_ns() - began;
        if (waited > (uint64_t)p->stall_ms * WS_MS_NS)
            return ws_error_set(err, ETIMEDOUT,
                                "%s: nothing moved for %u ms: one of the %u members is slow or dead", what,
                                p->stall_ms, p->n_ranks);
        nanosleep(&(struct timespec){.tv_nsec = waited < SPIN_NS ? OFTEN_NS : SELDOM_NS}, NULL);
    }
}

int ws_broadcast_round_wait(struct ws_broadcast_round *r, struct ws_device_event *m, struct ws_error *err)
{
    int rc = check_stop(r->plan, err);
    return rc == 0 ? wait_for(r, m, "broadcasting", err) : rc;
}

/* --- begin and end --- */

static int make_bucket(struct ws_broadcast_bucket *b, const struct ws_broadcast_plan *p, struct ws_error *err)
{
    void *pinned = NULL, *device = NULL;
    int rc = dev->alloc_pinned(p->device, p->bucket_bytes, &pinned, err);
    if (rc == 0)
        rc = dev->alloc(p->device, p->bucket_bytes, &device, err);
    if (rc == 0)
        rc = dev->event_new(p->device, false, &b->copied, err);
    if (rc == 0)
        rc = dev->event_new(p->device, false, &b->sent, err);
    b->pinned = pinned;
    b->device = device;
    return rc;
}

static void release(struct ws_broadcast_round *r)
{
    int device = r->plan->device;
    ws_nccl_comm_free(r->comm); /* first: what is queued may wait for it */
    if (r->wire)
        dev->queue_free(r->wire);
    if (r->copies)
        dev->queue_free(r->copies);
    for (size_t i = 0; i < 2; i++) {
        struct ws_broadcast_bucket *b = &r->buckets[i];
        if (b->copied)
            dev->event_free(b->copied);
        if (b->sent)
            dev->event_free(b->sent);
        if (b->device)
            dev->release(device, b->device);
        if (b->pinned)
            dev->release_pinned(device, b->pinned);
    }
}

int ws_broadcast_round_begin(struct ws_broadcast_round *r, const struct ws_broadcast_plan *plan,
                             struct ws_error *err)
{
    assert(plan->rank < plan->n_ranks && plan->n_runs > 0);
    assert(plan->bucket_bytes >= WS_BLOCK_BYTES && plan->bucket_bytes <= WS_MAX_BUCKET_BYTES);
    *r = (struct ws_broadcast_round){.plan = plan};
    int rc = dev->available(err);
    if (rc == 0)
        rc = dev->queue_new(plan->device, &r->copies, err);
    if (rc == 0)
        rc = dev->queue_new(plan->device, &r->wire, err);
    for (size_t i = 0; rc == 0 && i < 2; i++)
        rc = make_bucket(&r->buckets[i], plan, err);
    if (rc == 0)
        rc = ws_nccl_comm_new(&r->comm, plan->id, plan->device, plan->rank, plan->n_ranks, err);
    if (rc == 0)
        rc = wait_for(r, NULL, "joining a broadcast", err);
    if (rc < 0)
        release(r);
    r->begun_ns = ws_clock_ns();
    return rc;
}

int ws_broadcast_round_end(struct ws_broadcast_round *r, int rc, struct ws_error *err)
{
    if (rc == 0)
        rc = ws_nccl_comm_finalize(r->comm, err);
    if (rc == 0)
        rc = wait_for(r, NULL, "ending a broadcast", err);
    release(r);
    return rc;
}

/* --- buckets --- */

struct ws_broadcast_bucket *ws_broadcast_round_next(struct ws_broadcast_round *r)
{
    const struct ws_broadcast_plan *p = r->plan;
    struct ws_broadcast_bucket *b = &r->buckets[r->n_begun % 2];
    b->n = b->bytes = 0;
    while (r->run < p->n_runs && b->n < WS_BROADCAST_BUCKET_BLOCKS) {
        const struct ws_block_run *run = &p->runs[r->run];
        size_t block = run->first + r->in_run;
        size_t bytes = ws_manifest_block_bytes(&p->manifest->files[run->file], block);
        size_t at = (b->bytes + PLACE_BYTES - 1) / PLACE_BYTES * PLACE_BYTES;
        if (at + bytes > p->bucket_bytes)
            break;
        b->blocks[b->n++] =
            (struct ws_broadcast_packed_block){.file = run->file, .block = block, .at = at, .bytes = bytes};
        b->bytes = at + bytes;
        if (++r->in_run == run->n) {
            r->in_run = 0;
            r->run++;
        }
    }
    if (b->n == 0)
        return NULL;
    r->n_begun++;
    return b;
}

int ws_broadcast_round_send(struct ws_broadcast_round *r, struct ws_broadcast_bucket *b, struct ws_error *err)
{
    int rc = ws_nccl_comm_broadcast(r->comm, r->wire, b->device, b->bytes, err);
    if (rc == 0)
        rc = wait_for(r, NULL, "beginning to broadcast", err);
    if (rc == 0)
        rc = dev->record(r->wire, b->sent, err);
    r->bytes += b->bytes;
    return rc;
}
