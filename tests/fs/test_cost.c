/* The cost model: how speeds are recorded, which of two ways is cheaper, and at which level to compress. */
#include "fs/store/cost.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define MODEL_BYTES 1000000000ULL

static void assert_near(double got, double want)
{
    if (!(fabs(got - want) <= want * 1e-9))
        fail_msg("%g, not %g", got, want);
}

static void test_speeds(void **state)
{
    struct ws_speeds s = {0};
    (void)state;
    ws_speeds_record(&s, &s.link, 1000, 1e-9); /* no measurement */
    ws_speeds_record(&s, &s.link, (8U << 20) - 1, 1);
    assert_true(atomic_load(&s.link) == 0);
    ws_speeds_record(&s, &s.link, 100000000, 0); /* clocks sometimes stand still */
    ws_speeds_record(&s, &s.link, 100000000, -1);
    assert_true(atomic_load(&s.link) == 0);
    ws_speeds_record(&s, &s.link, 100000000, 0.1); /* the first value is used as it is */
    assert_near(atomic_load(&s.link), 1e9);
    ws_speeds_record(&s, &s.link, 300000000, 0.1);
    assert_near(atomic_load(&s.link), 2e9);
    for (int i = 0; i < 40; i++) /* old values lose weight */
        ws_speeds_record(&s, &s.link, 50000000, 1);
    assert_true(atomic_load(&s.link) > 49e6 && atomic_load(&s.link) < 51e6);
    struct ws_speeds given = {.link = 1e9, .given = true};
    ws_speeds_record(&given, &given.link, 50000000, 1);
    assert_near(atomic_load(&given.link), 1e9);
}

static double full(const struct ws_speeds *s)
{
    return ws_cost_seconds(&(struct ws_cost){.fetch_bytes = MODEL_BYTES}, s, 4);
}

static struct ws_cost by_delta(uint64_t bytes, bool copies, size_t n_deltas)
{
    return (struct ws_cost){
        .fetch_bytes = bytes, .patch_bytes = MODEL_BYTES, .copies = copies, .n_deltas = n_deltas};
}

static double delta(const struct ws_speeds *s, uint64_t bytes, bool copies, size_t n_deltas)
{
    const struct ws_cost cost = by_delta(bytes, copies, n_deltas);
    return ws_cost_seconds(&cost, s, 4);
}

static double price(const struct ws_speeds *s, uint64_t bytes, bool copies, size_t n_deltas)
{
    const struct ws_cost cost = by_delta(bytes, copies, n_deltas);
    return ws_cost_price(&cost, s, 4);
}

/* For any speeds: more bytes never cost less. */
static void test_order(void **state)
{
    static const double links[] = {0, 1e6, 1e8, 1e9, 1e10, 1e11}, patches[] = {0, 1e8, 1e9, 1e10};
    (void)state;
    for (size_t l = 0; l < 6; l++) {
        for (size_t p = 0; p < 4; p++) {
            const struct ws_speeds s = {.link = links[l], .patch = patches[p], .copy = patches[p] / 2};
            double before = 0;
            assert_true(isfinite(full(&s)) && full(&s) > 0);
            for (uint64_t bytes = 0; bytes <= MODEL_BYTES; bytes += MODEL_BYTES / 10) {
                const double now = delta(&s, bytes, false, 1);
                assert_true(isfinite(now) && now >= before);
                assert_true(delta(&s, bytes, true, 1) >= now);
                assert_true(price(&s, bytes, true, 1) > price(&s, bytes, false, 1));
                assert_true(delta(&s, bytes, false, 3) >= now);
                before = now;
            }
            assert_true(delta(&s, MODEL_BYTES, false, 1) >= full(&s)); /* all of it, and patching as well */
            const struct ws_cost cost = {.fetch_bytes = 1000, .patch_bytes = MODEL_BYTES, .n_deltas = 1};
            assert_true(ws_cost_seconds(&cost, &s, 1) >= ws_cost_seconds(&cost, &s, 8));
            assert_near(ws_cost_seconds(&cost, &s, 0), ws_cost_seconds(&cost, &s, 1));
        }
    }
    const struct ws_speeds s = {.link = 1e9};
    assert_true(ws_cost_seconds(&(struct ws_cost){0}, &s, 4) == 0);
}

static void test_which(void **state)
{
    const struct ws_speeds nothing = {0}, slow = {.link = 1e8, .patch = 5e9, .copy = 2e9},
                           memory = {.link = 5e10, .patch = 2e9, .copy = 1e9};
    (void)state;
    /* a hundredth of the model: with the default speeds and over a slow link always a delta, in place or
     * not */
    assert_true(delta(&nothing, MODEL_BYTES / 100, false, 1) < full(&nothing) / 5);
    assert_true(delta(&nothing, MODEL_BYTES / 100, true, 1) < full(&nothing));
    assert_true(delta(&slow, MODEL_BYTES / 100, true, 8) < full(&slow) / 5);
    /* a mount whose link is faster than its memory pulls */
    assert_true(delta(&memory, MODEL_BYTES / 100, false, 1) > full(&memory));
    /* a delta as large as the model is useless */
    assert_true(delta(&slow, MODEL_BYTES, false, 1) > full(&slow));
    /* several deltas cost less than their bytes alone suggest */
    assert_true(delta(&slow, MODEL_BYTES / 10, false, 8) < delta(&slow, MODEL_BYTES, false, 1));
}

/* A large step in place, then small ones in copies: the next is in place again, even with a longer chain. */
static void test_one_slow_step(void **state)
{
    const struct ws_speeds s = {.link = 1e8, .patch = 3e8, .copy = 3e9};
    (void)state;
    assert_true(price(&s, 170000, false, 1) < price(&s, 170000, true, 1));
    assert_true(price(&s, 340000, false, 2) < price(&s, 170000, true, 1));
}

/* A version that an engine has mapped is patched into a copy, which needs the memory of a full pull as
 * well. */
static void test_copy_beside_full(void **state)
{
    const struct ws_speeds loopback = {.link = 3e9, .patch = 1.9e9, .copy = 1.3e9};
    (void)state;
    assert_true(delta(&loopback, MODEL_BYTES / 100, true, 1) < full(&loopback));
}

/* One disturbed copy does not rule out copies permanently, and what was never measured stays a guess. */
static void test_doubt(void **state)
{
    struct ws_speeds s = {.link = 3e9, .patch = 2e9, .copy = 3e8};
    unsigned n = 0;
    (void)state;
    assert_true(delta(&s, MODEL_BYTES / 100, true, 1) > full(&s));
    while (n < 100 && delta(&s, MODEL_BYTES / 100, true, 1) > full(&s)) {
        ws_speeds_favour_patching(&s);
        n++;
    }
    assert_true(n > 10 && n < 30); /* nor is it tried every time */
    struct ws_speeds none = {0}, given = {.copy = 3e8, .given = true};
    ws_speeds_favour_patching(&none);
    ws_speeds_favour_patching(&given);
    assert_true(atomic_load(&none.copy) == 0 && atomic_load(&none.patch) == 0);
    assert_near(atomic_load(&given.copy), 3e8);
}

/* A delta that a source is still making comes no sooner than it is made. */
static void test_made_meanwhile(void **state)
{
    struct ws_speeds s = {.link = 1e9, .patch = 5e9};
    struct ws_cost cost = by_delta(MODEL_BYTES / 100, false, 1);
    (void)state;
    const double before = ws_cost_seconds(&cost, &s, 4);
    cost.is_made = true;
    assert_near(ws_cost_seconds(&cost, &s, 4), before); /* how long that takes is not known yet */
    ws_speeds_record(&s, &s.making, MODEL_BYTES, 2);
    assert_true(ws_cost_seconds(&cost, &s, 4) > 2 && ws_cost_price(&cost, &s, 4) > 2);
    assert_true(ws_cost_seconds(&cost, &s, 4) > full(&s));
    unsigned n = 0;
    for (; ws_cost_seconds(&cost, &s, 4) > full(&s); n++) /* it is tried again */
        ws_speeds_favour_patching(&s);
    assert_in_range(n, 5, 50);
    cost.is_made = false;
    assert_near(ws_cost_seconds(&cost, &(struct ws_speeds){.link = 1e9, .patch = 5e9}, 4), before);
}

static void test_level(void **state)
{
    static const struct {
        double link;
        unsigned level;
    } rows[] = {{0, 0}, {1e10, 0}, {50e6, 0}, {49e6, 1}, {5e6, 1}, {4.9e6, 3}, {1, 3}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct ws_speeds s = {.link = rows[i].link};
        assert_int_equal(ws_cost_zstd_level(&s), rows[i].level);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_speeds),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_which),
        cmocka_unit_test(test_one_slow_step),
        cmocka_unit_test(test_copy_beside_full),
        cmocka_unit_test(test_doubt),
        cmocka_unit_test(test_made_meanwhile),
        cmocka_unit_test(test_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
