/* Secret memory: it behaves as malloc's, lies in pages that no core dump has, and is wiped. */
#include "transports/base/secret.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

/* Does the kernel leave the page at p out of core dumps? ("dd" of VmFlags) */
static bool is_hidden(const void *p)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    char line[512];
    bool inside = false, hidden = false;
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        char *at;
        const uintptr_t begin = strtoul(line, &at, 16);
        if (at > line && *at == '-')
            inside = begin <= (uintptr_t)p && (uintptr_t)p < strtoul(at + 1, NULL, 16);
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            hidden = strstr(line, " dd") != NULL;
    }
    fclose(f);
    return hidden;
}

static void test_hidden(void **state)
{
    static const size_t sizes[] = {0, 1, 16, 17, 4095, 65520, 65521, 5 << 20};
    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        unsigned char *p = ws_secret_alloc(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        memset(p, 7, sizes[i]);
        assert_true(is_hidden(p));
        if (sizes[i])
            assert_true(is_hidden(p + sizes[i] - 1));
        ws_secret_free(p);
    }
    void *ordinary = malloc(100);
    assert_false(is_hidden(ordinary));
    free(ordinary);
}

/* The memory stays mapped, so that it can be looked at. */
static void test_wiped(void **state)
{
    static const char text[] = "a token that is longer than the list's own words in a block that is free";
    char *copy = ws_secret_copy(text);
    (void)state;
    assert_string_equal(copy, text);
    ws_secret_free(copy);
    for (size_t i = 0; i < sizeof(text); i++)
        assert_int_equal(((volatile char *)copy)[i], 0);
    assert_null(ws_secret_copy(NULL));
    ws_secret_free(NULL);
}

static void test_resized(void **state)
{
    char *p = ws_secret_resize(NULL, 8), *old;
    (void)state;
    assert_non_null(p);
    memcpy(p, "secret!", 8);
    for (size_t n = 8; n <= 1 << 20; n *= 2) {
        old = p;
        p = ws_secret_resize(p, n);
        assert_non_null(p);
        assert_string_equal(p, "secret!");
        if (p != old && n <= 1 << 16) /* what it was moved from */
            assert_int_equal(((volatile char *)old)[0], 0);
    }
    assert_ptr_equal(ws_secret_resize(p, 3), p);
    ws_secret_free(p);
}

static void test_zeroed(void **state)
{
    unsigned char *p = ws_secret_zeroed(3, 1000);
    (void)state;
    for (size_t i = 0; i < 3000; i++)
        assert_int_equal(p[i], 0);
    ws_secret_free(p);
    assert_null(ws_secret_zeroed(SIZE_MAX / 2, 3));
    assert_null(ws_secret_alloc(SIZE_MAX));
    assert_null(ws_secret_alloc(SIZE_MAX - 100));
}

static void *churn(void *arg)
{
    unsigned char *held[64] = {NULL};
    size_t bytes[64] = {0};
    unsigned seed = (unsigned)(uintptr_t)arg;
    for (int i = 0; i < 20000; i++) {
        const size_t at = (size_t)rand_r(&seed) % 64;
        for (size_t k = 0; k < bytes[at]; k++)
            if (held[at][k] != (unsigned char)(uintptr_t)arg)
                return arg;
        ws_secret_free(held[at]);
        bytes[at] = (size_t)rand_r(&seed) % 300;
        held[at] = ws_secret_alloc(bytes[at]);
        memset(held[at], (int)(uintptr_t)arg, bytes[at]);
    }
    for (size_t i = 0; i < 64; i++)
        ws_secret_free(held[i]);
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t threads[4];
    void *bad;
    (void)state;
    for (uintptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)), 0);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], &bad), 0);
        assert_null(bad);
    }
}

static void test_hide(void **state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *p = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)state;
    assert_ptr_not_equal(p, MAP_FAILED);
    ws_secret_hide(p + 2 * page - 3, 5); /* over the end of a page */
    assert_false(is_hidden(p));
    assert_true(is_hidden(p + page));
    assert_true(is_hidden(p + 2 * page));
    assert_false(is_hidden(p + 3 * page));
    munmap(p, 4 * page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hidden), cmocka_unit_test(test_wiped),   cmocka_unit_test(test_resized),
        cmocka_unit_test(test_zeroed), cmocka_unit_test(test_threads), cmocka_unit_test(test_hide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
