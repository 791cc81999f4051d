/* A version's memory on GPUs, opened here, inside: map.c (the public calls), map_open.c (how it is
 * opened: its agent, segments, marks). One map by one thread at a time. */
#ifndef WS_TRAINER_GPU_MAP_H
#define WS_TRAINER_GPU_MAP_H
#include "backends/trainer/gpu/listing.h"
#include "transports/base/name.h"

struct ws_mapped_segment {
    int device; /* -1: not opened */
    void *base;
};

struct ws_mapped_rank {
    unsigned rank;
    struct ws_gpu_listing *listing;
    struct ws_mapped_segment *segments;
    char pid_namespace[64], ipc_namespace[64];
    int hold; /* a lock of the rank's: it is held while this is open */
};

struct ws_mapped_piece { /* in the order of wsync_gpu_map_tensor */
    const struct ws_mapped_rank *rank;
    const struct ws_gpu_piece *piece;
};

struct wsync_gpu_map {
    const struct ws_device_ops *ops;
    pid_t pid; /* that opened it */
    int sock;  /* the lease ends with it */
    bool lost; /* no more is asked by it: an answer is missing */
    uint64_t lease, version;
    char model[WS_MAX_NAME + 1], run[WS_RUN_CHARS + 1];
    struct ws_mapped_rank *ranks;
    size_t n_ranks;
    struct ws_mapped_piece *pieces;
    wsync_gpu_tensor *tensors;
    size_t n;
    struct ws_queue **queues; /* by device; NULL: not needed yet */
};

/* Leases the version and opens all of it, whole and not of two versions. On failure what is there is closed
 * by ws_map_close. */
WS_MUST_USE int ws_map_open(struct wsync_gpu_map *m, const char *agent, const char *model, uint64_t version,
                            struct ws_error *err);
void ws_map_close(struct wsync_gpu_map *m);
/* -EPERM: it is of the process that this one is a fork of. */
WS_MUST_USE int ws_map_check(const struct wsync_gpu_map *m, struct ws_error *err);
WS_MUST_USE int ws_map_queue(struct wsync_gpu_map *m, int device, struct ws_queue **out,
                             struct ws_error *err);

#endif
