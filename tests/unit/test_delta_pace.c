/* Delta pace: of parts that share a link the foremost is held back, as long as the last one moves, and nobody for a part that is over. */
#include "transports/base/clock.h"
#include "transports/tcp/delta_pace.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MB 1000000UL

static const struct ws_delta *const one = (const void *)"1", *const two = (const void *)"2";

static struct ws_delta_race *race_of(struct ws_delta_races *races, unsigned parts)
{
    struct ws_delta_race *r = NULL;
    LIST_INIT(races);
    for (unsigned i = 0; i < parts; i++)
        r = ws_delta_race_join(races, one, parts, WS_SECOND_NS);
    assert_int_equal(r->senders, parts);
    return r;
}

static void end(struct ws_delta_races *races)
{
    while (!LIST_EMPTY(races))
        ws_delta_race_leave(LIST_FIRST(races));
}

static void test_ahead(void **state)
{
    struct ws_delta_races races;
    struct ws_delta_race *r = race_of(&races, 4);
    const uint64_t now = 3 * WS_SECOND_NS; /* two seconds after it began */
    (void)state;
    assert_int_equal(ws_delta_race_move(r, 0, 4 * MB, now), 0);      /* alone */
    assert_int_equal(ws_delta_race_move(r, 1, 3 * MB, now), 0);      /* the last */
    assert_int_equal(ws_delta_race_move(r, 0, 4 * MB, now), MB + 1); /* half of its 2 MB/s: others have 1.5 */
    assert_int_equal(ws_delta_race_move(r, 2, MB / 2, now), 0);
    assert_int_equal(ws_delta_race_move(r, 0, 4 * MB, now), MB / 2 + 1); /* a fourth */
    assert_int_equal(ws_delta_race_move(r, 1, 3 * MB, now), 3 * MB / 8 + 1);
    assert_true(ws_delta_race_move(r, 1, 4 * MB - 400000, now) > 0);
    assert_int_equal(ws_delta_race_move(r, 2, 4 * MB - 300000, now), 0); /* near enough */
    assert_int_equal(ws_delta_race_move(r, 0, 4 * MB, now), 0);
    end(&races);
}

static void test_early(void **state)
{
    struct ws_delta_races races;
    struct ws_delta_race *r = race_of(&races, 2);
    const uint64_t soon = WS_SECOND_NS + 50 * WS_MS_NS;
    (void)state;
    assert_int_equal(ws_delta_race_move(r, 1, 1000, soon), 0);
    assert_int_equal(ws_delta_race_move(r, 0, 90 * MB, soon), 0);
    end(&races);
}

static void test_over(void **state)
{
    struct ws_delta_races races;
    struct ws_delta_race *r = race_of(&races, 3);
    uint64_t now = 3 * WS_SECOND_NS;
    (void)state;
    assert_int_equal(ws_delta_race_move(r, 1, MB, now), 0);
    assert_true(ws_delta_race_move(r, 0, 4 * MB, now) > 0);
    ws_delta_race_finish(r, 1, MB); /* a short part */
    assert_int_equal(ws_delta_race_move(r, 0, 4 * MB, now), 0);
    assert_int_equal(ws_delta_race_move(r, 1, MB / 2, now), 0); /* who fetches it again is not waited for */
    assert_int_equal(ws_delta_race_move(r, 0, 4 * MB, now), 0);
    assert_int_equal(ws_delta_race_move(r, 2, MB, now), 0);
    assert_true(ws_delta_race_move(r, 0, 4 * MB, now) > 0);
    now += 6 * WS_SECOND_NS; /* its receiver stands still */
    assert_int_equal(ws_delta_race_move(r, 0, 4 * MB, now), 0);
    end(&races);
}

static void test_foremost_counts(void **state)
{
    struct ws_delta_races races;
    struct ws_delta_race *r = race_of(&races, 4);
    const uint64_t now = 3 * WS_SECOND_NS;
    (void)state;
    assert_int_equal(ws_delta_race_move(r, 0, 4 * MB, now), 0);
    assert_int_equal(ws_delta_race_move(r, 1, 4 * MB, now), 0);
    assert_int_equal(ws_delta_race_move(r, 1, MB, now),
                     0); /* another mount's, by a slow link: only itself is late */
    assert_int_equal(ws_delta_race_move(r, 0, 4 * MB, now), 0);
    end(&races);
}

/* Where the last part waits for something else than the link, a pace does not fall with the average that it makes. */
static void test_least_pace(void **state)
{
    struct ws_delta_races races;
    struct ws_delta_race *r = race_of(&races, 2);
    uint64_t now = 2 * WS_SECOND_NS, sent = 100 * MB, pace = 0;
    (void)state;
    for (unsigned i = 1; i <= 60; i++, now += WS_SECOND_NS) {
        assert_int_equal(ws_delta_race_move(r, 1, i * 1000, now), 0);
        pace = ws_delta_race_move(r, 0, sent, now);
        sent += pace;
    }
    assert_int_equal(pace, 25 * MB + 1);
    end(&races);
}

static void test_races_apart(void **state)
{
    struct ws_delta_races races;
    (void)state;
    LIST_INIT(&races);
    struct ws_delta_race *a = ws_delta_race_join(&races, one, 4, 1),
                         *b = ws_delta_race_join(&races, two, 4, 1);
    assert_ptr_not_equal(a, b);
    assert_ptr_not_equal(a, ws_delta_race_join(&races, one, 2, 1));
    assert_ptr_equal(a, ws_delta_race_join(&races, one, 4, 2));
    ws_delta_race_leave(NULL);
    ws_delta_race_leave(a);
    assert_ptr_equal(a, ws_delta_race_join(&races, one, 4, 3));
    end(&races);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ahead),       cmocka_unit_test(test_early),
        cmocka_unit_test(test_over),        cmocka_unit_test(test_foremost_counts),
        cmocka_unit_test(test_races_apart), cmocka_unit_test(test_least_pace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
