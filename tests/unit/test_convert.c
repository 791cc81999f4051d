/* Conversions: every implementation gives the bits and counts of a slow reference in doubles, for all upper
 * halves of f32 with chosen and random lower ones, for all f16 and bf16, for every short length and
 * alignment, and writes nothing beside. */
#include "tests/fixtures/choice.h"
#include "transports/base/cpu_features.h"
#include "transports/simd/convert.h"
#include "transports/simd/convert_impl.h"
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GUARD 64
#define FILL  0xa5

/* --- the reference: numbers, not bits --- */

struct format {
    int digits, least; /* of the significand, after the point; exponent of the least normal */
    uint16_t infinity, no_number;
};
static const struct format bf16 = {7, -126, 0x7f80, 0x7fc0}, f16 = {10, -14, 0x7c00, 0x7e00};

static double number_of(const struct format *f, uint16_t bits)
{
    int exponent = (bits & 0x7fff) >> f->digits, rest = bits & ((1 << f->digits) - 1);
    double size = exponent ? ldexp(1.0 + ldexp(rest, -f->digits), exponent - 1 + f->least)
                           : ldexp(rest, f->least - f->digits);
    return bits & 0x8000 ? -size : size;
}

static uint16_t narrowed(const struct format *f, uint32_t bits, uint64_t *overflows)
{
    float x;
    int exponent;
    memcpy(&x, &bits, sizeof(x));
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x))
        return sign | f->no_number;
    if (isinf(x))
        return sign | f->infinity;
    if (x == 0)
        return sign;
    (void)frexp((double)x, &exponent); /* 0.5 <= size < 1 */
    exponent = exponent - 1 < f->least ? f->least : exponent - 1;
    double steps = rint(ldexp(fabs((double)x), f->digits - exponent)); /* ties to even */
    /* steps above the exponent's place: a carry increments the exponent */
    uint32_t y = (uint32_t)((exponent - f->least) << f->digits) + (uint32_t)steps;
    if (y < f->infinity)
        return sign | (uint16_t)y;
    ++*overflows;
    return sign | f->infinity;
}

static uint32_t widened(const struct format *f, uint16_t bits)
{
    float x = (float)number_of(f, bits);
    uint32_t y, sign = (uint32_t)(bits & 0x8000) << 16;
    if ((bits & 0x7fff) > f->infinity) /* the payload is kept; f16's becomes quiet */
        return sign | 0x7f800000 | (uint32_t)(bits & (f->infinity ^ 0x7fff)) << (23 - f->digits) |
               (f == &f16 ? 0x400000 : 0);
    if ((bits & 0x7fff) == f->infinity)
        return sign | 0x7f800000;
    memcpy(&y, &x, sizeof(y));
    return y;
}

/* --- all codes against the reference --- */

static size_t all_codes(const struct ws_convert_code **codes)
{
    const size_t n = ws_cpu_vector(NULL) + 1;
    for (size_t i = 0; i < n; i++)
        codes[i] = ws_convert_codes[i];
    return n;
}

static uint64_t seed = 88172645463325252ULL;

static uint32_t any(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return (uint32_t)((seed ^= seed << 17) >> 16);
}

static void assert_narrows(const uint32_t *from, size_t n)
{
    const struct ws_convert_code *codes[3];
    size_t n_codes = all_codes(codes);
    uint16_t *right = malloc(2 * n), *got = malloc(2 * n);
    for (int k = 0; k < 2; k++) {
        const struct format *f = k ? &f16 : &bf16;
        uint64_t overflows = 0;
        for (size_t i = 0; i < n; i++)
            right[i] = narrowed(f, from[i], &overflows);
        for (size_t c = 0; c < n_codes; c++) {
            memset(got, FILL, 2 * n);
            assert_int_equal((k ? codes[c]->f32_to_f16 : codes[c]->f32_to_bf16)(got, from, n), overflows);
            for (size_t i = 0; i < n; i++)
                if (got[i] != right[i])
                    fail_msg("%s: %08x becomes %04x, not %04x", codes[c]->name, from[i], got[i], right[i]);
        }
    }
    free(right);
    free(got);
}

static void test_narrow_all_upper_halves(void **state)
{
    static const uint16_t lower[] = {0,      1,      2,      0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000,
                                     0x2fff, 0x3000, 0x3001, 0x4000, 0x5000, 0x7000, 0x7fff, 0x8000,
                                     0x8001, 0xa000, 0xb000, 0xd000, 0xefff, 0xf000, 0xf001, 0xffff};
    enum { CHOSEN = sizeof(lower) / sizeof(lower[0]), EACH = CHOSEN + 8, HIGH = 0x10000 };
    uint32_t *from = malloc(sizeof(*from) * EACH * HIGH);

    (void)state;
    assert_non_null(from);
    for (uint32_t high = 0; high < HIGH; high++)
        for (uint32_t i = 0; i < EACH; i++)
            from[high * EACH + i] = high << 16 | (i < CHOSEN ? lower[i] : any() & 0xffff);
    assert_narrows(from, (size_t)EACH * HIGH);
    for (size_t i = 0; i < 1000000; i++)
        from[i] = any();
    assert_narrows(from, 1000000);
    free(from);
}

static void test_widen_all(void **state)
{
    static uint16_t from[0x10000];
    static uint32_t got[0x10000];
    const struct ws_convert_code *codes[3];
    size_t n_codes = all_codes(codes);

    (void)state;
    for (size_t i = 0; i < 0x10000; i++)
        from[i] = (uint16_t)i;
    for (size_t c = 0; c < n_codes; c++) {
        assert_int_equal(codes[c]->bf16_to_f32(got, from, 0x10000), 0);
        for (size_t i = 0; i < 0x10000; i++)
            assert_int_equal(got[i], widened(&bf16, from[i]));
        assert_int_equal(codes[c]->f16_to_f32(got, from, 0x10000), 0);
        for (size_t i = 0; i < 0x10000; i++)
            assert_int_equal(got[i], widened(&f16, from[i]));
    }
}

/* Well-known values. */
static void test_known(void **state)
{
    static const struct {
        uint32_t f32;
        uint16_t bf16, f16;
    } known[] = {
        {0x3f800000, 0x3f80, 0x3c00}, {0x80000000, 0x8000, 0x8000}, {0x3f808000, 0x3f80, 0x3c04},
        {0x3f818000, 0x3f82, 0x3c0c}, {0x7f7fffff, 0x7f80, 0x7c00}, {0xff7fffff, 0xff80, 0xfc00},
        {0x7f800000, 0x7f80, 0x7c00}, {0xff800000, 0xff80, 0xfc00}, {0x7f800001, 0x7fc0, 0x7e00},
        {0xffffffff, 0xffc0, 0xfe00}, {0x7fc12345, 0x7fc0, 0x7e00}, {0x477fe000, 0x4780, 0x7bff},
        {0x477fefff, 0x4780, 0x7bff}, {0x477ff000, 0x4780, 0x7c00}, {0x33000000, 0x3300, 0x0000},
        {0x33000001, 0x3300, 0x0001}, {0x33800000, 0x3380, 0x0001}, {0x387fe000, 0x3880, 0x0400},
        {0x387fc000, 0x3880, 0x03ff}, {0x00000001, 0x0000, 0x0000}, {0x00008001, 0x0001, 0x0000},
    };
    const struct ws_convert_code *codes[3];
    size_t n_codes = all_codes(codes);

    (void)state;
    for (size_t c = 0; c < n_codes; c++) {
        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
            uint16_t y;
            (void)codes[c]->f32_to_bf16(&y, &known[i].f32, 1);
            assert_int_equal(y, known[i].bf16);
            (void)codes[c]->f32_to_f16(&y, &known[i].f32, 1);
            assert_int_equal(y, known[i].f16);
        }
    }
}

/* Lengths and alignments: every conversion of the public table against portable code for single elements. */
static void test_every_alignment(void **state)
{
    const struct ws_convert_code *codes[3];
    size_t n_codes = all_codes(codes);
    unsigned char from[4 * 200 + 16], got[4 * 200 + 16 + 2 * GUARD], right[4 * 200];

    (void)state;
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (unsigned char)any();
    for (size_t c = 0; c < n_codes; c++) {
        ws_convert_fn *const fn[4][2] = {{codes[c]->f32_to_bf16, ws_convert_portable.f32_to_bf16},
                                         {codes[c]->f32_to_f16, ws_convert_portable.f32_to_f16},
                                         {codes[c]->bf16_to_f32, ws_convert_portable.bf16_to_f32},
                                         {codes[c]->f16_to_f32, ws_convert_portable.f16_to_f32}};
        for (size_t k = 0; k < 4; k++) {
            size_t in = k < 2 ? 4 : 2, out = 6 - in;
            for (size_t n = 0; n <= 200; n++) {
                for (size_t at = 0; at < 8; at++) {
                    const unsigned char *src = from + (at * 5 + n) % 9;
                    uint64_t overflows = 0;
                    for (size_t i = 0; i < n; i++)
                        overflows += fn[k][1](right + i * out, src + i * in, 1);
                    memset(got, FILL, sizeof(got));
                    assert_int_equal(fn[k][0](got + GUARD + at, src, n), overflows);
                    assert_memory_equal(got + GUARD + at, right, n * out);
                    for (size_t i = 0; i < GUARD; i++) {
                        assert_int_equal(got[at + i], FILL);
                        assert_int_equal(got[GUARD + at + n * out + i], FILL);
                    }
                }
            }
        }
    }
}

static void test_between_narrow_ones(void **state)
{
    static uint16_t from[0x10000], got[0x10000];
    uint64_t overflows = 0, none = 0;

    (void)state;
    for (size_t i = 0; i < 0x10000; i++)
        from[i] = (uint16_t)i;
    uint64_t counted = ws_convert(WS_BF16_TO_F16, got, from, 0x10000);
    for (size_t i = 0; i < 0x10000; i++)
        assert_int_equal(got[i], narrowed(&f16, widened(&bf16, from[i]), &overflows));
    assert_int_equal(counted, overflows);
    assert_true(overflows > 0);
    assert_int_equal(ws_convert(WS_F16_TO_BF16, got, from, 0x10000), 0);
    for (size_t i = 0; i < 0x10000; i++)
        assert_int_equal(got[i], narrowed(&bf16, widened(&f16, from[i]), &none));
    assert_int_equal(none, 0);
}

static void test_table(void **state)
{
    static const enum ws_dtype floats[] = {WS_F32, WS_BF16, WS_F16};
    enum ws_conversion c;
    int n = 0;

    (void)state;
    for (int from = 0; from < WS_DTYPE_COUNT; from++) {
        for (int to = 0; to < WS_DTYPE_COUNT; to++) {
            bool both = false;
            for (int i = 0; i < 9; i++)
                both = both || ((int)floats[i / 3] == from && (int)floats[i % 3] == to);
            int rc = ws_conversion_find((enum ws_dtype)from, (enum ws_dtype)to, &c);
            assert_int_equal(rc == 0, both || from == to);
            assert_int_equal(c == WS_SAME_TYPE, from == to || rc != 0);
            if (c != WS_SAME_TYPE)
                assert_int_equal(ws_conversion_src_bytes(c), ws_dtype_bits((enum ws_dtype)from) / 8);
            n += c != WS_SAME_TYPE;
        }
    }
    assert_int_equal(n, 6);
}

static void test_choice(void **state)
{
    const struct ws_convert_code *codes[3];
    size_t n_codes = all_codes(codes);

    (void)state;
    assert_string_equal(ws_convert_code(), ws_convert_codes[n_codes - 1]->name);
    for (size_t c = 0; c < n_codes; c++)
        assert_chooses("WSYNC_CONVERT", codes[c]->name, codes[c]->name);
    assert_chooses("WSYNC_CONVERT", "what-is-not-there", "portable");
}

/* 1 is added in the source's type, by doubles: every half, and every upper half of f32 with lower ones that matter. */
static void test_plus_1(void **state)
{
    static const enum ws_dtype types[] = {WS_F32, WS_BF16, WS_F16};
    static const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    (void)state;
    for (unsigned from = 0; from < 3; from++) {
        for (unsigned to = 0; to < 3; to++) {
            enum ws_conversion c;
            assert_int_equal(ws_conversion_find_plus_1(types[from], types[to], &c), 0);
            assert_true(ws_conversion_is_plus_1(c));
            assert_int_equal(ws_conversion_src_bytes(c), from ? 2 : 4);
            for (uint32_t i = 0; i < 0x10000 * (from ? 1 : 6); i++) {
                const uint32_t bits = from ? i : i / 6 << 16 | lower[i % 6];
                const uint32_t wide = from == 0 ? bits : widened(from == 1 ? &bf16 : &f16, (uint16_t)bits);
                const uint16_t half = (uint16_t)bits;
                uint64_t overflows = 0;
                uint32_t sum, right, got = 0;
                float x;
                memcpy(&x, &wide, sizeof(x));
                if (isnan(x)) {
                    sum = (wide & 0x80000000) | 0x7fc00000;
                } else {
                    x = (float)((double)x + 1.0);
                    memcpy(&sum, &x, sizeof(sum));
                }
                if (from)
                    sum = widened(from == 1 ? &bf16 : &f16,
                                  narrowed(from == 1 ? &bf16 : &f16, sum, &overflows));
                right = to == 0 ? sum : narrowed(to == 1 ? &bf16 : &f16, sum, &overflows);
                assert_int_equal(ws_convert(c, &got, from ? (const void *)&half : (const void *)&bits, 1),
                                 overflows);
                if (got != right)
                    fail_msg("%08x plus 1, from %u to %u, is %08x and should be %08x", bits, from, to, got,
                             right);
            }
        }
    }
    enum ws_conversion none;
    assert_int_equal(ws_conversion_find_plus_1(WS_F32, WS_I32, &none), -EINVAL);
    assert_int_equal(ws_conversion_find(WS_F32, WS_F32, &none), 0);
    assert_int_equal((int)none, WS_SAME_TYPE);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plus_1),          cmocka_unit_test(test_narrow_all_upper_halves),
        cmocka_unit_test(test_widen_all),       cmocka_unit_test(test_known),
        cmocka_unit_test(test_every_alignment), cmocka_unit_test(test_between_narrow_ones),
        cmocka_unit_test(test_table),           cmocka_unit_test(test_choice),
    };
    if (argc > 1 && strcmp(argv[1], "name") == 0) {
        printf("%s", ws_convert_code());
        return 0;
    }
    unsetenv("WSYNC_CONVERT");
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
