/* A publisher of one rank with 1.2 GB of warm host memory in tensors of Qwen3-0.6B's sizes, against the best
 * streaming copy of the same bytes with as many threads. offload-host is the time until the trainer may go
 * on; published-host the one until the version is announced, hashes and all. */
#include "backends/trainer/agent.h"
#include "backends/trainer/wsync.h"
#include "tests/bench/common.h"
#include "transports/copy.h"
#include "transports/limits.h"
#include "transports/memory.h"
#include "transports/region.h"
#include "transports/workers.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LAYERS  28
#define THREADS 2
#define REPEATS 9

static const struct {
    const char *name;
    uint64_t rows, columns;
} shapes[] = {
    {"self_attn.q_proj.weight", 2048, 1024}, {"self_attn.k_proj.weight", 1024, 1024},
    {"self_attn.v_proj.weight", 1024, 1024}, {"self_attn.o_proj.weight", 1024, 2048},
    {"mlp.gate_proj.weight", 3072, 1024},    {"mlp.up_proj.weight", 3072, 1024},
    {"mlp.down_proj.weight", 1024, 3072},    {"input_layernorm.weight", 1, 1024},
};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))
#define N_PARAMS (LAYERS * N_SHAPES + 1)

struct offload {
    wsync_publisher *publisher;
    wsync_param params[N_PARAMS];
    char names[N_PARAMS][64];
    uint64_t version, bytes;
    unsigned char *src;
};

static void add(struct offload *o, size_t i, uint64_t rows, uint64_t columns)
{
    o->params[i] = (wsync_param){.name = o->names[i],
                                 .dtype = WSYNC_BF16,
                                 .n_dims = 2,
                                 .shape = {rows, columns},
                                 .data = o->src ? o->src + o->bytes : NULL};
    o->bytes += rows * columns * 2;
}

static void make_params(struct offload *o)
{
    size_t i = 0;
    o->bytes = 0;
    snprintf(o->names[i], sizeof(o->names[i]), "model.embed_tokens.weight");
    add(o, i++, 151936, 1024);
    for (size_t layer = 0; layer < LAYERS; layer++) {
        for (size_t k = 0; k < N_SHAPES; k++, i++) {
            snprintf(o->names[i], sizeof(o->names[i]), "model.layers.%zu.%s", layer, shapes[k].name);
            add(o, i, shapes[k].rows, shapes[k].columns);
        }
    }
}

/* Until it is announced; a trainer computes meanwhile. */
static void settle(struct offload *o)
{
    if (wsync_wait_published(o->publisher, o->version, 60000))
        bench_fail("%s", wsync_error());
}

static void run_offload(void *arg)
{
    struct offload *o = arg;
    if (wsync_offload(o->publisher, o->params, N_PARAMS, ++o->version))
        bench_fail("%s", wsync_error());
}

struct copy {
    struct ws_workers *workers;
    unsigned char *dst;
    const unsigned char *src;
    uint64_t bytes;
};

static void one_block(void *arg, size_t i)
{
    const struct copy *c = arg;
    uint64_t at = i * WS_BLOCK_BYTES, n = c->bytes - at < WS_BLOCK_BYTES ? c->bytes - at : WS_BLOCK_BYTES;
    ws_copy(c->dst + at, c->src + at, n);
}

static void run_copy(void *arg)
{
    struct copy *c = arg;
    ws_workers_run(c->workers, one_block, c, (c->bytes + WS_BLOCK_BYTES - 1) / WS_BLOCK_BYTES);
}

static double timed(void (*run)(void *), void *arg)
{
    double start = bench_now();
    run(arg);
    return bench_now() - start;
}

int main(void)
{
    static struct offload o;
    struct ws_error err = {0};
    struct ws_agent *agent;
    struct ws_region *region;
    char dir[] = "/tmp/wsync-bench.XXXXXX", socket[64], url[80];
    make_params(&o); /* for the size */
    if (ws_memory_check(4 * o.bytes + o.bytes / 4, "a model, its two slots and a copy", &err) < 0)
        bench_skip("%s", err.text);
    o.src = mmap(NULL, o.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (o.src == MAP_FAILED || !mkdtemp(dir))
        bench_fail("cannot map a source");
    (void)madvise(o.src, o.bytes, MADV_HUGEPAGE);
    memset(o.src, 3, o.bytes);
    make_params(&o);
    snprintf(socket, sizeof(socket), "%s/agent.sock", dir);
    snprintf(url, sizeof(url), "unix:%s", socket);
    struct ws_agent_options ao = {.tcp.listen = "127.0.0.1:0", .socket = socket, .socket_gid = (gid_t)-1};
    wsync_config config = {.struct_size = sizeof(config), .agent = url, .model = "m", .n_threads = THREADS};
    if (ws_agent_new(&agent, &ao, &err) || ws_region_new(&region, o.bytes, &err) ||
        ws_region_prefault(region, THREADS, &err))
        bench_fail("%s", err.text);
    if (wsync_open(&config, &o.publisher))
        bench_fail("%s", wsync_error());
    struct copy c = {
        .workers = ws_workers_new(THREADS, 0), .dst = ws_region_data(region), .src = o.src, .bytes = o.bytes};
    double offload[REPEATS], published[REPEATS], copy[REPEATS];
    for (int i = -2; i < REPEATS; i++) { /* in turns; the first two take the slots' memory */
        double t[2];
        t[0] = timed(run_offload, &o);
        double start = bench_now();
        settle(&o);
        t[1] = t[0] + bench_now() - start;
        double t_copy = timed(run_copy, &c);
        if (i >= 0) {
            offload[i] = t[0];
            published[i] = t[1];
            copy[i] = t_copy;
        }
    }
    double best = bench_rate(o.bytes, bench_median(copy, REPEATS));
    bench_row(&(struct bench_row){"offload-host", bench_rate(o.bytes, bench_median(offload, REPEATS)), "GB/s",
                                  best, BENCH_AT_LEAST, 0.9});
    bench_row(&(struct bench_row){"published-host", bench_rate(o.bytes, bench_median(published, REPEATS)),
                                  "GB/s", best, BENCH_NO_GOAL, 0});
    wsync_close(o.publisher);
    ws_workers_free(c.workers);
    ws_region_free(region);
    ws_agent_free(agent);
    (void)rmdir(dir);
    return 0;
}
