/* Element types: names, widths and sizes, up to the edge of 64 bits. */
#include "transports/simd/dtype.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static void test_names_round_trip(void **state)
{
    (void)state;
    for (unsigned i = 0; i < WS_DTYPE_COUNT; i++) {
        enum ws_dtype dtype = WS_DTYPE_COUNT;
        assert_int_equal(ws_dtype_parse(ws_dtype_name((enum ws_dtype)i), &dtype), 0);
        assert_int_equal(dtype, i);
    }
}

static void test_known_names_and_widths(void **state)
{
    static const struct {
        enum ws_dtype dtype;
        const char *name;
        unsigned bits;
    } cases[] = {
        {WS_BOOL, "BOOL", 8},
        {WS_U8, "U8", 8},
        {WS_I8, "I8", 8},
        {WS_F8_E5M2, "F8_E5M2", 8},
        {WS_F8_E4M3, "F8_E4M3", 8},
        {WS_F8_E8M0, "F8_E8M0", 8},
        {WS_F8_E4M3FNUZ, "F8_E4M3FNUZ", 8},
        {WS_F8_E5M2FNUZ, "F8_E5M2FNUZ", 8},
        {WS_F4, "F4", 4},
        {WS_F6_E2M3, "F6_E2M3", 6},
        {WS_F6_E3M2, "F6_E3M2", 6},
        {WS_I16, "I16", 16},
        {WS_U16, "U16", 16},
        {WS_F16, "F16", 16},
        {WS_BF16, "BF16", 16},
        {WS_I32, "I32", 32},
        {WS_U32, "U32", 32},
        {WS_F32, "F32", 32},
        {WS_F64, "F64", 64},
        {WS_I64, "I64", 64},
        {WS_U64, "U64", 64},
        {WS_C64, "C64", 64},
    };

    (void)state;
    assert_int_equal(LENGTH(cases), WS_DTYPE_COUNT);
    for (size_t i = 0; i < LENGTH(cases); i++) {
        assert_string_equal(ws_dtype_name(cases[i].dtype), cases[i].name);
        assert_int_equal(ws_dtype_bits(cases[i].dtype), cases[i].bits);
    }
}

static void test_unknown_names(void **state)
{
    static const char *const names[] = {"", "f32", "F32 ", "F128", "bfloat16", "F", "F322"};
    enum ws_dtype dtype;

    (void)state;
    for (size_t i = 0; i < LENGTH(names); i++)
        assert_int_equal(ws_dtype_parse(names[i], &dtype), -EINVAL);
}

#define BIG (1UL << 32)

static void test_sizes(void **state)
{
    static const struct {
        enum ws_dtype dtype;
        unsigned n_dims;
        uint64_t shape[8];
        int rc;
        uint64_t bytes;
    } cases[] = {
        {WS_F32, 0, {0}, 0, 4}, /* a scalar */
        {WS_BF16, 2, {3, 5}, 0, 30},
        {WS_U8, 8, {2, 2, 2, 2, 2, 2, 2, 2}, 0, 256},
        {WS_F64, 3, {7, 0, 9}, 0, 0},
        {WS_F4, 1, {2}, 0, 1},
        {WS_F4, 1, {3}, -EINVAL, 0}, /* one and a half bytes */
        {WS_F4, 2, {3, 2}, 0, 3},    /* only the whole must end on a byte */
        {WS_F6_E2M3, 1, {4}, 0, 3},
        {WS_F6_E3M2, 1, {2}, -EINVAL, 0},
        {WS_F4, 0, {0}, -EINVAL, 0},
        {WS_U8, 1, {(1UL << 61) - 1}, 0, (1UL << 61) - 1},
        {WS_U8, 1, {1UL << 61}, -EOVERFLOW, 0},
        {WS_U8, 2, {BIG, BIG}, -EOVERFLOW, 0},
        {WS_F64, 1, {1UL << 58}, -EOVERFLOW, 0},
        {WS_F32, 1, {UINT64_MAX}, -EOVERFLOW, 0},
        /* A product that wraps around to a harmless number. */
        {WS_U8, 3, {BIG, BIG, 8}, -EOVERFLOW, 0},
        /* A zero dimension does not excuse it, in any position. */
        {WS_U8, 3, {0, BIG, BIG}, -EOVERFLOW, 0},
        {WS_U8, 3, {BIG, BIG, 0}, -EOVERFLOW, 0},
    };

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        uint64_t bytes = 4711;
        assert_int_equal(ws_dtype_bytes(cases[i].dtype, cases[i].shape, cases[i].n_dims, &bytes),
                         cases[i].rc);
        if (cases[i].rc == 0)
            assert_int_equal(bytes, cases[i].bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_round_trip),
        cmocka_unit_test(test_known_names_and_widths),
        cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_sizes),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("dtype", tests, NULL, NULL);
}
