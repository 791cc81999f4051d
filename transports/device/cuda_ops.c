/* The cuda kind, by the driver's API: a queue is a stream that waits for no other, an event is its event. */
#include "transports/base/log.h"
#include "transports/device/cuda_driver.h"
#include "transports/device/cuda_share.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct queue {
    struct ws_device_queue head;
    CUstream stream;
    CUevent here; /* of the stream that is followed */
};

struct event {
    struct ws_device_event head;
    CUevent event;
};

/* Returns what call returns within the device's context, or why that cannot be entered. */
#define WITHIN(device, err, call)                                                                            \
    do {                                                                                                     \
        int within_rc = ws_cuda_enter(device, err);                                                          \
        if (within_rc < 0)                                                                                   \
            return within_rc;                                                                                \
        within_rc = (call);                                                                                  \
        ws_cuda_leave();                                                                                     \
        return within_rc;                                                                                    \
    } while (0)

static const struct ws_cuda_driver *cuda(void)
{
    return ws_cuda_driver_open(NULL);
}

static int available(struct ws_error *why)
{
    struct ws_error err = {0};
    if (ws_cuda_driver_open(&err))
        return 0;
    return ws_error_set(why, err.code, "%s", err.text);
}

static int has_kernels(int device, struct ws_error *why)
{
    return ws_cuda_kernel(device, WS_KERNEL_GATHER, NULL, why);
}

static unsigned count(void)
{
    const struct ws_cuda_driver *c = cuda();
    return c ? (unsigned)c->n_devices : 0;
}

static void driver(char out[WS_DEVICE_DRIVER_CHARS])
{
    const struct ws_cuda_driver *c = cuda();
    snprintf(out, WS_DEVICE_DRIVER_CHARS, "%.120s for CUDA %d.%d", ws_cuda_driver_library(),
             c ? c->driver / 1000 : 0, c ? c->driver % 1000 / 10 : 0);
}

/* --- devices --- */

static int attribute(CUdevice d, CUdevice_attribute which)
{
    int value = 0;
    return cuda()->device_attribute(&value, which, d) == CUDA_SUCCESS ? value : 0;
}

static void uuid_text(const CUuuid *u, char out[WS_DEVICE_UUID_BYTES])
{
    size_t at = (size_t)snprintf(out, WS_DEVICE_UUID_BYTES, "GPU");
    for (size_t i = 0; i < sizeof(u->bytes); i++)
        at += (size_t)snprintf(out + at, WS_DEVICE_UUID_BYTES - at, "%s%02x",
                               i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                               (unsigned)(unsigned char)u->bytes[i]);
}

static int describe_here(int device, struct ws_device_info *out, struct ws_error *err)
{
    const struct ws_cuda_driver *c = cuda();
    CUdevice d;
    CUuuid uuid = {{0}};
    size_t free_bytes = 0, total = 0;
    *out = (struct ws_device_info){0};
    int rc = ws_cuda_result(c->device_get(&d, device), err, "finding device %d", device);
    if (rc == 0)
        rc = ws_cuda_result(c->device_name(out->name, sizeof(out->name), d), err, "asking device %d's name",
                            device);
    if (rc == 0)
        rc = ws_cuda_result(c->device_uuid(&uuid, d), err, "asking device %d's uuid", device);
    if (rc == 0)
        rc = ws_cuda_result(c->device_bus(out->bus, sizeof(out->bus), d), err, "asking device %d's bus",
                            device);
    if (rc == 0)
        rc = ws_cuda_result(c->mem_info(&free_bytes, &total), err, "asking device %d's memory", device);
    if (rc < 0)
        return rc;
    uuid_text(&uuid, out->uuid);
    out->total_bytes = total;
    out->free_bytes = free_bytes;
    out->major = (unsigned)attribute(d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    out->minor = (unsigned)attribute(d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    out->legacy = attribute(d, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
    out->by_fd = attribute(d, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    return 0;
}

static int describe(int device, struct ws_device_info *out, struct ws_error *err)
{
    WITHIN(device, err, describe_here(device, out, err));
}

static int reaches_here(int device, int peer, struct ws_error *why)
{
    const struct ws_cuda_driver *c = cuda();
    CUdevice a, b;
    CUcontext context = NULL;
    int can = 0;
    int rc = ws_cuda_result(c->device_get(&a, device), why, "finding device %d", device);
    if (rc == 0)
        rc = ws_cuda_result(c->device_get(&b, peer), why, "finding device %d", peer);
    if (rc == 0)
        rc = ws_cuda_result(c->can_access_peer(&can, a, b), why, "asking for peer access");
    if (rc == 0 && !can)
        return ws_error_set(why, EXDEV,
                            "device %d cannot read the memory of device %d (no NVLink, no PCIe peer access)",
                            device, peer);
    if (rc == 0)
        rc = ws_cuda_result(c->primary_retain(&context, b), why, "opening device %d", peer);
    CUresult r = rc == 0 ? c->enable_peer(context, 0) : CUDA_SUCCESS;
    return rc == 0 && r != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
               ? ws_cuda_result(r, why, "opening the way from device %d to %d", device, peer)
               : rc;
}

static int reaches(int device, int peer, struct ws_error *why)
{
    if (device == peer)
        return 0;
    WITHIN(device, why, reaches_here(device, peer, why));
}

static bool is_open(void)
{
    return ws_cuda_driver_if_open() != NULL;
}

/* A driver that is not started has no memory. One that cannot answer, since its device is lost, may have: the
 * memory counts as the device's, so that its user gets an error and does not touch it as if it were the
 * host's. */
static bool owns(const void *p, int *device)
{
    const struct ws_cuda_driver *c = ws_cuda_driver_if_open();
    CUmemorytype type = 0;
    if (!c)
        return false;
    switch (c->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)p)) {
    case CUDA_SUCCESS:
        break;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT:
        return false;
    default:
        *device = 0;
        return true;
    }
    if (type == CU_MEMORYTYPE_DEVICE && c->pointer_attribute(device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                                             (CUdeviceptr)(uintptr_t)p) != CUDA_SUCCESS)
        *device = 0;
    return type == CU_MEMORYTYPE_DEVICE;
}

static int range_here(const void *p, const unsigned char **base, uint64_t *bytes, struct ws_error *err)
{
    const struct ws_cuda_driver *c = cuda();
    CUdeviceptr start = 0;
    size_t n = 0;
    int rc = ws_cuda_result(
        c->pointer_attribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, (CUdeviceptr)(uintptr_t)p), err,
        "finding the allocation of %p", p);
    if (rc == 0)
        rc = ws_cuda_result(
            c->pointer_attribute(&n, CU_POINTER_ATTRIBUTE_RANGE_SIZE, (CUdeviceptr)(uintptr_t)p), err,
            "asking how large the allocation of %p is", p);
    *base = (const unsigned char *)(uintptr_t)start;
    *bytes = n;
    return rc;
}

static int range(int device, const void *p, const unsigned char **base, uint64_t *bytes, struct ws_error *err)
{
    WITHIN(device, err, range_here(p, base, bytes, err));
}

/* --- queues --- */

static int queue_start(struct queue *q, struct ws_error *err)
{
    const struct ws_cuda_driver *c = cuda();
    int rc = ws_cuda_result(c->stream_create(&q->stream, CU_STREAM_NON_BLOCKING), err, "making a stream");
    if (rc == 0)
        rc = ws_cuda_result(c->event_create(&q->here, CU_EVENT_DISABLE_TIMING), err, "making an event");
    if (rc < 0 && q->stream)
        (void)c->stream_destroy(q->stream);
    return rc;
}

static int queue_new(int device, struct ws_device_queue **out, struct ws_error *err)
{
    int rc = ws_cuda_enter(device, err);
    if (rc < 0)
        return rc;
    struct queue *q = calloc(1, sizeof(*q));
    rc = q ? queue_start(q, err) : ws_error_set(err, ENOMEM, "no memory for a queue");
    ws_cuda_leave();
    if (rc < 0) {
        free(q);
        return rc;
    }
    q->head = (struct ws_device_queue){.ops = &ws_cuda_device, .device = device};
    *out = &q->head;
    return 0;
}

static void queue_free(struct ws_device_queue *queue)
{
    struct queue *q = (struct queue *)queue;
    if (!q || ws_cuda_enter(q->head.device, NULL) < 0)
        return;
    (void)cuda()->stream_synchronize(q->stream);
    (void)cuda()->stream_destroy(q->stream);
    (void)cuda()->event_destroy(q->here);
    ws_cuda_leave();
    free(q);
}

static void *queue_stream(struct ws_device_queue *q)
{
    return ((struct queue *)q)->stream;
}

static int follow_here(struct queue *q, CUstream stream, struct ws_error *err)
{
    int rc = ws_cuda_result(cuda()->event_record(q->here, stream), err,
                            "following the stream %p of the parameters", (void *)stream);
    return rc == 0 ? ws_cuda_result(cuda()->stream_wait(q->stream, q->here, 0), err,
                                    "waiting for the stream of the parameters")
                   : rc;
}

static int follow(struct ws_device_queue *q, void *stream, struct ws_error *err)
{
    WITHIN(q->device, err, follow_here((struct queue *)q, stream, err));
}

static int copy(struct ws_device_queue *q, void *dst, const void *src, size_t bytes, struct ws_error *err)
{
    WITHIN(q->device, err,
           ws_cuda_result(cuda()->copy((CUdeviceptr)(uintptr_t)dst, (CUdeviceptr)(uintptr_t)src, bytes,
                                       ((struct queue *)q)->stream),
                          err, "copying %zu bytes", bytes));
}

static int copy_2d(struct queue *q, const struct ws_device_box_copy *b, struct ws_error *err)
{
    CUDA_MEMCPY2D m = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                       .srcDevice = (CUdeviceptr)(uintptr_t)b->src,
                       .srcPitch = b->src_row,
                       .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                       .dstDevice = (CUdeviceptr)(uintptr_t)b->dst,
                       .dstPitch = b->dst_row,
                       .WidthInBytes = b->width,
                       .Height = b->height};
    return ws_cuda_result(cuda()->copy_2d(&m, q->stream), err, "copying %zu rows of %zu bytes", b->height,
                          b->width);
}

static int copy_3d(struct queue *q, const struct ws_device_box_copy *b, struct ws_error *err)
{
    CUDA_MEMCPY3D m = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                       .srcDevice = (CUdeviceptr)(uintptr_t)b->src,
                       .srcPitch = b->src_row,
                       .srcHeight = b->src_plane / b->src_row,
                       .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                       .dstDevice = (CUdeviceptr)(uintptr_t)b->dst,
                       .dstPitch = b->dst_row,
                       .dstHeight = b->dst_plane / b->dst_row,
                       .WidthInBytes = b->width,
                       .Height = b->height,
                       .Depth = b->depth};
    return ws_cuda_result(cuda()->copy_3d(&m, q->stream), err, "copying %zu planes of %zu rows of %zu bytes",
                          b->depth, b->height, b->width);
}

static int copy_box(struct ws_device_queue *q, const struct ws_device_box_copy *b, struct ws_error *err)
{
    WITHIN(q->device, err,
           b->depth > 1 ? copy_3d((struct queue *)q, b, err) : copy_2d((struct queue *)q, b, err));
}

static int fill(struct ws_device_queue *q, void *dst, unsigned char byte, size_t bytes, struct ws_error *err)
{
    WITHIN(q->device, err,
           ws_cuda_result(cuda()->fill((CUdeviceptr)(uintptr_t)dst, byte, bytes, ((struct queue *)q)->stream),
                          err, "filling %zu bytes", bytes));
}

static int launch(struct ws_device_queue *q, enum ws_kernel k, unsigned blocks, unsigned threads, void **args,
                  struct ws_error *err)
{
    CUfunction f;
    int rc = ws_cuda_kernel(q->device, k, &f, err);
    if (rc < 0)
        return rc;
    WITHIN(q->device, err,
           ws_cuda_result(
               cuda()->launch(f, blocks, 1, 1, threads, 1, 1, 0, ((struct queue *)q)->stream, args, NULL),
               err, "starting the kernel %s", ws_cuda_kernel_name(k)));
}

static int finish(struct ws_device_queue *q, struct ws_error *err)
{
    WITHIN(
        q->device, err,
        ws_cuda_result(cuda()->stream_synchronize(((struct queue *)q)->stream), err, "waiting for a stream"));
}

/* --- events --- */

static int wrap_event(int device, CUevent event, struct ws_device_event **out, struct ws_error *err)
{
    struct event *m = calloc(1, sizeof(*m));
    if (!m) {
        (void)cuda()->event_destroy(event);
        return ws_error_set(err, ENOMEM, "no memory for an event");
    }
    m->head = (struct ws_device_event){.ops = &ws_cuda_device, .device = device};
    m->event = event;
    *out = &m->head;
    return 0;
}

static int event_make(int device, bool shared, struct ws_device_event **out, struct ws_error *err)
{
    CUevent event;
    unsigned flags = CU_EVENT_DISABLE_TIMING | (shared ? CU_EVENT_INTERPROCESS : 0);
    int rc = ws_cuda_result(cuda()->event_create(&event, flags), err, "making an event");
    return rc == 0 ? wrap_event(device, event, out, err) : rc;
}

static int event_new(int device, bool shared, struct ws_device_event **out, struct ws_error *err)
{
    WITHIN(device, err, event_make(device, shared, out, err));
}

static void event_free(struct ws_device_event *event)
{
    struct event *m = (struct event *)event;
    if (!m || ws_cuda_enter(m->head.device, NULL) < 0)
        return;
    (void)cuda()->event_destroy(m->event);
    ws_cuda_leave();
    free(m);
}

static int record(struct ws_device_queue *q, struct ws_device_event *m, struct ws_error *err)
{
    WITHIN(q->device, err,
           ws_cuda_result(cuda()->event_record(((struct event *)m)->event, ((struct queue *)q)->stream), err,
                          "recording an event"));
}

static int event_wait(struct ws_device_event *m, struct ws_error *err)
{
    WITHIN(m->device, err,
           ws_cuda_result(cuda()->event_synchronize(((struct event *)m)->event), err, "waiting for the GPU"));
}

static int event_done(struct ws_device_event *m, struct ws_error *err)
{
    WITHIN(m->device, err,
           ws_cuda_result(cuda()->event_query(((struct event *)m)->event), err, "asking the GPU"));
}

static int follow_event(struct ws_device_queue *q, struct ws_device_event *m, struct ws_error *err)
{
    WITHIN(q->device, err,
           ws_cuda_result(cuda()->stream_wait(((struct queue *)q)->stream, ((struct event *)m)->event, 0),
                          err, "waiting for an event"));
}

static int event_share(struct ws_device_event *m, unsigned char handle[WS_DEVICE_HANDLE_BYTES],
                       struct ws_error *err)
{
    CUipcEventHandle h;
    int rc = ws_cuda_enter(m->device, err);
    if (rc < 0)
        return rc;
    rc = ws_cuda_result(cuda()->ipc_event_handle(&h, ((struct event *)m)->event), err, "sharing an event");
    ws_cuda_leave();
    if (rc == 0)
        memcpy(handle, &h, WS_DEVICE_HANDLE_BYTES);
    return rc;
}

static int open_event(int device, const unsigned char *handle, struct ws_device_event **out,
                      struct ws_error *err)
{
    CUipcEventHandle h;
    CUevent event;
    memcpy(&h, handle, sizeof(h));
    int rc = ws_cuda_result(cuda()->ipc_event_open(&event, h), err, "opening another process's event");
    return rc == 0 ? wrap_event(device, event, out, err) : rc;
}

static int event_open(int device, const unsigned char handle[WS_DEVICE_HANDLE_BYTES],
                      struct ws_device_event **out, struct ws_error *err)
{
    WITHIN(device, err, open_event(device, handle, out, err));
}

/* --- memory --- */

static int allocate(int device, size_t bytes, void **out, struct ws_error *err)
{
    CUdeviceptr p = 0;
    size_t free_bytes = 0, total = 0;
    CUresult r = cuda()->mem_alloc(&p, bytes);
    *out = (void *)(uintptr_t)p;
    if (r != CUDA_ERROR_OUT_OF_MEMORY)
        return ws_cuda_result(r, err, "taking %zu bytes of device %d", bytes, device);
    (void)cuda()->mem_info(&free_bytes, &total);
    return ws_error_set(err, ENOMEM, "device %d has %zu MiB free of %zu, and %zu MiB are needed", device,
                        free_bytes >> 20, total >> 20, (bytes >> 20) + 1);
}

static int alloc(int device, size_t bytes, void **out, struct ws_error *err)
{
    WITHIN(device, err, allocate(device, bytes, out, err));
}

static void release(int device, void *p)
{
    if (!p || ws_cuda_enter(device, NULL) < 0)
        return;
    (void)cuda()->mem_free((CUdeviceptr)(uintptr_t)p);
    ws_cuda_leave();
}

static int alloc_pinned(int device, size_t bytes, void **out, struct ws_error *err)
{
    WITHIN(device, err,
           ws_cuda_result(cuda()->host_alloc(out, bytes, CU_MEMHOSTALLOC_PORTABLE), err,
                          "pinning %zu new bytes of host memory", bytes));
}

static void release_pinned(int device, void *p)
{
    if (!p || ws_cuda_enter(device, NULL) < 0)
        return;
    (void)cuda()->host_free(p);
    ws_cuda_leave();
}

static int pin(int device, void *p, size_t bytes, struct ws_error *err)
{
    WITHIN(device, err,
           ws_cuda_result(cuda()->host_register(p, bytes, CU_MEMHOSTREGISTER_PORTABLE), err,
                          "pinning %zu bytes of host memory (the limit is that of `ulimit -l`)", bytes));
}

static void unpin(int device, void *p)
{
    if (ws_cuda_enter(device, NULL) < 0)
        return;
    (void)cuda()->host_unregister(p);
    ws_cuda_leave();
}

const struct ws_device_ops ws_cuda_device = {
    .name = "cuda",
    .available = available,
    .has_kernels = has_kernels,
    .count = count,
    .driver = driver,
    .describe = describe,
    .reaches = reaches,
    .is_open = is_open,
    .owns = owns,
    .range = range,
    .enter = ws_cuda_enter,
    .leave = ws_cuda_leave,
    .queue_new = queue_new,
    .queue_free = queue_free,
    .queue_stream = queue_stream,
    .follow = follow,
    .copy = copy,
    .copy_box = copy_box,
    .fill = fill,
    .launch = launch,
    .finish = finish,
    .event_new = event_new,
    .event_free = event_free,
    .record = record,
    .event_wait = event_wait,
    .event_done = event_done,
    .follow_event = follow_event,
    .alloc = alloc,
    .release = release,
    .alloc_pinned = alloc_pinned,
    .release_pinned = release_pinned,
    .pin = pin,
    .unpin = unpin,
    .extent = ws_cuda_share_extent,
    .share = ws_cuda_share_handle,
    .share_fd = ws_cuda_share_fd,
    .open = ws_cuda_share_open,
    .open_fds = ws_cuda_share_open_fds,
    .close = ws_cuda_share_close,
    .event_share = event_share,
    .event_open = event_open,
};
