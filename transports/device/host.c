/* The host kind: the CPU's own memory. Copies are done when they are queued. */
#include "transports/device/device.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int always(struct ws_error *why)
{
    (void)why;
    return 0;
}

static int no_kernels(int device, struct ws_error *why)
{
    (void)device;
    return ws_error_set(why, ENOTSUP, "the host's memory has no kernels");
}

static unsigned one(void)
{
    return 1;
}

static void driver(char out[WS_DEVICE_DRIVER_CHARS])
{
    snprintf(out, WS_DEVICE_DRIVER_CHARS, "none");
}

static int describe(int device, struct ws_device_info *out, struct ws_error *err)
{
    (void)device;
    (void)err;
    *out = (struct ws_device_info){.name = "host", .uuid = "host"};
    return 0;
}

static int reaches(int device, int peer, struct ws_error *why)
{
    (void)device;
    (void)peer;
    (void)why;
    return 0;
}

static bool is_open(void)
{
    return true;
}

static bool owns(const void *p, int *device)
{
    *device = 0;
    return p != NULL;
}

static int enter(int device, struct ws_error *err)
{
    (void)device;
    (void)err;
    return 0;
}

static void leave(void) {}

static int range(int device, const void *p, const unsigned char **base, uint64_t *bytes, struct ws_error *err)
{
    (void)device;
    (void)p;
    (void)base;
    (void)bytes;
    return ws_error_set(err, EOPNOTSUPP, "the size of an allocation of the host cannot be queried");
}

static int queue_new(int device, struct ws_device_queue **out, struct ws_error *err)
{
    *out = malloc(sizeof(**out));
    if (!*out)
        return ws_error_set(err, ENOMEM, "no memory for a queue");
    **out = (struct ws_device_queue){.ops = &ws_host_device, .device = device};
    return 0;
}

static void queue_free(struct ws_device_queue *q)
{
    free(q);
}

static void *queue_stream(struct ws_device_queue *q)
{
    (void)q;
    return NULL;
}

static int follow(struct ws_device_queue *q, void *stream, struct ws_error *err)
{
    (void)q;
    (void)stream;
    (void)err;
    return 0;
}

static int copy(struct ws_device_queue *q, void *dst, const void *src, size_t bytes, struct ws_error *err)
{
    (void)q;
    (void)err;
    ws_copy(dst, src, bytes);
    return 0;
}

static int copy_box(struct ws_device_queue *q, const struct ws_device_box_copy *b, struct ws_error *err)
{
    (void)q;
    (void)err;
    for (size_t z = 0; z < b->depth; z++)
        for (size_t y = 0; y < b->height; y++)
            memcpy((char *)b->dst + z * b->dst_plane + y * b->dst_row,
                   (const char *)b->src + z * b->src_plane + y * b->src_row, b->width);
    return 0;
}

static int fill(struct ws_device_queue *q, void *dst, unsigned char byte, size_t bytes, struct ws_error *err)
{
    (void)q;
    (void)err;
    memset(dst, byte, bytes);
    return 0;
}

static int launch(struct ws_device_queue *q, enum ws_kernel k, unsigned blocks, unsigned threads, void **args,
                  struct ws_error *err)
{
    (void)k;
    (void)blocks;
    (void)threads;
    (void)args;
    return no_kernels(q->device, err);
}

static int finish(struct ws_device_queue *q, struct ws_error *err)
{
    (void)q;
    (void)err;
    return 0;
}

static int event_new(int device, bool shared, struct ws_device_event **out, struct ws_error *err)
{
    (void)shared;
    *out = malloc(sizeof(**out));
    if (!*out)
        return ws_error_set(err, ENOMEM, "no memory for an event");
    **out = (struct ws_device_event){.ops = &ws_host_device, .device = device};
    return 0;
}

static void event_free(struct ws_device_event *m)
{
    free(m);
}

static int record(struct ws_device_queue *q, struct ws_device_event *m, struct ws_error *err)
{
    (void)m;
    return finish(q, err);
}

static int event_passed(struct ws_device_event *m, struct ws_error *err)
{
    (void)m;
    (void)err;
    return 0;
}

static int alloc(int device, size_t bytes, void **out, struct ws_error *err)
{
    (void)device;
    size_t whole = (bytes + 4095) & ~(size_t)4095;
    *out = aligned_alloc(4096, whole ? whole : 4096);
    return *out ? 0 : ws_error_set(err, ENOMEM, "no memory for %zu bytes", bytes);
}

static void release(int device, void *p)
{
    (void)device;
    free(p);
}

static int pin(int device, void *p, size_t bytes, struct ws_error *err)
{
    (void)device;
    (void)p;
    (void)bytes;
    (void)err;
    return 0;
}

static void unpin(int device, void *p)
{
    (void)device;
    (void)p;
}

static int not_shared(struct ws_error *err)
{
    return ws_error_set(err, EOPNOTSUPP,
                        "the host's memory is shared by descriptors of its regions, not by handles");
}

static int extent(const void *p, struct ws_device_extent *out, struct ws_error *err)
{
    (void)p;
    (void)out;
    return not_shared(err);
}

static int share(const struct ws_device_extent *e, unsigned char handle[WS_DEVICE_HANDLE_BYTES],
                 struct ws_error *err)
{
    (void)e;
    (void)handle;
    return not_shared(err);
}

static int share_fd(const struct ws_device_extent *e, int *fd, struct ws_error *err)
{
    (void)e;
    (void)fd;
    return not_shared(err);
}

static int open_handle(int device, const unsigned char handle[WS_DEVICE_HANDLE_BYTES], void **out,
                       struct ws_error *err)
{
    (void)device;
    (void)handle;
    (void)out;
    return not_shared(err);
}

static int open_fds(int device, const int *fds, const uint64_t *bytes, size_t n, void **out,
                    struct ws_error *err)
{
    (void)device;
    (void)fds;
    (void)bytes;
    (void)n;
    (void)out;
    return not_shared(err);
}

static void close_shared(int device, void *p)
{
    (void)device;
    (void)p;
}

static int event_share(struct ws_device_event *m, unsigned char handle[WS_DEVICE_HANDLE_BYTES],
                       struct ws_error *err)
{
    (void)m;
    (void)handle;
    return not_shared(err);
}

static int event_open(int device, const unsigned char handle[WS_DEVICE_HANDLE_BYTES],
                      struct ws_device_event **out, struct ws_error *err)
{
    (void)device;
    (void)handle;
    (void)out;
    return not_shared(err);
}

static int follow_event(struct ws_device_queue *q, struct ws_device_event *m, struct ws_error *err)
{
    (void)q;
    return event_passed(m, err);
}

const struct ws_device_ops ws_host_device = {
    .name = "host",
    .available = always,
    .has_kernels = no_kernels,
    .count = one,
    .driver = driver,
    .describe = describe,
    .reaches = reaches,
    .is_open = is_open,
    .owns = owns,
    .range = range,
    .enter = enter,
    .leave = leave,
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
    .event_wait = event_passed,
    .event_done = event_passed,
    .follow_event = follow_event,
    .alloc = alloc,
    .release = release,
    .alloc_pinned = alloc,
    .release_pinned = release,
    .pin = pin,
    .unpin = unpin,
    .extent = extent,
    .share = share,
    .share_fd = share_fd,
    .open = open_handle,
    .open_fds = open_fds,
    .close = close_shared,
    .event_share = event_share,
    .event_open = event_open,
};
