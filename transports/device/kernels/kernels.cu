/* The kernels for the device: the bodies of transports/device/kernels, each on a grid of warps. */
#include "transports/device/kernels/diff.h"
#include "transports/device/kernels/gather.h"
#include "transports/device/kernels/hash.h"

WS_DEVICE struct ws_warp ws_this_warp()
{
    const uint32_t in_block = blockDim.x / WS_WARP;
    return {blockIdx.x * in_block + threadIdx.x / WS_WARP, gridDim.x * in_block, threadIdx.x % WS_WARP};
}

extern "C" __global__ void __launch_bounds__(256, 3)
    ws_kernel_gather(const __grid_constant__ ws_gather_args a)
{
    ws_gather_body(&a, ws_this_warp());
}

extern "C" __global__ void __launch_bounds__(256, 3)
    ws_kernel_diff_count(const __grid_constant__ ws_diff_args a)
{
    ws_diff_count_body(&a, ws_this_warp());
}

extern "C" __global__ void __launch_bounds__(256, 3)
    ws_kernel_diff_pack(const __grid_constant__ ws_diff_args a)
{
    ws_diff_pack_body(&a, ws_this_warp());
}

extern "C" __global__ void __launch_bounds__(256, 3)
    ws_kernel_hash_sum(const __grid_constant__ ws_hash_args a)
{
    ws_hash_sum_body(&a, ws_this_warp());
}

extern "C" __global__ void __launch_bounds__(256, 3)
    ws_kernel_hash_fold(const __grid_constant__ ws_hash_args a)
{
    ws_hash_fold_body(&a, ws_this_warp());
}
