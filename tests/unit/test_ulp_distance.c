/* The distance of tensors: every type against numbers decoded and ordered one by one here. */
#include "transports/delta/ulp_distance.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed = 88172645463325252ULL;

static uint64_t any(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

static struct ws_workers *workers;

static struct ws_ulp_distance differ(enum ws_dtype t, const void *a, const void *b, size_t bytes)
{
    struct ws_ulp_pair p = {.dtype = t, .a = a, .b = b, .bytes = bytes};
    assert_int_equal(ws_ulp_distances(&p, 1, workers), 0);
    return p.out;
}

/* --- types of 8 and 16 bits: all their numbers in a row --- */

/* How a type maps bits to numbers; specials: IEEE's infinities and NaNs in the last exponent, one NaN with
 * all bits set (FN), or NaN in place of -0 (FNUZ). */
static const struct format {
    enum ws_dtype dtype;
    unsigned bits, mantissa;
    int bias;
    enum { IEEE, FN, FNUZ } specials;
} formats[] = {
    {WS_F8_E5M2, 8, 2, 15, IEEE},     {WS_F8_E4M3, 8, 3, 7, FN},  {WS_F8_E4M3FNUZ, 8, 3, 8, FNUZ},
    {WS_F8_E5M2FNUZ, 8, 2, 16, FNUZ}, {WS_F16, 16, 10, 15, IEEE}, {WS_BF16, 16, 7, 127, IEEE},
};
#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))

static double value_of(const struct format *f, uint32_t v)
{
    const uint32_t sign = v >> (f->bits - 1), rest = v & ((1U << (f->bits - 1)) - 1);
    const uint32_t exponent = rest >> f->mantissa, fraction = rest & ((1U << f->mantissa) - 1);
    const uint32_t last = (1U << (f->bits - 1 - f->mantissa)) - 1;
    if (f->specials == IEEE && exponent == last && fraction)
        return NAN;
    if (f->specials == IEEE && exponent == last)
        return sign ? -INFINITY : INFINITY;
    if ((f->specials == FN && rest == (1U << (f->bits - 1)) - 1) || (f->specials == FNUZ && sign && !rest))
        return NAN;
    double m = exponent ? 1 + ldexp(fraction, -(int)f->mantissa) : ldexp(fraction, -(int)f->mantissa);
    double x = ldexp(m, (exponent ? (int)exponent : 1) - f->bias);
    return sign ? -x : x;
}

struct number {
    double value;
    uint32_t bits;
};

static int by_value(const void *a, const void *b)
{
    const struct number *x = a, *y = b;
    return (x->value > y->value) - (x->value < y->value);
}

/* Positions on the number line: each value is one further than the one before; the NaNs of a sign follow its
 * last number, in the order of their bits. */
static int32_t *places_of(const struct format *f)
{
    const uint32_t n = 1U << f->bits, half = n / 2;
    int32_t *place = malloc(n * sizeof(*place)), last = 0, zero = 0;
    struct number *line = malloc(n * sizeof(*line));
    uint32_t n_line = 0;
    assert_true(place && line);
    for (uint32_t v = 0; v < n; v++)
        if (!isnan(value_of(f, v)))
            line[n_line++] = (struct number){value_of(f, v), v};
    qsort(line, n_line, sizeof(*line), by_value);
    for (uint32_t i = 0; i < n_line; i++) {
        last += i > 0 && line[i].value > line[i - 1].value;
        place[line[i].bits] = last;
        zero = line[i].value == 0 ? last : zero;
    }
    for (uint32_t i = 0; i < n_line; i++)
        place[line[i].bits] -= zero;
    int32_t up = last - zero, down = -zero;
    for (uint32_t v = 0; v < half; v++)
        if (isnan(value_of(f, v)))
            place[v] = ++up;
    for (uint32_t v = half; v < n; v++)
        if (isnan(value_of(f, v)))
            place[v] = v == half ? up + 1 : --down; /* FNUZ has one, without a sign */
    free(line);
    return place;
}

static void assert_distance(const struct format *f, const int32_t *place, uint32_t a, uint32_t b)
{
    const struct ws_ulp_distance d = differ(f->dtype, &a, &b, f->bits / 8);
    const uint64_t want = (uint64_t)llabs((long long)place[a] - place[b]);
    assert_int_equal(d.elements, 1);
    assert_int_equal(d.changed, a != b);
    if (d.largest != want)
        fail_msg("%s %x to %x: %lu, not %lu", ws_dtype_name(f->dtype), a, b, d.largest, want);
}

static void test_small_floats(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FORMATS; i++) {
        const struct format *f = &formats[i];
        int32_t *place = places_of(f);
        const uint32_t n = 1U << f->bits, half = n / 2;
        const uint32_t odd[] = {0,     1,        half,  half + 1, half - 1,
                                n - 1, half - 2, n - 2, half / 2, half - (1U << f->mantissa)};
        enum { N_ODD = sizeof(odd) / sizeof(odd[0]) };
        for (size_t k = 0; k < (size_t)N_ODD * N_ODD; k++)
            assert_distance(f, place, odd[k / N_ODD], odd[k % N_ODD]);
        for (unsigned round = 0; round < 3000; round++)
            assert_distance(f, place, (uint32_t)any() % n, (uint32_t)any() % n);
        free(place);
    }
}

/* Many elements at once: counted, and the largest distance reported. */
static void test_tensors(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FORMATS; i++) {
        const struct format *f = &formats[i];
        int32_t *place = places_of(f);
        const size_t size = f->bits / 8, n = 1300000 + any() % 100000; /* several pieces */
        unsigned char *a = malloc(n * size), *b = malloc(n * size);
        uint64_t changed = 0, largest = 0;
        for (size_t k = 0; k < n; k++) {
            uint32_t x = (uint32_t)any() & ((1U << f->bits) - 1), y = x;
            if (any() % 50 == 0)
                y = (y + 1 + (uint32_t)any() % 5) & ((1U << f->bits) - 1);
            memcpy(a + k * size, &x, size);
            memcpy(b + k * size, &y, size);
            const uint64_t far = (uint64_t)llabs((long long)place[x] - place[y]);
            changed += x != y;
            largest = far > largest ? far : largest;
        }
        const struct ws_ulp_distance d = differ(f->dtype, a, b, n * size);
        assert_int_equal(d.elements, n);
        assert_int_equal(d.changed, changed);
        assert_int_equal(d.largest, largest);
        free(a);
        free(b);
        free(place);
    }
}

/* --- wider types: steps made by libm --- */

static void assert_f32(float a, float b, uint64_t changed, uint64_t far)
{
    const struct ws_ulp_distance d = differ(WS_F32, &a, &b, sizeof(a)),
                                 back = differ(WS_F32, &b, &a, sizeof(a));
    assert_int_equal(d.changed, changed);
    assert_int_equal(d.largest, far);
    assert_int_equal(back.largest, far);
    const struct ws_ulp_distance parts = differ(WS_C64, (float[]){1, a}, (float[]){1, b}, 2 * sizeof(a));
    assert_true(parts.elements == 2 && parts.changed == changed && parts.largest == far);
}

static void assert_f64(double a, double b, uint64_t changed, uint64_t far)
{
    const struct ws_ulp_distance d = differ(WS_F64, &a, &b, sizeof(a)),
                                 back = differ(WS_F64, &b, &a, sizeof(a));
    assert_int_equal(d.elements, 1);
    assert_int_equal(d.changed, changed);
    assert_int_equal(d.largest, far);
    assert_int_equal(back.largest, far);
}

static float float_of(uint32_t v)
{
    float f;
    memcpy(&f, &v, sizeof(f));
    return f;
}

static double double_of(uint64_t v)
{
    double d;
    memcpy(&d, &v, sizeof(d));
    return d;
}

static void test_wide_floats(void **state)
{
    static const float starts[] = {0, 1, -1, 1e-45F, 3e38F, 65504, -1e-30F, 0.99999994F};
    (void)state;
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        float up = starts[i];
        double wide = starts[i];
        for (unsigned k = 1; k <= 50; k++) {
            up = nextafterf(up, INFINITY);
            wide = nextafter(wide, INFINITY);
            assert_f32(starts[i], up, 1, k);
            assert_f64(starts[i], wide, 1, k);
        }
    }
    assert_f32(0.0F, -0.0F, 1, 0); /* other bits, the same number */
    assert_f64(0.0, -0.0, 1, 0);
    assert_f32(1.5F, 1.5F, 0, 0);
    assert_f32(nextafterf(0, -1), nextafterf(0, 1), 1, 2);
    assert_f64(nextafter(0, -1), nextafter(0, 1), 1, 2);
    assert_f32(3.40282347e38F, INFINITY, 1, 1);
    assert_f32(INFINITY, float_of(0x7fc00000), 1, 1U << 22);
    assert_f32(float_of(0x7fc00000), float_of(0x7fc00001), 1, 1);
    assert_f32(float_of(0x7fc00000), float_of(0xffc00000), 1, 2 * 0x7fc00000ULL);
    assert_f64(INFINITY, -INFINITY, 1, 2 * 0x7ff0000000000000ULL); /* more than a signed number can hold */
    assert_f64(double_of(INT64_MAX), double_of(UINT64_MAX), 1, 2 * (uint64_t)INT64_MAX);
    /* the halves of a wide one: one element, whichever half changed */
    assert_f64(double_of(0x4000000000000000), double_of(0x4000000100000000), 1, 1ULL << 32);
    assert_f64(double_of(0x4000000000000000), double_of(0x4000000000000007), 1, 7);
    assert_f64(double_of(0x4000000000000000), double_of(0x4000000100000007), 1, (1ULL << 32) + 7);
}

static void test_integers(void **state)
{
    (void)state;
#define FAR(dtype, type, x, y, far)                                                                          \
    do {                                                                                                     \
        const type a[3] = {7, (x), 9}, b[3] = {7, (y), 9};                                                   \
        struct ws_ulp_distance d = differ(dtype, a, b, sizeof(a));                                           \
        assert_true(d.elements == 3 && d.changed == 1);                                                      \
        assert_int_equal(d.largest, (far));                                                                  \
        d = differ(dtype, b, a, sizeof(a));                                                                  \
        assert_int_equal(d.largest, (far));                                                                  \
    } while (0)
    FAR(WS_I8, int8_t, -128, 127, 255);
    FAR(WS_U8, uint8_t, 0, 255, 255);
    FAR(WS_BOOL, uint8_t, 0, 1, 1);
    FAR(WS_F8_E8M0, uint8_t, 127, 130, 3); /* powers of two, without a sign */
    FAR(WS_F8_E8M0, uint8_t, 126, 255, 129);
    FAR(WS_F4, uint8_t, 0x12, 0x34, 0x22); /* packed: by bytes */
    FAR(WS_F6_E2M3, uint8_t, 0x80, 0x7f, 1);
    FAR(WS_I16, int16_t, -1, 1, 2);
    FAR(WS_U16, uint16_t, 0xffff, 1, 0xfffe);
    FAR(WS_I32, int32_t, INT32_MIN, INT32_MAX, UINT32_MAX);
    FAR(WS_U32, uint32_t, 0, UINT32_MAX, UINT32_MAX);
    FAR(WS_I64, int64_t, INT64_MIN, INT64_MAX, UINT64_MAX);
    FAR(WS_I64, int64_t, -1, 0, 1);
    FAR(WS_U64, uint64_t, 0, UINT64_MAX, UINT64_MAX);
    FAR(WS_U64, uint64_t, 1ULL << 63, (1ULL << 63) - 1, 1);
#undef FAR
}

static void test_empty_and_equal(void **state)
{
    enum { N = 100 };
    struct ws_ulp_pair pairs[2 * N];
    unsigned char same[8000], other[8000];
    (void)state;
    for (size_t i = 0; i < sizeof(same); i++)
        same[i] = other[i] = (unsigned char)any();
    for (unsigned i = 0; i < 2 * N; i++) {
        const enum ws_dtype t = (enum ws_dtype)(i % WS_DTYPE_COUNT);
        pairs[i] = (struct ws_ulp_pair){.dtype = t,
                                        .a = i < N ? NULL : same,
                                        .b = i < N ? NULL : other,
                                        .bytes = i < N ? 0 : 40 * i / 8 * 8};
        pairs[i].out = (struct ws_ulp_distance){1, 2, 3}; /* is written over */
    }
    assert_int_equal(ws_ulp_distances(pairs, 0, workers), 0);
    assert_int_equal(ws_ulp_distances(pairs, 2 * N, workers), 0);
    for (unsigned i = 0; i < 2 * N; i++) {
        assert_true(pairs[i].out.changed == 0 && pairs[i].out.largest == 0);
        assert_int_equal(pairs[i].out.elements > 0, pairs[i].bytes > 0);
    }
}

/* Ranges of pairs do not overlap, wherever their bytes begin. */
static void test_many_pairs(void **state)
{
    enum { N = 50 };
    struct ws_ulp_pair pairs[N];
    unsigned char *a[N], *b[N];
    (void)state;
    for (size_t i = 0; i < N; i++) {
        const size_t n = 1 + any() % (i % 10 == 0 ? 3000000 : 300);
        a[i] = calloc(1, 2 * n + 1);
        b[i] = calloc(1, 2 * n + 1);
        pairs[i] = (struct ws_ulp_pair){.dtype = WS_I16, .a = a[i] + 1, .b = b[i] + 1, .bytes = 2 * n};
        memcpy(b[i] + 1 + 2 * (n - 1), &(int16_t){(int16_t)(i + 1)}, 2); /* the last */
    }
    assert_int_equal(ws_ulp_distances(pairs, N, workers), 0);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(pairs[i].out.elements, pairs[i].bytes / 2);
        assert_int_equal(pairs[i].out.changed, 1);
        assert_int_equal(pairs[i].out.largest, i + 1);
        free(a[i]);
        free(b[i]);
    }
}

static int open_workers(void **state)
{
    (void)state;
    workers = ws_workers_new(2, 0);
    return workers ? 0 : -1;
}

static int close_workers(void **state)
{
    (void)state;
    ws_workers_free(workers);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_floats),    cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_wide_floats),     cmocka_unit_test(test_integers),
        cmocka_unit_test(test_empty_and_equal), cmocka_unit_test(test_many_pairs),
    };
    return cmocka_run_group_tests(tests, open_workers, close_workers);
}
