/* Devices and their primary contexts, each thread's current context, and what all calls have in common. */
#include "tests/fakes/fake.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STACK 32

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;
_Thread_local bool fake_in_stream;

static struct CUctx_st contexts[FAKE_DEVICES];
static unsigned physical[FAKE_DEVICES]; /* by device */
static unsigned n_devices;
static _Atomic pid_t owner; /* the initialised process; 0: none */
static _Thread_local CUcontext stack[STACK];
static _Thread_local unsigned depth;

CUcontext fake_context(void)
{
    return depth ? stack[depth - 1] : NULL;
}

CUcontext fake_context_of(int device)
{
    return device >= 0 && (unsigned)device < n_devices ? &contexts[device] : NULL;
}

bool fake_is_context(CUcontext ctx)
{
    return ctx >= contexts && ctx < contexts + n_devices;
}

bool fake_is_owner(void)
{
    return atomic_load(&owner) == getpid();
}

unsigned fake_device_count(void)
{
    return n_devices;
}

unsigned fake_physical(int device)
{
    return physical[device];
}

int fake_visible(unsigned number)
{
    for (unsigned i = 0; i < n_devices; i++)
        if (physical[i] == number)
            return (int)i;
    return -1;
}

void fake_break(CUcontext ctx, CUresult why)
{
    if (ctx->sticky == CUDA_SUCCESS)
        ctx->sticky = why;
    pthread_cond_broadcast(&fake_changed);
}

/* As on a GPU, whose channels are torn down before a fault is reported: nothing writes after that. */
CUresult fake_sticky(CUcontext ctx)
{
    while (ctx->sticky != CUDA_SUCCESS && ctx->running > 0)
        pthread_cond_wait(&fake_changed, &fake_lock);
    return ctx->sticky;
}

CUresult fake_enter(const char *name, enum fake_needs needs)
{
    pid_t by = atomic_load(&owner);
    if (needs != FAKE_NOTHING && by != getpid()) /* a fork's child has no driver either */
        return CUDA_ERROR_NOT_INITIALIZED;
    if (fake_in_stream)
        return CUDA_ERROR_NOT_PERMITTED;
    CUresult rc = fake_injected(name);
    CUcontext ctx = fake_context();
    if (rc != CUDA_SUCCESS || needs != FAKE_CONTEXT)
        return rc;
    if (!ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&fake_lock);
    rc = !ctx->retained ? CUDA_ERROR_CONTEXT_IS_DESTROYED : fake_sticky(ctx);
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

/* CUDA_VISIBLE_DEVICES as the driver reads it, for numbers only: the list ends at the first malformed one. */
static void find_devices(void)
{
    const char *s = getenv("CUDA_VISIBLE_DEVICES");
    unsigned there = fake_plan()->devices;
    for (unsigned i = 0; !s && i < there; i++)
        physical[n_devices++] = i;
    while (s && *s && n_devices < FAKE_DEVICES) {
        char *end;
        unsigned long n = strtoul(s, &end, 10);
        if (end == s || (*end && *end != ',') || n >= there)
            break;
        physical[n_devices++] = (unsigned)n;
        s = *end ? end + 1 : end;
    }
}

CUresult cuInit(unsigned int flags)
{
    CUresult rc = fake_injected(__func__);
    if (rc != CUDA_SUCCESS || flags)
        return rc != CUDA_SUCCESS ? rc : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    if (!atomic_load(&owner)) {
        find_devices();
        for (unsigned i = 0; i < n_devices; i++)
            contexts[i].device = (int)i;
        if (n_devices)
            atomic_store(&owner, getpid());
    }
    if (rc == CUDA_SUCCESS)
        rc = !n_devices                        ? CUDA_ERROR_NO_DEVICE
             : atomic_load(&owner) != getpid() ? CUDA_ERROR_NOT_INITIALIZED
                                               : CUDA_SUCCESS;
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

CUresult cuDriverGetVersion(int *version)
{
    FAKE_ENTER(FAKE_NOTHING);
    *version = fake_plan()->driver;
    return CUDA_SUCCESS;
}

#define ERRORS(X)                                                                                            \
    X(CUDA_SUCCESS, "no error")                                                                              \
    X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                          \
    X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                             \
    X(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                                    \
    X(CUDA_ERROR_DEINITIALIZED, "driver shutting down")                                                      \
    X(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library")                                              \
    X(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable")                    \
    X(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                            \
    X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                                   \
    X(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                                            \
    X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                                  \
    X(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed")                                              \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device")              \
    X(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered")                                   \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices")          \
    X(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS")                   \
    X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                                  \
    X(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                                        \
    X(CUDA_ERROR_NOT_READY, "device not ready")                                                              \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                                \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled")                              \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                                               \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,                                                             \
      "part or all of the requested memory range is already mapped")                                         \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region")    \
    X(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                                \
    X(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                                   \
    X(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                                   \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination")  \
    X(CUDA_ERROR_UNKNOWN, "unknown error")

static const struct {
    CUresult rc;
    const char *name, *text;
} errors[] = {
#define ERROR(rc, text) {rc, #rc, text},
    ERRORS(ERROR)};

CUresult cuGetErrorName(CUresult error, const char **name)
{
    *name = NULL;
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (errors[i].rc == error)
            *name = errors[i].name;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = NULL;
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (errors[i].rc == error)
            *text = errors[i].text;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *count)
{
    FAKE_ENTER(FAKE_INIT);
    *count = (int)n_devices;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    FAKE_ENTER(FAKE_INIT);
    *device = ordinal;
    return fake_context_of(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice device)
{
    FAKE_ENTER(FAKE_INIT);
    if (!fake_context_of(device) || len < 1)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)len, "Stand-in GPU %u", physical[device]);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    FAKE_ENTER(FAKE_INIT);
    if (!fake_context_of(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, "wsync-fake-gpu-", 15);
    uuid->bytes[15] = (char)physical[device];
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    FAKE_ENTER(FAKE_INIT);
    *bytes = fake_plan()->memory;
    return fake_context_of(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    FAKE_ENTER(FAKE_INIT);
    const struct fake_plan *p = fake_plan();
    const struct {
        CUdevice_attribute attribute;
        int value;
    } known[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
        {CU_DEVICE_ATTRIBUTE_MAX_PITCH, INT32_MAX},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
        {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
        {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
        {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
        {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, p->register_bytes > 0},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
        {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0},
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, p->vmm},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, p->vmm},
        {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, p->legacy},
        {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, (int)physical[fake_context_of(device) ? device : 0] + 1},
        {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
        {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
    };
    if (!fake_context_of(device))
        return CUDA_ERROR_INVALID_DEVICE;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i].attribute == attribute) {
            *value = known[i].value;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetPCIBusId(char *bus, int len, CUdevice device)
{
    FAKE_ENTER(FAKE_INIT);
    if (!fake_context_of(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (len < 13)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(bus, (size_t)len, "0000:%02X:00.0", physical[device] + 1);
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    FAKE_ENTER(FAKE_INIT);
    if (!fake_context_of(device) || !fake_context_of(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer && fake_plan()->peer;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    FAKE_ENTER(FAKE_INIT);
    CUcontext ctx = fake_context_of(device);
    CUresult rc = CUDA_SUCCESS;
    if (!ctx)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&fake_lock);
    if (!ctx->legacy)
        rc = fake_stream_new(ctx, CU_STREAM_DEFAULT, &ctx->legacy);
    if (rc == CUDA_SUCCESS) {
        ctx->retained++;
        *out = ctx;
    }
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    FAKE_ENTER(FAKE_INIT);
    CUcontext ctx = fake_context_of(device);
    if (!ctx)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&fake_lock);
    bool was = ctx->retained > 0;
    if (was && --ctx->retained == 0) {
        fake_quiesce(ctx);
        ctx->sticky = CUDA_SUCCESS;
        ctx->peers = 0;
    }
    pthread_mutex_unlock(&fake_lock);
    return was ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    FAKE_ENTER(FAKE_INIT);
    if (!fake_is_context(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == STACK)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
    FAKE_ENTER(FAKE_INIT);
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (ctx)
        *ctx = stack[depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
    FAKE_ENTER(FAKE_INIT);
    if (ctx && !fake_is_context(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    depth -= depth > 0;
    if (ctx)
        stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *ctx)
{
    FAKE_ENTER(FAKE_INIT);
    *ctx = fake_context();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    FAKE_ENTER(FAKE_CONTEXT);
    *device = fake_context()->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    FAKE_ENTER(FAKE_CONTEXT);
    CUcontext ctx = fake_context();
    pthread_mutex_lock(&fake_lock);
    fake_quiesce(ctx);
    CUresult rc = ctx->sticky;
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    FAKE_ENTER(FAKE_CONTEXT);
    CUcontext ctx = fake_context();
    CUresult rc = CUDA_SUCCESS;
    if (!fake_is_context(peer) || peer == ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!fake_plan()->peer)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    pthread_mutex_lock(&fake_lock);
    uint32_t bit = 1U << peer->device;
    if (ctx->peers & bit)
        rc = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    ctx->peers |= bit;
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    FAKE_ENTER(FAKE_CONTEXT);
    pthread_mutex_lock(&fake_lock);
    *free_bytes = fake_memory_free_bytes(fake_context()->device);
    pthread_mutex_unlock(&fake_lock);
    *total = fake_plan()->memory;
    return CUDA_SUCCESS;
}
