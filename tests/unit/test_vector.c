/* The growing array: its items after each kind of change, its limits, and that a failed change leaves it as
 * it was. */
#include "transports/base/vector.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

WS_VECTOR(numbers, uint32_t);
struct large {
    char bytes[4096];
};
WS_VECTOR(larges, struct large);

static void holds(const struct numbers *v, const uint32_t *want, size_t n)
{
    assert_int_equal(v->len, n);
    assert_true(v->cap >= n);
    if (n > 0)
        assert_memory_equal(v->ptr, want, n * sizeof(*want));
}

static void test_append(void **state)
{
    struct numbers v = {0};
    size_t moves = 0;
    (void)state;
    for (uint32_t i = 0; i < 100000; i++) {
        size_t cap = v.cap;
        assert_int_equal(numbers_append(&v, i), 0);
        moves += v.cap != cap;
    }
    assert_int_equal(v.len, 100000);
    for (uint32_t i = 0; i < v.len; i++)
        assert_int_equal(v.ptr[i], i);
    assert_true(moves < 20); /* it doubles */
    numbers_reset(&v);
    assert_null(v.ptr);
    assert_int_equal(v.len + v.cap, 0);
    numbers_reset(&v); /* an empty one, too */
}

static void test_append_all(void **state)
{
    static const uint32_t some[] = {4, 5, 6};
    struct numbers v = {0};
    (void)state;
    assert_int_equal(numbers_append_all(&v, NULL, 0), 0);
    holds(&v, NULL, 0);
    assert_int_equal(numbers_append_all(&v, some, 3), 0);
    assert_int_equal(numbers_append_all(&v, some, 2), 0);
    holds(&v, (const uint32_t[]){4, 5, 6, 4, 5}, 5);
    numbers_reset(&v);
}

static void test_insert_remove(void **state)
{
    struct numbers v = {0};
    (void)state;
    assert_int_equal(numbers_insert(&v, 2, 0), 0); /* into nothing */
    assert_int_equal(numbers_insert(&v, 4, 1), 0); /* at the end */
    assert_int_equal(numbers_insert(&v, 1, 0), 0);
    assert_int_equal(numbers_insert(&v, 3, 2), 0);
    holds(&v, (const uint32_t[]){1, 2, 3, 4}, 4);
    numbers_remove(&v, 1);
    holds(&v, (const uint32_t[]){1, 3, 4}, 3);
    numbers_remove(&v, 2);
    numbers_remove(&v, 0);
    holds(&v, (const uint32_t[]){3}, 1);
    numbers_remove(&v, 0);
    holds(&v, NULL, 0);
    numbers_reset(&v);
}

static void test_most(void **state)
{
    struct numbers v = {0};
    (void)state;
    assert_int_equal(numbers_append_most(&v, 1, 2), 0);
    assert_int_equal(numbers_append_most(&v, 2, 2), 0);
    assert_int_equal(numbers_append_most(&v, 3, 2), -E2BIG);
    assert_int_equal(numbers_append_most(&v, 3, 0), -E2BIG);
    holds(&v, (const uint32_t[]){1, 2}, 2);
    numbers_reset(&v);
}

/* Reserved room needs no later allocation, and impossible sizes are -ENOMEM. */
static void test_reserve(void **state)
{
    struct numbers v = {0};
    struct larges l = {0};
    const uint32_t *at;
    (void)state;
    assert_int_equal(numbers_reserve(&v, 1000), 0);
    assert_true(v.cap >= 1000);
    at = v.ptr;
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(numbers_append(&v, i), 0);
    assert_ptr_equal(v.ptr, at);
    assert_int_equal(numbers_reserve(&v, SIZE_MAX), -ENOMEM);
    assert_int_equal(numbers_reserve(&v, SIZE_MAX / 4), -ENOMEM);
    volatile size_t huge = SIZE_MAX - 999; /* of no constant, which compilers would refuse */
    assert_int_equal(numbers_append_all(&v, &v.ptr[0], huge), -ENOMEM);
    assert_ptr_equal(v.ptr, at);
    assert_int_equal(v.len, 1000);
    assert_int_equal(v.ptr[999], 999);
    numbers_reset(&v);

    assert_int_equal(larges_append(&l, (struct large){.bytes = "a"}), 0);
    assert_int_equal(l.cap, 1); /* large items get no spare room */
    assert_int_equal(larges_append(&l, (struct large){.bytes = "b"}), 0);
    assert_int_equal(l.cap, 2);
    assert_string_equal(l.ptr[0].bytes, "a");
    assert_string_equal(l.ptr[1].bytes, "b");
    larges_reset(&l);
}

/* An array that stores only its length is reallocated at powers of two, and nowhere else. */
static void test_room(void **state)
{
    uint32_t *array = NULL;
    size_t moves = 0;
    (void)state;
    for (size_t n = 0; n < 1000; n++) {
        uint32_t *more = ws_vector_room(array, n, sizeof(*more));
        assert_non_null(more);
        assert_true(n == 0 || (n & (n - 1)) == 0 || more == array);
        moves += (n & (n - 1)) == 0;
        array = more;
        array[n] = (uint32_t)n;
    }
    for (size_t n = 0; n < 1000; n++)
        assert_int_equal(array[n], n);
    assert_int_equal(moves, 11);
    assert_null(ws_vector_room(NULL, (size_t)1 << 62, 64));
    free(array);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append),        cmocka_unit_test(test_append_all),
        cmocka_unit_test(test_insert_remove), cmocka_unit_test(test_most),
        cmocka_unit_test(test_reserve),       cmocka_unit_test(test_room)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("vector", tests, NULL, NULL);
}
