/* Device memory by cuMemAlloc, host memory known to devices, and the attributes of addresses. All allocations
 * of a device are in one memory file, each after a header, so that a process needs no descriptor for each and
 * another process can open one by its offset. Offsets are not reused. An allocation does not begin where its
 * mapping does: in CUDA small ones share a mapping too. */
#include "tests/fakes/fake.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 512UL

static struct device_memory {
    int fd; /* plus one */
    uint64_t end, used;
} memories[FAKE_DEVICES];
static uint64_t registered;

static size_t round_up(size_t n, size_t step)
{
    return (n + step - 1) / step * step;
}

bool fake_memory_take(int device, size_t bytes)
{
    if (bytes > fake_plan()->memory - memories[device].used)
        return false;
    memories[device].used += bytes;
    return true;
}

void fake_memory_give(int device, size_t bytes)
{
    memories[device].used -= bytes;
}

uint64_t fake_memory_free_bytes(int device)
{
    return fake_plan()->memory - memories[device].used;
}

int fake_memory_file(int device)
{
    struct device_memory *m = &memories[device];
    if (!m->fd) {
        char name[32];
        snprintf(name, sizeof(name), "fake-gpu%d", device);
        m->fd = memfd_create(name, MFD_CLOEXEC) + 1;
    }
    return m->fd - 1;
}

/* Maps a new piece of the device's file twice. */
static CUresult map_piece(struct fake_range *r, size_t skip)
{
    struct device_memory *m = &memories[r->ctx->device];
    int fd = fake_memory_file(r->ctx->device);
    uint64_t place = m->end;

    if (fd < 0 || ftruncate(fd, (off_t)(place + FAKE_PAGE + r->map_bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct fake_header h = {
        .magic = FAKE_HEADER_MAGIC, .id = place, .map_bytes = r->map_bytes, .start = skip, .bytes = r->bytes};
    if (pwrite(fd, &h, sizeof(h), (off_t)place) != sizeof(h))
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *seen = fake_map(fd, place + FAKE_PAGE, r->map_bytes, PROT_NONE);
    unsigned char *alias = fake_map(fd, place + FAKE_PAGE, r->map_bytes, PROT_READ | PROT_WRITE);
    if (!seen || !alias) {
        if (seen)
            munmap(seen, r->map_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    m->end = place + FAKE_PAGE + r->map_bytes;
    r->place = place;
    r->map = (uintptr_t)seen;
    r->start = r->map + skip;
    r->alias = alias + skip;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    FAKE_ENTER(FAKE_CONTEXT);
    CUcontext ctx = fake_context();
    if (!bytes || !out)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > fake_plan()->memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_lock);
    size_t skip = ALIGNMENT * (memories[ctx->device].end / FAKE_PAGE % 7 + 1);
    struct fake_range r = {.bytes = bytes,
                           .kind = FAKE_ALLOCATED,
                           .ctx = ctx,
                           .access = 1U << ctx->device,
                           .map_bytes = round_up(skip + bytes, FAKE_PAGE)};
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    if (fake_memory_take(ctx->device, round_up(bytes, ALIGNMENT))) {
        rc = map_piece(&r, skip);
        if (rc == CUDA_SUCCESS && (rc = fake_range_add(&r, NULL)) != CUDA_SUCCESS) {
            munmap((void *)r.map, r.map_bytes);
            munmap(r.alias - skip, r.map_bytes);
        }
        if (rc != CUDA_SUCCESS)
            fake_memory_give(ctx->device, round_up(bytes, ALIGNMENT));
    }
    pthread_mutex_unlock(&fake_lock);
    *out = rc == CUDA_SUCCESS ? r.start : 0;
    return rc;
}

/* Like CUDA, waits for the context's work first. */
CUresult cuMemFree_v2(CUdeviceptr address)
{
    FAKE_ENTER(FAKE_CONTEXT);
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    if (!address)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&fake_lock);
    struct fake_range *r = fake_range_at(address);
    if (r && r->start == address && r->kind == FAKE_ALLOCATED) {
        fake_quiesce(r->ctx);
        struct fake_range was = *r;
        size_t skip = was.start - was.map;
        fake_range_remove(r);
        munmap((void *)was.map, was.map_bytes);
        munmap(was.alias - skip, was.map_bytes);
        fallocate(fake_memory_file(was.ctx->device), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)was.place, (off_t)(FAKE_PAGE + was.map_bytes));
        fake_memory_give(was.ctx->device, round_up(was.bytes, ALIGNMENT));
        rc = was.ctx->sticky;
    }
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    FAKE_ENTER(FAKE_CONTEXT);
    pthread_mutex_lock(&fake_lock);
    struct fake_range *r = fake_range_at(address);
    if (r && base)
        *base = r->start;
    if (r && size)
        *size = r->bytes;
    pthread_mutex_unlock(&fake_lock);
    return r ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    FAKE_ENTER(FAKE_CONTEXT);
    size_t whole = round_up(bytes, FAKE_PAGE);
    if (!bytes || flags & ~7U)
        return CUDA_ERROR_INVALID_VALUE;
    void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct fake_range r = {.start = (uintptr_t)p,
                           .bytes = whole,
                           .kind = FAKE_HOST,
                           .ctx = fake_context(),
                           .access = UINT32_MAX,
                           .alias = p};
    pthread_mutex_lock(&fake_lock);
    CUresult rc = fake_range_add(&r, NULL);
    pthread_mutex_unlock(&fake_lock);
    if (rc != CUDA_SUCCESS)
        munmap(p, whole);
    *out = rc == CUDA_SUCCESS ? p : NULL;
    return rc;
}

CUresult cuMemFreeHost(void *p)
{
    FAKE_ENTER(FAKE_CONTEXT);
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    struct fake_range *r = fake_range_at((uintptr_t)p);
    if (r && r->start == (uintptr_t)p && r->kind == FAKE_HOST) {
        size_t bytes = r->bytes;
        fake_range_remove(r);
        munmap(p, bytes);
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

/* Whether any memory exists at these pages. */
static bool is_mapped(uintptr_t from, uintptr_t to)
{
    unsigned char in[64];
    while (from < to) {
        size_t n = (to - from) / FAKE_PAGE;
        n = n < sizeof(in) ? n : sizeof(in);
        if (mincore((void *)from, n * FAKE_PAGE, in))
            return false;
        from += n * FAKE_PAGE;
    }
    return true;
}

CUresult cuMemHostRegister_v2(void *p, size_t bytes, unsigned int flags)
{
    FAKE_ENTER(FAKE_CONTEXT);
    uintptr_t from = (uintptr_t)p / FAKE_PAGE * FAKE_PAGE, to = round_up((uintptr_t)p + bytes, FAKE_PAGE);
    uint64_t limit = fake_plan()->register_bytes;
    struct fake_range r = {.start = from,
                           .bytes = to - from,
                           .kind = FAKE_REGISTERED,
                           .ctx = fake_context(),
                           .access = UINT32_MAX,
                           .alias = (void *)from};
    CUresult rc = CUDA_SUCCESS;

    if (!bytes || flags & ~15U || !is_mapped(from, to))
        return CUDA_ERROR_INVALID_VALUE;
    if (!limit)
        return CUDA_ERROR_OPERATING_SYSTEM;
    pthread_mutex_lock(&fake_lock);
    if (fake_ranges_touch(from, to - from))
        rc = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    else if (to - from > limit - registered)
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    if (rc == CUDA_SUCCESS && (rc = fake_range_add(&r, NULL)) == CUDA_SUCCESS)
        registered += to - from;
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

CUresult cuMemHostUnregister(void *p)
{
    FAKE_ENTER(FAKE_CONTEXT);
    CUresult rc = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    pthread_mutex_lock(&fake_lock);
    struct fake_range *r = fake_range_at((uintptr_t)p);
    if (r && r->kind == FAKE_REGISTERED && r->start == (uintptr_t)p / FAKE_PAGE * FAKE_PAGE) {
        registered -= r->bytes;
        fake_range_remove(r);
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

static CUresult attribute_of(const struct fake_range *r, CUpointer_attribute attribute, CUdeviceptr address,
                             void *data)
{
    bool device = fake_is_device(r);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = r->kind == FAKE_MAPPED ? NULL : r->ctx; /* mappings belong to no context */
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(CUdeviceptr *)data = address;
        return device ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = r->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = r->ctx->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(int *)data = r->kind == FAKE_ALLOCATED && fake_plan()->legacy;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(int *)data = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = device ? r->map : r->start;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = device ? r->map_bytes : r->bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = r->start;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = r->bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = CU_MEM_HANDLE_TYPE_NONE;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    FAKE_ENTER(FAKE_INIT);
    pthread_mutex_lock(&fake_lock);
    struct fake_range *r = fake_range_at(address);
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    if (r && r->kind == FAKE_MAPPED)
        rc = fake_vmm_attribute(r, attribute, data);
    if (r && (r->kind != FAKE_MAPPED || rc == CUDA_ERROR_NOT_FOUND))
        rc = attribute_of(r, attribute, address, data);
    pthread_mutex_unlock(&fake_lock);
    return rc;
}
