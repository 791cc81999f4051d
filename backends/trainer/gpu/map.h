/* GPU map: a version's memory on GPUs, opened in this process. Inside, shared by map (the public calls),
 * map_open (how it is opened: the agent, segments, events). One map by one thread at a time. */
#ifndef WS_TRAINER_GPU_MAP_H
#define WS_TRAINER_GPU_MAP_H
#include "backends/trainer/gpu/listing.h"
#include "transports/base/name.h"

struct ws_gpu_map_segment {
    int device; /* -1: not opened */
    void *base;
};

struct ws_gpu_map_rank {
    unsigned rank;
    struct ws_gpu_listing *listing;
    struct ws_gpu_map_segment *segments;
    char pid_namespace[64], ipc_namespace[64];
    int lock_fd; /* a lock of the rank's, held while this is open */
};

struct ws_gpu_map_piece { /* in the order of wsync_gpu_map_tensor */
    const struct ws_gpu_map_rank *rank;
    const struct ws_gpu_piece *piece;
};

struct wsync_gpu_map {
    const struct ws_device_ops *ops;
    pid_t pid; /* the process that opened it */
    int sock;  /* the lease ends when it is closed */
    bool lost; /* an answer is missing: the connection is not used any more */
    uint64_t lease, version;
    char model[WS_MAX_NAME + 1], lineage[WS_LINEAGE_CHARS + 1];
    struct ws_gpu_map_rank *ranks;
    size_t n_ranks;
    struct ws_gpu_map_piece *pieces;
    wsync_gpu_tensor *tensors;
    size_t n;
    struct ws_device_queue **queues; /* by device; NULL: not needed yet */
};

/* Leases the version and opens all of its memory. What is opened belongs to one version. On failure the
 * caller calls ws_gpu_map_close, too. */
WS_MUST_USE int ws_gpu_map_open(struct wsync_gpu_map *m, const char *agent, const char *model,
                                uint64_t version, struct ws_error *err);
void ws_gpu_map_close(struct wsync_gpu_map *m);
/* -EPERM: the process was forked from the one that opened the map. */
WS_MUST_USE int ws_gpu_map_check_process(const struct wsync_gpu_map *m, struct ws_error *err);
WS_MUST_USE int ws_gpu_map_queue(struct wsync_gpu_map *m, int device, struct ws_device_queue **out,
                                 struct ws_error *err);

#endif
