/* From GPU memory into the agent's slot, hashed and published: 3.4 GB in Qwen3-1.7B's shapes compared with
 * one large buffer copied to pinned memory; 10,000 small parameters compared with as many bytes in one;
 * float32 converted to bf16 on the way; and the slowdown of a trainer's own kernels meanwhile. */
#include "tests/bench/common.h"
#include "tests/bench/gpu.h"
#include "transports/device/cuda_driver.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#define REPEATS     9
#define SMALL       10000
#define SMALL_BYTES (SMALL * 64UL * 128 * 2)
#define SIDE        4096
#define MATMULS     40

struct pinned_copy {
    struct ws_device_queue *q;
    void *dst, *src;
    uint64_t bytes;
};

static void copy_run(void *arg)
{
    const struct pinned_copy *c = arg;
    bench_gpu_copy(c->q, c->dst, c->src, c->bytes);
    bench_gpu_finish(c->q);
}

static void offload_run(void *rank)
{
    bench_offload(rank);
    bench_settle(rank);
}

static void against_copy(const char *name, struct bench_rank *r, const struct pinned_copy *c, double target)
{
    struct bench_subject s[] = {{.run = offload_run, .arg = r},
                                {.run = copy_run, .arg = (void *)(uintptr_t)c}};
    bench_offload(r); /* both slots are pinned before the measurement */
    bench_settle(r);
    bench_in_turns(s, 2, REPEATS);
    bench_row(&(struct bench_row){name, bench_rate(c->bytes, s[0].seconds), "GB/s",
                                  bench_rate(c->bytes, s[1].seconds), BENCH_AT_LEAST, target});
    printf("  %s\n", wsync_gpu_report(r->publisher));
}

static void open_rank(struct bench_rank *r, const struct bench_agent *a, const char *model)
{
    bench_rank_open(r, a->url, model, bench_gpu_memory(r->bytes), 0);
}

/* --- a trainer that computes --- */

struct trainer {
    const struct ws_cuda_driver *cuda;
    struct ws_device_queue *q;
    CUfunction matmul;
    void *a, *b, *c;
};

#ifdef WS_MATMUL
__asm__(".section .rodata\n.balign 64\nbench_matmul_fatbin:\n.incbin \"" WS_MATMUL
        "\"\n.byte 0\n.previous\n");
extern const unsigned char bench_matmul_fatbin[];
#endif

static int open_trainer(struct trainer *t)
{
#ifdef WS_MATMUL
    CUmodule module;
    const size_t bytes = (size_t)SIDE * SIDE * sizeof(float);
    *t = (struct trainer){.cuda = ws_cuda_driver_open(NULL), .q = bench_gpu_queue()};
    if (ws_cuda_enter(0, NULL) < 0)
        bench_fail("no device");
    CUresult rc = t->cuda->module_load(&module, bench_matmul_fatbin);
    if (rc == CUDA_SUCCESS)
        rc = t->cuda->module_function(&t->matmul, module, "bench_matmul");
    ws_cuda_leave();
    if (rc != CUDA_SUCCESS)
        return -1;
    t->a = bench_gpu_memory(bytes);
    t->b = bench_gpu_memory(bytes);
    t->c = bench_gpu_memory(bytes);
    return 0;
#else
    (void)t;
    return -1;
#endif
}

static void compute(void *arg)
{
    struct trainer *t = arg;
    int n = SIDE;
    void *args[] = {&t->a, &t->b, &t->c, &n};
    if (ws_cuda_enter(0, NULL) < 0)
        bench_fail("no device");
    for (int i = 0; i < MATMULS; i++)
        if (t->cuda->launch(t->matmul, SIDE / 32, SIDE / 32, 1, 32, 32, 1, 0,
                            ws_cuda_device.queue_stream(t->q), args, NULL) != CUDA_SUCCESS)
            bench_fail("cannot start a kernel");
    ws_cuda_leave();
    bench_gpu_finish(t->q);
}

static atomic_bool stop;

static void *offload_until(void *rank)
{
    while (!atomic_load(&stop))
        offload_run(rank);
    return NULL;
}

static void stall(struct bench_rank *r)
{
    struct trainer t;
    double alone[REPEATS], beside[REPEATS];
    if (open_trainer(&t) < 0) {
        printf("  offload-stall: no nvcc when this was built, or no kernels on this device: not measured\n");
        return;
    }
    compute(&t);
    for (int i = 0; i < REPEATS; i++) {
        pthread_t thread;
        alone[i] = bench_timed(compute, &t);
        atomic_store(&stop, false);
        if (pthread_create(&thread, NULL, offload_until, r))
            bench_fail("cannot start a thread");
        beside[i] = bench_timed(compute, &t);
        atomic_store(&stop, true);
        pthread_join(thread, NULL);
    }
    bench_row(&(struct bench_row){"offload-stall", bench_median(beside, REPEATS) * 1e3, "ms",
                                  bench_median(alone, REPEATS) * 1e3, BENCH_AT_MOST, 1.05});
}

int main(void)
{
    struct bench_agent agent;
    struct bench_rank model = {.world_size = 1}, small = {.world_size = 1}, masters = {.world_size = 1};
    bench_gpu_open();
    bench_agent_start(&agent);
    bench_add_qwen_1_7b(&model);
    open_rank(&model, &agent, "model");
    const uint64_t most = model.bytes > SMALL_BYTES ? model.bytes : SMALL_BYTES;
    struct pinned_copy copy = {bench_gpu_queue(), bench_gpu_pinned(most), bench_gpu_memory(most),
                               model.bytes};
    against_copy("offload-cuda", &model, &copy, 0.95);

    for (int i = 0; i < SMALL; i++) {
        char name[64];
        snprintf(name, sizeof(name), "layers.%d.weight", i);
        bench_add(&small, name, 64, 128, 0);
    }
    open_rank(&small, &agent, "small");
    copy.bytes = small.bytes;
    against_copy("offload-cuda-small", &small, &copy, 0.5);

    bench_add_qwen_1_7b(&masters);
    for (size_t i = 0; i < masters.n; i++) {
        masters.params[i].converts = 1;
        masters.params[i].data_dtype = WSYNC_F32;
    }
    copy.bytes = masters.bytes;
    masters.bytes *= 2;
    open_rank(&masters, &agent, "masters");
    against_copy("offload-cuda-convert", &masters, &copy, 0.9);
    stall(&model);
    bench_rank_close(&model);
    bench_rank_close(&small);
    bench_rank_close(&masters);
    bench_agent_end(&agent);
    return 0;
}
