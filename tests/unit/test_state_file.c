/* Small files that are replaced atomically: a file that cannot be read completely is an error, never a
 * shorter file. */
#include "tests/fixtures/private_folder.h"
#include "transports/base/state_file.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64], path[96];

static int make(void **state)
{
    (void)state;
    assert_true(private_folder(folder, sizeof(folder), "keep"));
    snprintf(path, sizeof(path), "%s/state", folder);
    return 0;
}

static int clean(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

static void test_round(void **state)
{
    struct ws_error err;
    char *text;
    size_t n;
    (void)state;
    assert_int_equal(ws_state_file_read(path, &text, &n, &err), 0);
    assert_null(text);
    assert_int_equal(ws_state_file_write(path, "abc", 3), 0);
    assert_int_equal(ws_state_file_read(path, &text, &n, &err), 0);
    assert_int_equal(n, 3);
    assert_string_equal(text, "abc");
    free(text);
}

/* What another process left or laid where the new file is written is neither followed nor kept. */
static void test_beside(void **state)
{
    char beside[128], other[128];
    struct stat st;
    (void)state;
    snprintf(beside, sizeof(beside), "%s.new", path);
    snprintf(other, sizeof(other), "%s.other", path);
    FILE *f = fopen(other, "w");
    assert_non_null(f);
    fputs("of another", f);
    fclose(f);
    assert_int_equal(symlink(other, beside), 0);
    assert_int_equal(ws_state_file_write(path, "abc", 3), 0);
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISREG(st.st_mode) && (st.st_mode & 0777) == 0600);
    assert_int_equal(stat(other, &st), 0);
    assert_int_equal(st.st_size, 10);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(mkfifo(beside, 0666), 0);
    assert_int_equal(ws_state_file_write(path, "abcd", 4), 0); /* waits for no reader */
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISREG(st.st_mode) && st.st_size == 4);
    assert_int_equal(unlink(path), 0);
}

static void test_lock(void **state)
{
    char beside[128];
    int fd, other;
    long owner;
    (void)state;
    snprintf(beside, sizeof(beside), "%s.lock", path);
    assert_int_equal(ws_state_file_lock(path, &fd, &owner), 0);
    assert_int_equal(ws_state_file_lock(path, &other, &owner), -EBUSY); /* another description of the file */
    assert_int_equal(owner, (long)getpid());
    close(fd);
    assert_int_equal(ws_state_file_lock(path, &fd, &owner), 0);
    close(fd);
    assert_int_equal(unlink(beside), 0);
}

static void test_too_long(void **state)
{
    char *big = calloc(1, WS_MAX_STATE_FILE_BYTES + 1), *text;
    struct ws_error err;
    size_t n;
    (void)state;
    assert_non_null(big);
    assert_int_equal(ws_state_file_write(path, big, WS_MAX_STATE_FILE_BYTES), 0);
    assert_int_equal(ws_state_file_read(path, &text, &n, &err), 0);
    assert_int_equal(n, WS_MAX_STATE_FILE_BYTES);
    free(text);
    assert_int_equal(ws_state_file_write(path, big, WS_MAX_STATE_FILE_BYTES + 1), -EFBIG);
    assert_int_equal(ws_state_file_read(path, &text, &n, &err), 0); /* the old one stays */
    assert_int_equal(n, WS_MAX_STATE_FILE_BYTES);
    free(text);
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    fputc('x', f);
    fclose(f);
    assert_int_equal(ws_state_file_read(path, &text, &n, &err), -EFBIG);
    assert_null(text);
    free(big);
}

static void test_read_error(void **state)
{
    char *text;
    struct ws_error err;
    size_t n;
    (void)state;
    assert_int_equal(ws_state_file_read(folder, &text, &n, &err),
                     -EISDIR); /* read(2) fails, open(2) does not */
    assert_null(text);
    assert_int_equal(n, 0);
    char fifo[300];
    snprintf(fifo, sizeof(fifo), "%.200s/fifo", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(ws_state_file_read(fifo, &text, &n, &err), -EINVAL); /* at once, though nobody writes */
    assert_null(text);
    assert_int_equal(unlink(fifo), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beside),   cmocka_unit_test(test_lock),       cmocka_unit_test(test_round),
        cmocka_unit_test(test_too_long), cmocka_unit_test(test_read_error),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("state_file", tests, make, clean);
}
