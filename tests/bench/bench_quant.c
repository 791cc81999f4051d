/* Quantising bf16 weights in one thread, for each recipe: bf16 read a second of a core's time, so that other work counts less,
 * compared with reading the same bytes, and for fp8-block128 with 4 GB/s. Weights of [rows, 4096], of sizes as a trained
 * layer's are. */
#include "tests/bench/common.h"
#include "transports/memory/available.h"
#include "transports/quant/quantise.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define BYTES   (256UL << 20)
#define COLUMNS 4096UL
#define ROWS    (BYTES / 2 / COLUMNS)
#define REPEATS 9
#define GOAL    4.0 /* GB/s of a core */

static struct {
    unsigned char *weights, *codes, *scales, shape[16];
    const struct ws_recipe *recipe;
    volatile uint64_t seen;
} b;

static double core_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void quantise(void)
{
    const struct ws_quantise q = {
        .recipe = b.recipe,
        .name = "weights",
        .dtype = WS_BF16,
        .rows = ROWS,
        .columns = COLUMNS,
        .n_rows = ROWS,
        .src = b.weights,
        .dst = {b.codes, b.scales, b.shape},
    };
    struct ws_error err;
    if (ws_quantise(&q, &err) < 0)
        bench_fail("%s", err.text);
}

static void read_all(void)
{
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < BYTES; i += 64) {
        uint64_t x[8];
        memcpy(x, b.weights + i, sizeof(x));
        for (size_t k = 0; k < 8; k++)
            sum[k] += x[k];
    }
    for (size_t k = 0; k < 8; k++)
        b.seen = b.seen + sum[k];
}

static double seconds_of(void (*run)(void))
{
    const double start = core_seconds();
    run();
    return core_seconds() - start;
}

static void measure(const struct ws_recipe *recipe)
{
    double quantised[REPEATS], read[REPEATS];
    char name[64];
    b.recipe = recipe;
    for (size_t i = 0; i < REPEATS; i++) {
        quantised[i] = seconds_of(quantise);
        read[i] = seconds_of(read_all);
    }
    const double rate = bench_rate(BYTES, bench_median(quantised, REPEATS));
    if (recipe == ws_recipe_at(0))
        bench_row(&(struct bench_row){"derive-fp8", rate, "GB/s", GOAL, BENCH_AT_LEAST, 1.0});
    snprintf(name, sizeof(name), "derive-%s-read", recipe->name);
    bench_row(&(struct bench_row){name, rate, "GB/s", bench_rate(BYTES, bench_median(read, REPEATS)),
                                  BENCH_NO_GOAL, 0});
}

static unsigned char *memory(size_t n)
{
    unsigned char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        bench_fail("cannot map %zu bytes", n);
    (void)madvise(p, n, MADV_HUGEPAGE);
    return p;
}

int main(void)
{
    struct ws_error err = {0};
    uint64_t seed = 88172645463325252ULL;
    if (ws_memory_check(2 * BYTES, "256 MiB of weights and their codes", &err) < 0)
        bench_skip("%s", err.text);
    b.weights = memory(BYTES);
    b.codes = memory(BYTES / 2);
    b.scales = memory(BYTES / 8);
    for (size_t i = 0; i < BYTES; i += 2) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        const uint16_t v = (uint16_t)((seed & 0x807f) | (100 + (seed >> 20) % 20) << 7);
        memcpy(b.weights + i, &v, sizeof(v));
    }
    printf("256 MiB of bf16 quantised in one thread, by %s code\n", ws_quantise_code());
    for (size_t i = 0; ws_recipe_at(i); i++)
        measure(ws_recipe_at(i));
    return 0;
}
