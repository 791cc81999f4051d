/* Workers: each index exactly once, run returns when all are done, callers take turns, threads receive no
 * signals. */
#include "transports/base/workers.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#define MOST    5000
#define WORKERS 4

struct tally {
    atomic_uint times[MOST];
};

static void count(void *arg, size_t i)
{
    struct tally *t = arg;
    atomic_fetch_add(&t->times[i], 1);
}

static void test_each_once(void **state)
{
    static struct tally t;
    static const size_t sizes[] = {0, 1, 2, 3, 7, 100, MOST};

    (void)state;
    for (unsigned threads = 0; threads <= 5; threads++) {
        struct ws_workers *w = ws_workers_new(threads, 0);
        assert_non_null(w);
        assert_int_equal(ws_workers_count(w), threads ? threads : 1);
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            memset(&t, 0, sizeof(t));
            ws_workers_run(w, count, &t, sizes[s]);
            for (size_t i = 0; i < MOST; i++)
                assert_int_equal(atomic_load(&t.times[i]), i < sizes[s] ? 1 : 0);
        }
        ws_workers_free(w);
    }
    ws_workers_free(NULL);
}

static void test_at_once(void **state)
{
    static struct tally t;

    (void)state;
    for (size_t n = 0; n < 70; n = n * 2 + 1) {
        memset(&t, 0, sizeof(t));
        ws_workers_run_at_once(count, &t, n);
        for (size_t i = 0; i < 128; i++)
            assert_int_equal(atomic_load(&t.times[i]), i < n ? 1 : 0);
    }
}

/* Plain memory: a job that is not finished, or not visible, when run returns is a race that TSan detects
 * too. */
static void plain(void *arg, size_t i)
{
    ((uint32_t *)arg)[i] += 1;
}

static void test_many_rounds(void **state)
{
    uint32_t values[64] = {0};
    struct ws_workers *w = ws_workers_new(3, 5);

    (void)state;
    assert_non_null(w);
    for (uint32_t round = 1; round <= 3000; round++) {
        size_t n = 1 + round % 64;
        memset(values, 0, sizeof(values));
        ws_workers_run(w, plain, values, n);
        for (size_t i = 0; i < 64; i++)
            assert_int_equal(values[i], i < n);
    }
    ws_workers_free(w);
}

/* Plain memory of each worker: two workers with one index at the same time are a race that TSan detects. */
struct shares {
    unsigned n_workers;
    struct {
        size_t jobs, sum;
    } of[WORKERS];
};

static void share(void *arg, size_t i, unsigned worker)
{
    struct shares *s = arg;
    assert_true(worker < s->n_workers);
    s->of[worker].jobs++;
    s->of[worker].sum += i;
}

static void test_index(void **state)
{
    (void)state;
    for (unsigned threads = 1; threads <= WORKERS; threads++) {
        struct ws_workers *w = ws_workers_new(threads, 0);
        assert_non_null(w);
        for (size_t n = 0; n < 500; n = n * 2 + 1) {
            struct shares s = {.n_workers = ws_workers_count(w)};
            size_t jobs = 0, sum = 0;
            ws_workers_run_indexed(w, share, &s, n);
            for (unsigned k = 0; k < WORKERS; k++) {
                jobs += s.of[k].jobs;
                sum += s.of[k].sum;
            }
            assert_int_equal(jobs, n);
            assert_int_equal(sum, n ? n * (n - 1) / 2 : 0);
        }
        ws_workers_free(w);
    }
}

struct caller {
    struct ws_workers *workers;
    uint32_t *shared; /* guarded by the turn that run gives */
    uint32_t own[8];
};

static void *call(void *arg)
{
    struct caller *c = arg;
    for (int i = 0; i < 300; i++)
        ws_workers_run(c->workers, plain, i % 2 ? c->own : c->shared, 8);
    return NULL;
}

static void test_callers_take_turns(void **state)
{
    uint32_t shared[8] = {0};
    struct caller callers[4];
    pthread_t threads[4];
    struct ws_workers *w = ws_workers_new(2, 0);

    (void)state;
    assert_non_null(w);
    for (size_t i = 0; i < 4; i++) {
        callers[i] = (struct caller){.workers = w, .shared = shared};
        assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(shared[i], 4 * 150);
        assert_int_equal(callers[i % 4].own[i], 150);
    }
    ws_workers_free(w);
}

struct seen {
    pid_t caller;
    pthread_barrier_t both;
    int nice;
    int usr1_blocked, segv_blocked;
};

static void look(void *arg, size_t i)
{
    struct seen *s = arg;
    (void)i;
    pthread_barrier_wait(&s->both); /* so that the worker gets one of the two */
    pid_t me = (pid_t)syscall(SYS_gettid);
    if (me == s->caller)
        return;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    s->nice = getpriority(PRIO_PROCESS, (id_t)me);
    s->usr1_blocked = sigismember(&mask, SIGUSR1);
    s->segv_blocked = sigismember(&mask, SIGSEGV);
}

static void test_threads_are_quiet(void **state)
{
    struct seen s = {.caller = (pid_t)syscall(SYS_gettid)};
    int mine = getpriority(PRIO_PROCESS, 0);
    sigset_t mask;
    struct ws_workers *w = ws_workers_new(2, mine < 13 ? mine + 6 : 19);

    (void)state;
    assert_non_null(w);
    assert_int_equal(ws_workers_count(w), 2);
    pthread_barrier_init(&s.both, NULL, 2);
    ws_workers_run(w, look, &s, 2);
    pthread_barrier_destroy(&s.both);
    ws_workers_free(w);
    assert_int_equal(s.nice, mine < 13 ? mine + 6 : 19);
    assert_int_equal(s.usr1_blocked, 1);
    assert_int_equal(s.segv_blocked, 0);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), mine); /* this thread's mask is as before */
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    assert_int_equal(sigismember(&mask, SIGUSR1), 0);
}

static void *nothing(void *arg)
{
    return arg;
}

static void test_start(void **state)
{
    pthread_t t;
    void *result = NULL;

    (void)state;
    assert_int_equal(ws_thread_start(&t, nothing, &t), 0);
    pthread_join(t, &result);
    assert_ptr_equal(result, &t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_once),
        cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_many_rounds),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_callers_take_turns),
        cmocka_unit_test(test_threads_are_quiet),
        cmocka_unit_test(test_start),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
