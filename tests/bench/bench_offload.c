/* A publisher of one rank with 1.2 GB of warm host memory in tensors of Qwen3-0.6B's sizes, compared with the
 * best streaming copy of the same bytes with as many threads. offload-host is the time until the trainer may
 * continue; published-host the time until the version is announced, including hashes. offload-convert: the
 * same from f32, compared with a copy that reads and writes as many bytes together. offload-small: 10,000
 * parameters of 4 KiB. */
#include "tests/bench/common.h"
#include "tests/bench/trainer.h"
#include "transports/memory/available.h"
#include <stdio.h>

#define THREADS 2
#define REPEATS 9
#define SMALL   10000UL

int main(void)
{
    struct bench_rank host = {0}, convert = {0}, small = {0};
    struct bench_agent agent;
    struct bench_copy copy, copy_convert;
    struct ws_error err = {0};
    bench_add_qwen(&host);
    bench_add_qwen(&convert);
    for (size_t i = 0; i < convert.n; i++) {
        convert.params[i].converts = 1;
        convert.params[i].data_dtype = WSYNC_F32;
    }
    convert.bytes *= 2;
    for (size_t i = 0; i < SMALL; i++) {
        char name[64];
        snprintf(name, sizeof(name), "model.layers.%zu.mlp.experts.%zu.norm.weight", i / 100, i % 100);
        bench_add(&small, name, 1, 2048, 0);
    }
    if (ws_memory_check(9 * host.bytes, "two models, their slots and copies", &err) < 0)
        bench_skip("%s", err.text);
    unsigned char *src = bench_memory(convert.bytes);
    bench_agent_start(&agent);
    bench_copy_open(&copy, src, host.bytes, THREADS);
    bench_copy_open(&copy_convert, src, (convert.bytes + host.bytes) / 2, THREADS);
    bench_rank_open(&host, agent.url, "host", src, THREADS);
    bench_rank_open(&convert, agent.url, "convert", src, THREADS);
    bench_rank_open(&small, agent.url, "small", src, THREADS);
    double offload[REPEATS], published[REPEATS], copied[REPEATS], converted[REPEATS], copied_as_much[REPEATS],
        each[REPEATS];
    for (int i = -2; i < REPEATS; i++) { /* alternating; the first two touch the slots' memory */
        double t[6];
        t[0] = bench_timed(bench_offload, &host);
        double start = bench_now();
        bench_settle(&host);
        t[1] = t[0] + bench_now() - start;
        t[2] = bench_timed(bench_copy_run, &copy);
        t[3] = bench_timed(bench_offload, &convert);
        bench_settle(&convert);
        t[4] = bench_timed(bench_copy_run, &copy_convert);
        t[5] = bench_timed(bench_offload, &small);
        bench_settle(&small);
        if (i >= 0) {
            offload[i] = t[0];
            published[i] = t[1];
            copied[i] = t[2];
            converted[i] = t[3];
            copied_as_much[i] = t[4];
            each[i] = t[5];
        }
    }
    double best = bench_rate(host.bytes, bench_median(copied, REPEATS));
    bench_row(&(struct bench_row){"offload-host", bench_rate(host.bytes, bench_median(offload, REPEATS)),
                                  "GB/s", best, BENCH_AT_LEAST, 0.95});
    bench_row(&(struct bench_row){"published-host", bench_rate(host.bytes, bench_median(published, REPEATS)),
                                  "GB/s", best, BENCH_NO_GOAL, 0});
    bench_row(&(struct bench_row){
        "offload-convert", bench_rate(copy_convert.bytes, bench_median(converted, REPEATS)), "GB/s",
        bench_rate(copy_convert.bytes, bench_median(copied_as_much, REPEATS)), BENCH_AT_LEAST, 0.8});
    bench_row(&(struct bench_row){"offload-small", bench_median(each, REPEATS) / SMALL * 1e6, "us", 0,
                                  BENCH_AT_MOST, 1});
    bench_rank_close(&host);
    bench_rank_close(&convert);
    bench_rank_close(&small);
    bench_copy_close(&copy);
    bench_copy_close(&copy_convert);
    bench_agent_end(&agent);
    return 0;
}
