/* The file of -o config=, where it cannot be read: that is no empty one. tests/mount/test_config.py has what is in it. */
#include "fs/control/config_file.h"
#include "tests/fixtures/listening.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void a_folder_that_cannot_be_read_is_not_empty(void **state)
{
    char dir[] = "/tmp/wsync-config.XXXXXX";
    int status;
    (void)state;
    if (geteuid() != 0) {
        print_message("only root can become another user\n");
        skip();
    }
    assert_non_null(mkdtemp(dir)); /* for its owner only */
    const pid_t child = fork();
    if (child == 0) {
        struct ws_config_model *all = NULL;
        struct ws_error err = {0};
        _exit(setuid(NOBODY) == 0 && ws_config_file_read(dir, &all, &err) == -EACCES && err.code == EACCES
                  ? 0
                  : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_folder_that_cannot_be_read_is_not_empty)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
