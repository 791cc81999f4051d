/* Available memory: the minimum over the machine and every cgroup above the process, read from fake
 * systems. */
#include "tests/fixtures/private_folder.h"
#include "transports/memory/available.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
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

#define MIB (1ULL << 20)

static char root[64];
static char text[WS_ERROR_TEXT];

static void put(const char *path, const char *content)
{
    char full[512];
    snprintf(full, sizeof(full), "%s/%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        if (mkdir(full, 0755) != 0)
            assert_int_equal(errno, EEXIST);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(content, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

static int setup(void **state)
{
    (void)state;
    if (!private_folder(root, sizeof(root), "memory"))
        return -1;
    put("proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n"); /* 8 GiB */
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void assert_left(uint64_t bytes, const char *why)
{
    assert_int_equal(ws_memory_available_below(root, text), bytes);
    if (!strstr(text, why))
        fail_msg("'%s' does not say '%s'", text, why);
    assert_int_equal(ws_memory_available_below(root, NULL), bytes);
}

static void test_machine(void **state)
{
    (void)state;
    assert_left(8192 * MIB, "8192 MiB left (MemAvailable)");
    put("proc/self/cgroup", "0::/\n");
    assert_left(8192 * MIB, "MemAvailable");
}

static void test_nothing_told(void **state)
{
    (void)state;
    put("proc/meminfo", "MemTotal:       16777216 kB\n");
    assert_left(UINT64_MAX, "does not report");
    put("proc/self/cgroup", "7:memory:/a\n"); /* of v1, without a limit */
    put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    assert_left(UINT64_MAX, "does not report");
}

static void test_v2(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/pods/one\n");
    put("sys/fs/cgroup/pods/one/memory.max", "max\n");
    put("sys/fs/cgroup/pods/one/memory.current", "999999999999\n");
    assert_left(8192 * MIB, "MemAvailable");
    put("sys/fs/cgroup/pods/one/memory.max", "2147483648\n");
    put("sys/fs/cgroup/pods/one/memory.current", "1073741824\n");
    assert_left(1024 * MIB, "limit of 2048 MiB of cgroup /sys/fs/cgroup/pods/one leaves 1024 MiB");
    put("sys/fs/cgroup/pods/one/memory.stat", "anon 5\ninactive_file 536870912\nactive_file 7\n");
    assert_left(1536 * MIB, "leaves 1536 MiB");
    put("sys/fs/cgroup/pods/one/memory.current", "3221225472\n"); /* over its limit */
    assert_left(0, "leaves 0 MiB");
    put("sys/fs/cgroup/pods/one/memory.current", "104857600\n"); /* less than the cache was a moment ago */
    assert_left(1948 * MIB, "leaves 1948 MiB");
}

static void test_v2_above(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/pods/one\n");
    put("sys/fs/cgroup/pods/one/memory.max", "4294967296\n");
    put("sys/fs/cgroup/pods/one/memory.current", "0\n");
    put("sys/fs/cgroup/pods/memory.max", "3221225472\n");
    put("sys/fs/cgroup/pods/memory.current", "2147483648\n");
    assert_left(1024 * MIB, "cgroup /sys/fs/cgroup/pods leaves");
}

/* A container whose mount shows its own group as the root, while its path is that of the host. */
static void test_v2_container(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/kubepods/burstable/pod1/c1\n");
    put("sys/fs/cgroup/memory.max", "1073741824\n");
    put("sys/fs/cgroup/memory.current", "268435456\n");
    assert_left(768 * MIB, "cgroup /sys/fs/cgroup leaves");
}

static void test_v1(void **state)
{
    (void)state;
    put("proc/self/cgroup", "12:cpu,cpuacct:/a\n7:memory:/slurm/job7\n1:name=systemd:/x\n0::/\n");
    put("sys/fs/cgroup/memory/slurm/job7/memory.limit_in_bytes", "9223372036854771712\n");
    assert_left(8192 * MIB, "MemAvailable");
    put("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "1073741824\n");
    put("sys/fs/cgroup/memory/slurm/memory.usage_in_bytes", "1073741824\n");
    put("sys/fs/cgroup/memory/slurm/memory.stat", "inactive_file 1\ntotal_inactive_file 104857600\n");
    assert_left(100 * MIB, "cgroup /sys/fs/cgroup/memory/slurm leaves 100 MiB");
}

static void test_damaged(void **state)
{
    (void)state;
    put("proc/self/cgroup", "\n:\n0\n7:memory\n7:notmemory:/a\n8:memory2:/a\n0::\n0::relative\n");
    put("sys/fs/cgroup/memory.max", "\n");
    put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1\n");
    assert_left(8192 * MIB, "MemAvailable");
}

static void test_check(void **state)
{
    struct ws_error err = {0};

    (void)state;
    assert_int_equal(ws_memory_check(4096, "a page", &err), 0);
    assert_int_equal(ws_memory_check(1ULL << 60, "two slots of a model", &err), -ENOMEM);
    assert_int_equal(err.code, ENOMEM);
    assert_non_null(strstr(err.text, "two slots of a model"));
    assert_non_null(strstr(err.text, "1099511627776 MiB are needed"));
    assert_int_equal(ws_memory_check(1ULL << 60, "two slots of a model", NULL), -ENOMEM);
}

#define N_TRIMS     8
#define N_PROCESSES 200

static void *trim(void *start)
{
    (void)pthread_barrier_wait(start);
    ws_memory_trim();
    return NULL;
}

static void trim_at_once(void)
{
    pthread_t threads[N_TRIMS];
    pthread_barrier_t start;
    if (pthread_barrier_init(&start, NULL, N_TRIMS) != 0)
        _exit(1);
    for (int i = 0; i < N_TRIMS; i++)
        if (pthread_create(&threads[i], NULL, trim, &start) != 0)
            _exit(1);
    for (int i = 0; i < N_TRIMS; i++)
        pthread_join(threads[i], NULL);
    _exit(0);
}

/* Only the first call in a process can fail, and only with another allocator than glibc's, as with the
 * address sanitizer: hence many processes. */
static void test_trim(void **state)
{
    (void)state;
    for (int i = 0; i < N_PROCESSES; i++) {
        int status;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            trim_at_once();
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

int main(void)
{
#define WITH_SYSTEM(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_SYSTEM(test_machine),  WITH_SYSTEM(test_nothing_told), WITH_SYSTEM(test_v2),
        WITH_SYSTEM(test_v2_above), WITH_SYSTEM(test_v2_container), WITH_SYSTEM(test_v1),
        WITH_SYSTEM(test_damaged),  cmocka_unit_test(test_check),   cmocka_unit_test(test_trim),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
