/* Copies of weights into a region, as in an offload and a pull: streaming stores compared with memcpy,
 * hashing with reading, and both in one pass with the copy alone. One thread and all cores. */
#include "tests/bench/common.h"
#include "transports/base/cpu_features.h"
#include "transports/base/limits.h"
#include "transports/base/workers.h"
#include "transports/memory/available.h"
#include "transports/memory/region.h"
#include "transports/simd/copy.h"
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define BYTES   (1UL << 30)
#define REPEATS 9

struct pass {
    void (*block)(struct pass *p, size_t at);
    struct ws_workers *workers;
    unsigned char *dst;
    const unsigned char *src;
    _Atomic uint64_t seen; /* so that the compiler removes no read */
};

static void by_memcpy(struct pass *p, size_t at)
{
    memcpy(p->dst + at, p->src + at, WS_BLOCK_BYTES);
}

static void by_copy(struct pass *p, size_t at)
{
    ws_copy(p->dst + at, p->src + at, WS_BLOCK_BYTES);
}

static void by_copy_hash(struct pass *p, size_t at)
{
    atomic_fetch_add(&p->seen, ws_copy_hash(p->dst + at, p->src + at, WS_BLOCK_BYTES));
}

static void by_hash(struct pass *p, size_t at)
{
    atomic_fetch_add(&p->seen, ws_hash(p->src + at, WS_BLOCK_BYTES));
}

static void by_reading(struct pass *p, size_t at)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < WS_BLOCK_BYTES; i += 64)
        sum += p->src[at + i];
    atomic_fetch_add(&p->seen, sum);
}

static void one_block(void *arg, size_t i)
{
    struct pass *p = arg;
    p->block(p, i * WS_BLOCK_BYTES);
}

static void whole(void *arg)
{
    struct pass *p = arg;
    ws_workers_run(p->workers, one_block, p, BYTES / WS_BLOCK_BYTES);
}

static void measure(unsigned char *dst, const unsigned char *src, unsigned n_threads)
{
    enum { MEMCPY, COPY, COPY_HASH, READ, HASH, N };
    static void (*const blocks[N])(struct pass *, size_t) = {by_memcpy, by_copy, by_copy_hash, by_reading,
                                                             by_hash};
    struct pass passes[N];
    struct bench_subject subjects[N];
    double rate[N];
    char names[3][32];
    struct ws_workers *w = ws_workers_new(n_threads, 0);
    if (!w || ws_workers_count(w) != n_threads)
        bench_fail("cannot start %u threads", n_threads);
    for (size_t i = 0; i < N; i++) {
        passes[i] = (struct pass){.block = blocks[i], .workers = w, .dst = dst, .src = src};
        subjects[i] = (struct bench_subject){.run = whole, .arg = &passes[i]};
    }
    bench_in_turns(subjects, N, REPEATS);
    for (size_t i = 0; i < N; i++)
        rate[i] = bench_rate(BYTES, subjects[i].seconds);
    snprintf(names[0], sizeof(names[0]), "copy-%u-thread%s", n_threads, n_threads == 1 ? "" : "s");
    snprintf(names[1], sizeof(names[1]), "copy-hash-%u-thread%s", n_threads, n_threads == 1 ? "" : "s");
    snprintf(names[2], sizeof(names[2]), "hash-%u-thread%s", n_threads, n_threads == 1 ? "" : "s");
    bench_row(&(struct bench_row){names[0], rate[COPY], "GB/s", rate[MEMCPY], BENCH_AT_LEAST, 1.2});
    bench_row(&(struct bench_row){names[1], rate[COPY_HASH], "GB/s", rate[COPY], BENCH_AT_LEAST, 0.9});
    bench_row(&(struct bench_row){names[2], rate[HASH], "GB/s", rate[READ], BENCH_AT_LEAST, 0.8});
    ws_workers_free(w);
}

int main(void)
{
    struct ws_error err = {0};
    struct ws_region *region = NULL;
    const unsigned cores = ws_cpu_cores(0);
    if (ws_memory_check(2 * BYTES + BYTES / 4, "two buffers of 1 GiB", &err) < 0)
        bench_skip("%s", err.text);
    if (ws_region_new(&region, BYTES, &err) < 0 || ws_region_prefault(region, cores, &err) < 0)
        bench_fail("%s", err.text);
    unsigned char *src = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (src == MAP_FAILED)
        bench_fail("cannot map a source of 1 GiB");
    (void)madvise(src, BYTES, MADV_HUGEPAGE);
    memset(src, 3, BYTES);
    printf("copies into a region (%s) by %s code\n", ws_region_kind_name(ws_region_kind(region)),
           ws_copy_code());
    measure(ws_region_data(region), src, 1);
    if (cores > 1)
        measure(ws_region_data(region), src, ws_cpu_cores(16));
    munmap(src, BYTES);
    ws_region_free(region);
    return 0;
}
