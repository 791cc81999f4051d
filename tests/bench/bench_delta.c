/* The delta of bf16 weights in one thread: encoding compared with AstraFlow's published speed and with
 * reading both versions; applying in place, verified, compared with hashing alone; applying into a copy
 * compared with in place; bytes per changed element compared with an index and a value (6 bytes). Shares of
 * 0.1 %, 1.5 % and 10 % changed by one unit, and 1.5 % by Adam-like step sizes. */
#include "tests/bench/common.h"
#include "transports/base/limits.h"
#include "transports/delta/block.h"
#include "transports/delta/stream.h"
#include "transports/memory/available.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BYTES     (1UL << 30)
#define BLOCKS    (BYTES / WS_BLOCK_BYTES)
#define REPEATS   7
#define ASTRAFLOW 2.2 /* GB/s of one core, as published */
#define PLAIN     6.0 /* bytes of an index and a value */

static struct {
    unsigned char *old, *new, *work, *deltas;
    size_t bytes[BLOCKS], total;
    uint64_t n_changed;
    struct ws_element_widths *widths;
    struct ws_delta_block_encoder *coder;
    struct ws_delta_edit *edit;
    struct ws_hasher *hasher;
    volatile uint64_t seen;
} b;

static uint64_t any(void)
{
    static uint64_t seed = 88172645463325252ULL;
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

static void change(double share, bool mixed)
{
    uint16_t *p = (uint16_t *)(void *)b.new;
    memcpy(b.new, b.old, BYTES);
    for (size_t i = 0;; i++) {
        i += (size_t)(log(((double)(any() >> 11) + 0.5) / 9007199254740992.0) / log1p(-share));
        if (i >= BYTES / 2)
            return;
        uint16_t by = 1;
        while (mixed && any() % 3 == 0)
            by = (uint16_t)(by * 2);
        p[i] = (uint16_t)(any() & 1 ? p[i] + by : p[i] - by);
    }
}

static void encode(void *arg)
{
    (void)arg;
    b.total = 0;
    b.n_changed = 0;
    for (size_t i = 0; i < BLOCKS; i++) {
        uint32_t n;
        size_t at = i * WS_BLOCK_BYTES;
        if (ws_delta_block_encode(b.coder, b.old + at, b.new + at, WS_BLOCK_BYTES, b.widths, at,
                                  b.deltas + b.total, &b.bytes[i], &n) < 0)
            bench_fail("a block's delta is as large as the block");
        b.total += b.bytes[i];
        b.n_changed += n;
    }
}

static void read_both(void *arg)
{
    (void)arg;
    for (size_t i = 0; i < BLOCKS; i++) {
        const uint64_t *x = (void *)(b.old + i * WS_BLOCK_BYTES), *y = (void *)(b.new + i *WS_BLOCK_BYTES);
        uint64_t sum = 0;
        for (size_t k = 0; k < WS_BLOCK_BYTES / 8; k += 8)
            sum += x[k] + y[k];
        b.seen = b.seen + sum;
    }
}

/* src: NULL: in place. */
static void patch(const unsigned char *src)
{
    size_t from = 0;
    for (size_t i = 0; i < BLOCKS; from += b.bytes[i++]) {
        const size_t at = i * WS_BLOCK_BYTES;
        if (ws_delta_edit_read(b.edit, b.deltas + from, b.bytes[i], WS_BLOCK_BYTES, NULL) < 0)
            bench_fail("a delta is damaged");
        b.seen = b.seen + ws_delta_edit_apply(b.hasher, b.work + at, src ? src + at : NULL, WS_BLOCK_BYTES,
                                              &b.edit, 1);
    }
}

static void apply(void *arg)
{
    (void)arg;
    patch(NULL);
}

/* As when a reader has the previous version open. */
static void apply_to_copy(void *arg)
{
    (void)arg;
    patch(b.old);
}

static void hash(void *arg)
{
    (void)arg;
    for (size_t i = 0; i < BLOCKS; i++)
        b.seen = b.seen + ws_hash(b.work + i * WS_BLOCK_BYTES, WS_BLOCK_BYTES);
}

static void measure(const char *what, double share, bool mixed, bool has_goals)
{
    struct bench_subject s[] = {
        {.run = encode}, {.run = read_both}, {.run = apply}, {.run = hash}, {.run = apply_to_copy}};
    char names[5][48];
    change(share, mixed);
    memcpy(b.work, b.old, BYTES);
    bench_in_turns(s, 5, REPEATS);
    double encoded = bench_rate(BYTES, s[0].seconds), applied = bench_rate(BYTES, s[2].seconds);
    /* a record's head is a block's share of the stream's overhead */
    const size_t sent = b.total + BLOCKS * WS_DELTA_RECORD_BYTES;
    double bytes = (double)sent / (double)b.n_changed;
    enum bench_goal least = has_goals ? BENCH_AT_LEAST : BENCH_NO_GOAL,
                    most = has_goals ? BENCH_AT_MOST : BENCH_NO_GOAL;
    snprintf(names[0], sizeof(names[0]), "delta-encode%s", what);
    snprintf(names[1], sizeof(names[1]), "delta-encode-read%s", what);
    snprintf(names[2], sizeof(names[2]), "delta-apply%s", what);
    snprintf(names[3], sizeof(names[3]), "delta-bytes%s", what);
    snprintf(names[4], sizeof(names[4]), "delta-apply-copy%s", what);
    bench_row(&(struct bench_row){names[0], encoded, "GB/s", ASTRAFLOW, least, 3.0});
    bench_row(&(struct bench_row){names[1], encoded, "GB/s", bench_rate(BYTES, s[1].seconds), least, 0.6});
    bench_row(&(struct bench_row){names[2], applied, "GB/s", bench_rate(BYTES, s[3].seconds), least, 0.7});
    bench_row(&(struct bench_row){names[4], bench_rate(BYTES, s[4].seconds), "GB/s", applied, least, 0.85});
    bench_row(&(struct bench_row){names[3], bytes, "B", PLAIN, most, 0.2});
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
    if (ws_memory_check(4 * BYTES, "three versions of 1 GiB and their delta", &err) < 0)
        bench_skip("%s", err.text);
    b.old = memory(BYTES);
    b.new = memory(BYTES);
    b.work = memory(BYTES);
    b.deltas = memory(BYTES);
    b.widths = malloc(sizeof(*b.widths) + sizeof(b.widths->extents[0]));
    b.coder = ws_delta_block_encoder_new();
    b.edit = ws_delta_edit_new();
    b.hasher = ws_hasher_new();
    if (!b.widths || !b.coder || !b.edit || !b.hasher)
        bench_fail("no memory");
    b.widths->n = 1;
    b.widths->extents[0] = (struct ws_element_width_extent){0, 2};
    for (size_t i = 0; i < BYTES; i += 2) {
        uint64_t r = any();
        uint16_t v = (uint16_t)((r & 0x807f) | (100 + (r >> 20) % 20) << 7);
        memcpy(b.old + i, &v, sizeof(v));
    }
    printf("deltas of 1 GiB of bf16 in one thread, by %s code\n", ws_delta_block_impl_name());
    measure("", 0.015, false, true);
    measure("-0.1%", 0.001, false, false);
    measure("-10%", 0.1, false, false);
    measure("-mix", 0.015, true, false);
    return 0;
}
