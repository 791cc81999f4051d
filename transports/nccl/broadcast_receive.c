/* A receiver of a broadcast: each bucket arrives on the device and is copied into pinned memory, and from there
 * its blocks to their places, hashed in the same pass. While one is stored, the next one arrives. */
#include "transports/base/clock.h"
#include "transports/nccl/broadcast_round.h"
#include "transports/simd/copy.h"
#include <errno.h>

static const struct ws_device_ops *const dev = &ws_cuda_device;

struct storing {
    const struct ws_broadcast_bucket *bucket;
    const struct ws_broadcast_sink *sink;
    bool wanted[WS_BROADCAST_BUCKET_BLOCKS];
    uint64_t hashes[WS_BROADCAST_BUCKET_BLOCKS];
};

static void store_one(void *arg, size_t i)
{
    struct storing *s = arg;
    const struct ws_broadcast_packed_block *k = &s->bucket->blocks[i];
    if (s->wanted[i])
        s->hashes[i] = ws_copy_hash(s->sink->data[k->file] + k->block * WS_BLOCK_BYTES,
                                    s->bucket->pinned + k->at, k->bytes);
}

static int store(const struct ws_broadcast_bucket *b, const struct ws_broadcast_sink *sink,
                 struct ws_workers *workers, uint64_t *bytes, struct ws_error *err)
{
    struct storing s = {.bucket = b, .sink = sink};
    for (size_t i = 0; i < b->n; i++)
        s.wanted[i] = sink->wants(sink->arg, b->blocks[i].file, b->blocks[i].block);
    ws_workers_run(workers, store_one, &s, b->n);
    for (size_t i = 0; i < b->n; i++) {
        if (!s.wanted[i])
            continue;
        if (sink->block(sink->arg, b->blocks[i].file, b->blocks[i].block, s.hashes[i]))
            return ws_error_set(err, ECANCELED, "the transfer was stopped");
        *bytes += b->blocks[i].bytes;
    }
    return 0;
}

static int receive_bucket(struct ws_broadcast_round *r, struct ws_broadcast_bucket *b, struct ws_error *err)
{
    int rc = ws_broadcast_round_send(r, b, err);
    if (rc == 0)
        rc = dev->follow_event(r->copies, b->sent, err);
    if (rc == 0)
        rc = dev->copy(r->copies, b->pinned, b->device, b->bytes, err);
    return rc == 0 ? dev->record(r->copies, b->copied, err) : rc;
}

int ws_broadcast_receive(const struct ws_broadcast_plan *plan, const struct ws_broadcast_sink *sink,
                         struct ws_workers *workers, uint64_t *bytes, uint64_t *ns, struct ws_error *err)
{
    struct ws_broadcast_round r;
    *bytes = *ns = 0;
    int rc = ws_broadcast_round_begin(&r, plan, err);
    if (rc < 0)
        return rc;
    struct ws_broadcast_bucket *b = ws_broadcast_round_next(&r);
    rc = receive_bucket(&r, b, err);
    while (rc == 0 && b) {
        struct ws_broadcast_bucket *next = ws_broadcast_round_next(&r);
        if (next)
            rc = receive_bucket(&r, next, err);
        if (rc == 0)
            rc = ws_broadcast_round_wait(&r, b->copied, err);
        if (rc == 0)
            rc = store(b, sink, workers, bytes, err);
        b = next;
    }
    *ns = ws_clock_ns() - r.begun_ns;
    return ws_broadcast_round_end(&r, rc, err);
}
