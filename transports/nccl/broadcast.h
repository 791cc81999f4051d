/* Broadcast: one version to many mounts at once by NCCL. The sender is the agent, which has the version in its
 * slot whatever becomes of the trainer. It is rank 0 of a communicator with the mounts that requested a place
 * within a short time. Blocks travel in packed buckets, double buffered on the devices, and each mount hashes
 * what it gets.
 *
 * If a member dies or is slow, all members give up the round within its deadline. Mounts that still want blocks
 * request a place again and make up the next round, with a new communicator. The one that was lost goes on by
 * tcp. */
#ifndef WS_TRANSPORTS_NCCL_BROADCAST_H
#define WS_TRANSPORTS_NCCL_BROADCAST_H
#include "transports/device/device.h"
#include "transports/protocol/source.h"

struct ws_broadcast_fetch {
    const struct ws_manifest *manifest;
    unsigned char *const *data; /* the files' memory, in the manifest's order */
    /* Is that block still missing? Called before each round. */
    bool (*wants)(void *arg, size_t file, size_t block);
    /* As ws_fetch's: each block that is whole in its place, with the hash of what was stored. */
    int (*block)(void *arg, size_t file, size_t block, uint64_t hash);
    void *arg;
    const atomic_bool *cancel; /* may be NULL */
    int device;                /* this rank's */
    unsigned timeout_ms;       /* of a round without progress; 0: the limits' default */
    char how[160];             /* out: "broadcast to 4 at 38.2 GB/s in 2 rounds" */
};

/* May NCCL be used here? 0, or why not: this build, no libnccl.so.2, one of another major release, no device.
 */
WS_MUST_USE int ws_broadcast_available(struct ws_error *why);
/* Is there such a device, and does it work? Its uuid in *uuid. -ENODEV; -EIO: it is lost. */
WS_MUST_USE int ws_broadcast_device(int device, char uuid[WS_DEVICE_UUID_BYTES], struct ws_error *err);
/* Takes part in rounds until no block is wanted. 0: all were reported. -ENOTSUP: this source broadcasts nothing,
 * and why; -ESTALE: the version is gone; -ECANCELED. -ECONNABORTED, -ETIMEDOUT, -EHOSTUNREACH, -EIO: some blocks
 * may have been reported; the caller fetches the rest by another strategy. */
WS_MUST_USE int ws_broadcast_fetch(struct ws_source *s, struct ws_broadcast_fetch *f, struct ws_error *err);

#endif
