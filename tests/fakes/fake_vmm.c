/* Virtual memory management: physical memory by handles, reserved addresses, mappings, access; shared between
 * processes by descriptors. Physical memory is a separate file with its description behind the bytes. The
 * alias is reserved together with the addresses, so that adjacent mappings are copied as one. */
#include "tests/fakes/fake.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRAILER_MAGIC 0x6c616369737968UL

struct trailer {
    uint64_t magic, bytes;
    uint32_t physical, handle_types;
};

struct fake_physical_memory {
    struct fake_physical_memory *next;
    int fd, device;
    bool imported;
    unsigned handles, mappings;
    uint64_t bytes;
    uint32_t handle_types;
};

struct reservation {
    struct reservation *next;
    uintptr_t start;
    size_t bytes;
    unsigned char *alias;
};

/* guarded by fake_lock */
static struct fake_physical_memory *memories;
static struct reservation *reservations;

#define ENTER_VMM()                                                                                          \
    do {                                                                                                     \
        FAKE_ENTER(FAKE_INIT);                                                                               \
        if (!fake_plan()->vmm)                                                                               \
            return CUDA_ERROR_NOT_SUPPORTED;                                                                 \
    } while (0)

static bool is_whole(uint64_t n)
{
    return n % FAKE_GRANULARITY == 0;
}

static struct fake_physical_memory *find(CUmemGenericAllocationHandle handle)
{
    struct fake_physical_memory *m = memories;
    while (m && (uintptr_t)m != handle)
        m = m->next;
    return m && m->handles ? m : NULL;
}

static void put(struct fake_physical_memory *m)
{
    if (m->handles || m->mappings)
        return;
    struct fake_physical_memory **at = &memories;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    if (!m->imported)
        fake_memory_give(m->device, m->bytes);
    close(m->fd);
    free(m);
}

/* Takes ownership of fd, also on failure. */
static CUresult add(const struct fake_physical_memory *like, CUmemGenericAllocationHandle *out)
{
    struct fake_physical_memory *m = malloc(sizeof(*m));
    if (!m) {
        close(like->fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *m = *like;
    m->handles = 1;
    m->next = memories;
    memories = m;
    *out = (uintptr_t)m;
    return CUDA_SUCCESS;
}

static bool is_device_memory(const CUmemAllocationProp *prop)
{
    return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE && fake_context_of(prop->location.id);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    ENTER_VMM();
    (void)option;
    *granularity = FAKE_GRANULARITY;
    return is_device_memory(prop) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
    ENTER_VMM();
    if (!bytes || !is_whole(bytes) || flags || !is_device_memory(prop) ||
        prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    int device = prop->location.id;
    struct trailer t = {TRAILER_MAGIC, bytes, fake_physical(device), prop->requestedHandleTypes};
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_lock);
    if (fake_memory_take(device, bytes)) {
        int fd = memfd_create("fake-gpu-physical", MFD_CLOEXEC);
        if (fd >= 0 && pwrite(fd, &t, sizeof(t), (off_t)bytes) == sizeof(t))
            rc = add(
                &(struct fake_physical_memory){
                    .fd = fd, .device = device, .bytes = bytes, .handle_types = t.handle_types},
                out);
        else if (fd >= 0)
            close(fd);
        if (rc != CUDA_SUCCESS)
            fake_memory_give(device, bytes);
    }
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    ENTER_VMM();
    pthread_mutex_lock(&fake_lock);
    struct fake_physical_memory *m = find(handle);
    if (m) {
        m->handles--;
        put(m);
    }
    pthread_mutex_unlock(&fake_lock);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    ENTER_VMM();
    pthread_mutex_lock(&fake_lock);
    struct fake_range *r = fake_range_at((uintptr_t)address);
    bool found = r && r->kind == FAKE_MAPPED;
    if (found) {
        r->physical->handles++;
        *handle = (uintptr_t)r->physical;
    }
    pthread_mutex_unlock(&fake_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                CUmemGenericAllocationHandle handle)
{
    ENTER_VMM();
    pthread_mutex_lock(&fake_lock);
    struct fake_physical_memory *m = find(handle);
    if (m)
        *prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = (CUmemAllocationHandleType)m->handle_types,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = m->device}};
    pthread_mutex_unlock(&fake_lock);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
    ENTER_VMM();
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    struct fake_physical_memory *m = find(handle);
    if (m && !flags && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && m->handle_types & type) {
        int fd = fcntl(m->fd, F_DUPFD_CLOEXEC, 0);
        *(int *)out = fd;
        rc = fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle,
                                        CUmemAllocationHandleType type)
{
    ENTER_VMM();
    int fd = (int)(intptr_t)os_handle;
    struct stat st;
    struct trailer t;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(fd, &st) || st.st_size < (off_t)sizeof(t) ||
        pread(fd, &t, sizeof(t), st.st_size - (off_t)sizeof(t)) != sizeof(t) || t.magic != TRAILER_MAGIC ||
        t.bytes + sizeof(t) != (uint64_t)st.st_size)
        return CUDA_ERROR_INVALID_VALUE;
    int device = fake_visible(t.physical);
    if (device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    pthread_mutex_lock(&fake_lock);
    CUresult rc = add(
        &(struct fake_physical_memory){
            .fd = own, .device = device, .imported = true, .bytes = t.bytes, .handle_types = t.handle_types},
        out);
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

/* Addresses without access, aligned. */
static void *reserve(size_t bytes, size_t alignment)
{
    char *p = mmap(NULL, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    size_t skip = (alignment - (uintptr_t)p % alignment) % alignment;
    if (skip)
        munmap(p, skip);
    munmap(p + skip + bytes, alignment - skip);
    return p + skip;
}

static struct reservation *reservation_of(uintptr_t address, size_t bytes)
{
    struct reservation *v = reservations;
    while (v && !(address >= v->start && address - v->start < v->bytes))
        v = v->next;
    return v && bytes <= v->start + v->bytes - address ? v : NULL;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr address,
                             unsigned long long flags)
{
    ENTER_VMM();
    (void)address; /* a hint */
    alignment = alignment < FAKE_GRANULARITY ? FAKE_GRANULARITY : alignment;
    if (!bytes || !is_whole(bytes) || alignment & (alignment - 1) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct reservation *v = calloc(1, sizeof(*v));
    void *at = v ? reserve(bytes, alignment) : NULL;
    void *alias = at ? reserve(bytes, FAKE_GRANULARITY) : NULL;
    if (!alias) {
        if (at)
            munmap(at, bytes);
        free(v);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *v = (struct reservation){.start = (uintptr_t)at, .bytes = bytes, .alias = alias};
    pthread_mutex_lock(&fake_lock);
    v->next = reservations;
    reservations = v;
    pthread_mutex_unlock(&fake_lock);
    *out = (uintptr_t)at;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    ENTER_VMM();
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    struct reservation **at = &reservations;
    while (*at && (*at)->start != address)
        at = &(*at)->next;
    struct reservation *v = *at;
    if (v && v->bytes == bytes && !fake_ranges_touch(address, bytes)) {
        *at = v->next;
        munmap((void *)v->start, v->bytes);
        munmap(v->alias, v->bytes);
        free(v);
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

static bool map_at(void *at, int fd, uint64_t offset, size_t bytes, int prot)
{
    return mmap(at, bytes, prot, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, (off_t)offset) != MAP_FAILED;
}

/* The addresses stay reserved. */
static void unmap_at(void *at, size_t bytes)
{
    if (mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) ==
        MAP_FAILED)
        abort();
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    ENTER_VMM();
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    struct fake_physical_memory *m = find(handle);
    struct reservation *v = reservation_of(address, bytes);
    if (m && v && bytes && !flags && is_whole(address) && is_whole(bytes) && is_whole(offset) &&
        offset <= m->bytes && bytes <= m->bytes - offset && !fake_ranges_touch(address, bytes)) {
        struct fake_range r = {.start = address,
                               .bytes = bytes,
                               .kind = FAKE_MAPPED,
                               .ctx = fake_context_of(m->device),
                               .alias = v->alias + (address - v->start),
                               .map = address,
                               .map_bytes = bytes,
                               .physical = m,
                               .offset = offset};
        rc = map_at((void *)r.map, m->fd, offset, bytes, PROT_NONE) &&
                     map_at(r.alias, m->fd, offset, bytes, PROT_READ | PROT_WRITE)
                 ? fake_range_add(&r, NULL)
                 : CUDA_ERROR_OUT_OF_MEMORY;
        m->mappings += rc == CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

/* The mappings that cover the addresses exactly; each: called for every one. */
static CUresult for_mappings(uintptr_t address, size_t bytes,
                             void (*each)(struct fake_range *r, uint32_t access), uint32_t access)
{
    uintptr_t end = address + bytes, at = address;
    while (at < end) { /* all or none */
        struct fake_range *r = fake_range_at(at);
        if (!r || r->kind != FAKE_MAPPED || r->start != at || r->bytes > end - at)
            return CUDA_ERROR_INVALID_VALUE;
        at += r->bytes;
    }
    while (address < end) {
        struct fake_range *r = fake_range_at(address);
        address += r->bytes;
        each(r, access);
    }
    return CUDA_SUCCESS;
}

static void unmap(struct fake_range *r, uint32_t access)
{
    struct fake_range was = *r;
    (void)access;
    fake_range_remove(r);
    unmap_at((void *)was.map, was.map_bytes);
    unmap_at(was.alias, was.map_bytes);
    was.physical->mappings--;
    put(was.physical);
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    ENTER_VMM();
    pthread_mutex_lock(&fake_lock);
    CUresult rc = for_mappings(address, bytes, unmap, 0);
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

static void allow(struct fake_range *r, uint32_t access)
{
    r->access |= access;
}

static void forbid(struct fake_range *r, uint32_t access)
{
    r->access &= ~access;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc, size_t n)
{
    ENTER_VMM();
    CUresult rc = n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    for (size_t i = 0; i < n && rc == CUDA_SUCCESS; i++) {
        const CUmemLocation *where = &desc[i].location;
        if (where->type != CU_MEM_LOCATION_TYPE_DEVICE || !fake_context_of(where->id))
            rc = CUDA_ERROR_INVALID_DEVICE;
        else
            rc = for_mappings(address, bytes, desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? forbid : allow,
                              1U << where->id);
    }
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

CUresult fake_vmm_attribute(const struct fake_range *r, CUpointer_attribute attribute, void *data)
{
    const struct reservation *v = reservation_of(r->start, r->bytes);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = v->start;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = v->bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = r->physical->handle_types;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_FOUND; /* as for other memory */
    }
}
