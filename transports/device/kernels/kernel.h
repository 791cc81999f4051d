/* Kernel: what lets one body be compiled by nvcc for the device and by gcc for the host.
 *
 * The unit that works is the warp: 32 threads on a GPU, one on the CPU. Bodies use their warp's number, the
 * number of warps, their lane, and what a warp does together. They need nothing of other warps, so that a CPU
 * can run one thread after the other. All threads of a warp call each function that begins with ws_warp_. The
 * blocks of a launch have whole warps. */
#ifndef WS_TRANSPORTS_DEVICE_KERNELS_KERNEL_H
#define WS_TRANSPORTS_DEVICE_KERNELS_KERNEL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_warp {
    uint32_t at, n; /* which, of how many */
    uint32_t lane;
};

#ifdef __CUDACC__
#define WS_WARP        32U
#define WS_DEVICE      static __device__ __forceinline__
#define WS_DEVICE_CALL static __device__ __noinline__ /* large, and called in several places */
#define WS_UNROLL      _Pragma("unroll")
#define WS_NO_UNROLL   _Pragma("unroll 1")
#define WS_ALL         0xffffffffU /* lanes */

WS_DEVICE uint32_t ws_warp_count(bool yes, uint32_t *before, uint32_t lane)
{
    const uint32_t which = __ballot_sync(WS_ALL, yes);
    *before = (uint32_t)__popc(which & ((1U << lane) - 1));
    return (uint32_t)__popc(which);
}

WS_DEVICE bool ws_warp_any(bool yes)
{
    return __any_sync(WS_ALL, yes) != 0;
}

/* The sum over the lanes; *before: over those before this one. */
WS_DEVICE uint32_t ws_warp_scan(uint32_t v, uint32_t *before, uint32_t lane)
{
    uint32_t sum = v;
    WS_UNROLL
    for (uint32_t step = 1; step < WS_WARP; step *= 2) {
        const uint32_t other = __shfl_up_sync(WS_ALL, sum, step);
        sum += lane >= step ? other : 0;
    }
    *before = sum - v;
    return __shfl_sync(WS_ALL, sum, WS_WARP - 1);
}

WS_DEVICE uint32_t ws_warp_sum(uint32_t v)
{
    WS_UNROLL
    for (uint32_t step = WS_WARP / 2; step > 0; step /= 2)
        v += __shfl_xor_sync(WS_ALL, v, step);
    return v;
}

WS_DEVICE uint32_t ws_bits(uint32_t v)
{
    return (uint32_t)__popc(v);
}

WS_DEVICE uint32_t ws_lowest_bit(uint32_t v)
{
    return (uint32_t)__ffs((int)v) - 1;
}

WS_DEVICE void ws_add_u32(uint32_t *p, uint32_t v)
{
    atomicAdd(p, v);
}

WS_DEVICE void ws_add_u64(uint64_t *p, uint64_t v)
{
    atomicAdd((unsigned long long *)p, (unsigned long long)v);
}
#else
#define WS_WARP        1U
#define WS_DEVICE      static inline __attribute__((always_inline))
#define WS_DEVICE_CALL static __attribute__((noinline))
#define WS_UNROLL      _Pragma("GCC unroll 16")
#define WS_NO_UNROLL

WS_DEVICE uint32_t ws_warp_count(bool yes, uint32_t *before, uint32_t lane)
{
    (void)lane;
    *before = 0;
    return yes;
}

WS_DEVICE bool ws_warp_any(bool yes)
{
    return yes;
}

WS_DEVICE uint32_t ws_warp_scan(uint32_t v, uint32_t *before, uint32_t lane)
{
    (void)lane;
    *before = 0;
    return v;
}

WS_DEVICE uint32_t ws_warp_sum(uint32_t v)
{
    return v;
}

WS_DEVICE uint32_t ws_bits(uint32_t v)
{
    return (uint32_t)__builtin_popcount(v);
}

WS_DEVICE uint32_t ws_lowest_bit(uint32_t v)
{
    return (uint32_t)__builtin_ctz(v);
}

WS_DEVICE void ws_add_u32(uint32_t *p, uint32_t v)
{
    __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

WS_DEVICE void ws_add_u64(uint64_t *p, uint64_t v)
{
    __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
#endif

/* Loaded and stored at once; at multiples of 16. */
struct ws_word16 {
    uint32_t u32[4];
} __attribute__((aligned(16)));

/* before: ascending, n + 1 numbers, the first 0. Which of the n begins at or before `unit`, and ends behind
 * it? A search by as many probes at once as a warp has lanes. */
WS_DEVICE uint32_t ws_warp_find(const uint32_t *before, uint32_t n, uint32_t unit, uint32_t lane)
{
    uint32_t low = 0, unused;
    while (n > 1) {
        const uint32_t step = (n + WS_WARP) / (WS_WARP + 1), probe = (lane + 1) * step;
        const uint32_t k = ws_warp_count(probe < n && before[low + probe] <= unit, &unused, lane);
        low += k * step;
        n = n - k * step < step ? n - k * step : step;
    }
    return low;
}

#endif
