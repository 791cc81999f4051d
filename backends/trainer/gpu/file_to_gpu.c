/* An open file's bytes to device memory (wsync_file_to_gpu): threads that take chunk after chunk, each with a
 * queue and two pinned buffers, one of which is read into while the other one is copied. Where nothing can be
 * pinned the buffers are ordinary memory, and the driver stages them once more. */
#include "backends/trainer/api/last_error.h"
#include "backends/trainer/wsync.h"
#include "transports/base/cpu_features.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include "transports/device/device.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_BYTES ((size_t)4 << 20)
#define MAX_LANES   8
#define PAGE_BYTES  4096

struct load {
    const struct ws_device_ops *ops;
    int device, fd;
    uint64_t offset, bytes;
    unsigned char *dst;
    atomic_uint_least64_t next; /* chunk */
    atomic_bool failed;
    pthread_mutex_t lock; /* guards rc and err: what failed first */
    int rc;
    struct ws_error err;
};

struct lane {
    struct ws_device_queue *queue;
    struct ws_device_event *copied[2];
    unsigned char *buffers; /* two of them */
    bool pinned;
};

static void fail(struct load *l, int rc, const struct ws_error *err)
{
    pthread_mutex_lock(&l->lock);
    if (l->rc == 0) {
        l->rc = rc;
        l->err = *err;
    }
    pthread_mutex_unlock(&l->lock);
    atomic_store(&l->failed, true);
}

static int open_lane(const struct load *l, struct lane *lane, struct ws_error *err)
{
    struct ws_error why = {0};
    void *p = NULL;
    int rc = l->ops->queue_new(l->device, &lane->queue, err);
    for (int i = 0; rc == 0 && i < 2; i++)
        rc = l->ops->event_new(l->device, false, &lane->copied[i], err);
    if (rc < 0)
        return rc;
    lane->pinned = l->ops->alloc_pinned(l->device, 2 * CHUNK_BYTES, &p, &why) == 0;
    if (!lane->pinned) {
        ws_log_once(WS_LOG_INFO, "gpu", "a file goes to the GPU through memory that is not pinned: %s",
                    why.text);
        p = aligned_alloc(PAGE_BYTES, 2 * CHUNK_BYTES);
    }
    lane->buffers = p;
    return p ? 0 : ws_error_set(err, ENOMEM, "no memory for two buffers of %zu bytes", CHUNK_BYTES);
}

static void close_lane(const struct load *l, struct lane *lane)
{
    l->ops->queue_free(lane->queue); /* waits: the buffers are in use until then */
    for (int i = 0; i < 2; i++)
        l->ops->event_free(lane->copied[i]);
    if (lane->pinned)
        l->ops->release_pinned(l->device, lane->buffers);
    else
        free(lane->buffers);
}

static int read_chunk(const struct load *l, uint64_t at, size_t n, unsigned char *out, struct ws_error *err)
{
    for (size_t have = 0; have < n;) {
        ssize_t got = pread(l->fd, out + have, n - have, (off_t)(l->offset + at + have));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ws_error_set(err, errno, "reading descriptor %d at %" PRIu64 " for the GPU: %s", l->fd,
                                l->offset + at + have, strerror(errno));
        if (got == 0)
            return ws_error_set(err, ENODATA,
                                "descriptor %d ends at byte %" PRIu64 ", and bytes up to %" PRIu64
                                " are to go to the GPU",
                                l->fd, l->offset + at + have, l->offset + l->bytes);
        have += (size_t)got;
    }
    return 0;
}

static int fill_lane(struct load *l, struct lane *lane, struct ws_error *err)
{
    for (unsigned turn = 0; !atomic_load(&l->failed); turn++) {
        uint64_t at = atomic_fetch_add(&l->next, 1) * CHUNK_BYTES;
        unsigned char *buffer = lane->buffers + (turn % 2) * CHUNK_BYTES;
        struct ws_device_event *copied = lane->copied[turn % 2];
        if (at >= l->bytes)
            break;
        size_t n = l->bytes - at < CHUNK_BYTES ? (size_t)(l->bytes - at) : CHUNK_BYTES;
        int rc = turn >= 2 ? l->ops->event_wait(copied, err) : 0;
        if (rc == 0)
            rc = read_chunk(l, at, n, buffer, err);
        if (rc == 0)
            rc = l->ops->copy(lane->queue, l->dst + at, buffer, n, err);
        if (rc == 0)
            rc = l->ops->record(lane->queue, copied, err);
        if (rc < 0)
            return rc;
    }
    return l->ops->finish(lane->queue, err);
}

static void run_lane(void *arg, size_t i)
{
    struct load *l = arg;
    struct lane lane = {0};
    struct ws_error err = {0};
    (void)i;
    int rc = open_lane(l, &lane, &err);
    if (rc == 0)
        rc = fill_lane(l, &lane, &err);
    if (rc < 0)
        fail(l, rc, &err);
    close_lane(l, &lane);
}

static size_t count_lanes(uint64_t bytes)
{
    uint64_t chunks = (bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
    size_t n = ws_cpu_cores(MAX_LANES);
    return chunks < n ? (size_t)chunks : n;
}

int wsync_file_to_gpu(int fd, uint64_t offset, uint64_t bytes, void *dst)
{
    struct ws_error *err = ws_last_error();
    struct load l = {
        .fd = fd, .offset = offset, .bytes = bytes, .dst = dst, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (offset > INT64_MAX || bytes > INT64_MAX - offset)
        return ws_error_set(err, EINVAL, "no file has %" PRIu64 " bytes from %" PRIu64 " on", bytes, offset);
    if (bytes == 0)
        return 0;
    enum ws_device_kind kind = ws_device_by_address(dst, &l.device);
    if (kind == WS_HOST)
        return ws_error_set(err, EINVAL, "%p is no memory of a GPU: a file is mapped or read there", dst);
    l.ops = ws_device_by_kind(kind);
    ws_workers_run_at_once(run_lane, &l, count_lanes(bytes));
    pthread_mutex_destroy(&l.lock);
    return l.rc < 0 ? ws_error_set(err, -l.rc, "%s", l.err.text) : 0;
}
