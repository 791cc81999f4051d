/* Whole allocations are shared by handles. What is mapped into reserved addresses (cuMemMap: PyTorch's
 * expandable segments) CUDA shares by descriptors only. */
#include "transports/device/cuda_share.h"
#include "transports/device/cuda_driver.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

static const struct ws_cuda_driver *cuda(void)
{
    return ws_cuda_driver_open(NULL);
}

static int query(const void *p, CUpointer_attribute which, void *out)
{
    return cuda()->pointer_attribute(out, which, (CUdeviceptr)(uintptr_t)p) == CUDA_SUCCESS ? 0 : -EINVAL;
}

static int extent_here(const void *p, struct ws_device_extent *out, struct ws_error *err)
{
    CUdeviceptr base = 0;
    size_t bytes = 0;
    unsigned legacy = 0;
    unsigned long long kinds = 0;
    if (query(p, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, &legacy) == 0 && legacy) {
        int rc = ws_cuda_result(cuda()->mem_range(&base, &bytes, (CUdeviceptr)(uintptr_t)p), err,
                                "finding the allocation of %p", p);
        *out = (struct ws_device_extent){(const unsigned char *)(uintptr_t)base, bytes, out->device, false};
        return rc;
    }
    if (query(p, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, &kinds) < 0 ||
        !(kinds & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ||
        query(p, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, &base) < 0 ||
        query(p, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, &bytes) < 0)
        return ws_error_set(err, EOPNOTSUPP,
                            "the memory at %p can be shared neither by handle nor by descriptor (a pool, "
                            "managed memory, or made without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)",
                            p);
    *out = (struct ws_device_extent){(const unsigned char *)(uintptr_t)base, bytes, out->device, true};
    return 0;
}

int ws_cuda_share_extent(const void *p, struct ws_device_extent *out, struct ws_error *err)
{
    int device;
    if (!ws_cuda_device.owns(p, &device))
        return ws_error_set(err, EINVAL, "%p is not memory of a device", p);
    int rc = ws_cuda_enter(device, err);
    if (rc < 0)
        return rc;
    out->device = device;
    rc = extent_here(p, out, err);
    ws_cuda_leave();
    return rc;
}

int ws_cuda_share_handle(const struct ws_device_extent *e, unsigned char handle[WS_DEVICE_HANDLE_BYTES],
                         struct ws_error *err)
{
    CUipcMemHandle h;
    _Static_assert(sizeof(h) == WS_DEVICE_HANDLE_BYTES, "a handle has as many bytes as CUDA's");
    int rc = ws_cuda_enter(e->device, err);
    if (rc < 0)
        return rc;
    rc = ws_cuda_result(cuda()->ipc_mem_handle(&h, (CUdeviceptr)(uintptr_t)e->base), err,
                        "sharing an allocation of %zu bytes", (size_t)e->bytes);
    ws_cuda_leave();
    if (rc == 0)
        memcpy(handle, &h, sizeof(h));
    return rc;
}

static int export_fd(const struct ws_device_extent *e, int *fd, struct ws_error *err)
{
    CUmemGenericAllocationHandle h;
    int rc = ws_cuda_result(cuda()->vmm_retain(&h, (void *)(uintptr_t)e->base), err,
                            "finding what is mapped at %p", (const void *)e->base);
    if (rc < 0)
        return rc;
    rc = ws_cuda_result(cuda()->vmm_export(fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), err,
                        "sharing %zu mapped bytes", (size_t)e->bytes);
    (void)cuda()->vmm_release(h);
    return rc;
}

int ws_cuda_share_fd(const struct ws_device_extent *e, int *fd, struct ws_error *err)
{
    int rc = ws_cuda_enter(e->device, err);
    if (rc < 0)
        return rc;
    rc = export_fd(e, fd, err);
    ws_cuda_leave();
    return rc;
}

/* --- the other side --- */

int ws_cuda_share_open(int device, const unsigned char handle[WS_DEVICE_HANDLE_BYTES], void **out,
                       struct ws_error *err)
{
    CUipcMemHandle h;
    CUdeviceptr p = 0;
    int rc = ws_cuda_enter(device, err);
    if (rc < 0)
        return rc;
    memcpy(&h, handle, sizeof(h));
    CUresult r = cuda()->ipc_mem_open(&p, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    ws_cuda_leave();
    *out = (void *)(uintptr_t)p;
    if (r == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_MAP_FAILED || r == CUDA_ERROR_INVALID_HANDLE)
        return ws_error_set(err, ENOENT,
                            "the memory that a handle is of cannot be opened: its process has ended, or is "
                            "in another container (share the PID and IPC namespaces, or use tcp or ipc)");
    if (r == CUDA_ERROR_INVALID_CONTEXT)
        return ws_error_set(err, EBUSY, "the memory is this process's own: it has its address already");
    return ws_cuda_result(r, err, "opening another process's memory");
}

/* What was mapped here, so that it can be taken apart again. */
struct mapping {
    SLIST_ENTRY(mapping) entry;
    CUdeviceptr p;
    size_t bytes;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static SLIST_HEAD(mappings, mapping) mappings = SLIST_HEAD_INITIALIZER(mappings); /* guarded by lock */

static int map_one(CUdeviceptr at, int fd, size_t bytes, struct ws_error *err)
{
    CUmemGenericAllocationHandle h;
    int rc = ws_cuda_result(cuda()->vmm_import(&h, (void *)(intptr_t)fd, /* as the driver wants it */
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                            err, "opening memory by its descriptor");
    if (rc < 0)
        return rc;
    rc = ws_cuda_result(cuda()->vmm_map(at, bytes, 0, h, 0), err, "mapping %zu bytes", bytes);
    (void)cuda()->vmm_release(h); /* the mapping keeps it */
    return rc;
}

static int map_all(int device, CUdeviceptr base, size_t total, const int *fds, const uint64_t *bytes,
                   size_t n, struct ws_error *err)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t at = 0, i = 0;
    int rc = 0;
    for (; rc == 0 && i < n; i++) {
        rc = map_one(base + at, fds[i], bytes[i], err);
        at += rc == 0 ? bytes[i] : 0;
    }
    if (rc == 0)
        rc = ws_cuda_result(cuda()->vmm_access(base, total, &access, 1), err,
                            "making %zu mapped bytes accessible", total);
    if (rc < 0 && at > 0)
        (void)cuda()->vmm_unmap(base, at);
    return rc;
}

static int open_fds(int device, const int *fds, const uint64_t *bytes, size_t n, void **out,
                    struct ws_error *err)
{
    struct mapping *m = calloc(1, sizeof(*m));
    if (!m)
        return ws_error_set(err, ENOMEM, "no memory for a mapping");
    for (size_t i = 0; i < n; i++)
        m->bytes += bytes[i];
    int rc = ws_cuda_result(cuda()->vmm_reserve(&m->p, m->bytes, 0, 0, 0), err,
                            "reserving addresses for %zu bytes", m->bytes);
    if (rc == 0) {
        rc = map_all(device, m->p, m->bytes, fds, bytes, n, err);
        if (rc < 0)
            (void)cuda()->vmm_unreserve(m->p, m->bytes);
    }
    if (rc < 0) {
        free(m);
        return rc;
    }
    *out = (void *)(uintptr_t)m->p;
    pthread_mutex_lock(&lock);
    SLIST_INSERT_HEAD(&mappings, m, entry);
    pthread_mutex_unlock(&lock);
    return 0;
}

int ws_cuda_share_open_fds(int device, const int *fds, const uint64_t *bytes, size_t n, void **out,
                           struct ws_error *err)
{
    int rc = ws_cuda_enter(device, err);
    if (rc < 0)
        return rc;
    rc = open_fds(device, fds, bytes, n, out, err);
    ws_cuda_leave();
    return rc;
}

void ws_cuda_share_close(int device, void *p)
{
    struct mapping *m;
    if (!p || ws_cuda_enter(device, NULL) < 0)
        return;
    pthread_mutex_lock(&lock);
    m = SLIST_FIRST(&mappings);
    while (m && m->p != (CUdeviceptr)(uintptr_t)p)
        m = SLIST_NEXT(m, entry);
    if (m)
        SLIST_REMOVE(&mappings, m, mapping, entry);
    pthread_mutex_unlock(&lock);
    if (m) {
        (void)cuda()->vmm_unmap(m->p, m->bytes);
        (void)cuda()->vmm_unreserve(m->p, m->bytes);
        free(m);
    } else {
        (void)cuda()->ipc_mem_close((CUdeviceptr)(uintptr_t)p);
    }
    ws_cuda_leave();
}
