/* The audit log: no text forges a line or a field, and lines of several processes and threads stay whole. */
#include "transports/base/audit_log.h"
#include "transports/base/log.h"
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define PROCESSES 4
#define THREADS   4
#define ENTRIES   200

static char path[256];

static void open_log(void)
{
    struct ws_error err = {0};
    ws_log_set_level(WS_LOG_ERROR);
    (void)unlink(path);
    if (ws_audit_log_open(path, "test", &err) < 0 || ws_audit_log_start(&err) < 0)
        fail_msg("%s", err.text);
}

/* Reads all lines; each has to be JSON of nine fields. Returns how many; last: the last one, a new reference. */
static size_t read_all(json_t **last)
{
    FILE *f = fopen(path, "r");
    char line[16384];
    size_t n = 0;
    assert_non_null(f);
    *last = NULL;
    while (fgets(line, sizeof(line), f)) {
        json_error_t why;
        json_decref(*last);
        *last = json_loads(line, JSON_REJECT_DUPLICATES, &why);
        if (!*last || json_object_size(*last) != 9)
            fail_msg("%s: %s", why.text, line);
        n++;
    }
    fclose(f);
    return n;
}

static void test_forged(void **state)
{
    static const char *const texts[] = {
        "a\n{\"what\":\"publish\"}",        "\",\"who\":\"uid:0",       "\\\",\"who\":\"uid:0", "ends in \\",
        "\x1b[2J\x07\x7f \xe2\x80\xae gpj", "\xff\xc0\xaf\xed\xa0\x80",
    };
    char longest[4000];
    json_t *last;
    (void)state;
    memset(longest, '"', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = 0;
    for (size_t i = 0; i <= sizeof(texts) / sizeof(texts[0]); i++) {
        const char *text = i < sizeof(texts) / sizeof(texts[0]) ? texts[i] : longest;
        open_log();
        ws_audit_log_write(&(struct ws_audit_entry){
            .what = text, .who = text, .from = text, .to = text, .outcome = WS_AUDIT_REFUSED, .error = text});
        ws_audit_log_close();
        assert_int_equal(read_all(&last), 1);
        assert_string_equal(json_string_value(json_object_get(last, "outcome")), "refused");
        assert_string_equal(json_string_value(json_object_get(last, "by")), "test");
        const char *to = json_string_value(json_object_get(last, "to"));
        for (const char *c = to; *c; c++)
            assert_true((unsigned char)*c >= ' ' && *c != 0x7f);
        json_decref(last);
    }
}

static void *write_entries(void *arg)
{
    char to[600];
    memset(to, 'x', sizeof(to) - 1);
    to[sizeof(to) - 1] = 0;
    for (unsigned i = 0; i < ENTRIES; i++)
        ws_audit_log_write(&(struct ws_audit_entry){.what = arg, .to = to});
    return NULL;
}

static int child(void)
{
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, write_entries, "ctl") != 0)
            return 1;
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    ws_audit_log_close();
    return ws_audit_log_lost() > 0;
}

/* What is queued when the log is closed is written. */
static void test_several_processes(void **state)
{
    pid_t pids[PROCESSES];
    json_t *last;
    (void)state;
    (void)unlink(path);
    for (unsigned i = 0; i < PROCESSES; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            struct ws_error err = {0};
            ws_log_set_level(WS_LOG_ERROR);
            _exit(ws_audit_log_open(path, "child", &err) < 0 || ws_audit_log_start(&err) < 0 ? 2 : child());
        }
    }
    for (unsigned i = 0; i < PROCESSES; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(read_all(&last), PROCESSES * THREADS * ENTRIES);
    json_decref(last);
}

static void test_none_open(void **state)
{
    struct ws_error err = {0};
    struct stat st;
    (void)state;
    (void)unlink(path);
    ws_audit_log_write(&(struct ws_audit_entry){.what = "publish", .is_logged = true});
    ws_audit_log_close();
    assert_int_equal(stat(path, &st), -1);
    open_log();
    assert_int_equal(ws_audit_log_open(path, "again", &err), -EINVAL);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    ws_audit_log_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forged),
        cmocka_unit_test(test_several_processes),
        cmocka_unit_test(test_none_open),
    };
    snprintf(path, sizeof(path), "%s/wsync-audit.%d", getenv("TESTDIR") ? getenv("TESTDIR") : "/tmp",
             (int)getpid());
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(path);
    return failed;
}
