/* The cost of an audit: hashing 512 MiB of a rank's replicas, compared with copying and hashing the same
 * bytes as an offload does, alternating, 2 threads each. Seconds per GB. */
#include "backends/trainer/offload/copy_plan.h"
#include "tests/bench/common.h"
#include "tests/bench/trainer.h"
#include "transports/memory/available.h"
#include <stdlib.h>

#define MATRICES 16U
#define SIDE     4096UL
#define BYTES    (SIDE * SIDE * 2)
#define THREADS  2
#define REPEATS  9

struct subject {
    struct ws_copy_plan *plan;
    const void *sources[MATRICES];
    unsigned char *data[MATRICES];
    struct ws_workers *workers;
    bool copies;
};

static void run(void *arg)
{
    struct subject *s = arg;
    struct ws_error err = {0};
    struct ws_block_hashes hashes = {0};
    struct ws_copy_plan_run how = {
        .data = s->copies ? s->data : NULL, .sources = s->sources, .hashes = &hashes};
    if (ws_copy_plan_run(s->plan, &how, s->workers, &err) || hashes.len != MATRICES * BYTES / WS_BLOCK_BYTES)
        bench_fail("%zu blocks were hashed; %s", hashes.len, err.text);
    ws_block_hashes_reset(&hashes);
}

static void compile(struct subject *s)
{
    struct ws_error err = {0};
    uint64_t sizes[MATRICES];
    int rc = ws_copy_plan_new(&s->plan, &err);
    for (size_t i = 0; rc == 0 && i < MATRICES; i++) {
        sizes[i] = BYTES;
        rc = ws_copy_plan_add_bytes(s->plan, i, 0, BYTES, i, &err);
    }
    if (rc == 0)
        rc = ws_copy_plan_compile(s->plan, sizes, MATRICES, &err);
    if (rc < 0)
        bench_fail("%s", err.text);
}

int main(void)
{
    struct ws_error err = {0};
    struct subject audit = {0};
    if (ws_memory_check(3 * MATRICES * BYTES, "matrices and their copies", &err) < 0)
        bench_skip("%s", err.text);
    const unsigned char *src = bench_memory(MATRICES * BYTES);
    unsigned char *dst = bench_memory(MATRICES * BYTES);
    for (size_t i = 0; i < MATRICES; i++) {
        audit.sources[i] = src + i * BYTES;
        audit.data[i] = dst + i * BYTES;
    }
    compile(&audit);
    audit.workers = ws_workers_new(THREADS, 0);
    if (!audit.workers)
        bench_fail("no threads");
    struct subject offload = audit;
    offload.copies = true;
    struct bench_subject subjects[] = {{.run = run, .arg = &audit}, {.run = run, .arg = &offload}};
    bench_in_turns(subjects, 2, REPEATS);
    const double gb = (double)(MATRICES * BYTES) / 1e9;
    bench_row(&(struct bench_row){"audit", subjects[0].seconds / gb, "s/GB", subjects[1].seconds / gb,
                                  BENCH_AT_MOST, 1.0});
    ws_workers_free(audit.workers);
    ws_copy_plan_free(audit.plan);
    return 0;
}
