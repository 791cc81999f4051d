/* One round of a broadcast, as all its members see it: which blocks it carries, how they lie in buckets, and
 * what a member has while it takes part: a communicator, two queues, and two buckets in turn, each once in
 * pinned memory and once on the device. Whatever is waited for is given up when nothing moves within the
 * deadline, when the communicator fails, or when told to. One thread. */
#ifndef WS_TRANSPORTS_NCCL_BROADCAST_ROUND_H
#define WS_TRANSPORTS_NCCL_BROADCAST_ROUND_H
#include "transports/device/device.h"
#include "transports/nccl/broadcast_plan.h"
#include "transports/nccl/driver.h"

struct ws_packed_block {
    size_t file, block, at, bytes; /* at: its place in the bucket */
};
#define WS_BUCKET_BLOCKS 256 /* at most, however small they are */
struct ws_bucket {
    struct ws_packed_block blocks[WS_BUCKET_BLOCKS];
    size_t n, bytes;
    unsigned char *pinned, *device;
    struct ws_event *copied, *sent; /* to or from the device; by NCCL */
};

struct ws_round {
    const struct ws_round_plan *plan;
    struct ws_comm *comm;
    struct ws_queue *copies, *wire;
    struct ws_bucket buckets[2];
    size_t run, in_run; /* what the next bucket begins with */
    size_t n_begun;     /* buckets */
    uint64_t begun_ns;  /* when the communicator was there */
    uint64_t bytes;     /* that were carried */
};

/* Becomes a member. On failure there is nothing to end. */
WS_MUST_USE int ws_round_begin(struct ws_round *r, const struct ws_round_plan *plan, struct ws_error *err);
/* The next bucket, with its blocks; NULL: there is none. The one that had its memory must be done with. */
struct ws_bucket *ws_round_next(struct ws_round *r);
/* Queues the bucket's broadcast, after what the wire was told to follow. */
WS_MUST_USE int ws_round_send(struct ws_round *r, struct ws_bucket *b, struct ws_error *err);
/* Waits until the mark is reached. -ETIMEDOUT, -ECONNABORTED, -ECANCELED, -EIO. */
WS_MUST_USE int ws_round_wait(struct ws_round *r, struct ws_event *m, struct ws_error *err);
/* rc 0: ends it together with the others; else gives it up. Returns rc, or why the end failed; the blocks
 * that arrived are good all the same. */
int ws_round_end(struct ws_round *r, int rc, struct ws_error *err);

#endif
