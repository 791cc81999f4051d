/* Offload from GPU memory: whatever the pieces, their strides, conversions and the driver's failures, the
 * file equals the one made from the same parameters in host memory, and a failure loses no version.
 *
 * timeout: 480, takes: 60 */
#include "backends/trainer/agent/agent.h"
#include "backends/trainer/wsync.h"
#include "tests/fixtures/gpu.h"
#include "tests/fixtures/private_folder.h"
#include "tests/fixtures/served.h"
#include "tests/fixtures/unwatched.h"
#include "transports/ipc/client.h"
#include "transports/memory/region_file.h"
#include "transports/protocol/source.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef __SANITIZE_THREAD__ /* fifteen times slower */
#define N_VERSIONS 2
#else
#define N_VERSIONS 5
#endif
#define MAX_PARAMS 4000

struct world {
    char dir[64], url[140];
    uint64_t memory; /* of the agent; 0: no limit */
    unsigned slots;  /* 0: as many as by default */
    bool gpu_delta;
    struct ws_agent *agent;
    wsync_publisher *host, *gpu; /* of the models "h" and "g" */
    uint64_t version;
    wsync_param at_host[MAX_PARAMS], at_gpu[MAX_PARAMS];
    size_t bytes[MAX_PARAMS]; /* of the sources */
    char names[MAX_PARAMS][24];
    size_t n;
};
static struct world w;
static uint64_t seed = 11;

UNWATCHED static uint64_t any(uint64_t below)
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (seed >> 24) % below;
}

static wsync_publisher *open_model(const char *model)
{
    wsync_publisher *p;
    wsync_config c = {
        .struct_size = sizeof(c), .agent = w.url, .model = model, .n_threads = 2, .gpu_delta = w.gpu_delta};
    GPU_CHECK(wsync_publisher_open(&c, &p) == 0, "%s", wsync_error());
    return p;
}

static void start(void)
{
    struct ws_error err = {0};
    char socket[128];
    GPU_CHECK(private_folder(w.dir, sizeof(w.dir), "gpu"), "no folder");
    snprintf(socket, sizeof(socket), "%s/sock", w.dir);
    snprintf(w.url, sizeof(w.url), "unix:%s", socket);
    struct ws_agent_options o = {.tcp.listen = "127.0.0.1:0",
                                 .tcp.access.insecure = true,
                                 .socket = socket,
                                 .socket_gid = (gid_t)-1,
                                 .memory_bytes = w.memory,
                                 .max_slots = w.slots};
    GPU_CHECK(ws_agent_new(&w.agent, &o, &err) == 0, "%s", err.text);
    w.host = open_model("h");
    w.gpu = open_model("g");
}

static void end(void)
{
    wsync_close(w.host);
    wsync_close(w.gpu);
    ws_agent_free(w.agent);
    (void)rmdir(w.dir);
    for (size_t i = 0; i < w.n; i++) {
        free((void *)(uintptr_t)w.at_host[i].data);
        ws_cuda_device.release(0, (void *)(uintptr_t)w.at_gpu[i].data);
    }
    w.n = 0;
}

static size_t width(wsync_dtype t)
{
    return t == WSYNC_F32 ? 4 : t == WSYNC_U8 ? 1 : 2;
}

UNWATCHED static void fill(unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)any(251);
}

/* elements of the source, from the piece's first one on */
UNWATCHED static void add(wsync_param p, size_t elements)
{
    const size_t one = width(p.converts ? p.data_dtype : p.dtype), i = w.n++;
    unsigned char *host = malloc(elements * one + 1);
    snprintf(w.names[i], sizeof(w.names[i]), "t.%05zu", i);
    GPU_CHECK(host && i < MAX_PARAMS, "no memory");
    fill(host, elements * one);
    p.name = w.names[i];
    p.data = host;
    w.at_host[i] = w.at_gpu[i] = p;
    w.at_gpu[i].data = gpu_put(0, host, elements * one);
    w.bytes[i] = elements * one;
}

static void add_plain(wsync_dtype t, uint64_t rows, uint64_t cols)
{
    add((wsync_param){.dtype = t, .n_dims = 2, .shape = {rows, cols}}, rows * cols);
}

static void add_box(wsync_dtype t, int converts, wsync_dtype from, uint64_t rows, uint64_t cols, int64_t row,
                    int64_t col)
{
    add((wsync_param){.dtype = t,
                      .n_dims = 2,
                      .shape = {rows, cols},
                      .piece = {.kind = WSYNC_BOX, .size = {rows, cols}, .strides = {row, col}, .strided = 1},
                      .converts = converts,
                      .data_dtype = from},
        (size_t)((int64_t)(rows - 1) * row + (int64_t)(cols - 1) * col + 1));
}

static void add_all(void)
{
    add_plain(WSYNC_BF16, 3000, 2048); /* long ones */
    add_plain(WSYNC_U8, 1, 77777);     /* what follows begins at odd offsets */
    add_plain(WSYNC_BF16, 1500, 1001);
    add_box(WSYNC_BF16, 1, WSYNC_F32, 900, 1111, 1111, 1); /* converted */
    add_box(WSYNC_F16, 1, WSYNC_F32, 70, 333, 400, 1);
    add_box(WSYNC_F32, 1, WSYNC_BF16, 500, 512, 512, 1);
    add_box(WSYNC_BF16, 0, WSYNC_BF16, 700, 900, 1, 700);   /* transposed */
    add_box(WSYNC_BF16, 0, WSYNC_BF16, 300, 4096, 5000, 1); /* long rows apart */
    add_box(WSYNC_BF16, 0, WSYNC_BF16, 999, 20, 64, 1);     /* short ones */
    add((wsync_param){.dtype = WSYNC_F32,
                      .n_dims = 3,
                      .shape = {40, 30, 50},
                      .piece = {.kind = WSYNC_BOX,
                                .size = {40, 30, 50},
                                .strides = {30 * 64 * 2, 64, 1},
                                .strided = 1}},
        40 * 30 * 64 * 2);
    add_plain(WSYNC_F32, 0, 5);
    for (int i = 0; i < 700; i++)
        add_plain(i % 3 ? WSYNC_BF16 : WSYNC_F32, 1 + any(6), 1 + any(400));
    add_box(WSYNC_BF16, WSYNC_PLUS_1, WSYNC_BF16, 1, 5120, 5120, 1); /* norms that are stored less one */
    add_box(WSYNC_BF16, WSYNC_PLUS_1, WSYNC_F32, 3, 129, 200, 1);
    add_box(WSYNC_F32, WSYNC_PLUS_1, WSYNC_F16, 5, 31, 1, 5);
}

static void change(void)
{
    for (size_t i = 0; i < w.n; i++) {
        fill((unsigned char *)(uintptr_t)w.at_host[i].data, w.bytes[i]);
        gpu_write(0, (void *)(uintptr_t)w.at_gpu[i].data, w.at_host[i].data, w.bytes[i]);
    }
}

/* The file as the agent serves it. */
static unsigned char *fetch(const char *model, uint64_t version, uint64_t *size)
{
    struct ws_error err = {0};
    unsigned char *bytes = served_file(w.url, model, version, size, &err);
    GPU_CHECK(bytes, "%s", err.text);
    return bytes;
}

static void publish(wsync_publisher *p, const wsync_param *params, uint64_t version)
{
    GPU_CHECK(wsync_offload(p, params, w.n, version) == 0, "%s", wsync_error());
    GPU_CHECK(wsync_wait_published(p, version, 20000) == 0, "%s", wsync_error());
}

UNWATCHED static void compare(uint64_t version)
{
    uint64_t a_bytes, b_bytes;
    unsigned char *a = fetch("h", version, &a_bytes), *b = fetch("g", version, &b_bytes);
    GPU_CHECK(a_bytes == b_bytes, "%llu and %llu bytes", (unsigned long long)a_bytes,
              (unsigned long long)b_bytes);
    for (uint64_t i = 0; i < a_bytes; i++)
        GPU_CHECK(a[i] == b[i], "version %llu differs at byte %llu of %llu", (unsigned long long)version,
                  (unsigned long long)i, (unsigned long long)a_bytes);
    free(a);
    free(b);
}

static void publish_both(uint64_t version)
{
    const char *first_host, *first_gpu;
    publish(w.host, w.at_host, version);
    publish(w.gpu, w.at_gpu, version);
    const uint64_t host = wsync_overflows(w.host, &first_host), gpu = wsync_overflows(w.gpu, &first_gpu);
    GPU_CHECK(host == gpu && host > 0, "%llu and %llu overflows", (unsigned long long)host,
              (unsigned long long)gpu);
    GPU_CHECK(strcmp(first_host, first_gpu) == 0, "%s and %s", first_host, first_gpu);
    compare(version);
}

static void five_versions(void)
{
    start();
    add_all();
    for (uint64_t v = 1; v <= N_VERSIONS; v++) {
        publish_both(v);
        change();
    }
    fprintf(stderr, "# %s\n", wsync_gpu_report(w.gpu));
    end();
}

static void test_offload(void **state)
{
    (void)state;
    gpu_run(five_versions, NULL);
}

static void test_offload_by_copies_alone(void **state)
{
    (void)state;
    gpu_run(five_versions, "kernels=0");
}

static void test_offload_unpinned(void **state)
{
    (void)state;
    gpu_run(five_versions, "register=0");
}

static void test_offload_without_anything(void **state)
{
    (void)state;
    gpu_run(five_versions, "register=0,kernels=0,fail=cuMemHostAlloc:1:2:100000");
}

static void test_offload_with_a_full_device(void **state)
{
    (void)state;
    gpu_run(five_versions, "memory=80M");
}

/* Some on the host, some on the GPU; one by one; again and again. */
static void mixed(void)
{
    start();
    add_all();
    for (size_t i = 0; i < w.n; i += 3)
        w.at_gpu[i].data = w.at_host[i].data;
    publish_both(1);
    publish_both(2);
    GPU_CHECK(wsync_register(w.gpu, w.at_gpu, w.n) == 0, "%s", wsync_error());
    GPU_CHECK(wsync_begin(w.gpu, 3) == 0, "%s", wsync_error());
    for (size_t i = w.n; i-- > 0;)
        GPU_CHECK(wsync_put(w.gpu, &w.at_gpu[i]) == 0, "%s", wsync_error());
    GPU_CHECK(wsync_commit(w.gpu) == 0, "%s", wsync_error());
    GPU_CHECK(wsync_wait_published(w.gpu, 3, 20000) == 0, "%s", wsync_error());
    publish(w.host, w.at_host, 3);
    compare(3);
    w.n = 20; /* other parameters */
    publish_both(4);
    w.n = 711;
    end();
}

static void test_mixed_and_one_by_one(void **state)
{
    (void)state;
    gpu_run(mixed, NULL);
}

/* --- audits --- */

struct audited {
    pthread_t thread;
    wsync_publisher *p;
    const wsync_param *params;
    uint64_t version;
    int rc;
};

static void *offload_one(void *arg)
{
    struct audited *a = arg;
    a->rc = wsync_offload(a->p, a->params, w.n, a->version);
    return NULL;
}

/* Two ranks hold all tensors, one on the host and one on the GPU. Returns whether the version was
 * published. */
static bool offload_both(struct audited *ranks, uint64_t version)
{
    for (int r = 0; r < 2; r++) {
        ranks[r].version = version;
        GPU_CHECK(pthread_create(&ranks[r].thread, NULL, offload_one, &ranks[r]) == 0, "no thread");
    }
    for (int r = 0; r < 2; r++)
        pthread_join(ranks[r].thread, NULL);
    const int rc = wsync_wait_published(ranks[0].p, version, 60000);
    GPU_CHECK(rc == 0 || rc == -ECANCELED, "%s", wsync_error());
    GPU_CHECK((rc == 0) == (ranks[0].rc == 0 && ranks[1].rc == 0), "%d, and %d and %d", rc, ranks[0].rc,
              ranks[1].rc);
    return rc == 0;
}

/* A device computes the host's hashes, for all forms; one changed byte is found on either side. */
static void audited(void)
{
    struct audited ranks[2] = {{.params = w.at_host}, {.params = w.at_gpu}};
    uint64_t version = 1;
    start();
    add_all();
    add((wsync_param){.dtype = WSYNC_BF16, /* a range, and a source at an odd address */
                      .n_dims = 1,
                      .shape = {5000001},
                      .piece = {.kind = WSYNC_RANGE, .start = 0, .count = 5000001}},
        5000001);
    for (unsigned r = 0; r < 2; r++) {
        wsync_config c = {.struct_size = sizeof(c),
                          .agent = w.url,
                          .model = "a",
                          .rank = r,
                          .world_size = 2,
                          .n_threads = 2,
                          .timeout_ms = 60000,
                          .audit = 1};
        GPU_CHECK(wsync_publisher_open(&c, &ranks[r].p) == 0, "%s", wsync_error());
    }
    static const size_t some[] = {0, 1, 3, 4, 6, 8, 9, 11, 200, 711};
    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        const wsync_param *p = &w.at_host[some[i]];
        unsigned char *at =
            (unsigned char *)(uintptr_t)p->data + width(p->converts ? p->data_dtype : p->dtype) - 1;
        *at ^= 0x40; /* the first element's exponent: rounding does not hide it */
        GPU_CHECK(!offload_both(ranks, version++), "%s differs, and was published", p->name);
        GPU_CHECK(strstr(wsync_error(), p->name), "%s is not in: %s", p->name, wsync_error());
        *at ^= 0x40;
    }
    for (int i = 0; i < 4; i++) /* all of it, then shares */
        GPU_CHECK(offload_both(ranks, version++), "%s", wsync_error());
    for (unsigned r = 0; r < 2; r++)
        wsync_close(ranks[r].p);
    end();
}

static void test_audit(void **state)
{
    (void)state;
    gpu_run(audited, NULL);
    gpu_run(audited, "kernels=0");
    gpu_run(audited, "memory=150M");
}

static void refused(int rc, int expected, const char *words)
{
    GPU_CHECK(rc == expected && strstr(wsync_error(), words), "%d, not %d with \"%s\": %s", rc, expected,
              words, wsync_error());
}

/* Memory beyond its allocation, or freed memory, is refused by name, and not read. */
static void out_of_bounds(void)
{
    uint64_t bytes;
    start();
    add_plain(WSYNC_F32, 100, 1000);
    publish(w.gpu, w.at_gpu, 1);
    const wsync_param good = w.at_gpu[0];
    w.at_gpu[0].piece = (wsync_piece){.kind = WSYNC_BOX, .size = {100, 1000}, .strides = {1LL << 60, 1}};
    refused(wsync_offload(w.gpu, w.at_gpu, 1, 2), -EINVAL, "t.00000");
    w.at_gpu[0].piece.strides[0] = INT64_MIN;
    refused(wsync_offload(w.gpu, w.at_gpu, 1, 2), -EINVAL, "reaches out of its allocation");
    w.at_gpu[0].piece.strides[0] = 1001;
    refused(wsync_offload(w.gpu, w.at_gpu, 1, 2), -EINVAL, "reaches out of its allocation");
    w.at_gpu[0].piece.strides[0] = -1000;
    refused(wsync_offload(w.gpu, w.at_gpu, 1, 2), -EINVAL, "reaches out of its allocation");
    w.at_gpu[0] = good;
    w.at_gpu[0].data = (const char *)good.data + 4;
    refused(wsync_offload(w.gpu, w.at_gpu, 1, 2), -EINVAL, "reaches out of its allocation");
    w.at_gpu[0] = good;
    publish(w.gpu, w.at_gpu, 2);
    ws_cuda_device.release(0, (void *)(uintptr_t)good.data);
    refused(wsync_offload(w.gpu, w.at_gpu, 1, 3), -EINVAL, "it was freed");
    free(fetch("g", 2, &bytes));
    w.at_gpu[0].data = NULL;
    end();
}

/* What is shared on the GPU is as it is held, and one would be missing. */
static void shared_less_one(void)
{
    wsync_publisher *p;
    start();
    add_box(WSYNC_BF16, WSYNC_PLUS_1, WSYNC_BF16, 1, 64, 64, 1);
    const wsync_config c = {
        .struct_size = sizeof(c), .agent = w.url, .model = "s", .world_size = 1, .share = "cuda_ipc"};
    GPU_CHECK(wsync_publisher_open(&c, &p) == 0, "%s", wsync_error());
    refused(wsync_offload(p, w.at_gpu, 1, 1), -EOPNOTSUPP, "t.00000 becomes itself plus 1");
    wsync_close(p);
    end();
}

static void test_shared_less_one(void **state)
{
    (void)state;
    gpu_run(shared_less_one, NULL);
}

static void test_out_of_bounds(void **state)
{
    (void)state;
    gpu_run(out_of_bounds, NULL);
}

/* The driver cannot tell whose memory it is: the offload fails, the trainer continues. */
static void unknown(void)
{
    start();
    add_plain(WSYNC_F32, 100, 1000);
    int rc = wsync_offload(w.gpu, w.at_gpu, 1, 1);
    GPU_CHECK(rc < 0, "it was published");
    end();
}

static void test_unknown_memory(void **state)
{
    (void)state;
    gpu_run(unknown, "fail=cuPointerGetAttribute:1:999:100000");
    gpu_run(unknown, "fail=cuPointerGetAttribute:1:700:100000");
}

/* Queued work of the trainer's stream is waited for. */
static void behind_a_stream(void)
{
    struct ws_error err = {0};
    struct ws_device_queue *q;
    start();
    add_plain(WSYNC_BF16, 4000, 1024);
    add_plain(WSYNC_BF16, 10, 10);
    GPU_CHECK(ws_cuda_device.queue_new(0, &q, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < w.n; i++)
        w.at_gpu[i].stream = ws_cuda_device.queue_stream(q);
    for (uint64_t v = 1; v <= N_VERSIONS; v++) {
        for (size_t i = 0; i < w.n; i++) {
            fill((unsigned char *)(uintptr_t)w.at_host[i].data, w.bytes[i]);
            GPU_CHECK(ws_cuda_device.copy(q, (void *)(uintptr_t)w.at_gpu[i].data, w.at_host[i].data,
                                          w.bytes[i], &err) == 0,
                      "%s", err.text);
        }
        publish(w.gpu, w.at_gpu, v);
        publish(w.host, w.at_host, v);
        compare(v);
    }
    ws_cuda_device.queue_free(q);
    end();
}

static void test_follows_the_trainer(void **state)
{
    (void)state;
    gpu_run(behind_a_stream, NULL);
}

static void test_follows_a_late_trainer(void **state)
{
    (void)state;
    gpu_run(behind_a_stream, "delay=3000");
}

/* The device is lost: the offload fails, the previous version stays served, and nothing is torn. */
static void lost(void)
{
    uint64_t bytes;
    start();
    add_all();
    publish(w.gpu, w.at_gpu, 1);
    int rc = 0;
    uint64_t v = 2;
    for (; rc == 0 && v < 50; v++)
        rc = wsync_offload(w.gpu, w.at_gpu, w.n, v);
    GPU_CHECK(rc == -EIO, "%d: %s", rc, wsync_error());
    free(fetch("g", v - 2, &bytes));
    publish(w.gpu, w.at_host, v); /* from host memory it works */
    free(fetch("g", v, &bytes));
    end();
}

static void test_a_lost_device(void **state)
{
    (void)state;
    gpu_run(lost, "lost=cuMemcpyAsync:770");
}

static void test_a_faulting_kernel(void **state)
{
    (void)state;
    gpu_run(lost, "lost=cuLaunchKernel:9");
}

/* The trainer is killed at any of its copies: the agent serves the previous version. */
static void killed(void)
{
    pid_t child;
    uint64_t bytes;
    struct ws_error err = {0};
    char socket[128];
    GPU_CHECK(private_folder(w.dir, sizeof(w.dir), "gpu"), "no folder");
    snprintf(socket, sizeof(socket), "%s/sock", w.dir);
    snprintf(w.url, sizeof(w.url), "unix:%s", socket);
    int ready[2];
    GPU_CHECK(pipe(ready) == 0, "no pipe");
    child = fork();
    if (child == 0) {
        char c;
        close(ready[1]);
        GPU_CHECK(read(ready[0], &c, 1) == 1, "no agent");
        add_all();
        w.gpu = open_model("g");
        for (uint64_t v = 1; v < 100; v++)
            publish(w.gpu, w.at_gpu, v);
        _exit(0);
    }
    struct ws_agent_options o = {
        .tcp.listen = "127.0.0.1:0", .tcp.access.insecure = true, .socket = socket, .socket_gid = (gid_t)-1};
    GPU_CHECK(ws_agent_new(&w.agent, &o, &err) == 0, "%s", err.text);
    GPU_CHECK(write(ready[1], "", 1) == 1, "no child");
    int status;
    GPU_CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "it was not killed: %d", status);
    free(fetch("g", 2, &bytes)); /* the third was being written */
    ws_agent_free(w.agent);
    (void)rmdir(w.dir);
}

static void test_a_killed_trainer(void **state)
{
    (void)state;
    gpu_run(killed, "die=cuLaunchKernel:3");
}

/* --- an agent with memory for two slots and a half --- */

#define SLOT (8UL << 20)

/* Monitors the memory of the agent's slots, including former slots that others keep. */
static struct {
    pthread_t thread;
    atomic_bool stop;
    uint64_t most;
} watch;

static void *look(void *arg)
{
    const struct timespec step = {.tv_nsec = 100000};
    (void)arg;
    while (!atomic_load(&watch.stop)) {
        const uint64_t used = ws_region_file_used();
        watch.most = used > watch.most ? used : watch.most;
        nanosleep(&step, NULL);
    }
    return NULL;
}

static void start_narrow(void)
{
    w.memory = 5 * SLOT / 2;
    start();
    add_plain(WSYNC_BF16, 2048, SLOT / 2 / 2048 - 64); /* and a header, in whole huge pages */
    GPU_CHECK(pthread_create(&watch.thread, NULL, look, NULL) == 0, "no thread");
}

static void end_narrow(void)
{
    atomic_store(&watch.stop, true);
    pthread_join(watch.thread, NULL);
    GPU_CHECK(watch.most <= w.memory, "%llu bytes", (unsigned long long)watch.most);
    end();
}

/* The same bytes of another shape, so that no slot fits. */
static void turn(void)
{
    wsync_param *p = &w.at_gpu[0];
    const uint64_t rows = p->shape[0];
    p->shape[0] = p->shape[1] * 2;
    p->shape[1] = rows / 2;
}

static void layouts_change(void)
{
    start_narrow();
    for (uint64_t v = 1; v <= 9; v++) {
        publish(w.gpu, w.at_gpu, v);
        if (v % 3 == 0)
            turn();
    }
    end_narrow();
}

/* Slots that ranks keep pinned after their last use do not prevent the agent from laying out others. */
static void test_layouts_change(void **state)
{
    (void)state;
    gpu_run(layouts_change, NULL);
}

static void layouts_of_ranks_change(void)
{
    struct audited ranks[2] = {{.params = w.at_gpu}, {.params = w.at_gpu}};
    start_narrow();
    for (unsigned r = 0; r < 2; r++) {
        wsync_config c = {.struct_size = sizeof(c),
                          .agent = w.url,
                          .model = "a",
                          .rank = r,
                          .world_size = 2,
                          .n_threads = 2,
                          .timeout_ms = 60000};
        GPU_CHECK(wsync_publisher_open(&c, &ranks[r].p) == 0, "%s", wsync_error());
    }
    for (uint64_t v = 1; v <= 9; v++) {
        GPU_CHECK(offload_both(ranks, v), "%s", wsync_error());
        if (v % 3 == 0)
            turn();
    }
    for (unsigned r = 0; r < 2; r++)
        wsync_close(ranks[r].p);
    end_narrow();
}

static void test_layouts_of_ranks_change(void **state)
{
    (void)state;
    gpu_run(layouts_of_ranks_change, NULL);
}

/* By descriptors, as 0.1.0 does without room for copies, and long after the rank was told that the slot
 * stays. */
static void read_it(uint64_t version)
{
    struct ws_error err = {0};
    char path[64];
    int sock, fds[4];
    size_t n = 0;
    snprintf(path, sizeof(path), "/v1/g/%llu/map", (unsigned long long)version);
    GPU_CHECK(ws_ipc_connect(w.url, &sock, &err) == 0, "%s", err.text);
    GPU_CHECK(ws_ipc_call(sock, "GET", path, NULL, NULL, 0, 60000, NULL, fds, 4, &n, &err) == 0, "%s",
              err.text);
    while (n > 0)
        close(fds[--n]);
    close(sock);
}

static void slots_are_exchanged(void)
{
    start_narrow();
    for (uint64_t v = 1; v <= 6; v++) {
        publish(w.gpu, w.at_gpu, v);
        if (v > 1)
            read_it(v - 1);
    }
    end_narrow();
}

/* Exchanged regions count towards the agent's memory limit like others. */
static void test_slots_are_exchanged(void **state)
{
    (void)state;
    gpu_run(slots_are_exchanged, NULL);
}

static void changes_are_exchanged(void)
{
    w.gpu_delta = true;
    slots_are_exchanged();
}

static void test_changes_are_exchanged(void **state)
{
    (void)state;
    gpu_run(changes_are_exchanged, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offload),
        cmocka_unit_test(test_offload_by_copies_alone),
        cmocka_unit_test(test_offload_unpinned),
        cmocka_unit_test(test_offload_without_anything),
        cmocka_unit_test(test_offload_with_a_full_device),
        cmocka_unit_test(test_mixed_and_one_by_one),
        cmocka_unit_test(test_audit),
        cmocka_unit_test(test_follows_the_trainer),
        cmocka_unit_test(test_follows_a_late_trainer),
        cmocka_unit_test(test_out_of_bounds),
        cmocka_unit_test(test_shared_less_one),
        cmocka_unit_test(test_unknown_memory),
        cmocka_unit_test(test_a_lost_device),
        cmocka_unit_test(test_a_faulting_kernel),
        cmocka_unit_test(test_a_killed_trainer),
        cmocka_unit_test(test_layouts_change),
        cmocka_unit_test(test_layouts_of_ranks_change),
        cmocka_unit_test(test_slots_are_exchanged),
        cmocka_unit_test(test_changes_are_exchanged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
