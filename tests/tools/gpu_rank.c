/* A rank whose tensors are on a GPU and follow from version and position, so that a reader can check every byte.
 *   gpu_rank AGENT MODEL RANK WORLD [share=NAME] [timeout=MS] [device=N] [vmm] [forward] [on-demand]
 * Tensors:
 *   rows     BF16 [96, 64]   a box of rows a rank, with gaps between them
 *   flat     U16 [5000]      a range a rank
 *   turned   F32 [24, 40]    rank 0's, held transposed
 *   back     U8 [33]         rank 0's, held backwards; forward: not there
 *   host     F32 [5]         rank 0's, in host memory
 *   master   BF16 [1000]     the last rank's, held as F32
 *   big      U8 [3145735]    the last rank's
 * vmm: all of them in mappings of 2 MiB side by side. Element i is value16 below, by its width.
 * Reads commands, a line each: "offload V", "steps V" (begin, put, commit), "unshare MS", "fill V", "wait V".
 * Answers each with a line: "done V" or "error NUMBER SENTENCE". */
#include "backends/trainer/wsync.h"
#include "tests/tools/gpu_values.h"
#include "transports/device/device.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef WS_HAVE_CUDA
#include "tests/fakes/opened.h"
#endif

#define MAX_PARAMS 8
#define BIG        3145735
#define PART       (2UL << 20)
#define ARENA      (4 * PART)

/* One parameter's memory: `elements` of `width` bytes, of which number i holds the tensor's element place(i),
 * or nothing. */
struct held {
    uint64_t elements, width;
    int64_t first, step; /* of a range, backwards: place(i) = first + i * step */
    uint64_t rows, columns, pitch, turned;
    unsigned char *data;
    int on_host, converts;
};

static struct {
    wsync_publisher *publisher;
    wsync_param params[MAX_PARAMS];
    struct held held[MAX_PARAMS];
    size_t n;
    const struct ws_device_ops *ops;
    struct ws_device_queue *queue;
    int device, vmm, forward;
    unsigned char *arena;
    size_t used;
} rank;

static void die(const char *what)
{
    printf("error 0 %s\n", what);
    fflush(stdout);
    exit(1);
}

static void check(int rc, const struct ws_error *err)
{
    if (rc < 0)
        die(err->text);
}

/* Adjacent mappings, like expandable segments; works with a real driver too. */
static unsigned char *reserve(size_t bytes)
{
#ifdef WS_HAVE_CUDA
    const char *path = getenv("WSYNC_LIBCUDA");
    void *lib = dlopen(path ? path : "libcuda.so.1", RTLD_NOW);
    __typeof__(&cuMemAddressReserve) reserve_at = lib ? dlsym(lib, "cuMemAddressReserve") : NULL;
    __typeof__(&cuMemCreate) create = lib ? dlsym(lib, "cuMemCreate") : NULL;
    __typeof__(&cuMemMap) map = lib ? dlsym(lib, "cuMemMap") : NULL;
    __typeof__(&cuMemSetAccess) set_access = lib ? dlsym(lib, "cuMemSetAccess") : NULL;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = rank.device}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr base = 0;
    if (!reserve_at || !create || !map || !set_access || reserve_at(&base, bytes, 0, 0, 0) != CUDA_SUCCESS)
        die("no mapped memory");
    for (size_t at = 0; at < bytes; at += PART) {
        CUmemGenericAllocationHandle h;
        if (create(&h, PART, &prop, 0) != CUDA_SUCCESS || map(base + at, PART, 0, h, 0) != CUDA_SUCCESS)
            die("no mapped memory");
    }
    if (set_access(base, bytes, &access, 1) != CUDA_SUCCESS)
        die("no access to mapped memory");
    return (unsigned char *)(uintptr_t)base;
#else
    (void)bytes;
    die("built without CUDA's headers");
    return NULL;
#endif
}

/* Small allocations share one, as with a caching allocator. */
static unsigned char *take(size_t bytes)
{
    struct ws_error err = {0};
    void *p = NULL;
    if (!rank.arena && rank.vmm)
        rank.arena = reserve(ARENA);
    if (!rank.arena) {
        check(rank.ops->alloc(rank.device, 1 << 20, &p, &err), &err);
        rank.arena = p;
    }
    if (!rank.vmm && bytes > 1 << 18) {
        check(rank.ops->alloc(rank.device, bytes, &p, &err), &err);
        return p;
    }
    p = rank.arena + rank.used;
    rank.used += (bytes + 511) / 512 * 512;
    return p;
}

UNWATCHED static void fill(uint64_t version)
{
    struct ws_error err = {0};
    for (size_t k = 0; k < rank.n; k++) {
        const struct held *h = &rank.held[k];
        unsigned char *host = calloc(h->elements, h->width), *at = host;
        for (uint64_t i = 0; host && i < h->elements; i++, at += h->width) {
            int64_t place = h->first + (int64_t)i * h->step;
            if (h->rows && h->turned)
                place = (int64_t)(i % h->rows * h->columns + i / h->rows);
            else if (h->rows)
                place = i % h->pitch < h->columns
                            ? h->first + (int64_t)(i / h->pitch * h->columns + i % h->pitch)
                            : -1;
            if (place < 0)
                memset(at, 0xA5, h->width);
            else
                gpu_value(at, h->width, version, (uint64_t)place, h->converts);
        }
        if (!host)
            die("no memory");
        if (h->on_host)
            memcpy(h->data, host, h->elements * h->width);
        else /* in the parameters' stream, which this process does not wait for */
            check(rank.ops->copy(rank.queue, h->data, host, h->elements * h->width, &err), &err);
        free(host);
    }
}

static void add(wsync_param p, struct held h)
{
    const int64_t last = (int64_t)((h.elements - 1) * h.width);
    h.data = h.on_host ? calloc(h.elements, h.width) : take(h.elements * h.width);
    p.data = h.step < 0 ? h.data + last : h.data;
    p.stream = h.on_host ? NULL : rank.ops->queue_stream(rank.queue);
    rank.held[rank.n] = h;
    rank.params[rank.n++] = p;
}

static void lay_out(unsigned r, unsigned world)
{
    const uint64_t row = 96 / world * r, rows = 96 / world, pitch = 80;
    const uint64_t start = 5000 * r / world, count = 5000 * (r + 1) / world - start;
    add((wsync_param){.name = "rows",
                      .dtype = WSYNC_BF16,
                      .n_dims = 2,
                      .shape = {96, 64},
                      .piece = {.kind = WSYNC_BOX,
                                .offset = {row, 0},
                                .size = {rows, 64},
                                .strides = {(int64_t)pitch, 1}}},
        (struct held){.elements = rows * pitch,
                      .width = 2,
                      .first = (int64_t)(row * 64),
                      .rows = rows,
                      .columns = 64,
                      .pitch = pitch});
    add((wsync_param){.name = "flat",
                      .dtype = WSYNC_U16,
                      .n_dims = 1,
                      .shape = {5000},
                      .piece = {.kind = WSYNC_RANGE, .start = start, .count = count}},
        (struct held){.elements = count, .width = 2, .first = (int64_t)start, .step = 1});
    if (r == 0) {
        add((wsync_param){.name = "turned",
                          .dtype = WSYNC_F32,
                          .n_dims = 2,
                          .shape = {24, 40},
                          .piece = {.kind = WSYNC_BOX, .size = {24, 40}, .strides = {1, 24}}},
            (struct held){.elements = 960, .width = 4, .rows = 24, .columns = 40, .turned = 1});
        if (!rank.forward)
            add((wsync_param){.name = "back",
                              .dtype = WSYNC_U8,
                              .n_dims = 1,
                              .shape = {33},
                              .piece = {.kind = WSYNC_BOX, .size = {33}, .strides = {-1}}},
                (struct held){.elements = 33, .width = 1, .first = 32, .step = -1});
        add((wsync_param){.name = "host", .dtype = WSYNC_F32, .n_dims = 1, .shape = {5}},
            (struct held){.elements = 5, .width = 4, .step = 1, .on_host = 1});
    }
    if (r + 1 < world)
        return;
    add((wsync_param){.name = "master",
                      .dtype = WSYNC_BF16,
                      .n_dims = 1,
                      .shape = {1000},
                      .converts = 1,
                      .data_dtype = WSYNC_F32},
        (struct held){.elements = 1000, .width = 4, .step = 1, .converts = 1});
    add((wsync_param){.name = "big", .dtype = WSYNC_U8, .n_dims = 1, .shape = {BIG}},
        (struct held){.elements = BIG, .width = 1, .step = 1});
}

static int steps(uint64_t version)
{
    int rc = wsync_register(rank.publisher, rank.params, rank.n);
    if (rc == 0)
        rc = wsync_begin(rank.publisher, version);
    for (size_t i = 0; rc == 0 && i < rank.n; i++)
        rc = wsync_put(rank.publisher, &rank.params[i]);
    return rc == 0 ? wsync_commit(rank.publisher) : rc;
}

static void obey(const char *word, int64_t number)
{
    int rc = 0;
    const uint64_t version = (uint64_t)number;
    if (strcmp(word, "fill") == 0) {
        fill(version);
    } else if (strcmp(word, "offload") == 0) {
        fill(version);
        rc = wsync_offload(rank.publisher, rank.params, rank.n, version);
    } else if (strcmp(word, "steps") == 0) {
        fill(version);
        rc = steps(version);
    } else if (strcmp(word, "wait") == 0) {
        rc = wsync_wait_published(rank.publisher, version, 20000);
    } else if (strcmp(word, "unshare") == 0) {
        rc = wsync_unshare(rank.publisher, (int)number);
    } else {
        die("what?");
    }
    if (rc < 0)
        printf("error %d %s\n", -rc, wsync_error());
    else
        printf("done %" PRId64 "\n", number);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    char line[128], word[32];
    struct ws_error err = {0};
    if (argc < 5)
        return 2;
    wsync_config config = {.struct_size = sizeof(config),
                           .agent = argv[1],
                           .model = argv[2],
                           .rank = (unsigned)strtoul(argv[3], NULL, 10),
                           .world_size = (unsigned)strtoul(argv[4], NULL, 10),
                           .n_threads = 2,
                           .timeout_ms = 20000};
    for (int i = 5; i < argc; i++) {
        if (strncmp(argv[i], "share=", 6) == 0)
            config.share = argv[i] + 6;
        else if (strncmp(argv[i], "timeout=", 8) == 0)
            config.timeout_ms = (unsigned)strtoul(argv[i] + 8, NULL, 10);
        else if (strncmp(argv[i], "device=", 7) == 0)
            rank.device = (int)strtol(argv[i] + 7, NULL, 10);
        config.on_demand |= strcmp(argv[i], "on-demand") == 0;
        rank.vmm |= strcmp(argv[i], "vmm") == 0;
        rank.forward |= strcmp(argv[i], "forward") == 0;
    }
    rank.ops = ws_device_by_kind(WS_CUDA);
    check(rank.ops->available(&err), &err);
    check(rank.ops->queue_new(rank.device, &rank.queue, &err), &err);
    lay_out(config.rank, config.world_size);
    if (wsync_publisher_open(&config, &rank.publisher) < 0)
        die(wsync_error());
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin))
        if (sscanf(line, "%31s", word) == 1 && strchr(line, ' '))
            obey(word, strtoll(strchr(line, ' '), NULL, 10));
    wsync_close(rank.publisher);
    for (size_t i = 0; i < rank.n; i++)
        if (rank.held[i].on_host)
            free(rank.held[i].data);
    rank.ops->queue_free(rank.queue);
    return 0;
}
