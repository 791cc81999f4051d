/* Copies and hashes: every vector implementation gives the same bytes as memcpy and the same hash as the
 * library, for every alignment and length, and writes nothing beside. */
#include "tests/fixtures/choice.h"
#include "transports/base/cpu_features.h"
#include "transports/base/limits.h"
#include "transports/simd/copy.h"
#include "transports/simd/copy_impl.h"
#include "transports/simd/sums.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include <cmocka.h>

#define GUARD 64
#define FILL  0xa5

static unsigned char *random_bytes(size_t n, uint64_t seed)
{
    unsigned char *p = aligned_alloc(64, (n + 64) & ~(size_t)63);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
        p[i] = (unsigned char)(seed >> 56);
    }
    return p;
}

/* The implementations that this processor can run. */
static size_t all_codes(const struct ws_copy_code **codes)
{
    const size_t n = ws_cpu_vector(NULL) + 1;
    for (size_t i = 0; i < n; i++)
        codes[i] = ws_copy_codes[i];
    return n;
}

static void assert_copies(const struct ws_copy_code *code, unsigned char *to, const unsigned char *from,
                          size_t dst_at, size_t src_at, size_t n)
{
    memset(to, FILL, GUARD + dst_at + n + GUARD);
    code->copy(to + GUARD + dst_at, from + src_at, n);
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(to[dst_at + i], FILL);
        assert_int_equal(to[GUARD + dst_at + n + i], FILL);
    }
    if (memcmp(to + GUARD + dst_at, from + src_at, n) != 0)
        fail_msg("%s: %zu bytes from +%zu to +%zu differ", code->name, n, src_at, dst_at);
}

static void assert_copies_and_hashes(const struct ws_copy_code *code, unsigned char *to,
                                     const unsigned char *from, size_t dst_at, size_t src_at, size_t n)
{
    XXH3_state_t s;
    XXH3_INITSTATE(&s);
    XXH3_64bits_reset(&s);
    memset(to, FILL, GUARD + dst_at + n + GUARD);
    code->copy_update(&s, to + GUARD + dst_at, from + src_at, n);
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(to[dst_at + i], FILL);
        assert_int_equal(to[GUARD + dst_at + n + i], FILL);
    }
    assert_memory_equal(to + GUARD + dst_at, from + src_at, n);
    assert_int_equal(XXH3_64bits_digest(&s), XXH3_64bits(from + src_at, n));
}

static void test_every_alignment(void **state)
{
    const struct ws_copy_code *codes[3];
    size_t n_codes = all_codes(codes), most = 2500;
    unsigned char *from = random_bytes(most + 64, 1), *to = random_bytes(most + 3 * GUARD, 2);

    (void)state;
    for (size_t c = 0; c < n_codes; c++) {
        for (size_t n = 0; n <= most; n += n < 300 ? 1 : 37)
            for (size_t at = 0; at < 64; at += 1 + n % 3) {
                assert_copies(codes[c], to, from, at, (at * 7) % 64, n);
                assert_copies_and_hashes(codes[c], to, from, at, (at * 11) % 64, n);
            }
    }
    free(from);
    free(to);
}

static void test_large(void **state)
{
    const struct ws_copy_code *codes[3];
    size_t n_codes = all_codes(codes), n = 3 * 1024 * 1024 + 77;
    unsigned char *from = random_bytes(n + 64, 3), *to = random_bytes(n + 3 * GUARD, 4);

    (void)state;
    for (size_t c = 0; c < n_codes; c++) {
        assert_copies(codes[c], to, from, 13, 5, n);
        assert_copies_and_hashes(codes[c], to, from, 13, 5, n);
    }
    free(from);
    free(to);
}

static void test_hash_is_the_librarys(void **state)
{
    const struct ws_copy_code *codes[3];
    size_t n_codes = all_codes(codes), most = 70000;
    unsigned char *p = random_bytes(most + 64, 5);

    (void)state;
    for (size_t n = 0; n < most; n = n * 5 / 4 + 1) {
        uint64_t right = XXH3_64bits(p + n % 64, n);
        for (size_t c = 0; c < n_codes; c++)
            assert_int_equal(codes[c]->hash(p + n % 64, n), right);
        assert_int_equal(ws_hash(p + n % 64, n), right);
    }
    free(p);
}

/* The library begins and ends the state; any implementation updates it. */
static void test_updates_mix(void **state)
{
    const struct ws_copy_code *codes[3];
    size_t n_codes = all_codes(codes), n = 200000, at = 0;
    unsigned char *p = random_bytes(n, 6), *to = random_bytes(n, 16);
    XXH3_state_t *s = XXH3_createState();

    (void)state;
    assert_non_null(s);
    XXH3_64bits_reset(s);
    for (size_t i = 0; at < n; i++) {
        size_t step = (i * 997) % 5000;
        step = step < n - at ? step : n - at;
        codes[i % n_codes]->copy_update(s, to + at, p + at, step);
        at += step;
    }
    assert_int_equal(XXH3_64bits_digest(s), XXH3_64bits(p, n));
    assert_memory_equal(to, p, n);
    XXH3_freeState(s);
    free(to);
    free(p);
}

/* From every place within a KiB and within what the state has in its buffer: of pieces that end anywhere the hash is the
 * library's, whichever code went on with it. */
static void test_updates_resume(void **state)
{
    static const size_t lengths[] = {0,   1,   63,  64,   255,  256,  257,  319,  320,
                                     321, 384, 959, 1023, 1024, 1025, 1087, 1088, 2500};
    const struct ws_copy_code *codes[3];
    const size_t n_codes = all_codes(codes), most = 1300 + 2 * 2500 + 64;
    unsigned char *p = random_bytes(most, 26), *to = random_bytes(most + 128, 27);

    (void)state;
    for (size_t before = 0; before < 1300; before += before < 70 ? 1 : 17)
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            const size_t n = lengths[i], shift = before % 3 ? before % 64 : (before + i * 7) % 64;
            for (size_t c = 0; c < n_codes; c++) {
                XXH3_state_t s;
                XXH3_INITSTATE(&s);
                XXH3_64bits_reset(&s);
                XXH3_64bits_update(&s, p, before);
                codes[c]->copy_update(&s, to + shift, p + before, n);
                codes[c]->order();
                assert_memory_equal(to + shift, p + before, n);
                assert_int_equal(XXH3_64bits_digest(&s), XXH3_64bits(p, before + n));
                codes[(c + 1) % n_codes]->copy_update(&s, to + shift + n, p + before + n, n + 1);
                assert_int_equal(XXH3_64bits_digest(&s), XXH3_64bits(p, before + 2 * n + 1));
                XXH3_64bits_update(&s, p, 300); /* the library goes on */
                XXH3_state_t right;
                XXH3_INITSTATE(&right);
                XXH3_64bits_reset(&right);
                XXH3_64bits_update(&right, p, before + 2 * n + 1);
                XXH3_64bits_update(&right, p, 300);
                assert_int_equal(XXH3_64bits_digest(&s), XXH3_64bits_digest(&right));
            }
        }
    free(to);
    free(p);
}

static const size_t source_bytes[] = {
    [WS_F32_TO_BF16] = 4, [WS_F32_TO_F16] = 4,  [WS_BF16_TO_F32] = 2,
    [WS_F16_TO_F32] = 2,  [WS_BF16_TO_F16] = 2, [WS_F16_TO_BF16] = 2,
};

/* Numbers of all sizes, some of them infinite or none. */
static void odd_numbers(unsigned char *p, size_t n)
{
    for (size_t i = 0; i + 4 <= n; i += 4 * (1 + p[i] % 16)) {
        static const uint32_t odd[] = {0x7f800000, 0xff800001, 0x7f7f8000, 0x7f7f7fff,
                                       0x477ff000, 0x7fc1fc01, 0xff7fffff, 0x80000000,
                                       0x00000001, 0xfc007c00, 0x7c01fe00, 0x477fefff};
        memcpy(p + i, &odd[p[i + 1] % (sizeof(odd) / sizeof(odd[0]))], 4);
    }
}

/* Bytes, overflows and hash are those of a conversion that is copied afterwards. */
static void test_conversions(void **state)
{
    static const size_t lengths[] = {0, 1, 63, 64, 320, 384, 1024, 1088, 4096, 20001};
    const struct ws_copy_code *codes[3];
    const size_t n_codes = all_codes(codes), most = 40064;
    unsigned char *p = random_bytes(2 * most, 28), *to = random_bytes(most + GUARD, 29),
                  *right = random_bytes(most, 30);
    size_t done = 0;

    (void)state;
    odd_numbers(p, 2 * most);
    for (enum ws_conversion k = WS_F32_TO_BF16; k <= WS_F16_TO_BF16; k++)
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
            for (size_t before = 0; before < 1200; before += before < 300 ? 32 : 448)
                for (size_t c = 0; c < n_codes; c++) {
                    const size_t n = lengths[i], width = ws_conversion_dst_bytes(k);
                    const unsigned char *src = p + before % 7;
                    XXH3_state_t s, all;
                    uint64_t overflows = 5;
                    XXH3_INITSTATE(&s);
                    XXH3_64bits_reset(&s);
                    XXH3_64bits_update(&s, p, before);
                    all = s;
                    memset(to, FILL, n + GUARD);
                    const size_t did = codes[c]->convert_update(&s, k, to, src, n, &overflows);
                    codes[c]->order();
                    assert_true(did <= n && did % WS_STRIPE_BYTES == 0);
                    assert_int_equal(to[did], FILL);
                    assert_int_equal(overflows, 5 + ws_convert(k, right, src, did / width));
                    assert_memory_equal(to, right, did);
                    XXH3_64bits_update(&all, right, did);
                    assert_int_equal(XXH3_64bits_digest(&s), XXH3_64bits_digest(&all));
                    XXH3_64bits_update(&s, p, 777);
                    XXH3_64bits_update(&all, p, 777);
                    assert_int_equal(XXH3_64bits_digest(&s), XXH3_64bits_digest(&all));
                    assert_true(did == 0 || before % WS_STRIPE_BYTES == 0);
                    done += did;
                }
    assert_true(n_codes == 1 || done > 0);
    free(right);
    free(to);
    free(p);
}

/* Pieces of any length, from any element of a line on, converted and as they are. */
static void test_hasher_converts(void **state)
{
    const size_t n = 1UL << 20;
    unsigned char *p = random_bytes(2 * n + 64, 31), *to = random_bytes(n + 128, 32),
                  *right = random_bytes(n + 128, 33);
    struct ws_hasher *h = ws_hasher_new();
    uint64_t seed = 34;

    (void)state;
    odd_numbers(p, 2 * n);
    for (unsigned round = 0; round < 60; round++) {
        const enum ws_conversion k = WS_F32_TO_BF16 + round % 15; /* with 1 added, too */
        const size_t out = ws_conversion_dst_bytes(k), in = ws_conversion_src_bytes(k),
                     begin = round % 4 ? out * (round % 32) : 0;
        assert_true(k > WS_F16_TO_BF16 || in == source_bytes[k]);
        ws_hasher_reset(h);
        size_t at = 0;
        for (size_t step; at < n - 64; at += step) {
            uint64_t overflows = 0;
            seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
            step = (seed >> 33) % (seed >> 20 & 1 ? 40000 : 300) / out * out;
            step = step < n - 64 - at ? step : (n - 64 - at) / out * out;
            if (n - 64 - at < out)
                break;
            const unsigned char *src = p + at / out * in + round % 3;
            if (seed >> 60 == 0) {
                memcpy(right + begin + at, p + at, step);
                ws_hasher_copy(h, to + begin + at, p + at, step);
                continue;
            }
            overflows = ws_convert(k, right + begin + at, src, step / out);
            assert_int_equal(ws_hasher_convert(h, k, to + begin + at, src, step / out), overflows);
        }
        assert_memory_equal(to + begin, right + begin, at);
        assert_int_equal(ws_hasher_digest(h), XXH3_64bits(right + begin, at));
    }
    ws_hasher_free(h);
    free(right);
    free(to);
    free(p);
}

static void test_copy_hash(void **state)
{
    static const size_t sizes[] = {0,     1,     255,   256,   257,    16383,          16384,
                                   32767, 32768, 32769, 65536, 300001, WS_BLOCK_BYTES, WS_BLOCK_BYTES - 1};
    unsigned char *from = random_bytes(WS_BLOCK_BYTES + 64, 7),
                  *to = random_bytes(WS_BLOCK_BYTES + 3 * GUARD, 8);

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        size_t n = sizes[i], shift = i % 5;
        memset(to, FILL, n + 3 * GUARD);
        assert_int_equal(ws_copy_hash(to + GUARD, from + shift, n), XXH3_64bits(from + shift, n));
        assert_memory_equal(to + GUARD, from + shift, n);
        assert_int_equal(to[GUARD - 1], FILL);
        assert_int_equal(to[GUARD + n], FILL);
        memset(to, FILL, n + 3 * GUARD);
        ws_copy(to + GUARD, from + shift, n);
        assert_memory_equal(to + GUARD, from + shift, n);
        memset(to, FILL, n + 3 * GUARD);
        ws_copy_unordered(to + GUARD, from + shift, n);
        ws_copy_order();
        assert_memory_equal(to + GUARD, from + shift, n);
        assert_int_equal(to[GUARD - 1], FILL);
        assert_int_equal(to[GUARD + n], FILL);
    }
    free(from);
    free(to);
}

static void test_hasher_grows(void **state)
{
    size_t n = 1000003;
    unsigned char *from = random_bytes(n, 9), *to = random_bytes(n, 10);
    struct ws_hasher *h = ws_hasher_new();

    (void)state;
    assert_non_null(h);
    for (int round = 0; round < 2; round++) {
        size_t at = 0;
        memset(to, 0, n);
        ws_hasher_reset(h);
        assert_int_equal(ws_hasher_digest(h), XXH3_64bits(from, 0));
        for (size_t i = 1; at < n; i++) {
            size_t step = (i * 7919) % 70001;
            step = step < n - at ? step : n - at;
            ws_hasher_copy(h, to + at, from + at, step);
            at += step;
            assert_int_equal(ws_hasher_digest(h), XXH3_64bits(from, at)); /* may be continued */
        }
        assert_memory_equal(to, from, n);
    }
    ws_hasher_free(h);
    ws_hasher_free(NULL);
    free(from);
    free(to);
}

/* The hash of a block whose pieces come in any order, some of them first as other bytes, or never. */
static void test_sums(void **state)
{
    static const size_t sizes[] = {1,    240,  1024,  1025,           1087,
                                   2048, 9000, 70001, WS_BLOCK_BYTES, WS_BLOCK_BYTES - 1};
    unsigned char *p = random_bytes(WS_BLOCK_BYTES + 64, 17), *wrong = random_bytes(WS_BLOCK_BYTES, 18);
    struct ws_sums *s = ws_sums_new(1);
    uint64_t seed = 19;

    (void)state;
    assert_non_null(s);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t n = sizes[i], shift = i * 13 % 64;
        ws_sums_reset(s);
        assert_int_equal(ws_sums_hash(s, p + shift, n), XXH3_64bits(p + shift, n)); /* nothing was added */
        ws_sums_add(s, 0, wrong, n);
        for (size_t at = 0, step, last = n; at < n; at += step) { /* from the end on */
            seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
            step = 1 + (seed >> 33) % 5000;
            step = step < n - at ? step : n - at;
            last -= step;
            ws_sums_add(s, last, p + shift + last, step);
        }
        assert_int_equal(ws_sums_hash(s, p + shift, n), XXH3_64bits(p + shift, n));
        ws_sums_add(s, n / 2, p + shift + n / 2, 0);
        assert_int_equal(ws_sums_hash(s, p + shift, n), XXH3_64bits(p + shift, n));
        ws_sums_add(s, 0, p + shift, n); /* whole */
        assert_int_equal(ws_sums_hash(s, p + shift, n), XXH3_64bits(p + shift, n));
    }
    /* it is made of what was added, and not of the block, where all of a KiB was */
    ws_sums_reset(s);
    ws_sums_add(s, 1000, p + 1000, 70000);
    memcpy(wrong, p, WS_BLOCK_BYTES);
    memset(wrong + 1024, 0, 68 * 1024);
    assert_int_equal(ws_sums_hash(s, wrong, 300000), XXH3_64bits(p, 300000));
    ws_sums_free(s, 1);
    ws_sums_free(NULL, 1);
    free(wrong);
    free(p);
}

/* Pieces of two hashes in one pass: what they are of begins elsewhere, and ends of pieces lie anywhere. */
static void test_sums_of_copies(void **state)
{
    static const size_t steps[] = {1, 63, 64, 960, 1000, 1024, 1025, 16384, 70001};
    const size_t n_steps = sizeof(steps) / sizeof(steps[0]), n = WS_BLOCK_BYTES - 333;
    unsigned char *p = random_bytes(n + 64, 21), *to = aligned_alloc(4096, WS_BLOCK_BYTES),
                  *old = random_bytes(n, 22);
    struct ws_sums *s = ws_sums_new(1);
    struct ws_hasher *h = ws_hasher_new();
    uint64_t seed = 23;

    (void)state;
    assert_non_null(to);
    for (size_t round = 0; round < 2 * n_steps; round++) {
        const size_t begin = round * 37 % 1500;
        struct ws_sums_seam seam = {0};
        ws_sums_reset(s);
        ws_sums_add(s, 0, old, n); /* other bytes were there */
        ws_sums_add(s, 0, p, begin);
        memcpy(to, p, begin);
        ws_hasher_reset(h);
        for (size_t at = begin, i = 0, step; at < n; at += step, i++) {
            seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
            step = round < n_steps ? steps[round] * (1 + i % 3) : 1 + (seed >> 33) % 20000;
            step = step < n - at ? step : n - at;
            ws_sums_copy(s, &seam, h, at, to + at, p + at, step);
            if (i % 5 == 4)
                ws_sums_flush(&seam, h);
            if (i % 100 == 4)
                assert_int_equal(ws_hasher_digest(h), XXH3_64bits(p + begin, at + step - begin));
        }
        ws_sums_flush(&seam, h);
        ws_sums_flush(&seam, h); /* which holds nothing */
        ws_copy_order();
        assert_memory_equal(to, p, n);
        assert_int_equal(ws_hasher_digest(h), XXH3_64bits(p + begin, n - begin));
        assert_int_equal(ws_sums_hash(s, to, n), XXH3_64bits(p, n));
    }
    ws_hasher_free(h);
    ws_sums_free(s, 1);
    free(old);
    free(to);
    free(p);
}

/* Where pieces follow each other nothing of the block is read again; where something else came in between, what it was is
 * not taken for their beginning. */
static void test_seams(void **state)
{
    const size_t n = 300000;
    unsigned char *p = random_bytes(n, 24), *to = aligned_alloc(4096, WS_BLOCK_BYTES);
    struct ws_sums *s = ws_sums_new(1);
    struct ws_hasher *h = ws_hasher_new();
    struct ws_sums_seam seam = {0};

    (void)state;
    ws_sums_reset(s);
    for (size_t at = 0, step; at < n; at += step) {
        step = n - at < 16300 ? n - at : 16300;
        ws_sums_copy(s, &seam, h, at, to + at, p + at, step);
    }
    ws_sums_flush(&seam, h);
    ws_copy_order();
    assert_memory_equal(to, p, n);
    memset(to, 0, n - n % WS_SUM_BYTES); /* whose sums are known */
    assert_int_equal(ws_sums_hash(s, to, n), XXH3_64bits(p, n));
    memcpy(to, p, n);
    ws_sums_copy(s, &seam, h, 5000, to + 5000, p + 2000, 500);
    ws_sums_copy(s, &seam, h, 9000, to + 9000, p + 9000, 500);
    ws_sums_copy(s, &seam, h, 5500, to + 5500, p + 2500, 1000);
    ws_sums_copy(s, &seam, h, 9216, to + 9216, p + 9216, 10);
    ws_sums_copy(s, &seam, h, 9226, to + 9226, p + 9226, 0); /* it is still held */
    ws_sums_copy(s, &seam, h, 9226, to + 9226, p + 9226, 10);
    memset(to + 9216, 0, 20);
    seam = (struct ws_sums_seam){0}; /* and now forgotten */
    ws_sums_copy(s, &seam, h, 9216, to + 9216, p + 9216, 1500);
    ws_sums_flush(&seam, h);
    ws_copy_order();
    memcpy(p + 5000, p + 2000, 1500);
    assert_memory_equal(to, p, n);
    assert_int_equal(ws_sums_hash(s, to, n), XXH3_64bits(p, n));
    ws_hasher_free(h);
    ws_sums_free(s, 1);
    free(to);
    free(p);
}

/* Of every code the machine has, from each place within a stripe. */
static void test_copies_with_sums_of_all_codes(void **state)
{
    const struct ws_copy_code *codes[3];
    const size_t n_codes = all_codes(codes), n = 5;
    unsigned char *p = random_bytes(3 * n * WS_SUM_BYTES + 600, 25),
                  *to = aligned_alloc(64, n * WS_SUM_BYTES);
    uint64_t first[5 * WS_SUM_WORDS], other[5 * WS_SUM_WORDS];

    (void)state;
    for (size_t c = 0; c < n_codes; c++) {
        for (size_t before = 0; before < 600; before += 1 + before % 7) {
            XXH3_state_t *x = XXH3_createState();
            (void)XXH3_64bits_reset(x);
            codes[c]->update(x, p, before);
            codes[c]->copy_sums(x, other, to, p + before, n);
            codes[c]->order();
            assert_memory_equal(to, p + before, n * WS_SUM_BYTES);
            codes[c]->sums(first, p + before, n);
            assert_memory_equal(first, other, sizeof(first));
            assert_int_equal(XXH3_64bits_digest(x), XXH3_64bits(p, before + n * WS_SUM_BYTES));
            codes[c]->update(x, p + before + n * WS_SUM_BYTES, before * 8 % 777);
            codes[c]->copy_sums(x, other, to, p + before + n * WS_SUM_BYTES + before * 8 % 777, n);
            assert_int_equal(XXH3_64bits_digest(x),
                             XXH3_64bits(p, before + 2 * n * WS_SUM_BYTES + before * 8 % 777));
            XXH3_freeState(x);
        }
    }
    free(to);
    free(p);
}

static void test_sums_of_all_codes(void **state)
{
    const struct ws_copy_code *codes[3];
    const size_t n_codes = all_codes(codes), n = 7;
    unsigned char *p = random_bytes(n * WS_SUM_BYTES + 64, 20);
    uint64_t first[7 * WS_SUM_WORDS] __attribute__((aligned(64))), other[7 * WS_SUM_WORDS];
    uint64_t one[WS_SUM_WORDS] __attribute__((aligned(64))) = {0},
                               two[WS_SUM_WORDS] __attribute__((aligned(64)));

    (void)state;
    codes[0]->sums(first, p + 5, n);
    for (size_t c = 1; c < n_codes; c++) {
        codes[c]->sums(other, p + 5, n);
        assert_memory_equal(first, other, sizeof(first));
    }
    codes[0]->join(one, first, n); /* test_sums has what the library makes of it */
    for (size_t c = 1; c < n_codes; c++) {
        memset(two, 0, sizeof(two));
        codes[c]->join(two, first, 0);
        codes[c]->join(two, first, 3);
        codes[c]->join(two, first + 3 * WS_SUM_WORDS, n - 3);
        assert_memory_equal(one, two, sizeof(one));
    }
    free(p);
}

static void test_choice(void **state)
{
    const struct ws_copy_code *codes[3];
    size_t n_codes = all_codes(codes);

    (void)state;
    assert_string_equal(ws_copy_code(), ws_copy_codes[n_codes - 1]->name);
    for (size_t c = 0; c < n_codes; c++)
        assert_chooses("WSYNC_COPY", codes[c]->name, codes[c]->name);
    assert_chooses("WSYNC_COPY", "what-is-not-there", "portable");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_alignment),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_hash_is_the_librarys),
        cmocka_unit_test(test_updates_mix),
        cmocka_unit_test(test_updates_resume),
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_hasher_converts),
        cmocka_unit_test(test_copy_hash),
        cmocka_unit_test(test_hasher_grows),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_sums_of_copies),
        cmocka_unit_test(test_seams),
        cmocka_unit_test(test_copies_with_sums_of_all_codes),
        cmocka_unit_test(test_sums_of_all_codes),
        cmocka_unit_test(test_choice),
    };
    if (argc > 1 && strcmp(argv[1], "name") == 0) {
        printf("%s", ws_copy_code());
        return 0;
    }
    unsetenv("WSYNC_COPY");
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
