/* One process's memory and events in another. A handle says where in the exporter's file they are. The
 * importer opens that file through /proc, so importing from a process in another PID namespace, or from one
 * that has ended, fails (CUDA_ERROR_INVALID_VALUE, as in CUDA). Opened memory stays when the exporter ends;
 * memory that the exporter has freed reads as zeros. */
#include "tests/fakes/fake.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HANDLE_MAGIC 0x6b61663aU

struct handle {
    uint32_t magic;
    int32_t pid;
    uint64_t started, pid_namespace;
    int32_t fd;
    uint32_t physical;
    uint64_t place, id;
};
_Static_assert(sizeof(struct handle) <= CU_IPC_HANDLE_SIZE, "a handle has 64 bytes");

struct fake_import {
    struct handle handle;
    unsigned opened;
};

static uint64_t start_of(int pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *s = strrchr(text, ')');
    for (int field = 2; s && field < 22; field++)
        s = strchr(s + 1, ' ');
    return s ? strtoull(s, NULL, 10) : 0;
}

static uint64_t pid_namespace(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) ? 0 : st.st_ino;
}

static void make_handle(void *out, CUcontext ctx, int fd, uint64_t place, uint64_t id)
{
    struct handle h = {.magic = HANDLE_MAGIC,
                       .pid = getpid(),
                       .started = start_of(getpid()),
                       .pid_namespace = pid_namespace(),
                       .fd = fd,
                       .physical = fake_physical(ctx->device),
                       .place = place,
                       .id = id};
    memset(out, 0, CU_IPC_HANDLE_SIZE);
    memcpy(out, &h, sizeof(h));
}

/* Opens the exporter's file; returns a descriptor. */
static CUresult open_file(const struct handle *h, int *fd)
{
    char path[64];
    *fd = -1;
    if (h->magic != HANDLE_MAGIC || h->pid_namespace != pid_namespace())
        return CUDA_ERROR_INVALID_VALUE;
    if (h->pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_visible(h->physical) < 0 || !h->started || start_of(h->pid) != h->started)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", h->pid, h->fd);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    return *fd < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
    FAKE_ENTER(FAKE_CONTEXT);
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    if (!fake_plan()->legacy)
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&fake_lock);
    struct fake_range *r = fake_range_at(address);
    if (r && r->kind == FAKE_ALLOCATED) {
        make_handle(out, r->ctx, fake_memory_file(r->ctx->device), r->place, r->place);
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

/* With the lock. */
static struct fake_range *opened_already(const struct handle *h, CUcontext ctx)
{
    struct fake_range *r;
    for (uintptr_t at = 0; (r = fake_range_after(at)); at = r->start + 1)
        if (r->kind == FAKE_IMPORTED && r->ctx == ctx && !memcmp(&r->import->handle, h, sizeof(*h)))
            return r;
    return NULL;
}

static CUresult map_import(const struct handle *h, int fd, CUcontext ctx, struct fake_range *out)
{
    struct fake_header in;
    if (pread(fd, &in, sizeof(in), (off_t)h->place) != sizeof(in) || in.magic != FAKE_HEADER_MAGIC ||
        in.id != h->id)
        return CUDA_ERROR_INVALID_VALUE; /* freed meanwhile */
    *out = (struct fake_range){.bytes = in.bytes,
                               .kind = FAKE_IMPORTED,
                               .ctx = ctx,
                               .access = 1U << ctx->device,
                               .map_bytes = in.map_bytes,
                               .import = calloc(1, sizeof(*out->import))};
    void *seen = fake_map(fd, h->place + FAKE_PAGE, in.map_bytes, PROT_NONE);
    unsigned char *alias = fake_map(fd, h->place + FAKE_PAGE, in.map_bytes, PROT_READ | PROT_WRITE);
    out->map = (uintptr_t)seen;
    out->start = out->map + in.start;
    out->alias = alias + in.start;
    if (out->import && seen && alias && fake_range_add(out, NULL) == CUDA_SUCCESS) {
        *out->import = (struct fake_import){*h, 1};
        return CUDA_SUCCESS;
    }
    if (seen)
        munmap(seen, in.map_bytes);
    if (alias)
        munmap(alias, in.map_bytes);
    free(out->import);
    return CUDA_ERROR_MAP_FAILED;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
    FAKE_ENTER(FAKE_CONTEXT);
    CUcontext ctx = fake_context();
    struct handle h;
    struct fake_range made;
    int fd;
    if (!fake_plan()->legacy)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&h, &handle, sizeof(h));
    pthread_mutex_lock(&fake_lock);
    struct fake_range *r = opened_already(&h, ctx);
    CUresult rc = CUDA_SUCCESS;
    if (r) {
        r->import->opened++;
        *out = r->start;
    } else if ((rc = open_file(&h, &fd)) == CUDA_SUCCESS) {
        bool far = fake_visible(h.physical) != ctx->device;
        rc = far && !fake_plan()->peer ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED : map_import(&h, fd, ctx, &made);
        if (rc == CUDA_SUCCESS)
            *out = made.start;
        close(fd);
    }
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    FAKE_ENTER(FAKE_CONTEXT);
    pthread_mutex_lock(&fake_lock);
    struct fake_range *r = fake_range_at(address);
    bool found = r && r->kind == FAKE_IMPORTED && r->start == address;
    if (found && --r->import->opened == 0) {
        fake_quiesce(r->ctx);
        struct fake_range was = *r;
        fake_range_remove(r);
        munmap((void *)was.map, was.map_bytes);
        munmap(was.alias - (was.start - was.map), was.map_bytes);
        free(was.import);
    }
    pthread_mutex_unlock(&fake_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent handle)
{
    FAKE_ENTER(FAKE_INIT);
    CUresult rc = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&fake_lock);
    CUevent e = fake_event_find(handle);
    if (e && e->fd >= 0 && !e->imported) {
        make_handle(out, e->ctx, e->fd, 0, e->id);
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle)
{
    FAKE_ENTER(FAKE_CONTEXT);
    struct handle h;
    int fd;
    if (!fake_plan()->legacy)
        return CUDA_ERROR_NOT_SUPPORTED;
    memcpy(&h, &handle, sizeof(h));
    CUresult rc = open_file(&h, &fd);
    if (rc != CUDA_SUCCESS)
        return rc;
    pthread_mutex_lock(&fake_lock);
    rc = fake_event_add(fake_context(), CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, fd, out);
    if (rc == CUDA_SUCCESS)
        (*out)->imported = true;
    pthread_mutex_unlock(&fake_lock);
    return rc;
}
