#include "tests/bench/gpu.h"
#include "tests/bench/common.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN 2048UL
#define WIDE   6144UL
#define VOCAB  151936UL

static const struct ws_device_ops *const ops = &ws_cuda_device;

void bench_gpu_open(void)
{
    struct ws_error err = {0};
    struct ws_device_info d;
    if (ops->available(&err) < 0)
        bench_skip("%s", err.text);
    if (ops->describe(0, &d, &err) < 0)
        bench_fail("%s", err.text);
    printf("  %s, %.0f GiB\n", d.name, (double)d.total_bytes / (1UL << 30));
}

struct ws_device_queue *bench_gpu_queue(void)
{
    struct ws_error err = {0};
    struct ws_device_queue *q;
    if (ops->queue_new(0, &q, &err) < 0)
        bench_fail("%s", err.text);
    return q;
}

void bench_gpu_finish(struct ws_device_queue *q)
{
    struct ws_error err = {0};
    if (ops->finish(q, &err) < 0)
        bench_fail("%s", err.text);
}

void bench_gpu_copy(struct ws_device_queue *q, void *dst, const void *src, uint64_t bytes)
{
    struct ws_error err = {0};
    if (ops->copy(q, dst, src, bytes, &err) < 0)
        bench_fail("%s", err.text);
}

void *bench_gpu_memory(uint64_t bytes)
{
    struct ws_error err = {0};
    struct ws_device_queue *q = bench_gpu_queue();
    void *p;
    if (ops->alloc(0, bytes, &p, &err) < 0)
        bench_skip("%s", err.text);
    if (ops->fill(q, p, 0x3c, bytes, &err) < 0)
        bench_fail("%s", err.text);
    bench_gpu_finish(q);
    ops->queue_free(q);
    return p;
}

void *bench_gpu_pinned(uint64_t bytes)
{
    struct ws_error err = {0};
    void *p;
    if (ops->alloc_pinned(0, bytes, &p, &err) < 0)
        bench_skip("%s", err.text);
    memset(p, 3, bytes);
    return p;
}

size_t bench_gpu_layers(void)
{
    const char *fewer = getenv("BENCH_LAYERS");
    size_t n = fewer ? strtoul(fewer, NULL, 10) : 0;
    return n > 0 && n < 28 ? n : 28;
}

void bench_add_qwen_1_7b(struct bench_rank *r)
{
    static const struct {
        const char *name;
        uint64_t rows, columns;
    } shapes[] = {
        {"self_attn.q_proj.weight", HIDDEN, HIDDEN},
        {"self_attn.k_proj.weight", HIDDEN / 2, HIDDEN},
        {"self_attn.v_proj.weight", HIDDEN / 2, HIDDEN},
        {"self_attn.o_proj.weight", HIDDEN, HIDDEN},
        {"self_attn.q_norm.weight", 1, 128},
        {"self_attn.k_norm.weight", 1, 128},
        {"mlp.gate_proj.weight", WIDE, HIDDEN},
        {"mlp.up_proj.weight", WIDE, HIDDEN},
        {"mlp.down_proj.weight", HIDDEN, WIDE},
        {"input_layernorm.weight", 1, HIDDEN},
        {"post_attention_layernorm.weight", 1, HIDDEN},
    };
    if (bench_gpu_layers() == 28)
        bench_add(r, "model.embed_tokens.weight", VOCAB, HIDDEN, 0);
    bench_add(r, "model.norm.weight", 1, HIDDEN, 0);
    for (size_t layer = 0; layer < bench_gpu_layers(); layer++) {
        for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); k++) {
            char name[64];
            snprintf(name, sizeof(name), "model.layers.%zu.%s", layer, shapes[k].name);
            bench_add(r, name, shapes[k].rows, shapes[k].columns, 0);
        }
    }
}
