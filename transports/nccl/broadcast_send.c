/* The sender of a broadcast: packs blocks into pinned buckets, copies them to the device and broadcasts them.
 * While one bucket is on its way the next one is packed. */
#include "transports/base/clock.h"
#include "transports/nccl/broadcast_round.h"
#include "transports/simd/copy.h"

static const struct ws_device_ops *const dev = &ws_cuda_device;

struct packing {
    const struct ws_broadcast_bucket *bucket;
    const unsigned char *const *data;
};

static void pack_one(void *arg, size_t i)
{
    const struct packing *p = arg;
    const struct ws_broadcast_packed_block *k = &p->bucket->blocks[i];
    ws_copy(p->bucket->pinned + k->at, p->data[k->file] + k->block * WS_BLOCK_BYTES, k->bytes);
}

static int send_bucket(struct ws_broadcast_round *r, struct ws_broadcast_bucket *b,
                       const unsigned char *const *data, struct ws_workers *workers, struct ws_error *err)
{
    struct packing p = {b, data};
    ws_workers_run(workers, pack_one, &p, b->n);
    int rc = dev->copy(r->copies, b->device, b->pinned, b->bytes, err);
    if (rc == 0)
        rc = dev->record(r->copies, b->copied, err);
    if (rc == 0)
        rc = dev->follow_event(r->wire, b->copied, err);
    return rc == 0 ? ws_broadcast_round_send(r, b, err) : rc;
}

int ws_broadcast_send(const struct ws_broadcast_plan *plan, const unsigned char *const *data,
                      struct ws_workers *workers, uint64_t *bytes, uint64_t *ns, struct ws_error *err)
{
    struct ws_broadcast_round r;
    *bytes = *ns = 0;
    int rc = ws_broadcast_round_begin(&r, plan, err);
    if (rc < 0)
        return rc;
    for (;;) {
        struct ws_broadcast_bucket *old = &r.buckets[r.n_begun % 2];
        if (r.n_begun >= 2)
            rc = ws_broadcast_round_wait(&r, old->sent, err);
        struct ws_broadcast_bucket *b = rc == 0 ? ws_broadcast_round_next(&r) : NULL;
        if (!b)
            break;
        rc = send_bucket(&r, b, data, workers, err);
        if (rc < 0)
            break;
    }
    /* The one before the last was waited for above. */
    if (rc == 0)
        rc = ws_broadcast_round_wait(&r, r.buckets[(r.n_begun - 1) % 2].sent, err);
    *bytes = r.bytes;
    *ns = ws_clock_ns() - r.begun_ns;
    return ws_broadcast_round_end(&r, rc, err);
}
