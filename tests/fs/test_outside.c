/* The child that inspects a mount has none of its parent's descriptors except the one that it mounts, also on
 * kernels without close_range, and whatever the present limit of open files is. */
#include "fs/fuse/outside.h"
#include "tests/fixtures/filter.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const int held[] = {3, 40, 41, 200, 700};
#define N_HELD (sizeof(held) / sizeof(held[0]))

static void forget_close_range(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    filter_calls(code, sizeof(code) / sizeof(code[0]));
}

/* In a child process: 0, or the line of the failed check. */
static int check(bool forgets)
{
    struct rlimit limit;
    char path[64];
    struct stat st;
    const int any = open("/dev/null", O_RDONLY);
    for (size_t i = 0; i < N_HELD; i++)
        if (dup2(any, held[i]) < 0)
            return __LINE__;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return __LINE__;
    limit.rlim_cur = 100; /* there are higher ones, opened before */
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return __LINE__;
    if (forgets)
        forget_close_range();
    for (size_t i = 0; i < N_HELD; i++) { /* the path is relative to the process that looks it up */
        snprintf(path, sizeof(path), "/proc/self/fd/%d", held[i]);
        if (stat(path, &st) != 0)
            return __LINE__;
        if (ws_outside_stat(path) != -ENOENT)
            return __LINE__;
    }
    if (ws_outside_stat("/") != 0)
        return __LINE__;
    for (size_t i = 0; i < N_HELD; i++) /* the kernel gets it, and it is not a mount */
        if (ws_outside_attach(held[i], "/proc") == -EBADF)
            return __LINE__;
    return 0;
}

static void in_a_child(bool forgets)
{
    int status;
    const pid_t pid = fork();
    if (pid == 0) {
        const int line = check(forgets);
        if (line)
            print_message("line %d is not so\n", line);
        _exit(line != 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_closes(void **state)
{
    (void)state;
    in_a_child(false);
}

static void test_closes_one_by_one(void **state)
{
    (void)state;
    in_a_child(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_closes),
                                       cmocka_unit_test(test_closes_one_by_one)};
    return cmocka_run_group_tests_name("outside", tests, NULL, NULL);
}
