/* Changes since the last version, found on the GPU: comparing and compacting 3.4 GB of which 1.6 % of the
 * elements differ, compared with one copy within the device, which moves as many bytes as reading both
 * versions; and a whole step, offloaded and published (a mount of this host maps it), compared with one that
 * copies everything. */
#include "tests/bench/common.h"
#include "tests/bench/gpu.h"
#include "transports/device/block_diff.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPEATS 9
#define APART   128UL /* bytes from one changed element to the next */

static const struct ws_device_ops *const ops = &ws_cuda_device;

/* Changes one element of every APART bytes. */
struct trainer {
    struct bench_rank rank;
    struct ws_device_queue *q;
    unsigned char *weights, *other;
    unsigned step;
};

static void train(struct trainer *t)
{
    struct ws_error err = {0};
    const uint64_t rows = t->rank.bytes / APART;
    t->step++;
    for (uint64_t at = 0; at < rows; at += 65535) {
        const uint64_t n = rows - at < 65535 ? rows - at : 65535;
        const struct ws_device_box_copy b = {.dst = t->weights + at * APART + 2UL * (t->step % 32),
                                             .src = t->other + 2UL * (t->step % 7),
                                             .width = 2,
                                             .height = n,
                                             .depth = 1,
                                             .dst_row = APART,
                                             .src_row = 16};
        if (ops->copy_box(t->q, &b, &err) < 0)
            bench_fail("%s", err.text);
    }
    bench_gpu_finish(t->q);
}

static void step(void *arg)
{
    struct trainer *t = arg;
    bench_offload(&t->rank);
    bench_settle(&t->rank);
}

static void open_trainer(struct trainer *t, const char *url, const char *model, int gpu_delta)
{
    wsync_config config = {
        .struct_size = sizeof(config), .agent = url, .model = model, .world_size = 1, .gpu_delta = gpu_delta};
    unsigned char *data, *random;
    *t = (struct trainer){.rank = {.world_size = 1}, .q = bench_gpu_queue()};
    bench_add_qwen_1_7b(&t->rank);
    data = t->weights = bench_gpu_memory(t->rank.bytes);
    random = bench_gpu_pinned(2UL << 20);
    for (size_t i = 0; i < 2UL << 20; i++)
        random[i] = (unsigned char)(i * 2654435761UL >> 13);
    t->other = bench_gpu_memory(2UL << 20);
    bench_gpu_copy(t->q, t->other, random, 2UL << 20);
    for (size_t i = 0; i < t->rank.n; i++) {
        wsync_param *p = &t->rank.params[i];
        p->name = t->rank.names[i];
        p->data = data;
        data += p->shape[0] * p->shape[1] * 2;
    }
    if (wsync_publisher_open(&config, &t->rank.publisher))
        bench_fail("%s", wsync_error());
    for (int i = 0; i < 3; i++) { /* the slots are pinned, and their contents known */
        train(t);
        step(t);
    }
}

/* --- the kernels alone --- */

struct comparison {
    struct ws_device_queue *q;
    unsigned char *now, *shadow;
    uint64_t bytes;
    struct ws_block_diff diff; /* one launch's blocks */
    struct ws_diff_args args;
    void *counts;
    size_t count_bytes;
};

static void *to_device(struct ws_device_queue *q, const void *host, size_t bytes)
{
    void *p = bench_gpu_memory(bytes);
    bench_gpu_copy(q, p, host, bytes);
    return p;
}

static void open_comparison(struct comparison *c, const struct trainer *t)
{
    struct ws_error err = {0};
    struct ws_element_widths *w = malloc(sizeof(*w) + sizeof(w->extents[0]));
    *c = (struct comparison){
        .q = t->q, .now = t->weights, .bytes = t->rank.bytes / WS_BLOCK_BYTES * WS_BLOCK_BYTES};
    if (!w || ops->has_kernels(0, &err) < 0)
        bench_fail("%s", err.text);
    *w = (struct ws_element_widths){.n = 1};
    w->extents[0] = (struct ws_element_width_extent){0, 2};
    c->shadow = bench_gpu_memory(c->bytes);
    ws_block_diff_init(&c->diff);
    for (uint64_t at = 0; at < c->bytes && c->diff.blocks.len < WS_BLOCK_DIFF_MAX_BLOCKS;
         at += WS_BLOCK_BYTES)
        if (ws_block_diff_add(&c->diff, c->now + at, c->shadow + at, WS_BLOCK_BYTES, w, 0, &err) < 0)
            bench_fail("%s", err.text);
    const struct ws_block_diff *d = &c->diff;
    const size_t n_tiles = d->tiles.ptr[d->spans.len], room = c->bytes / APART * 2;
    c->count_bytes = (n_tiles + d->spans.len + d->blocks.len) * sizeof(uint32_t);
    c->counts = bench_gpu_memory(c->count_bytes);
    c->args = (struct ws_diff_args){
        .blocks = to_device(c->q, d->blocks.ptr, d->blocks.len * sizeof(d->blocks.ptr[0])),
        .spans = to_device(c->q, d->spans.ptr, d->spans.len * sizeof(d->spans.ptr[0])),
        .tiles = to_device(c->q, d->tiles.ptr, (d->spans.len + 1) * sizeof(d->tiles.ptr[0])),
        .tile_changed = c->counts,
        .span_changed = (uint32_t *)c->counts + n_tiles,
        .block_changed = (uint32_t *)c->counts + n_tiles + d->spans.len,
        .at = bench_gpu_memory(room * sizeof(uint32_t)),
        .changes = bench_gpu_memory(room * sizeof(uint32_t)),
        .room = (uint32_t)room,
        .n_spans = d->spans.len};
    bench_gpu_copy(c->q, c->shadow, c->now, c->bytes);
    bench_gpu_finish(c->q);
    free(w);
}

static void compare(struct comparison *c)
{
    struct ws_error err = {0};
    const uint32_t n_tiles = c->diff.tiles.ptr[c->diff.spans.len];
    if (ops->fill(c->q, c->counts, 0, c->count_bytes, &err) < 0 ||
        ws_block_diff_launch(c->q, WS_KERNEL_DIFF_COUNT, &c->args, n_tiles, &err) < 0 ||
        ws_block_diff_launch(c->q, WS_KERNEL_DIFF_PACK, &c->args, n_tiles, &err) < 0)
        bench_fail("%s", err.text);
    bench_gpu_finish(c->q);
}

static void kernels(struct trainer *t)
{
    struct comparison c;
    double compared[REPEATS], copied[REPEATS];
    open_comparison(&c, t);
    void *to = bench_gpu_memory(c.bytes);
    compare(&c);
    for (int i = 0; i < REPEATS; i++) {
        train(t);
        double begin = bench_now();
        compare(&c);
        double middle = bench_now();
        bench_gpu_copy(t->q, to, c.now, c.bytes);
        bench_gpu_finish(t->q);
        compared[i] = middle - begin;
        copied[i] = bench_now() - middle;
    }
    bench_row(&(struct bench_row){"gpu-delta", bench_rate(2 * c.bytes, bench_median(compared, REPEATS)),
                                  "GB/s", bench_rate(2 * c.bytes, bench_median(copied, REPEATS)),
                                  BENCH_AT_LEAST, 0.5});
}

int main(void)
{
    struct bench_agent agent;
    struct trainer delta, whole;
    double with[REPEATS], without[REPEATS];
    bench_gpu_open();
    bench_agent_start(&agent);
    open_trainer(&delta, agent.url, "delta", 1);
    open_trainer(&whole, agent.url, "whole", 0);
    for (int i = 0; i < REPEATS; i++) {
        train(&delta);
        train(&whole);
        with[i] = bench_timed(step, &delta);
        without[i] = bench_timed(step, &whole);
    }
    bench_row(&(struct bench_row){"gpu-delta-step", bench_median(with, REPEATS) * 1e3, "ms",
                                  bench_median(without, REPEATS) * 1e3, BENCH_AT_MOST, 0.3});
    printf("  %s\n", wsync_gpu_report(delta.rank.publisher));
    kernels(&whole);
    bench_rank_close(&delta.rank);
    bench_rank_close(&whole.rank);
    bench_agent_end(&agent);
    return 0;
}
