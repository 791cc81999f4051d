/* Broadcast round: one round as each of its members sees it: which blocks it carries, how they lie in buckets,
 * and what a member has while it takes part: a communicator, two queues, and two buckets in turn, each once in
 * pinned memory and once on the device. A wait ends when nothing moves within the deadline, when the
 * communicator fails, or when the plan's stop or cancel is set. One thread uses a round. */
#ifndef WS_TRANSPORTS_NCCL_BROADCAST_ROUND_H
#define WS_TRANSPORTS_NCCL_BROADCAST_ROUND_H
#include "transports/device/device.h"
#include "transports/nccl/broadcast_plan.h"

struct ws_broadcast_packed_block {
    size_t file, block, at, bytes; /* at: its place in the bucket */
};
#define WS_BROADCAST_BUCKET_BLOCKS 256 /* at most, however small they are */
struct ws_broadcast_bucket {
    struct ws_broadcast_packed_block blocks[WS_BROADCAST_BUCKET_BLOCKS];
    size_t n, bytes;
    unsigned char *pinned, *device;
    struct ws_device_event *copied, *sent; /* to or from the device; by NCCL */
};

struct ws_broadcast_round {
    const struct ws_broadcast_plan *plan;
    struct ws_nccl_comm *comm;
    struct ws_device_queue *copies, *wire;
    struct ws_broadcast_bucket buckets[2];
    size_t run, in_run; /* what the next bucket begins with */
    size_t n_begun;     /* buckets */
    uint64_t begun_ns;  /* when the communicator was there */
    uint64_t bytes;     /* that were carried */
};

/* Becomes a member. On failure there is nothing to end. */
WS_MUST_USE int ws_broadcast_round_begin(struct ws_broadcast_round *r, const struct ws_broadcast_plan *plan,
                                         struct ws_error *err);
/* The next bucket, with its blocks; NULL: there is none. The bucket before the last, whose memory it uses, must be
 * done. */
struct ws_broadcast_bucket *ws_broadcast_round_next(struct ws_broadcast_round *r);
/* Queues the bucket's broadcast on `wire`, behind what that follows. */
WS_MUST_USE int ws_broadcast_round_send(struct ws_broadcast_round *r, struct ws_broadcast_bucket *b,
                                        struct ws_error *err);
/* Waits for the event. -ETIMEDOUT, -ECONNABORTED, -ECANCELED, -EIO. */
WS_MUST_USE int ws_broadcast_round_wait(struct ws_broadcast_round *r, struct ws_device_event *m,
                                        struct ws_error *err);
/* rc 0: ends the round together with the other members; else aborts it. Returns rc, or why the end failed; blocks
 * that arrived are good nevertheless. */
int ws_broadcast_round_end(struct ws_broadcast_round *r, int rc, struct ws_error *err);

#endif
