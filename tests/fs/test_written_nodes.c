/* Folders at the top of a written mount: who waits for one holds it. */
#include "fs/written/nodes.h"
#include "transports/base/clock.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#define MOST_MS 20000

struct waiter {
    struct written w;
    struct written_top *top;
};

static void *wait_for_it(void *arg)
{
    struct waiter *one = arg;
    pthread_mutex_lock(&one->w.lock);
    written_wait(&one->w, one->top);
    pthread_mutex_unlock(&one->w.lock);
    return NULL;
}

/* Once the publish is over, who was woken first removes the folder: who is woken next still looks at it. */
static void test_removed_while_waited_for(void **state)
{
    static const struct ws_written_options options = {.part = WS_COMMIT_WHOLE};
    static struct waiter one = {.w = {.options = &options, .lower = -1, .memory = -1}};
    const struct timespec step = {.tv_nsec = WS_MS_NS};
    pthread_t thread;
    bool waits = false;
    (void)state;
    one.top = calloc(1, sizeof(*one.top));
    assert_non_null(one.top);
    *one.top = (struct written_top){.fd = -1, .refs = 1, .is_taken = true};
    one.w.tops = one.top;
    pthread_mutex_init(&one.w.lock, NULL);
    ws_cond_init(&one.w.changed);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_it, &one), 0);
    for (int ms = 0; ms < MOST_MS && !waits; ms++) {
        (void)nanosleep(&step, NULL);
        pthread_mutex_lock(&one.w.lock);
        waits = one.top->refs == 2;
        pthread_mutex_unlock(&one.w.lock);
    }
    assert_true(waits);
    pthread_mutex_lock(&one.w.lock);
    one.top->is_taken = false;
    written_top_drop(&one.w, one.top);
    pthread_cond_broadcast(&one.w.changed);
    pthread_mutex_unlock(&one.w.lock);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_null(one.w.tops);
    written_free(&one.w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_removed_while_waited_for)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
