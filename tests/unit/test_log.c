/* The log: one clean line per message, levels, errno preserved. stderr is a pipe during a message. */
#include "transports/base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct capture {
    int saved, pipe[2];
};

static void begin(struct capture *c)
{
    assert_int_equal(pipe(c->pipe), 0);
    assert_true(fcntl(c->pipe[1], F_SETPIPE_SZ, 1 << 20) >= 0);
    c->saved = dup(STDERR_FILENO);
    assert_true(c->saved >= 0);
    assert_true(dup2(c->pipe[1], STDERR_FILENO) >= 0);
    close(c->pipe[1]);
}

/* Everything written meanwhile; the caller frees it. */
static char *end(struct capture *c)
{
    size_t used = 0, room = 1 << 20;
    char *text = malloc(room + 1);
    ssize_t n;

    assert_non_null(text);
    assert_true(dup2(c->saved, STDERR_FILENO) >= 0);
    close(c->saved);
    while ((n = read(c->pipe[0], text + used, room - used)) > 0)
        used += (size_t)n;
    close(c->pipe[0]);
    text[used] = '\0';
    return text;
}

static void test_line(void **state)
{
    struct capture c;
    char *text;

    (void)state;
    ws_log_set_level(WS_LOG_INFO);
    begin(&c);
    ws_log(WS_LOG_INFO, "pull", "version is here model=%s version=%d", "actor", 2);
    ws_log(WS_LOG_ERROR, "fs", "x");
    text = end(&c);
    assert_string_equal(text, "info pull version is here model=actor version=2\nerror fs x\n");
    free(text);
}

static void test_levels(void **state)
{
    static const char *const want[] = {
        [WS_LOG_ERROR] = "error t m\n",
        [WS_LOG_WARN] = "error t m\nwarn t m\n",
        [WS_LOG_INFO] = "error t m\nwarn t m\ninfo t m\n",
        [WS_LOG_DEBUG] = "error t m\nwarn t m\ninfo t m\ndebug t m\n",
    };

    (void)state;
    for (int level = WS_LOG_ERROR; level <= WS_LOG_DEBUG; level++) {
        struct capture c;
        char *text;
        ws_log_set_level((enum ws_log_level)level);
        begin(&c);
        for (int each = WS_LOG_ERROR; each <= WS_LOG_DEBUG; each++)
            ws_log((enum ws_log_level)each, "t", "m");
        text = end(&c);
        assert_string_equal(text, want[level]);
        free(text);
    }
    ws_log_set_level(WS_LOG_INFO);
}

static void test_hostile_text_is_one_line(void **state)
{
    struct capture c;
    char *text;

    (void)state;
    begin(&c);
    ws_log(WS_LOG_WARN, "t", "name=%s", "a\nerror t forged\x1B\xFF");
    text = end(&c);
    assert_string_equal(text, "warn t name=a error t forged??\n");
    free(text);
}

static void test_long_line_is_cut(void **state)
{
    struct capture c;
    char big[10000];
    char *text;

    (void)state;
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    begin(&c);
    ws_log(WS_LOG_WARN, "t", "%s", big);
    text = end(&c);
    assert_int_equal(strlen(text), 4096);
    assert_int_equal(text[4095], '\n');
    assert_ptr_equal(strchr(text, '\n'), text + 4095);
    free(text);
}

static void test_errno_is_kept(void **state)
{
    struct capture c;
    char *text;

    (void)state;
    begin(&c);
    errno = ESTALE;
    ws_log(WS_LOG_WARN, "t", "why=%m");
    assert_int_equal(errno, ESTALE);
    text = end(&c);
    assert_non_null(strstr(text, strerror(ESTALE)));
    free(text);
}

static void say_once(void)
{
    ws_log_once(WS_LOG_WARN, "t", "fallback");
}

static void test_once(void **state)
{
    struct capture c;
    char *text;

    (void)state;
    begin(&c);
    for (int i = 0; i < 5; i++)
        say_once();
    text = end(&c);
    assert_string_equal(text, "warn t fallback\n");
    free(text);
}

static void *say_much(void *arg)
{
    for (int i = 0; i < 200; i++)
        ws_log(WS_LOG_INFO, "t", "%s", (const char *)arg);
    return NULL;
}

static void test_lines_of_threads_do_not_mix(void **state)
{
    static const char *const says[] = {"aaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccc"};
    pthread_t threads[3];
    struct capture c;
    char *text, *rest, *line;
    int lines = 0;

    (void)state;
    begin(&c);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, say_much, (void *)says[i]), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    text = end(&c);
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), lines++) {
        assert_memory_equal(line, "info t ", 7);
        assert_true(strcmp(line + 7, says[line[7] - 'a']) == 0);
    }
    assert_int_equal(lines, 600);
    free(text);
}

/* The variable is read once, so each value needs a separate process. */
static void test_environment(void **state)
{
    static const struct {
        const char *value, *want;
    } cases[] = {
        {"error", "error t m\n"},
        {"debug", "error t m\nwarn t m\ninfo t m\ndebug t m\n"},
        {"nonsense", "error t m\nwarn t m\ninfo t m\n"},
        {NULL, "error t m\nwarn t m\ninfo t m\n"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct capture c;
        int status = -1;
        char *text;
        pid_t pid;

        begin(&c);
        pid = fork();
        if (pid == 0) {
            if (cases[i].value)
                setenv("WSYNC_LOG", cases[i].value, 1);
            else
                unsetenv("WSYNC_LOG");
            execl("/proc/self/exe", "test_log", "levels", (char *)NULL);
            _exit(127);
        }
        assert_true(pid > 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        text = end(&c);
        assert_int_equal(status, 0);
        assert_string_equal(text, cases[i].want);
        free(text);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_hostile_text_is_one_line),
        cmocka_unit_test(test_long_line_is_cut),
        cmocka_unit_test(test_errno_is_kept),
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_lines_of_threads_do_not_mix),
        cmocka_unit_test(test_environment),
    };

    if (argc == 2 && strcmp(argv[1], "levels") == 0) { /* the child of test_environment */
        for (int each = WS_LOG_ERROR; each <= WS_LOG_DEBUG; each++)
            ws_log((enum ws_log_level)each, "t", "m");
        return 0;
    }
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
