/* How many leases by ucx one identity may have beside others. */
#include "transports/ucx/share.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void one_that_is_alone_leaves_some(void **state)
{
    (void)state;
    assert_int_equal(ws_ucx_share(1024, 0), 896);
    assert_int_equal(ws_ucx_share(4, 0), 4); /* nothing to leave */
    assert_int_equal(ws_ucx_share(1, 0), 1);
}

static void several_have_equal_parts(void **state)
{
    (void)state;
    assert_int_equal(ws_ucx_share(1024, 1), 512);
    assert_int_equal(ws_ucx_share(1024, 3), 256);
    for (unsigned others = 0; others < 3000; others++)
        assert_in_range(ws_ucx_share(1024, others), 1, 1024);
    assert_int_equal(ws_ucx_share(1024, 2999), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_is_alone_leaves_some),
        cmocka_unit_test(several_have_equal_parts),
    };
    return cmocka_run_group_tests_name("ucx_share", tests, NULL, NULL);
}
