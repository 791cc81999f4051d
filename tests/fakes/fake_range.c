/* The addresses known to the stand-in: device memory, mappings of it, host memory known to devices; one
 * sorted table. All functions are called with the lock, unless said otherwise. */
#include "tests/fakes/fake.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct fake_range **ranges;
static size_t n_ranges, n_room;
static unsigned n_open; /* running kernels */

uint64_t fake_new_id(void)
{
    static _Atomic uint64_t last;
    return atomic_fetch_add(&last, 1) + 1;
}

bool fake_is_device(const struct fake_range *r)
{
    return r->kind == FAKE_ALLOCATED || r->kind == FAKE_IMPORTED || r->kind == FAKE_MAPPED;
}

/* How many ranges begin at or before the address. */
static size_t before(uintptr_t address)
{
    size_t lo = 0, hi = n_ranges;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (ranges[mid]->start <= address)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

CUresult fake_range_add(const struct fake_range *range, struct fake_range **out)
{
    if (n_ranges == n_room) {
        size_t room = n_room ? 2 * n_room : 64;
        struct fake_range **more = realloc(ranges, room * sizeof(*more));
        if (!more)
            return CUDA_ERROR_OUT_OF_MEMORY;
        ranges = more;
        n_room = room;
    }
    struct fake_range *r = malloc(sizeof(*r));
    if (!r)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *r = *range;
    r->id = fake_new_id();
    size_t at = before(r->start);
    memmove(ranges + at + 1, ranges + at, (n_ranges - at) * sizeof(*ranges));
    ranges[at] = r;
    n_ranges++;
    if (out)
        *out = r;
    return CUDA_SUCCESS;
}

void fake_range_remove(struct fake_range *r)
{
    while (r->busy)
        pthread_cond_wait(&fake_changed, &fake_lock);
    size_t at = before(r->start) - 1;
    memmove(ranges + at, ranges + at + 1, (n_ranges - at - 1) * sizeof(*ranges));
    n_ranges--;
    free(r);
}

struct fake_range *fake_range_at(uintptr_t address)
{
    size_t at = before(address);
    struct fake_range *r = at ? ranges[at - 1] : NULL;
    return r && address - r->start < r->bytes ? r : NULL;
}

struct fake_range *fake_range_after(uintptr_t address)
{
    size_t at = address ? before(address - 1) : 0;
    return at < n_ranges ? ranges[at] : NULL;
}

unsigned char *fake_ranges_alias(uintptr_t address, size_t bytes, struct fake_range **first)
{
    struct fake_range *r = fake_range_at(address), *begin = r;
    if (first)
        *first = begin;
    if (!r)
        return NULL;
    unsigned char *alias = r->alias + (address - r->start);
    while (bytes > r->start + r->bytes - address) {
        bytes -= r->start + r->bytes - address;
        address = r->start + r->bytes;
        struct fake_range *next = fake_range_at(address);
        if (!next || next->kind != r->kind || next->alias - r->alias != (ptrdiff_t)(next->start - r->start))
            return NULL;
        r = next;
    }
    return alias;
}

bool fake_ranges_touch(uintptr_t address, size_t bytes)
{
    size_t at = before(address + bytes - 1);
    return at && ranges[at - 1]->start + ranges[at - 1]->bytes > address;
}

void fake_ranges_hold(uintptr_t address, size_t bytes, int step)
{
    for (size_t at = before(address) - 1; at < n_ranges && ranges[at]->start < address + bytes; at++)
        ranges[at]->busy += (unsigned)step;
    if (step < 0)
        pthread_cond_broadcast(&fake_changed);
}

static void protect(uintptr_t start, uintptr_t end, bool open)
{
    if (end > start)
        mprotect((void *)start, end - start, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void fake_ranges_open(CUcontext ctx, bool open)
{
    uint32_t reaches = ctx->peers | 1U << ctx->device;
    uintptr_t start = 0, end = 0;
    n_open += open ? 1 : -1U;
    if (!open && n_open)
        return; /* another kernel may need them */
    /* Neighbours in one call: models have hundreds of tensors, and each launch opens and closes them all. */
    for (size_t i = 0; i < n_ranges; i++) {
        struct fake_range *r = ranges[i];
        bool reached = r->kind == FAKE_MAPPED ? r->access & (1U << ctx->device) : r->access & reaches;
        if (!fake_is_device(r) || (open && !reached))
            continue;
        if (r->map != end) {
            protect(start, end, open);
            start = r->map;
        }
        end = r->map + r->map_bytes;
    }
    protect(start, end, open);
}

/* Forked processes have the same address map; where this one's ranges begin depends on the process. */
static char *next_address(size_t bytes)
{
    static char *next;
    if (!next) {
        size_t shift = ((size_t)getpid() % 8191 + 1) * FAKE_GRANULARITY;
        void *p = mmap(NULL, shift, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            return NULL;
        munmap(p, shift);
        next = p;
    }
    return next -= (bytes + FAKE_PAGE - 1) / FAKE_PAGE * FAKE_PAGE;
}

void *fake_map(int fd, uint64_t offset, size_t bytes, int prot)
{
    void *p = mmap(prot == PROT_NONE ? next_address(bytes) : NULL, bytes, prot, MAP_SHARED | MAP_NORESERVE,
                   fd, (off_t)offset);
    return p == MAP_FAILED ? NULL : p;
}

void *ws_fake_at(CUdeviceptr address)
{
    pthread_mutex_lock(&fake_lock);
    void *p = fake_ranges_alias(address, 1, NULL);
    pthread_mutex_unlock(&fake_lock);
    return p;
}
