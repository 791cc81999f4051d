/* A file to device memory by wsync_file_to_gpu, and the best pinned copy of as many bytes, in turns: load_gpu
 * FILE REPEATS. Prints a line per turn: seconds of either, and whether the received bytes are the file's. */
#include "backends/trainer/wsync.h"
#include "transports/device/device.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PIECE (256UL << 20) /* for comparisons */

static const struct ws_device_ops *const ops = &ws_cuda_device;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int copy(struct ws_device_queue *q, void *dst, const void *src, size_t bytes, struct ws_error *err)
{
    int rc = ops->copy(q, dst, src, bytes, err);
    return rc == 0 ? ops->finish(q, err) : rc;
}

/* pinned: a piece of memory through which the compared bytes are copied. */
static int is_right(struct ws_device_queue *q, int fd, const unsigned char *device, uint64_t bytes,
                    void *pinned, struct ws_error *err)
{
    int rc = 1;
    const unsigned char *file = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED)
        return 0;
    for (uint64_t at = 0; rc == 1 && at < bytes; at += PIECE) {
        uint64_t n = bytes - at < PIECE ? bytes - at : PIECE;
        rc = copy(q, pinned, device + at, n, err) == 0 && ws_hash(pinned, n) == ws_hash(file + at, n);
    }
    munmap((void *)(uintptr_t)file, bytes);
    return rc;
}

static int measure(int fd, uint64_t bytes, int repeats, struct ws_error *err)
{
    struct ws_device_queue *q = NULL;
    void *device = NULL, *pinned = NULL;
    int rc = ops->queue_new(0, &q, err);
    if (rc == 0)
        rc = ops->alloc(0, bytes, &device, err);
    if (rc == 0)
        rc = ops->alloc_pinned(0, bytes > PIECE ? bytes : PIECE, &pinned, err);
    if (rc == 0)
        memset(pinned, 3, bytes);
    for (int i = -1; rc == 0 && i < repeats; i++) {
        double begin = now();
        rc = copy(q, device, pinned, bytes, err);
        double middle = now();
        if (rc == 0 && wsync_file_to_gpu(fd, 0, bytes, device))
            rc = ws_error_set(err, EIO, "%s", wsync_error());
        double end = now();
        if (rc == 0 && i >= 0)
            printf("%.6f %.6f\n", middle - begin, end - middle);
    }
    if (rc == 0)
        printf("%s\n", is_right(q, fd, device, bytes, pinned, err) ? "right" : "wrong");
    return rc;
}

int main(int argc, char **argv)
{
    struct ws_error err = {0};
    struct stat st;
    if (argc < 3)
        return 2;
    int fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        printf("cannot open %s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    int rc = ops->available(&err);
    if (rc == 0)
        rc = measure(fd, (uint64_t)st.st_size, (int)strtol(argv[2], NULL, 10), &err);
    if (rc < 0)
        printf("%s\n", err.text);
    close(fd);
    return rc < 0;
}
