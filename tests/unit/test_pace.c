/* Pace: the first byte of a pull, and for how long none came. */
#include "transports/protocol/pace.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define S WS_STALL_NS

static void test_first_and_stalls(void **state)
{
    struct ws_pace p = {0};
    (void)state;
    ws_pace_note(&p, 5 * S);
    ws_pace_note(&p, 5 * S + S / 2);
    assert_int_equal(p.first_ns, 5 * S);
    assert_int_equal(p.n_stalls, 0);
    ws_pace_note(&p, 8 * S);
    ws_pace_note(&p, 8 * S + 1);
    assert_int_equal(p.n_stalls, 1);
    assert_int_equal(p.stalled_ns, 2 * S + S / 2);
    ws_pace_end(&p, 11 * S);
    assert_int_equal(p.n_stalls, 2);
    assert_int_equal(p.first_ns, 5 * S);
}

static void test_nothing_came(void **state)
{
    struct ws_pace p = {0};
    (void)state;
    ws_pace_end(&p, 99 * S);
    assert_int_equal(p.n_stalls, 0);
    assert_int_equal(p.first_ns, 0);
}

static void test_begins_anew(void **state)
{
    struct ws_pace p = {0};
    (void)state;
    ws_pace_note(&p, S);
    ws_pace_note(&p, 9 * S);
    ws_pace_begin(&p);
    ws_pace_note(&p, 100 * S);
    assert_int_equal(p.first_ns, 100 * S);
    assert_int_equal(p.n_stalls, 0);
    assert_int_equal(p.stalled_ns, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_first_and_stalls),
                                       cmocka_unit_test(test_nothing_came),
                                       cmocka_unit_test(test_begins_anew)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
