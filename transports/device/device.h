/* Device: kinds of memory (host, cuda) behind one table, and what can be done with memory of a kind: queues
 * that copy, events that say when, pinning, sharing with other processes of the host, kernels. After
 * libfabric's memory kinds: every slot is filled, and what a kind or a build cannot do answers -ENOTSUP with a
 * reason, so that no caller tests for NULL.
 *
 * The cuda kind goes through the driver's API, opened at run time (cuda_driver.h): one binary runs with and
 * without a GPU, and a build without CUDA's headers has a cuda kind that says so. Addresses are plain pointers
 * (unified addressing); the CPU must not touch those of a device.
 *
 * A queue is one stream with its own order: it waits for no other work than what it was made to follow. One
 * thread at a time uses a queue; everything else is thread safe. */
#ifndef WS_TRANSPORTS_DEVICE_DEVICE_H
#define WS_TRANSPORTS_DEVICE_DEVICE_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ws_device_kind { WS_HOST, WS_CUDA, WS_N_KINDS };

/* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" and its end, as nvidia-smi prints it. */
#define WS_DEVICE_UUID_BYTES   44
#define WS_DEVICE_DRIVER_CHARS 160
#define WS_DEVICE_HANDLE_BYTES 64 /* of a shared allocation or event */

struct ws_device_info {
    char name[96], uuid[WS_DEVICE_UUID_BYTES], bus[16];
    uint64_t total_bytes, free_bytes;
    unsigned major, minor; /* compute capability */
    bool legacy;           /* allocations and events can be shared by handles */
    bool by_fd;            /* mapped memory can be shared by descriptors */
};

struct ws_device_ops;
struct ws_device_queue { /* the head of each kind's own */
    const struct ws_device_ops *ops;
    int device;
};
struct ws_device_event { /* a place in a queue's order; likewise */
    const struct ws_device_ops *ops;
    int device;
};

/* Rows of planes, all sizes in bytes: dst + z * dst_plane + y * dst_row + x. A plane step is a multiple of
 * its row step. */
struct ws_device_box_copy {
    void *dst;
    const void *src;
    size_t width, height, depth;
    size_t dst_row, dst_plane, src_row, src_plane;
};

/* Memory of a device as it can be shared: an allocation, or one of the mappings of reserved addresses
 * (expandable segments), which lie side by side. */
struct ws_device_extent {
    const unsigned char *base;
    uint64_t bytes;
    int device;
    bool by_fd; /* shared by a descriptor; else by a handle */
};

/* Which kernel, for launch: transports/device/kernels/ has what they do and their arguments. */
enum ws_kernel {
    WS_KERNEL_GATHER,
    WS_KERNEL_DIFF_COUNT,
    WS_KERNEL_DIFF_PACK,
    WS_KERNEL_HASH_SUM,
    WS_KERNEL_HASH_FOLD,
    WS_N_KERNELS
};

struct ws_device_ops {
    const char *name; /* "cuda" */
    /* 0, or why this kind cannot be used: not in this build, no driver, too old a one, no device. Opens what
     * has to be opened, once; cheap afterwards. */
    int (*available)(struct ws_error *why);
    /* Are there kernels that this device runs? 0, or why not, and everything goes by copies. */
    int (*has_kernels)(int device, struct ws_error *why);
    unsigned (*count)(void);
    void (*driver)(
        char out[WS_DEVICE_DRIVER_CHARS]); /* "libcuda.so.1 for CUDA 13.0"; where it is available */
    int (*describe)(int device, struct ws_device_info *out, struct ws_error *err);
    /* Can the one read the other's memory? 0, or -EXDEV with a reason. Opens the way. */
    int (*reaches)(int device, int peer, struct ws_error *why);
    /* Has something in this process opened the kind's driver? */
    bool (*is_open)(void);
    /* Is p this kind's memory, and of which device? Opens nothing: a process that has such memory has opened its
     * driver. */
    bool (*owns)(const void *p, int *device);
    /* The allocation that p lies in: nothing outside of it may be read. */
    int (*range)(int device, const void *p, const unsigned char **base, uint64_t *bytes,
                 struct ws_error *err);
    /* Makes the device the calling thread's own until leave, for a library that goes by that (NCCL). */
    int (*enter)(int device, struct ws_error *err);
    void (*leave)(void);

    int (*queue_new)(int device, struct ws_device_queue **out, struct ws_error *err);
    void (*queue_free)(struct ws_device_queue *q);    /* waits for what is queued */
    void *(*queue_stream)(struct ws_device_queue *q); /* CUstream, for a library that wants one */
    /* What is queued from now on waits for what is in the stream by now: a CUstream; NULL: the default one; 1
     * and 2, as in CUDA: the legacy and the thread's default one. */
    int (*follow)(struct ws_device_queue *q, void *stream, struct ws_error *err);
    /* dst, src: this device's memory, another one's that it reaches, or the host's; any but host to host.
     * Host memory that is not pinned is slower and may make the call wait. */
    int (*copy)(struct ws_device_queue *q, void *dst, const void *src, size_t bytes, struct ws_error *err);
    int (*copy_box)(struct ws_device_queue *q, const struct ws_device_box_copy *b, struct ws_error *err);
    int (*fill)(struct ws_device_queue *q, void *dst, unsigned char byte, size_t bytes, struct ws_error *err);
    int (*launch)(struct ws_device_queue *q, enum ws_kernel k, unsigned blocks, unsigned threads, void **args,
                  struct ws_error *err);
    /* Waits until the queue is empty. -EIO: something in it failed, or the device is lost. */
    int (*finish)(struct ws_device_queue *q, struct ws_error *err);

    /* event_new: shared: may be exported. record: moves the event to this place in the queue. */
    int (*event_new)(int device, bool shared, struct ws_device_event **out, struct ws_error *err);
    void (*event_free)(struct ws_device_event *m);
    int (*record)(struct ws_device_queue *q, struct ws_device_event *m, struct ws_error *err);
    int (*event_wait)(struct ws_device_event *m, struct ws_error *err); /* on the host */
    int (*event_done)(struct ws_device_event *m, struct ws_error *err); /* 0, -EAGAIN: not yet, -EIO */
    int (*follow_event)(struct ws_device_queue *q, struct ws_device_event *m, struct ws_error *err);

    int (*alloc)(int device, size_t bytes, void **out,
                 struct ws_error *err);   /* -ENOMEM with free and total bytes */
    void (*release)(int device, void *p); /* NULL is fine */
    /* Host memory that every device can reach; device: the one whose context allocates it. */
    int (*alloc_pinned)(int device, size_t bytes, void **out, struct ws_error *err);
    void (*release_pinned)(int device, void *p); /* NULL is fine */
    /* Makes host memory (page aligned) known to the driver, so that copies run at the link's speed. It costs
     * time in proportion to the bytes, so it is done once. -ENOMEM: RLIMIT_MEMLOCK; -ENOTSUP. */
    int (*pin)(int device, void *p, size_t bytes, struct ws_error *err);
    void (*unpin)(int device, void *p);

    /* The extent that p lies in. -EOPNOTSUPP: its memory cannot be shared, and why. */
    int (*extent)(const void *p, struct ws_device_extent *out, struct ws_error *err);
    int (*share)(const struct ws_device_extent *e, unsigned char handle[WS_DEVICE_HANDLE_BYTES],
                 struct ws_error *err);
    int (*share_fd)(const struct ws_device_extent *e, int *fd,
                    struct ws_error *err); /* the caller owns *fd */
    /* Another process's allocation, here. -ENOENT: its process has ended; -EXDEV: another namespace, or the
     * device is not visible; -EBUSY: it is this process's own. */
    int (*open)(int device, const unsigned char handle[WS_DEVICE_HANDLE_BYTES], void **out,
                struct ws_error *err);
    /* Another process's extents, mapped side by side as they were there; the caller keeps the fds. */
    int (*open_fds)(int device, const int *fds, const uint64_t *bytes, size_t n, void **out,
                    struct ws_error *err);
    void (*close)(int device, void *p); /* what open or open_fds has opened; NULL is fine */
    int (*event_share)(struct ws_device_event *m, unsigned char handle[WS_DEVICE_HANDLE_BYTES],
                       struct ws_error *err);
    int (*event_open)(int device, const unsigned char handle[WS_DEVICE_HANDLE_BYTES],
                      struct ws_device_event **out, struct ws_error *err);
};

extern const struct ws_device_ops ws_host_device, ws_cuda_device;
const struct ws_device_ops *ws_device_by_kind(enum ws_device_kind k);
/* The kind of memory that p is, and its device (host: 0). */
enum ws_device_kind ws_device_by_address(const void *p, int *device);
/* The device with that uuid; -ENODEV, with the uuids that there are. */
WS_MUST_USE int ws_device_by_uuid(const struct ws_device_ops *ops, const char *uuid, int *device,
                                  struct ws_error *err);
/* Queues kernel k for n units of work, of which each warp takes one after the other; args: its one argument, a
 * structure that is copied. Nothing where n is 0. */
WS_MUST_USE int ws_device_launch(struct ws_device_queue *q, enum ws_kernel k, uint64_t n, const void *args,
                                 struct ws_error *err);

#endif
