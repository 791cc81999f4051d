/* The plan of who asks whom, with random fleets: no rings, fan-outs kept, racks first, few changes by small ones. */
#include "backends/trainer/agent/fleet/fanout.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#define S    WS_FANOUT_STRIPES
#define MOST 200

static unsigned seed;

static unsigned below(unsigned n)
{
    return (unsigned)rand_r(&seed) % n;
}

static struct ws_fanout_member newcomer(unsigned racks)
{
    struct ws_fanout_member m = {
        .key = (uint64_t)rand_r(&seed) << 31 | (uint64_t)rand_r(&seed), .rack = below(racks), .serves = true};
    for (unsigned s = 0; s < S; s++)
        m.parent[s] = WS_FANOUT_NONE;
    return m;
}

static uint64_t plan(struct ws_fanout_member *m, size_t n)
{
    uint64_t looks;
    assert_int_equal(ws_fanout_plan(m, n, &looks), 0);
    return looks;
}

struct counts {
    size_t children[MOST], agent[S], crossing[S], deepest;
};

/* Checks what holds for every plan, and counts. */
static struct counts check(const struct ws_fanout_member *m, size_t n)
{
    struct counts c = {0};
    for (size_t i = 0; i < n; i++) {
        for (unsigned s = 0; s < S; s++) {
            size_t steps = 1;
            const int parent = m[i].parent[s];
            for (int at = parent; at != WS_FANOUT_AGENT; at = m[at].parent[s], steps++) {
                assert_in_range(at, 0, n - 1);
                assert_true(m[at].serves && !m[at].is_slow);
                assert_int_equal(m[at].reach, m[i].reach);
                assert_true(steps <= n); /* no ring */
            }
            assert_int_equal(m[i].depth[s], steps);
            c.deepest = steps > c.deepest ? steps : c.deepest;
            c.agent[s] += parent == WS_FANOUT_AGENT;
            if (parent != WS_FANOUT_AGENT) {
                c.children[parent]++;
                c.crossing[s] += m[parent].rack != m[i].rack;
            }
        }
    }
    for (size_t i = 0; i < n; i++)
        assert_true(c.children[i] <= m[i].fan_out + (m[i].serves ? 1 : 0));
    return c;
}

static void test_equal_links(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 60; round++) {
        struct ws_fanout_member m[MOST];
        const size_t n = round < 3 ? (size_t[]){1, 2, 64}[round] : 1 + below(MOST);
        const unsigned racks = round < 3 ? 1 : 1 + below(12);
        for (size_t i = 0; i < n; i++)
            m[i] = newcomer(racks);
        plan(m, n);
        const struct counts c = check(m, n);
        size_t most_deep = 2;
        for (size_t reached = 1; reached < n; reached = reached * S + 1)
            most_deep++;
        for (unsigned s = 0; s < S; s++) {
            assert_int_equal(c.agent[s], 1); /* the agent sends each stripe once */
            assert_true(c.crossing[s] <= racks - 1 + n / 10);
        }
        for (size_t i = 0; i < n; i++)
            assert_true(c.children[i] <= S + 1);
        assert_true(c.deepest <= most_deep + (racks > 1 ? 4 : 0));
        if (round < 3)
            printf("# %zu mounts: depth %zu\n", n, c.deepest);
    }
}

static void test_unequal_mounts(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 100; round++) {
        struct ws_fanout_member m[MOST];
        const size_t n = 1 + below(MOST);
        for (size_t i = 0; i < n; i++) {
            m[i] = newcomer(1 + below(6));
            m[i].serves = below(3) > 0;
            m[i].is_slow = below(8) == 0;
            m[i].reach = below(20) == 0;
            m[i].link_rate = below(4) * 100000000UL;
        }
        plan(m, n);
        (void)check(m, n);
    }
}

static void test_measured_links(void **state)
{
    struct ws_fanout_member m[20];
    (void)state;
    for (size_t i = 0; i < 20; i++) {
        m[i] = newcomer(1);
        m[i].link_rate = i == 0 ? 10 : i == 1 ? 1000 : 100 + below(50);
    }
    plan(m, 20);
    (void)check(m, 20);
    assert_int_equal(m[0].fan_out, 1);
    assert_int_equal(m[1].fan_out, 2 * S);
    assert_int_equal(m[2].fan_out, S);
}

static size_t changes(const struct ws_fanout_member *a, const struct ws_fanout_member *b, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        for (unsigned s = 0; s < S; s++)
            k += a[i].parent[s] != b[i].parent[s];
    return k;
}

static void test_stable(void **state)
{
    struct ws_fanout_member m[MOST], before[MOST];
    size_t rebuilt = 0, rounds = 0, moved = 0;
    (void)state;
    for (unsigned round = 0; round < 200; round++) {
        const size_t n = 40 + below(100);
        const unsigned racks = 1 + below(4);
        for (size_t i = 0; i < n; i++)
            m[i] = newcomer(racks);
        plan(m, n);
        memcpy(before, m, sizeof(m));
        plan(m, n);
        assert_int_equal(changes(m, before, n), 0); /* nothing has changed */
        const struct counts c = check(m, n);
        if (round % 2) { /* the last one leaves */
            size_t orphans = 0;
            for (size_t i = 0; i + 1 < n; i++)
                for (unsigned s = 0; s < S; s++)
                    if (m[i].parent[s] == (int)n - 1) {
                        m[i].parent[s] = before[i].parent[s] = WS_FANOUT_NONE;
                        orphans++;
                    }
            assert_int_equal(orphans, c.children[n - 1]);
            plan(m, n - 1);
            (void)check(m, n - 1);
            rebuilt += changes(m, before, n - 1) > orphans + S;
            moved += changes(m, before, n - 1) - orphans;
        } else { /* one comes */
            m[n] = newcomer(racks);
            plan(m, n + 1);
            (void)check(m, n + 1);
            rebuilt += changes(m, before, n) > S;
            moved += changes(m, before, n);
        }
        rounds++;
    }
    printf("# of %zu small changes %zu led to a new plan; %zu parents of others given\n", rounds, rebuilt,
           moved);
    assert_true(rebuilt <= rounds / 4);
}

/* The agent's child of a stripe dies, or has to be left: those below its children stay where they are. */
static void test_top_is_lost(void **state)
{
    size_t rebuilt = 0, rounds = 0, moved = 0, needed = 0;
    (void)state;
    for (unsigned round = 0; round < 100; round++) {
        struct ws_fanout_member m[MOST], before[MOST];
        const size_t n = 12 + below(100);
        const unsigned stripe = below(S), racks = 1 + below(2);
        size_t top = 0, orphans = 0;
        for (size_t i = 0; i < n; i++)
            m[i] = newcomer(racks);
        plan(m, n);
        while (m[top].parent[stripe] != WS_FANOUT_AGENT)
            top++;
        for (size_t i = 0; i < n; i++)
            for (unsigned s = 0; s < S; s++)
                orphans += m[i].parent[s] == (int)top;
        m[top].is_slow = true;
        memcpy(before, m, sizeof(m));
        plan(m, n);
        const struct counts c = check(m, n);
        for (unsigned s = 0; s < S; s++)
            assert_int_equal(c.agent[s], 1);
        moved += changes(m, before, n);
        needed += orphans + 1; /* and itself */
        rebuilt += changes(m, before, n) > 2 * (orphans + S);
        rounds++;
    }
    printf("# %zu times the top of a stripe was lost: %zu times a new plan; %zu parents given, %zu needed at "
           "least\n",
           rounds, rebuilt, moved, needed);
    assert_true(rebuilt <= rounds / 4);
}

static size_t depth_anew(const struct ws_fanout_member *m, size_t n)
{
    struct ws_fanout_member anew[MOST];
    memcpy(anew, m, n * sizeof(*m));
    for (size_t i = 0; i < n; i++)
        for (unsigned s = 0; s < S; s++)
            anew[i].parent[s] = WS_FANOUT_NONE;
    plan(anew, n);
    return check(anew, n).deepest;
}

/* Mounts come some at a time, and a fifth dies one after the other: the trees stay nearly as flat as new ones, and mounts
 * send no more than they are meant to, though few get other parents. */
static void test_stays_flat(void **state)
{
    size_t moved = 0, orphans = 0, plans = 0, deeper = 0, crowded = 0;
    (void)state;
    for (unsigned round = 0; round < 40; round++) {
        struct ws_fanout_member m[MOST], before[MOST];
        size_t n = 24 + below(100);
        const size_t at_once = 2 + below(9), left = n - n / 5;
        for (size_t i = 0; i < n; i++) {
            m[i] = newcomer(1);
            if (i % at_once == 0)
                plan(m, i + 1);
        }
        for (plan(m, n); n > left; plan(m, n)) {
            const size_t dead = below((unsigned)n);
            memcpy(before, m, sizeof(m));
            m[dead].is_slow = true; /* its children have left it */
            plan(m, n);
            const struct counts c = check(m, n);
            plans++;
            deeper += c.deepest - depth_anew(m, n);
            for (size_t i = 0; i < n; i++)
                crowded += c.children[i] > m[i].fan_out;
            moved += changes(m, before, n);
            for (size_t i = 0; i < n; i++)
                for (unsigned s = 0; s < S; s++)
                    orphans += before[i].parent[s] == (int)dead;
            m[dead] = m[--n];
            for (size_t i = 0; i < n; i++)
                for (unsigned s = 0; s < S; s++)
                    m[i].parent[s] = m[i].parent[s] == (int)dead ? WS_FANOUT_NONE
                                     : m[i].parent[s] == (int)n  ? (int)dead
                                                                 : m[i].parent[s];
        }
    }
    printf("# %zu plans: deeper than new ones by %zu in all, %zu mounts with a child too many; %zu had lost "
           "their "
           "parents, %zu parents were given\n",
           plans, deeper, crowded, orphans, moved);
    assert_true(deeper < 2 * plans && crowded < plans / 4 && moved < 2 * orphans);
}

/* One after the other, as a fleet starts, with some that die. */
static void test_growing(void **state)
{
    struct ws_fanout_member m[MOST];
    size_t n = 0, moved = 0;
    (void)state;
    while (n < 150) {
        struct ws_fanout_member before[MOST];
        if (n > 5 && below(8) == 0) {
            const size_t gone = below((unsigned)n);
            m[gone] = m[--n];
            for (size_t i = 0; i < n; i++)
                for (unsigned s = 0; s < S; s++)
                    m[i].parent[s] = m[i].parent[s] == (int)gone ? WS_FANOUT_NONE
                                     : m[i].parent[s] == (int)n  ? (int)gone
                                                                 : m[i].parent[s];
        } else {
            m[n++] = newcomer(5);
        }
        memcpy(before, m, sizeof(m));
        plan(m, n);
        moved += changes(m, before, n);
        const struct counts c = check(m, n);
        for (unsigned s = 0; s < S; s++)
            assert_int_equal(c.agent[s], 1);
    }
    printf("# a fleet that grew to %zu mounts: %zu parents given, %zu needed at least\n", n, moved, n * S);
}

/* The agent plans with its lock held: a plan of many mounts costs little more for each than one of few. */
static void test_many(void **state)
{
    static struct ws_fanout_member m[4096];
    (void)state;
    for (unsigned racks = 1; racks <= 4096; racks *= 64) {
        uint64_t first[2], again[2];
        for (unsigned round = 0; round < 2; round++) {
            const size_t n = round == 0 ? 256 : 4096;
            for (size_t i = 0; i < n; i++)
                m[i] = newcomer(racks);
            first[round] = plan(m, n) / n;
            for (size_t i = 0; i < n; i += 5)
                m[i].is_slow = true;
            again[round] = plan(m, n) / n;
            printf("# %zu mounts in %u racks: %lu looks a mount, then %lu\n", n, racks, first[round],
                   again[round]);
        }
        assert_true(first[1] <= 3 * first[0] && again[1] <= 3 * again[0]);
    }
    for (size_t i = 0; i < 4096; i++) { /* few serve, and nobody but the agent has room */
        m[i] = newcomer(1);
        m[i].serves = i % 100 == 0;
        m[i].reach = below(3);
    }
    assert_in_range(plan(m, 4096) / 4096, 1, 1000);
}

int main(void)
{
    const char *given = getenv("FANOUT_SEED");
    seed = given ? (unsigned)atoi(given) : 17;
    printf("# FANOUT_SEED=%u\n", seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_links),    cmocka_unit_test(test_unequal_mounts),
        cmocka_unit_test(test_measured_links), cmocka_unit_test(test_stable),
        cmocka_unit_test(test_top_is_lost),    cmocka_unit_test(test_stays_flat),
        cmocka_unit_test(test_growing),        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
