/* Paths that lie below a folder, and paths that only seem to. */
#include "transports/base/below.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char top[] = "/tmp/wsync-below.XXXXXX", allowed[64], here[4096];

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fputs(text, f) < 0, 0);
    assert_int_equal(fclose(f), 0);
}

static int make(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(top));
    assert_non_null(getcwd(here, sizeof(here)));
    assert_int_equal(chdir(top), 0);
    snprintf(allowed, sizeof(allowed), "%s/allowed", top);
    assert_int_equal(mkdir("allowed", 0755) | mkdir("allowed/sub", 0755) | mkdir("allowedx", 0755), 0);
    put("allowed/file", "inside");
    put("allowedx/file", "outside");
    assert_int_equal(symlink("../file", "allowed/sub/in"), 0);
    assert_int_equal(symlink("../../allowedx/file", "allowed/sub/out"), 0);
    assert_int_equal(symlink("/etc/passwd", "allowed/absolute"), 0);
    assert_int_equal(symlink("/proc/self/root", "allowed/magic"), 0);
    assert_int_equal(symlink("sub", "allowed/folder"), 0);
    assert_int_equal(mkfifo("allowed/fifo", 0600), 0);
    return 0;
}

static int clean(void **state)
{
    static const char *const files[] = {"allowed/file",    "allowedx/file",    "allowed/sub/in",
                                        "allowed/sub/out", "allowed/absolute", "allowed/magic",
                                        "allowed/folder",  "allowed/fifo"};
    static const char *const folders[] = {"allowed/sub", "allowed", "allowedx"};
    int rc = 0;
    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        rc |= unlink(files[i]);
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        rc |= rmdir(folders[i]);
    return rc | chdir(here) | rmdir(top);
}

/* name: the path behind the folder. Returns 0 or an errno. */
static int opened(const char *below, const char *name, bool folder)
{
    char path[4096];
    struct stat st;
    struct ws_error err = {0};
    snprintf(path, sizeof(path), "%s%s", allowed, name);
    int fd = ws_below_open(below, path, folder, &st, &err);
    if (fd < 0) {
        assert_true(err.text[0]);
        return -fd;
    }
    assert_true(folder ? S_ISDIR(st.st_mode) : S_ISREG(st.st_mode));
    close(fd);
    return 0;
}

static void test_inside(void **state)
{
    char slashes[80];
    (void)state;
    assert_int_equal(opened(allowed, "/file", false), 0);
    assert_int_equal(opened(allowed, "//sub/../file", false), 0);
    assert_int_equal(opened(allowed, "/sub/in", false), 0);
    assert_int_equal(opened(allowed, "/folder/", true), 0);
    assert_int_equal(opened(allowed, "", true), 0);
    assert_int_equal(opened(allowed, "/none", false), ENOENT);
    assert_int_equal(opened(allowed, "/file", true), ENOTDIR);
    snprintf(slashes, sizeof(slashes), "%s//", allowed);
    assert_int_equal(opened(slashes, "/file", false), 0);
    assert_int_equal(opened("/", "/file", false), 0);
    assert_int_equal(opened(NULL, "/sub/out", false), 0);
}

static void test_outside(void **state)
{
    (void)state;
    assert_int_equal(opened(allowed, "x/file", false), EPERM);
    assert_int_equal(opened(allowed, "/../allowedx/file", false), EPERM);
    assert_int_equal(opened(allowed, "/sub/out", false), EPERM);
    assert_int_equal(opened(allowed, "/absolute", false), EPERM);
    assert_int_equal(opened(allowed, "/magic", true), EPERM);
    assert_int_equal(opened(allowed, "/magic/etc/passwd", false), EPERM);
    assert_int_equal(opened(allowed, "/..", true), EPERM);
    assert_int_equal(opened(allowed, "/fifo", false), EPERM); /* without waiting for a writer */
    assert_int_equal(opened("/nowhere", "/file", false), EPERM);
}

static void test_read(void **state)
{
    char path[128], *text;
    size_t n;
    struct ws_error err;
    (void)state;
    snprintf(path, sizeof(path), "%s/file", allowed);
    assert_int_equal(ws_below_read(allowed, path, 6, &text, &n, &err), 0);
    assert_int_equal(n, 6);
    assert_string_equal(text, "inside");
    free(text);
    assert_int_equal(ws_below_read(allowed, path, 5, &text, &n, &err), -EBADMSG);
    snprintf(path, sizeof(path), "%s/absolute", allowed);
    assert_int_equal(ws_below_read(allowed, path, 1 << 20, &text, &n, &err), -EPERM);
}

static void *rename_others(void *stop)
{
    while (!atomic_load((atomic_bool *)stop))
        if (rename("allowedx/file", "allowedx/other") != 0 || rename("allowedx/other", "allowedx/file") != 0)
            return stop;
    return NULL;
}

static void test_concurrent_renames(void **state)
{
    atomic_bool stop = false;
    pthread_t thread;
    void *failed;
    int bad = 0;
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, rename_others, &stop), 0);
    for (int i = 0; i < 20000; i++)
        bad += opened(allowed, "/sub/in", false) != 0;
    atomic_store(&stop, true);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_inside), cmocka_unit_test(test_outside),
                                       cmocka_unit_test(test_read),
                                       cmocka_unit_test(test_concurrent_renames)};
    return cmocka_run_group_tests(tests, make, clean);
}
