/* A daemon that has become another user has its supervisor give the connection up. */
#include "fs/fuse/run_as.h"
#include "fs/supervised.h"
#include "fs/supervisor.h"
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#define MOST_MS 20000

static int told[2];

static void cut(void *arg)
{
    ++*(int *)arg;
    assert_int_equal(write(told[1], "", 1), 1);
}

/* The exit status of a daemon. */
static int end_as_nobody(const struct ws_run_as *who)
{
    struct ws_error err;
    struct pollfd p = {.fd = told[0], .events = POLLIN};
    if (ws_run_as_become(who, &err) < 0)
        return 2;
    ws_supervised_say(WS_WORD_CUT);
    return poll(&p, 1, MOST_MS) == 1 ? 0 : 1;
}

static void test_cut_by_another_user(void **state)
{
    struct ws_run_as who;
    struct ws_error err = {0};
    bool is_daemon = false;
    int cuts = 0;
    (void)state;
    if (geteuid() != 0)
        skip();
    assert_int_equal(ws_run_as_find(&who, "nobody", &err), 0);
    assert_int_equal(pipe(told), 0);
    struct ws_kept kept;
    ws_kept_none(&kept);
    struct ws_life *life = ws_life_new(&kept.fds[WS_KEPT_LIFE]);
    assert_non_null(life);
    const struct ws_supervisor_options o = {
        .kept = &kept, .life = life, .what = "a mount", .cut = cut, .arg = &cuts};
    const int rc = ws_supervisor_run(&o, &is_daemon, &err);
    if (is_daemon)
        _exit(end_as_nobody(&who));
    assert_int_equal(rc, 0);
    assert_int_equal(cuts, 1);
    ws_life_free(life);
    close(kept.fds[WS_KEPT_LIFE]);
    close(told[0]);
    close(told[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cut_by_another_user)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
