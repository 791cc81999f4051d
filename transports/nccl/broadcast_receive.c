/* A receiver of a broadcast: each bucket comes to the device, goes on into pinned memory, and from there its
 * blocks into their places, hashed on the way. While one is stored the next one comes. */
#include "transports/base/clock.h"
#include "transports/nccl/broadcast_round.h"
#include "transports/simd/copy.h"
#include <errno.h>

static const struct ws_device_ops *const dev = &ws_cuda_device;

struct storing {
    const struct ws_bucket *bucket;
    const struct ws_round_sink *sink;
    bool wanted[WS_BUCKET_BLOCKS];
    uint64_t hashes[WS_BUCKET_BLOCKS];
};

static void store_one(void *arg, size_t i)
{
    struct storing *s = arg;
    const struct ws_packed_block *k = &s->bucket->blocks[i];
    if (s->wanted[i])
        s->hashes[i] = ws_copy_hash(s->sink->data[k->file] + k->block * WS_BLOCK_BYTES,
                                    s->bucket->pinned + k->at, k->bytes);
}

static int store(const struct ws_bucket *b, const struct ws_round_sink *sink, struct ws_workers *workers,
                 uint64_t *bytes, struct ws_error *err)
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

static int receive_bucket(struct ws_round *r, struct ws_bucket *b, struct ws_error *err)
{
    int rc = ws_round_send(r, b, err);
    if (rc == 0)
        rc = dev->follow_event(r->copies, b->sent, err);
    if (rc == 0)
        rc = dev->copy(r->copies, b->pinned, b->device, b->bytes, err);
    return rc == 0 ? dev->record(r->copies, b->copied, err) : rc;
}

int ws_round_receive_all(const struct ws_round_plan *plan, const struct ws_round_sink *sink,
                         struct ws_workers *workers, uint64_t *bytes, uint64_t *ns, struct ws_error *err)
{
    struct ws_round r;
    *bytes = *ns = 0;
    int rc = ws_round_begin(&r, plan, err);
    if (rc < 0)
        return rc;
    struct ws_bucket *b = ws_round_next(&r);
    rc = receive_bucket(&r, b, err);
    while (rc == 0 && b) {
        struct ws_bucket *next = ws_round_next(&r);
        if (next)
            rc = receive_bucket(&r, next, err);
        if (rc == 0)
            rc = ws_round_wait(&r, b->copied, err);
        if (rc == 0)
            rc = store(b, sink, workers, bytes, err);
        b = next;
    }
    *ns = ws_clock_ns() - r.begun_ns;
    return ws_round_end(&r, rc, err);
}
