/* Opens versions that gpu_rank shares and compares every byte.
 *   gpu_reader AGENT MODEL [driverless]
 * Reads commands, a line each, and answers each with a line, or with "error NUMBER SENTENCE":
 *   open V    0: the newest: "opened V PIECES"
 *   check V   the version opened last, by copies to the host, to the device, and all at once: "good V PIECES
 *             ELEMENTS" or "bad NAME"
 *   close 0, names 0
 *   limit N   of open files */
#include "backends/trainer/wsync.h"
#include "tests/tools/gpu_values.h"
#include "transports/device/device.h"
#include "transports/simd/dtype.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static struct {
    const char *agent, *model;
    wsync_gpu_map *map;
    const struct ws_device_ops *ops;
} reader;

static uint64_t elements_of(const wsync_gpu_tensor *t)
{
    uint64_t n = 1;
    for (unsigned d = 0; d < t->n_dims; d++)
        n *= t->piece.kind == WSYNC_BOX ? t->piece.size[d] : t->shape[d];
    return t->piece.kind == WSYNC_RANGE ? t->piece.count : n;
}

/* The element of the flattened tensor that the i-th of the piece is. */
UNWATCHED static uint64_t place_of(const wsync_gpu_tensor *t, uint64_t i)
{
    uint64_t place = 0, step = 1;
    if (t->piece.kind != WSYNC_BOX)
        return t->piece.start + i;
    for (unsigned d = t->n_dims; d-- > 0; step *= t->shape[d]) {
        place += (t->piece.offset[d] + i % t->piece.size[d]) * step;
        i /= t->piece.size[d];
    }
    return place;
}

UNWATCHED static int is_right(const wsync_gpu_tensor *t, const unsigned char *got, uint64_t version)
{
    const uint64_t n = elements_of(t), width = ws_dtype_bits((enum ws_dtype)t->dtype) / 8;
    for (uint64_t i = 0; i < n; i++) {
        unsigned char want[8];
        gpu_value(want, width, version, place_of(t, i), 0);
        for (uint64_t k = 0; k < width; k++) /* no call of a function that sanitizers intercept */
            if (got[i * width + k] != want[k])
                return 0;
    }
    return 1;
}

static int by_device(const wsync_gpu_tensor *t, size_t i, unsigned char *host, size_t bytes)
{
    struct ws_error err = {0};
    struct ws_device_queue *q = NULL;
    void *p = NULL;
    int rc = reader.ops->queue_new(t->device, &q, &err);
    if (rc == 0)
        rc = reader.ops->alloc(t->device, bytes, &p, &err);
    if (rc == 0)
        rc = wsync_gpu_map_copy(reader.map, i, p, bytes);
    if (rc == 0)
        rc = reader.ops->copy(q, host, p, bytes, &err);
    if (rc == 0)
        rc = reader.ops->finish(q, &err);
    if (q)
        reader.ops->queue_free(q);
    reader.ops->release(t->device, p);
    return rc;
}

/* By the function of 0.1, which skips where no place is given. */
static int by_old_name(size_t i, void *host, size_t bytes)
{
    void **dst = calloc(i + 1, sizeof(*dst));
    if (!dst)
        return -1;
    memset(host, 0, bytes);
    dst[i] = host;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    int rc = wsync_gpu_map_copy_all(reader.map, dst, i + 1);
#pragma GCC diagnostic pop
    free(dst);
    return rc;
}

static void compare(uint64_t version)
{
    const wsync_gpu_tensor *t;
    uint64_t elements = 0;
    size_t i = 0;
    for (; reader.map && (t = wsync_gpu_map_tensor(reader.map, i)); i++) {
        const size_t n = elements_of(t), bytes = n * (ws_dtype_bits((enum ws_dtype)t->dtype) / 8);
        unsigned char *host = malloc(bytes);
        int rc = host ? wsync_gpu_map_copy(reader.map, i, host, bytes) : -1;
        if (rc == 0 && !is_right(t, host, version))
            rc = 1;
        if (rc == 0)
            rc = by_device(t, i, host, bytes);
        if (rc == 0 && !is_right(t, host, version))
            rc = 2;
        if (rc == 0)
            rc = by_old_name(i, host, bytes);
        if (rc == 0 && !is_right(t, host, version))
            rc = 3;
        free(host);
        if (rc) {
            printf("bad %s %d %s\n", t->name, rc, wsync_error());
            return;
        }
        elements += n;
    }
    printf("good %" PRIu64 " %zu %" PRIu64 "\n", version, i, elements);
}

static void names(void)
{
    const wsync_gpu_tensor *t;
    for (size_t i = 0; reader.map && (t = wsync_gpu_map_tensor(reader.map, i)); i++)
        printf("%s%s:%d:%s%s", i ? " " : "", t->name, t->device, ws_dtype_name((enum ws_dtype)t->data_dtype),
               t->converts ? ":converts" : "");
    printf("\n");
}

static void obey(const char *word, uint64_t number)
{
    if (strcmp(word, "open") == 0) {
        wsync_unmap_gpu(reader.map);
        int rc = wsync_map_gpu(reader.agent, reader.model, number, &reader.map);
        size_t n = 0;
        while (rc == 0 && wsync_gpu_map_tensor(reader.map, n))
            n++;
        if (rc < 0)
            printf("error %d %s\n", -rc, wsync_error());
        else
            printf("opened %" PRIu64 " %zu\n", wsync_gpu_map_version(reader.map), n);
    } else if (strcmp(word, "check") == 0) {
        compare(number);
    } else if (strcmp(word, "names") == 0) {
        names();
    } else if (strcmp(word, "limit") == 0) {
        struct rlimit limit = {number, number};
        printf("limited %d\n", setrlimit(RLIMIT_NOFILE, &limit));
    } else if (strcmp(word, "close") == 0) {
        wsync_unmap_gpu(reader.map);
        reader.map = NULL;
        printf("closed\n");
    } else {
        printf("what?\n");
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    char line[128], word[32];
    if (argc < 3)
        return 2;
    reader.agent = argv[1];
    reader.model = argv[2];
    reader.ops = ws_device_by_kind(WS_CUDA);
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin))
        if (sscanf(line, "%31s", word) == 1 && strchr(line, ' '))
            obey(word, strtoull(strchr(line, ' '), NULL, 10));
    wsync_unmap_gpu(reader.map);
    return 0;
}
