/* Copies and fills, in a stream's order. Memory known to devices (device memory and pinned host memory) is
 * read and written when the copy runs; pageable memory is read during the call, and written before it
 * returns. Memory that has been freed by then, or has no access, breaks the context. */
#include "tests/fakes/fake.h"
#include <stdlib.h>
#include <string.h>

struct side {
    uintptr_t at;
    size_t row, plane;
    bool known; /* to the driver: not pageable */
    unsigned char *staged;
};

struct copy_op {
    struct fake_op op;
    struct side dst, src;
    size_t width, height, depth;
};

static size_t span(const struct copy_op *c, const struct side *s)
{
    return (c->depth - 1) * s->plane + (c->height - 1) * s->row + c->width;
}

/* With the lock: one side's bytes, held; NULL: they do not exist, or have no access. */
static unsigned char *hold(const struct copy_op *c, const struct side *s)
{
    if (!s->known)
        return s->staged ? s->staged : (unsigned char *)s->at;
    struct fake_range *r;
    unsigned char *alias = fake_ranges_alias(s->at, span(c, s), &r);
    if (alias)
        for (uintptr_t at = s->at; at < s->at + span(c, s); at = r->start + r->bytes)
            if (!(r = fake_range_at(at))->access)
                return NULL;
    if (alias)
        fake_ranges_hold(s->at, span(c, s), 1);
    return alias;
}

static void release(const struct copy_op *c, const struct side *s)
{
    if (s->known)
        fake_ranges_hold(s->at, span(c, s), -1);
}

static void copy_rows(const struct copy_op *c, unsigned char *dst, size_t dst_row, size_t dst_plane,
                      const unsigned char *src, size_t src_row, size_t src_plane)
{
    for (size_t z = 0; z < c->depth; z++)
        for (size_t y = 0; y < c->height; y++)
            memmove(dst + z * dst_plane + y * dst_row, src + z * src_plane + y * src_row, c->width);
}

static CUresult run_copy(struct fake_op *op)
{
    struct copy_op *c = (struct copy_op *)op;
    size_t row = c->src.staged ? c->width : c->src.row;
    size_t plane = c->src.staged ? c->width * c->height : c->src.plane;

    pthread_mutex_lock(&fake_lock);
    unsigned char *src = hold(c, &c->src), *dst = src ? hold(c, &c->dst) : NULL;
    if (src && !dst)
        release(c, &c->src);
    pthread_mutex_unlock(&fake_lock);
    if (!dst)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    copy_rows(c, dst, c->dst.row, c->dst.plane, src, row, plane);
    pthread_mutex_lock(&fake_lock);
    release(c, &c->src);
    release(c, &c->dst);
    pthread_mutex_unlock(&fake_lock);
    return CUDA_SUCCESS;
}

static void free_copy(struct fake_op *op)
{
    free(((struct copy_op *)op)->src.staged);
}

/* Which kind of memory it is, and whether all of it exists. With the lock. */
static CUresult look_at(const struct copy_op *c, struct side *s, CUmemorytype type)
{
    const struct fake_range *r = fake_range_at(s->at);
    bool device = r && fake_is_device(r);
    s->known = r && fake_ranges_alias(s->at, span(c, s), NULL);
    if ((type == CU_MEMORYTYPE_HOST && device) || (type == CU_MEMORYTYPE_DEVICE && !s->known) ||
        (device && !s->known))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult stage(struct copy_op *c)
{
    if (c->src.known)
        return CUDA_SUCCESS;
    c->src.staged = malloc(c->width * c->height * c->depth);
    if (!c->src.staged)
        return CUDA_ERROR_OUT_OF_MEMORY;
    copy_rows(c, c->src.staged, c->width, c->width * c->height, (const unsigned char *)c->src.at, c->src.row,
              c->src.plane);
    return CUDA_SUCCESS;
}

static CUresult push_copy(const struct copy_op *like, CUmemorytype dst, CUmemorytype src, CUstream stream,
                          bool wait)
{
    if (!like->width || !like->height || !like->depth)
        return CUDA_SUCCESS;
    struct copy_op *c = malloc(sizeof(*c));
    if (!c)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *c = *like;
    c->op = (struct fake_op){.run = run_copy, .free = free_copy};
    pthread_mutex_lock(&fake_lock);
    CUresult rc = look_at(c, &c->dst, dst);
    if (rc == CUDA_SUCCESS)
        rc = look_at(c, &c->src, src);
    pthread_mutex_unlock(&fake_lock);
    if (rc == CUDA_SUCCESS)
        rc = stage(c);
    if (rc != CUDA_SUCCESS) {
        free(c);
        return rc;
    }
    return fake_stream_push(stream, &c->op, wait || !c->dst.known);
}

static struct copy_op line(uintptr_t dst, uintptr_t src, size_t bytes)
{
    return (struct copy_op){.dst = {.at = dst}, .src = {.at = src}, .width = bytes, .height = 1, .depth = 1};
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    FAKE_ENTER(FAKE_CONTEXT);
    struct copy_op c = line(dst, src, bytes);
    return push_copy(&c, CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED, stream, false);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes)
{
    FAKE_ENTER(FAKE_CONTEXT);
    struct copy_op c = line((uintptr_t)dst, src, bytes);
    return push_copy(&c, CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, NULL, true);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes)
{
    FAKE_ENTER(FAKE_CONTEXT);
    struct copy_op c = line(dst, (uintptr_t)src, bytes);
    return push_copy(&c, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, NULL, true);
}

/* One side as described by the two structs; false: invalid. */
static bool take_side(struct side *s, const struct copy_op *c, CUmemorytype type, const void *host,
                      CUdeviceptr device, const size_t first[3], size_t pitch, size_t rows)
{
    if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
        return false;
    if (pitch > INT32_MAX || ((c->height > 1 || c->depth > 1) && pitch < c->width + first[0]) ||
        (c->depth > 1 && rows < c->height + first[1]))
        return false;
    s->at = type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : device;
    s->row = pitch;
    s->plane = pitch * rows;
    s->at += first[2] * s->plane + first[1] * s->row + first[0];
    return true;
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream stream)
{
    FAKE_ENTER(FAKE_CONTEXT);
    struct copy_op c = {.width = p->WidthInBytes, .height = p->Height, .depth = 1};
    const size_t dst[] = {p->dstXInBytes, p->dstY, 0}, src[] = {p->srcXInBytes, p->srcY, 0};
    if (!take_side(&c.dst, &c, p->dstMemoryType, p->dstHost, p->dstDevice, dst, p->dstPitch, 0) ||
        !take_side(&c.src, &c, p->srcMemoryType, p->srcHost, p->srcDevice, src, p->srcPitch, 0))
        return CUDA_ERROR_INVALID_VALUE;
    return push_copy(&c, p->dstMemoryType, p->srcMemoryType, stream, false);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *p, CUstream stream)
{
    FAKE_ENTER(FAKE_CONTEXT);
    struct copy_op c = {.width = p->WidthInBytes, .height = p->Height, .depth = p->Depth};
    const size_t dst[] = {p->dstXInBytes, p->dstY, p->dstZ}, src[] = {p->srcXInBytes, p->srcY, p->srcZ};
    if (p->dstLOD || p->srcLOD || p->reserved0 || p->reserved1 ||
        !take_side(&c.dst, &c, p->dstMemoryType, p->dstHost, p->dstDevice, dst, p->dstPitch, p->dstHeight) ||
        !take_side(&c.src, &c, p->srcMemoryType, p->srcHost, p->srcDevice, src, p->srcPitch, p->srcHeight))
        return CUDA_ERROR_INVALID_VALUE;
    return push_copy(&c, p->dstMemoryType, p->srcMemoryType, stream, false);
}

struct fill_op {
    struct copy_op copy; /* its destination */
    unsigned char byte;
};

static CUresult run_fill(struct fake_op *op)
{
    struct fill_op *f = (struct fill_op *)op;
    pthread_mutex_lock(&fake_lock);
    unsigned char *dst = hold(&f->copy, &f->copy.dst);
    pthread_mutex_unlock(&fake_lock);
    if (!dst)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    memset(dst, f->byte, f->copy.width);
    pthread_mutex_lock(&fake_lock);
    release(&f->copy, &f->copy.dst);
    pthread_mutex_unlock(&fake_lock);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char byte, size_t bytes, CUstream stream)
{
    FAKE_ENTER(FAKE_CONTEXT);
    if (!bytes)
        return CUDA_SUCCESS;
    struct fill_op *f = calloc(1, sizeof(*f));
    if (!f)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *f = (struct fill_op){.copy = line(dst, 0, bytes), .byte = byte};
    f->copy.op.run = run_fill;
    pthread_mutex_lock(&fake_lock);
    CUresult rc = look_at(&f->copy, &f->copy.dst, CU_MEMORYTYPE_DEVICE);
    pthread_mutex_unlock(&fake_lock);
    if (rc != CUDA_SUCCESS) {
        free(f);
        return rc;
    }
    return fake_stream_push(stream, &f->copy.op, false);
}
