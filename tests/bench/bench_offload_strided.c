/* Two ranks that hold the halves of 4096 x 4096 bf16 matrices: by columns (Shard(1), runs of 4 KiB, so that
 * every block of the file has some from both) compared with by rows (Shard(0), contiguous). They offload one
 * after the other, 2 threads each; a pair's time is the sum. */
#include "tests/bench/common.h"
#include "tests/bench/trainer.h"
#include "transports/memory/available.h"
#include <pthread.h>
#include <stdio.h>

#define MATRICES 16
#define SIDE     4096UL
#define THREADS  2
#define REPEATS  9

/* Ranks register together, so their first versions are offloaded at once. */
static void *first_of_second(void *rank)
{
    bench_offload(rank);
    return NULL;
}

static void open_pair(struct bench_rank pair[2], const char *url, const char *model, unsigned char *src,
                      int shard)
{
    pthread_t thread;
    for (unsigned r = 0; r < 2; r++) {
        pair[r] = (struct bench_rank){.rank = r, .world_size = 2};
        for (int i = 0; i < MATRICES; i++) {
            char name[64];
            snprintf(name, sizeof(name), "model.layers.%d.mlp.up_proj.weight", i);
            bench_add(&pair[r], name, SIDE, SIDE, shard);
        }
        bench_rank_open(&pair[r], url, model, src + r * pair[r].bytes, THREADS);
    }
    if (pthread_create(&thread, NULL, first_of_second, &pair[1]))
        bench_fail("cannot start a thread");
    bench_offload(&pair[0]);
    pthread_join(thread, NULL);
    bench_settle(&pair[0]);
}

static double offload_pair(struct bench_rank pair[2])
{
    double seconds = bench_timed(bench_offload, &pair[0]) + bench_timed(bench_offload, &pair[1]);
    bench_settle(&pair[0]);
    return seconds;
}

int main(void)
{
    struct bench_rank columns[2], rows[2];
    struct bench_agent agent;
    struct ws_error err = {0};
    uint64_t bytes = MATRICES * SIDE * SIDE * 2;
    double by_columns[REPEATS], by_rows[REPEATS];
    if (ws_memory_check(6 * bytes, "matrices and the slots of two models", &err) < 0)
        bench_skip("%s", err.text);
    unsigned char *src = bench_memory(bytes);
    bench_agent_start(&agent);
    open_pair(columns, agent.url, "columns", src, 1);
    open_pair(rows, agent.url, "rows", src, 0);
    for (int i = -1; i < REPEATS; i++) { /* alternating; the first touches the second slots' memory */
        double t[2] = {offload_pair(columns), offload_pair(rows)};
        if (i >= 0) {
            by_columns[i] = t[0];
            by_rows[i] = t[1];
        }
    }
    bench_row(&(struct bench_row){"offload-strided", bench_rate(bytes, bench_median(by_columns, REPEATS)),
                                  "GB/s", bench_rate(bytes, bench_median(by_rows, REPEATS)), BENCH_AT_LEAST,
                                  0.6});
    for (unsigned r = 0; r < 2; r++) {
        bench_rank_close(&columns[r]);
        bench_rank_close(&rows[r]);
    }
    bench_agent_end(&agent);
    return 0;
}
