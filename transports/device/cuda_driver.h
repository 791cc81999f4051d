/* CUDA driver: the driver's API, opened at run time by one list of symbols; an error names the symbol that a
 * driver lacks. Only cuda_ops.c and cuda_share.c call it. The library is libcuda.so.1; $WSYNC_LIBCUDA names
 * another (tests). Thread safe. */
#ifndef WS_TRANSPORTS_DEVICE_CUDA_DRIVER_H
#define WS_TRANSPORTS_DEVICE_CUDA_DRIVER_H
#include "transports/device/device.h"
#include <cuda.h>

/* X(member, symbol); a symbol has the version of its function in its name. */
#define WS_CUDA_SYMBOLS(X)                                                                                   \
    X(init, cuInit)                                                                                          \
    X(driver_version, cuDriverGetVersion)                                                                    \
    X(error_name, cuGetErrorName)                                                                            \
    X(error_string, cuGetErrorString)                                                                        \
    X(device_count, cuDeviceGetCount)                                                                        \
    X(device_get, cuDeviceGet)                                                                               \
    X(device_name, cuDeviceGetName)                                                                          \
    X(device_uuid, cuDeviceGetUuid_v2)                                                                       \
    X(device_bytes, cuDeviceTotalMem_v2)                                                                     \
    X(device_attribute, cuDeviceGetAttribute)                                                                \
    X(device_bus, cuDeviceGetPCIBusId)                                                                       \
    X(can_access_peer, cuDeviceCanAccessPeer)                                                                \
    X(primary_retain, cuDevicePrimaryCtxRetain)                                                              \
    X(ctx_push, cuCtxPushCurrent_v2)                                                                         \
    X(ctx_pop, cuCtxPopCurrent_v2)                                                                           \
    X(enable_peer, cuCtxEnablePeerAccess)                                                                    \
    X(mem_info, cuMemGetInfo_v2)                                                                             \
    X(mem_alloc, cuMemAlloc_v2)                                                                              \
    X(mem_free, cuMemFree_v2)                                                                                \
    X(mem_range, cuMemGetAddressRange_v2)                                                                    \
    X(host_alloc, cuMemHostAlloc)                                                                            \
    X(host_free, cuMemFreeHost)                                                                              \
    X(host_register, cuMemHostRegister_v2)                                                                   \
    X(host_unregister, cuMemHostUnregister)                                                                  \
    X(pointer_attribute, cuPointerGetAttribute)                                                              \
    X(copy, cuMemcpyAsync)                                                                                   \
    X(copy_2d, cuMemcpy2DAsync_v2)                                                                           \
    X(copy_3d, cuMemcpy3DAsync_v2)                                                                           \
    X(fill, cuMemsetD8Async)                                                                                 \
    X(stream_create, cuStreamCreate)                                                                         \
    X(stream_destroy, cuStreamDestroy_v2)                                                                    \
    X(stream_synchronize, cuStreamSynchronize)                                                               \
    X(stream_wait, cuStreamWaitEvent)                                                                        \
    X(event_create, cuEventCreate)                                                                           \
    X(event_destroy, cuEventDestroy_v2)                                                                      \
    X(event_record, cuEventRecord)                                                                           \
    X(event_query, cuEventQuery)                                                                             \
    X(event_synchronize, cuEventSynchronize)                                                                 \
    X(ipc_mem_handle, cuIpcGetMemHandle)                                                                     \
    X(ipc_mem_open, cuIpcOpenMemHandle_v2)                                                                   \
    X(ipc_mem_close, cuIpcCloseMemHandle)                                                                    \
    X(ipc_event_handle, cuIpcGetEventHandle)                                                                 \
    X(ipc_event_open, cuIpcOpenEventHandle)                                                                  \
    X(vmm_retain, cuMemRetainAllocationHandle)                                                               \
    X(vmm_release, cuMemRelease)                                                                             \
    X(vmm_properties, cuMemGetAllocationPropertiesFromHandle)                                                \
    X(vmm_export, cuMemExportToShareableHandle)                                                              \
    X(vmm_import, cuMemImportFromShareableHandle)                                                            \
    X(vmm_reserve, cuMemAddressReserve)                                                                      \
    X(vmm_unreserve, cuMemAddressFree)                                                                       \
    X(vmm_map, cuMemMap)                                                                                     \
    X(vmm_unmap, cuMemUnmap)                                                                                 \
    X(vmm_access, cuMemSetAccess)                                                                            \
    X(module_load, cuModuleLoadData)                                                                         \
    X(module_function, cuModuleGetFunction)                                                                  \
    X(launch, cuLaunchKernel)

struct ws_cuda_driver {
#define WS_CUDA_MEMBER(member, symbol) __typeof__(&symbol) member;
    WS_CUDA_SYMBOLS(WS_CUDA_MEMBER)
#undef WS_CUDA_MEMBER
    int driver; /* 13000: release 13.0 */
    int n_devices;
};

/* The driver, opened and initialised at the first call. NULL: this machine has no usable driver, and why. */
const struct ws_cuda_driver *ws_cuda_driver_open(struct ws_error *why);
/* Its file's name. */
const char *ws_cuda_driver_library(void);
/* The driver where something in this process has opened it already; NULL: nothing has. */
const struct ws_cuda_driver *ws_cuda_driver_if_open(void);
/* A driver's result as -errno; 0 for success. format: what was being done, "copying 12 bytes". The driver's own
 * words are in err, and are logged once for each kind of failure. */
int ws_cuda_result(CUresult rc, struct ws_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Makes the device's primary context (the one that PyTorch uses) the calling thread's, until leave. */
WS_MUST_USE int ws_cuda_enter(int device, struct ws_error *err);
void ws_cuda_leave(void);
/* The kernels' function on that device. -ENOTSUP: the build has none, or this device runs none of them. */
const char *ws_cuda_kernel_name(enum ws_kernel k);
WS_MUST_USE int ws_cuda_kernel(int device, enum ws_kernel k, CUfunction *out, struct ws_error *err);

#endif
