/* Settings: a mount that has ended no longer writes them, since they belong to its successor. */
#include "fs/engines/control.h"
#include "fs/switch/settings.h"
#include "fs/switch/settings_lock.h"
#include "tests/fs/opened_store.h"
#include <unistd.h>

static void test_closed(void **state)
{
    struct ws_store_options options = {.cache_bytes = 1UL << 30, .deadline_ms = 2000, .threads = 2};
    struct ws_store *s = store_with(&options);
    struct ws_control *c = NULL;
    struct ws_error err = {0};
    const char *folder = getenv("TESTDIR");
    (void)state;
    assert_non_null(folder);
    const struct ws_control_options how = {
        .mountpoint = "/w", .mount_id = "here:/w", .mode_text = "", .source = "", .state = folder};
    assert_ok(ws_control_new(&c, s, &how, &err), &err);
    char *path = ws_settings_path(folder, "/w");
    assert_non_null(path);
    ws_settings_save(c);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(unlink(path), 0);
    ws_settings_save(c);
    assert_int_equal(access(path, F_OK), 0);
    ws_control_stop(c);
    assert_int_equal(unlink(path), 0);
    ws_settings_save(c);
    assert_int_equal(access(path, F_OK), -1);
    free(path);
    ws_store_free(s);
    ws_control_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_closed)};
    return cmocka_run_group_tests_name("settings", tests, NULL, NULL);
}
