/* The kernels as functions of the CPU: for tests, and for what stands in for a driver there. They run on the
 * calling thread. */
#ifndef WS_TRANSPORTS_DEVICE_KERNELS_CPU_H
#define WS_TRANSPORTS_DEVICE_KERNELS_CPU_H
#include "transports/device/kernels/diff.h"
#include "transports/device/kernels/gather.h"
#include "transports/device/kernels/hash.h"

struct ws_cpu_kernel {
    const char *name;
    void (*run)(void **args, unsigned blocks, unsigned threads);
    size_t args_bytes; /* of the one argument, a structure that is passed by value */
};

#define WS_CPU_KERNEL(kind, type)                                                                            \
    static inline void ws_cpu_##kind(void **args, unsigned blocks, unsigned threads)                         \
    {                                                                                                        \
        for (uint32_t i = 0; i < blocks * threads; i++)                                                      \
            ws_##kind##_body((const type *)args[0], (struct ws_warp){i, blocks * threads, 0});               \
    }
WS_CPU_KERNEL(gather, struct ws_gather_args)
WS_CPU_KERNEL(diff_count, struct ws_diff_args)
WS_CPU_KERNEL(diff_pack, struct ws_diff_args)
WS_CPU_KERNEL(hash_sum, struct ws_hash_args)
WS_CPU_KERNEL(hash_fold, struct ws_hash_args)

static const struct ws_cpu_kernel ws_cpu_kernels[] = {
    {"ws_kernel_gather", ws_cpu_gather, sizeof(struct ws_gather_args)},
    {"ws_kernel_diff_count", ws_cpu_diff_count, sizeof(struct ws_diff_args)},
    {"ws_kernel_diff_pack", ws_cpu_diff_pack, sizeof(struct ws_diff_args)},
    {"ws_kernel_hash_sum", ws_cpu_hash_sum, sizeof(struct ws_hash_args)},
    {"ws_kernel_hash_fold", ws_cpu_hash_fold, sizeof(struct ws_hash_args)},
};

#endif
