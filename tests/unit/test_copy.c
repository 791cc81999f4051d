/* Copies and hashes: every vector implementation gives the same bytes as memcpy and the same hash as the
 * library, for every alignment and length, and writes nothing beside. */
#include "tests/fixtures/choice.h"
#include "transports/base/cpu_features.h"
#include "transports/base/limits.h"
#include "transports/simd/copy.h"
#include "transports/simd/copy_impl.h"
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
        cmocka_unit_test(test_copy_hash),
        cmocka_unit_test(test_hasher_grows),
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
