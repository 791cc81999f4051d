/* Broadcast plan: which blocks one round of a broadcast carries and which members it has; and the sender's and a
 * receiver's work in it, from the first to the last byte. Each member runs its own on one thread. Nothing waits
 * longer than the plan's stall_ms without progress. */
#ifndef WS_TRANSPORTS_NCCL_BROADCAST_PLAN_H
#define WS_TRANSPORTS_NCCL_BROADCAST_PLAN_H
#include "transports/base/workers.h"
#include "transports/nccl/block_runs.h"
#include "transports/nccl/driver.h"
#include <stdatomic.h>

struct ws_broadcast_plan {
    const struct ws_manifest *manifest;
    const struct ws_block_run *runs;
    size_t n_runs;
    unsigned char id[WS_NCCL_ID_BYTES];
    unsigned rank, n_ranks;
    size_t bucket_bytes; /* WS_BLOCK_BYTES to WS_MAX_BUCKET_BYTES */
    unsigned stall_ms;
    int device;
    const atomic_bool *stop, *cancel; /* either ends it, -ECANCELED; may be NULL */
};

/* broadcast_send.c: all that rank 0 does. data: the files' memory, in the manifest's order. *bytes and *ns: what
 * was carried, and in which time. */
WS_MUST_USE int ws_broadcast_send(const struct ws_broadcast_plan *plan, const unsigned char *const *data,
                                  struct ws_workers *workers, uint64_t *bytes, uint64_t *ns,
                                  struct ws_error *err);
/* broadcast_receive.c: all that another rank does. The sink is as ws_broadcast_fetch's data, wants and block. */
struct ws_broadcast_sink {
    unsigned char *const *data;
    bool (*wants)(void *arg, size_t file, size_t block);
    int (*block)(void *arg, size_t file, size_t block, uint64_t hash);
    void *arg;
};
WS_MUST_USE int ws_broadcast_receive(const struct ws_broadcast_plan *plan,
                                     const struct ws_broadcast_sink *sink, struct ws_workers *workers,
                                     uint64_t *bytes, uint64_t *ns, struct ws_error *err);

#endif
