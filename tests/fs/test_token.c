/* A token is the complete first line of a file: a part of it would be another token. */
#include "fs/fuse/options.h"
#include "transports/access/bearer.h"
#include "transports/base/secret.h"
#include <errno.h>
#include <fcntl.h>
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

static char path[300];

/* n times x, and then the text. */
static int read_of(size_t n, const char *behind, char **token)
{
    struct ws_error err = {0};
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(fputc('x', f), 'x');
    assert_int_equal(fputs(behind, f) < 0, 0);
    assert_int_equal(fclose(f), 0);
    *token = NULL;
    int rc = ws_token_read(path, NULL, token, &err);
    assert_int_equal(rc < 0, err.text[0] != 0);
    return rc;
}

static void test_length(void **state)
{
    static const struct {
        size_t n;
        const char *behind;
        size_t is;
        int rc;
    } cases[] = {{4, "\nmore", 4, 0},     {4, "\r\n", 4, 0},       {4095, "", 4095, 0},
                 {4094, "\n", 4094, 0},   {4095, "\r\n", 4095, 0}, {4096, "", 0, -E2BIG},
                 {9000, "\n", 0, -E2BIG}, {0, "\nx", 0, -EINVAL},  {0, "", 0, -EINVAL}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *token;
        assert_int_equal(read_of(cases[i].n, cases[i].behind, &token), cases[i].rc);
        assert_int_equal(token ? strlen(token) : 0, cases[i].is);
        ws_secret_free(token);
    }
}

/* A path that is not a regular file is read only up to a token's length, and not waited for longer than the
 * limit. */
static int read_token(const char *from, unsigned wait_ms, char **token, struct ws_error *err)
{
    const int fd = open(from, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    assert_true(fd >= 0);
    *token = NULL;
    return ws_token_read_fd(fd, from, wait_ms, token, err);
}

static void test_pipes(void **state)
{
    struct ws_error err = {0};
    char *token;
    (void)state;
    assert_int_equal(read_token("/dev/zero", 60000, &token, &err), -EINVAL);
    assert_non_null(strstr(err.text, "zero byte"));
    (void)unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(read_token(path, 20, &token, &err), -ETIMEDOUT); /* no writer */
    assert_non_null(strstr(err.text, path));
    const int writer = open(path, O_RDWR | O_CLOEXEC);
    assert_true(writer >= 0);
    assert_int_equal(write(writer, "half", 4), 4);
    assert_int_equal(read_token(path, 20, &token, &err), -ETIMEDOUT);
    assert_int_equal(write(writer, "whole\n", 6), 6);
    assert_int_equal(read_token(path, 60000, &token, &err), 0);
    assert_string_equal(token, "whole");
    ws_secret_free(token);
    close(writer);
    assert_int_equal(unlink(path), 0);
}

static void test_of_a_mount(void **state)
{
    struct ws_mount_options *o = calloc(1, sizeof(*o));
    struct ws_error err = {0};
    char *token, words[400];
    (void)state;
    assert_non_null(o);
    ws_mount_options_init(o);
    assert_int_equal(read_of(9000, "\n", &token), -E2BIG);
    snprintf(words, sizeof(words), "token-file=%s", path);
    assert_true(ws_mount_options_parse(o, words, &err) < 0);
    assert_non_null(strstr(err.text, "is longer than 4095 bytes"));
    assert_int_equal(read_of(5, "\n", &token), 0);
    ws_secret_free(token);
    assert_int_equal(ws_mount_options_parse(o, words, &err), 0);
    assert_string_equal(o->store.source.token, "xxxxx");
    ws_mount_options_release(o);
    free(o);
}

int main(void)
{
    const char *base = getenv("TESTDIR");
    snprintf(path, sizeof(path), "%.200s/wsync-token.%d", base ? base : "/tmp", (int)getpid());
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_length), cmocka_unit_test(test_pipes),
                                       cmocka_unit_test(test_of_a_mount)};
    const int rc = cmocka_run_group_tests_name("token", tests, NULL, NULL);
    (void)unlink(path);
    return rc;
}
