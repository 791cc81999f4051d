/* Regions of every kind: memory that is a file, which processes may write or keep it, and when it can be
 * reused. */
#include "tests/fixtures/without_leases.h"
#include "transports/base/limits.h"
#include "transports/memory/region.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB    (1UL << 20)
#define NOBODY 65534
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static struct ws_error err;

/* Each test runs with each kind that this machine supports: its state is the kind's name. */
static int force_kind(void **state)
{
    setenv("WSYNC_REGION", *state, 1);
    return 0;
}

static bool have_kind(void **state)
{
    if (strcmp(*state, "tmpfs") != 0 || ws_region_tmpfs() >= 0)
        return true;
    skip();
    return false;
}

static struct ws_region *make(uint64_t size)
{
    struct ws_region *r = NULL;
    if (ws_region_new(&r, size, &err) < 0)
        fail_msg("%s", err.text);
    return r;
}

/* In a process that does not keep it. */
static int open_again(struct ws_region *r, bool writable)
{
    int fd = -1;
    if (ws_region_open(r, writable ? WS_REGION_WRITE : WS_REGION_COPY, &fd, &err) < 0)
        fail_msg("%s", err.text);
    return fd;
}

static uint64_t taken_bytes(struct ws_region *r)
{
    struct stat st;
    assert_int_equal(fstat(ws_region_fd(r), &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

static int end_of(pid_t child)
{
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void test_memory_is_file(void **state)
{
    static const uint64_t sizes[] = {1, 4096, 5000, MIB - 1, MIB, 2 * MIB, 5 * MIB + 123};

    if (!have_kind(state))
        return;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct ws_region *r = make(sizes[i]);
        unsigned char *p = ws_region_data(r), byte = 0;
        struct stat st;
        assert_int_equal(ws_region_size(r), sizes[i]);
        assert_int_equal(fstat(ws_region_fd(r), &st), 0);
        assert_int_equal(st.st_size, sizes[i]);
        assert_true(S_ISREG(st.st_mode));
        assert_int_equal(st.st_mode & 077, 0); /* no permissions for other users */
        assert_true(fcntl(ws_region_fd(r), F_GETFD) & FD_CLOEXEC);
        assert_int_equal(p[0], 0);
        assert_int_equal(p[sizes[i] - 1], 0);
        if (sizes[i] >= 2 * MIB)
            assert_int_equal((uintptr_t)p % (2 * MIB), 0);
        p[sizes[i] - 1] = 77;
        assert_int_equal(pread(ws_region_fd(r), &byte, 1, (off_t)sizes[i] - 1), 1);
        assert_int_equal(byte, 77);
        ws_region_free(r);
    }
    ws_region_free(NULL);
}

static void test_kind(void **state)
{
    static const struct {
        const char *forced;
        enum ws_region_kind kind;
    } kinds[] = {
        {"tmpfs", WS_REGION_TMPFS_HUGE}, {"memfd", WS_REGION_MEMFD_HUGE}, {"memfd-plain", WS_REGION_MEMFD}};

    if (!have_kind(state))
        return;
    struct ws_region *r = make(2 * MIB);
    for (size_t i = 0; i < 3; i++)
        if (strcmp(*state, kinds[i].forced) == 0)
            assert_int_equal(ws_region_kind(r), kinds[i].kind);
    assert_string_equal(ws_region_kind_name(WS_REGION_TMPFS_HUGE), "tmpfs-huge");
    assert_string_equal(ws_region_kind_name(WS_REGION_IMPORTED), "imported");
    assert_int_equal(ws_region_tmpfs() >= 0, ws_region_kind(r) == WS_REGION_TMPFS_HUGE);
    ws_region_free(r);
}

static void test_small_is_small(void **state)
{
    if (!have_kind(state))
        return;
    struct ws_region *r = make(300);
    ws_region_data(r)[0] = 1;
    assert_true(taken_bytes(r) <= 8192);
    ws_region_free(r);
    r = make(MIB - 1);
    assert_int_equal(ws_region_prefault(r, 2, &err), 0);
    assert_true(taken_bytes(r) <= MIB);
    ws_region_free(r);
}

/* One byte costs a huge page; huge pages make reads fast. */
static void test_large_is_huge(void **state)
{
    char choice[128] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "r");

    (void)state;
    setenv("WSYNC_REGION", "tmpfs", 1);
    if (!f || !fgets(choice, sizeof(choice), f) || strstr(choice, "[deny]") || ws_region_tmpfs() < 0) {
        if (f)
            fclose(f);
        skip();
    }
    fclose(f);
    struct ws_region *r = make(8 * MIB);
    ws_region_data(r)[5 * MIB] = 1;
    assert_int_equal(taken_bytes(r), 2 * MIB);
    ws_region_free(r);
}

static void test_prefault(void **state)
{
    static const uint64_t sizes[] = {4096, 10 * MIB, 10 * MIB + 4097, 70 * MIB};

    if (!have_kind(state))
        return;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (unsigned threads = 0; threads < 20; threads = threads * 4 + 1) {
            struct ws_region *r = make(sizes[i]);
            ws_region_data(r)[sizes[i] / 2] = 5;
            assert_int_equal(ws_region_prefault(r, threads, &err), 0);
            assert_true(taken_bytes(r) >= sizes[i]);
            assert_int_equal(ws_region_data(r)[sizes[i] / 2], 5);
            ws_region_free(r);
        }
    }
    struct ws_region *r = make(64 * MIB);
    assert_int_equal(ws_region_prefault_part(r, 32 * MIB, 8 * MIB, 2, &err), 0);
    assert_int_equal(taken_bytes(r), 8 * MIB);
    assert_int_equal(ws_region_prefault_part(r, 62 * MIB, 8 * MIB, 2, &err), 0);
    assert_int_equal(taken_bytes(r), 10 * MIB);
    assert_int_equal(ws_region_prefault_part(r, 64 * MIB, 8 * MIB, 1, &err), 0);
    assert_int_equal(taken_bytes(r), 10 * MIB);
    ws_region_free(r);
}

/* Called by the library, too: what is longest of the pages that it takes at once. */
static atomic_size_t longest_taken;
int madvise(void *at, size_t bytes, int advice)
{
    if (advice == MADV_POPULATE_WRITE && bytes > atomic_load(&longest_taken))
        atomic_store(&longest_taken, bytes);
    return (int)syscall(SYS_madvise, at, bytes, advice);
}

/* A reader that maps memory meanwhile waits for one huge page, not for many. */
static void test_prefault_in_short_steps(void **state)
{
    (void)state;
    struct ws_region *r = make(64 * MIB);
    atomic_store(&longest_taken, 0);
    assert_int_equal(ws_region_prefault(r, 1, &err), 0);
    assert_in_range(atomic_load(&longest_taken), 1, 2 * MIB); /* a huge page */
    ws_region_free(r);
}

static void test_read_only_stays_so(void **state)
{
    char path[64];

    if (!have_kind(state))
        return;
    struct ws_region *r = make(2 * MIB);
    int fd = open_again(r, false);
    assert_int_equal(pwrite(fd, "x", 1, 0), -1);
    assert_int_equal(errno, EBADF);
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    assert_int_equal(errno, EACCES);
    unsigned char *p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    assert_int_equal(mprotect(p, 4096, PROT_READ | PROT_WRITE), -1);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    ws_region_data(r)[9] = 3;
    assert_int_equal(p[9], 3);
    munmap(p, 4096);
    if (geteuid() == 0) { /* a peer of another user: may read what it got, may not open it for writing */
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            char byte = 0;
            if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)
                _exit(2);
            if (pread(fd, &byte, 1, 9) != 1 || byte != 3)
                _exit(3);
            _exit(open(path, O_RDWR) >= 0 ? 4 : errno == EACCES ? 0 : 5);
        }
        assert_int_equal(end_of(child), 0);
    }
    close(fd);
    ws_region_free(r);
}

static void test_writers_after_readers(void **state)
{
    if (!have_kind(state))
        return;
    struct ws_region *r = make(2 * MIB);
    close(open_again(r, false));
    int fd = open_again(r, true);
    assert_int_equal(pwrite(fd, "w", 1, 5), 1);
    assert_int_equal(ws_region_data(r)[5], 'w');
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), -1); /* nor prevent its reuse */
    close(fd);
    assert_int_equal(ws_region_resize(r, MIB, &err), 0);
    ws_region_free(r);
}

static void assert_idle(struct ws_region *r, int expected, const char *when)
{
    int rc = ws_region_idle(r);
    if (rc != expected)
        fail_msg("%s: %s, expected %s", when, ws_errno_name(-rc), ws_errno_name(-expected));
}

/* A child that holds the region's file by `hold` until it is killed. */
static pid_t holder(int fd, bool by_mapping)
{
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char path[64];
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        int mine = open(path, O_RDONLY);
        if (by_mapping && mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, mine, 0) == MAP_FAILED)
            _exit(1);
        if (by_mapping)
            close(mine);
        close(fd);
        if (write(ends[1], "", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return child;
}

static void test_idle(void **state)
{
    if (!have_kind(state))
        return;
    for (int small = 0; small < 2; small++) {
        struct ws_region *r = make(small ? 5000 : 4 * MIB);
        memset(ws_region_data(r), 1, ws_region_size(r));
        assert_idle(r, 0, "new");
        int fd = open_again(r, false);
        assert_idle(r, -EBUSY, "a read-only descriptor is open");
        void *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
        assert_ptr_not_equal(p, MAP_FAILED);
        close(fd);
        assert_idle(r, -EBUSY, "closed, but mapped");
        munmap(p, 4096);
        assert_idle(r, 0, "unmapped");
        fd = open_again(r, true);
        assert_idle(r, -EBUSY, "a writable descriptor is open");
        close(fd);
        assert_idle(r, 0, "closed");
        for (int by_mapping = 0; by_mapping < 2; by_mapping++) {
            fd = open_again(r, false);
            pid_t child = holder(fd, by_mapping);
            close(fd);
            assert_idle(r, -EBUSY, by_mapping ? "mapped elsewhere" : "open elsewhere");
            kill(child, SIGKILL);
            assert_int_equal(end_of(child), 128 + SIGKILL);
            assert_idle(r, 0, "its holder was killed");
        }
        ws_region_free(r);
    }
}

static void test_fork_holds_nothing(void **state)
{
    if (!have_kind(state))
        return;
    struct ws_region *r = make(2 * MIB);
    unsigned char present;
    ws_region_data(r)[0] = 1;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(mincore(ws_region_data(r), 4096, &present) == 0 ? 1 : errno == ENOMEM ? 0 : 2);
    assert_int_equal(end_of(child), 0);
    ws_region_free(r);
}

struct opener {
    struct ws_region *region;
    atomic_bool stop;
    atomic_uint opened;
};

static void *open_and_close(void *arg)
{
    struct opener *o = arg;
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", ws_region_fd(o->region));
    while (!atomic_load(&o->stop)) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            close(fd);
            atomic_fetch_add(&o->opened, 1);
        }
    }
    return NULL;
}

static atomic_uint n_sigio;

static void on_sigio(int signal_number)
{
    (void)signal_number;
    atomic_fetch_add(&n_sigio, 1);
}

/* Processes that open a leased file must not cause a SIGIO in any thread: its default ends the process. */
static void test_idle_is_quiet(void **state)
{
    struct sigaction before, counting = {.sa_handler = on_sigio};
    struct opener o = {.region = NULL};
    pthread_t threads[2];

    if (!have_kind(state))
        return;
    o.region = make(2 * MIB);
    sigaction(SIGIO, &counting, &before);
    atomic_store(&n_sigio, 0);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, &o), 0);
    for (unsigned i = 0; i < 3000 || (i < 1000000 && atomic_load(&o.opened) < 200); i++) {
        int rc = ws_region_idle(o.region);
        assert_true(rc == 0 || rc == -EBUSY);
    }
    atomic_store(&o.stop, true);
    for (size_t i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    sigaction(SIGIO, &before, NULL);
    assert_int_equal(atomic_load(&n_sigio), 0);
    assert_true(atomic_load(&o.opened) >= 200);
    assert_idle(o.region, 0, "the openers ended");
    ws_region_free(o.region);
}

static void test_idle_keeps_the_programs_sigio(void **state)
{
    struct sigaction before, counting = {.sa_handler = on_sigio};
    sigset_t io, mask;

    if (!have_kind(state))
        return;
    struct ws_region *r = make(4096);
    sigaction(SIGIO, &counting, &before);
    atomic_store(&n_sigio, 0);
    sigemptyset(&io);
    sigaddset(&io, SIGIO);
    pthread_sigmask(SIG_BLOCK, &io, NULL);
    raise(SIGIO);
    assert_int_equal(ws_region_idle(r), 0);
    assert_int_equal(atomic_load(&n_sigio), 0);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    assert_int_equal(sigismember(&mask, SIGIO), 1);
    pthread_sigmask(SIG_UNBLOCK, &io, NULL);
    assert_int_equal(atomic_load(&n_sigio), 1);
    sigaction(SIGIO, &before, NULL);
    ws_region_free(r);
}

static void test_resize(void **state)
{
    static const uint64_t sizes[] = {7 * MIB, 3 * MIB + 5, 100, 2 * MIB + 1, 9 * MIB, 9 * MIB};

    if (!have_kind(state))
        return;
    struct ws_region *r = make(4 * MIB);
    uint64_t smallest = 4 * MIB;
    memset(ws_region_data(r), 9, 4 * MIB);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        assert_int_equal(ws_region_resize(r, sizes[i], &err), 0);
        smallest = sizes[i] < smallest ? sizes[i] : smallest;
        assert_int_equal(ws_region_size(r), sizes[i]);
        const unsigned char *p = ws_region_data(r);
        for (uint64_t at = 0; at < sizes[i]; at += at + 64 < smallest ? 61 : 4093)
            assert_int_equal(p[at], at < smallest ? 9 : 0);
        assert_idle(r, 0, "resized");
    }
    assert_int_equal(ws_region_prefault(r, 1, &err), 0);
    assert_int_equal(ws_region_resize(r, 2 * MIB, &err), 0);
    assert_int_equal(taken_bytes(r), 2 * MIB); /* the truncated part was returned to the system */
    assert_int_equal(ws_region_resize(r, WS_MAX_FILE_BYTES + 1, &err), -EFBIG);
    assert_int_equal(ws_region_size(r), 2 * MIB);
    ws_region_free(r);
}

static void test_import(void **state)
{
    struct ws_region *in = NULL;
    int fd;

    if (!have_kind(state))
        return;
    struct ws_region *r = make(3 * MIB);
    ws_region_data(r)[MIB] = 42;
    assert_int_equal(ws_region_import(&in, open_again(r, false), 3 * MIB, false, &err), 0);
    assert_int_equal(ws_region_kind(in), WS_REGION_IMPORTED);
    assert_int_equal(ws_region_data(in)[MIB], 42);
    assert_int_equal(ws_region_idle(in), -EPERM);
    assert_int_equal(ws_region_idle(r), -EBUSY);
    fd = open_again(in, false);
    ws_region_free(in);
    assert_int_equal(pwrite(fd, "x", 1, 0), -1);
    close(fd);
    assert_int_equal(ws_region_idle(r), 0);

    assert_int_equal(ws_region_import(&in, open_again(r, true), 3 * MIB, true, &err), 0);
    ws_region_data(in)[MIB] = 43;
    assert_int_equal(ws_region_data(r)[MIB], 43);
    assert_int_equal(ws_region_fd(in), -1);
    pid_t child = fork(); /* has no descriptor to keep it */
    assert_true(child >= 0);
    if (child == 0)
        for (;;)
            pause();
    assert_idle(r, -EBUSY, "mapped by us");
    ws_region_free(in);
    assert_idle(r, 0, "a child lives that was forked meanwhile");
    kill(child, SIGKILL);
    assert_int_equal(end_of(child), 128 + SIGKILL);
    ws_region_free(r);
}

static void test_import_checks(void **state)
{
    struct ws_region *in = (struct ws_region *)&err;
    int ends[2];

    if (!have_kind(state))
        return;
    struct ws_region *r = make(MIB);
    assert_int_equal(ws_region_import(&in, open_again(r, false), MIB + 1, false, &err), -EBADMSG);
    assert_null(in);
    assert_non_null(strstr(err.text, "1048576"));
    assert_int_equal(ws_region_import(&in, open("/", O_RDONLY | O_DIRECTORY), MIB, false, &err), -EBADMSG);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(ws_region_import(&in, ends[0], MIB, false, &err), -EBADMSG);
    assert_int_equal(fcntl(ends[0], F_GETFD), -1); /* it was taken, and closed */
    close(ends[1]);
    assert_int_equal(ws_region_import(&in, open_again(r, false), MIB, true, &err),
                     -EACCES); /* not writable */
    assert_int_equal(ws_region_idle(r), 0);
    ws_region_free(r);
    assert_int_equal(ws_region_import(&in, memfd_create("empty", MFD_CLOEXEC), 0, false, &err), 0);
    assert_null(ws_region_data(in));
    assert_int_equal(ws_region_size(in), 0);
    ws_region_free(in);
}

static void test_refusals(void **state)
{
    struct ws_region *r = (struct ws_region *)&err;

    (void)state;
    assert_int_equal(ws_region_new(&r, WS_MAX_FILE_BYTES + 1, &err), -EFBIG);
    assert_null(r);
    setenv("WSYNC_REGION", "floppy", 1);
    assert_int_equal(ws_region_new(&r, 4096, &err), -EINVAL);
    assert_non_null(strstr(err.text, "WSYNC_REGION can be tmpfs"));
}

static void test_link(void **state)
{
    struct stat st;

    if (!have_kind(state))
        return;
    struct ws_region *big = make(3 * MIB), *small = make(10);
    int fs = ws_region_tmpfs();
    if (fs < 0) {
        assert_int_equal(ws_region_link(big, AT_FDCWD, "/tmp/wsync-region-link"), -EXDEV);
    } else {
        struct ws_region *both[] = {big, small};
        for (size_t i = 0; i < 2; i++) {
            ws_region_data(both[i])[1] = 88;
            for (int round = 0; round < 3; round++) { /* also after it was recycled */
                assert_int_equal(ws_region_link(both[i], fs, "weights"), 0);
                assert_int_equal(ws_region_link(both[i], fs, "weights"), -EEXIST);
                int fd = openat(fs, "weights", O_RDONLY);
                assert_true(fd >= 0);
                char byte = 0;
                assert_int_equal(pread(fd, &byte, 1, 1), 1);
                assert_int_equal(byte, 88);
                assert_int_equal(fstat(fd, &st), 0);
                assert_int_equal(st.st_mode & 0777, 0444);
                assert_int_equal(unlinkat(fs, "weights", 0), 0);
                assert_idle(both[i], -EBUSY, "open by name");
                close(fd);
                assert_idle(both[i], -EPERM, "unlinked and closed");
            }
            close(open_again(both[i], false));
        }
        assert_int_equal(ws_region_link(big, AT_FDCWD, "/tmp/wsync-region-link"), -EXDEV);
        assert_int_equal(fstatat(fs, ".keep", &st, 0), 0);
        assert_int_equal(st.st_mode & 0777, 0700);
    }
    ws_region_free(big);
    ws_region_free(small);
    if (fs >= 0)
        assert_int_equal(unlinkat(fs, ".keep", AT_REMOVEDIR), 0); /* it is empty */
}

/* Without privileges: memfd, logged once, and everything above still holds. */
static void test_unprivileged(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct ws_region *r = NULL;
        int ro = -1, rw = -1;
        if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)
            _exit(2);
        setenv("WSYNC_REGION", "memfd", 1); /* the parent's tmpfs is inherited */
        if (ws_region_new(&r, 2 * MIB, NULL) < 0 || ws_region_idle(r) != 0)
            _exit(3);
        ws_region_data(r)[0] = 1;
        if (ws_region_open(r, WS_REGION_READ, &ro, NULL) < 0 || ws_region_idle(r) != -EBUSY)
            _exit(4);
        char path[64];
        snprintf(path, sizeof(path), "/proc/self/fd/%d", ro);
        if (open(path, O_RDWR) >= 0) /* not even this process, by mistake */
            _exit(5);
        if (ws_region_open(r, WS_REGION_WRITE, &rw, NULL) < 0)
            _exit(6);
        close(ro);
        close(rw);
        _exit(ws_region_idle(r) == -EPERM ? 0 : 7);
    }
    assert_int_equal(end_of(child), 0);
}

/* Pages in a pipe are the region's own memory, and neither an open file nor a mapping. */
static void test_shown_is_never_idle_again(void **state)
{
    int ends[2], fd = -1;
    char got[8] = "";

    if (!have_kind(state))
        return;
    struct ws_region *r = make(2 * MIB);
    memcpy(ws_region_data(r), "version1", sizeof(got));
    assert_false(ws_region_was_shown(r));
    assert_int_equal(ws_region_open(r, WS_REGION_READ, &fd, &err), 0);
    assert_true(ws_region_was_shown(r));
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(splice(fd, NULL, ends[1], NULL, sizeof(got), 0), sizeof(got));
    assert_idle(r, -EBUSY, "open");
    close(fd);
    assert_idle(r, -EPERM, "its pages are in a pipe");
    assert_int_equal(read(ends[0], got, sizeof(got)), sizeof(got));
    assert_memory_equal(got, "version1", sizeof(got));
    assert_idle(r, -EPERM, "nobody knows that they are not");
    close(ends[0]);
    close(ends[1]);
    ws_region_free(r);
}

/* What is in a pipe stays as it was while the region gets other bytes; blocks that were not renewed stay, too. */
static void test_renewed_pages_are_others(void **state)
{
    const uint64_t block = WS_BLOCK_BYTES, size = 2 * block + 5 * MIB / 2 + 100;
    const uint64_t at[] = {0, block - 8, 2 * block, size - 8};
    char got[8];
    int ends[2], fd = -1;

    if (!have_kind(state))
        return;
    assert_true(ws_region_can_renew());
    struct ws_region *r = make(size);
    memset(ws_region_data(r), 'a', size);
    assert_int_equal(ws_region_open(r, WS_REGION_READ, &fd, &err), 0);
    assert_int_equal(pipe(ends), 0);
    for (size_t i = 0; i < 4; i++) {
        off_t from = (off_t)at[i];
        assert_int_equal(splice(fd, &from, ends[1], NULL, sizeof(got), 0), sizeof(got));
    }
    assert_int_equal(ws_region_unheld(r), -EBUSY);
    close(fd);
    assert_int_equal(ws_region_unheld(r), 0);
    assert_idle(r, -EPERM, "its pages are in a pipe");
    assert_int_equal(ws_region_renew(r, 0, block, &err), 0);
    assert_int_equal(ws_region_renew(r, 2 * block, size - 2 * block, &err), 0);
    assert_int_equal(ws_region_data(r)[0], 0);
    assert_int_equal(ws_region_data(r)[size - 1], 0);
    memset(ws_region_data(r), 'b', block);
    memset(ws_region_data(r) + 2 * block, 'b', size - 2 * block);
    for (uint64_t i = block; i < 2 * block; i += 97)
        assert_int_equal(ws_region_data(r)[i], 'a');
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(read(ends[0], got, sizeof(got)), sizeof(got));
        assert_memory_equal(got, "aaaaaaaa", sizeof(got));
    }
    close(ends[0]);
    close(ends[1]);
    ws_region_free(r);
}

/* A kernel without leases (fs.leases-enable=0, sandboxes): cannot tell, so the answer is no. */
static void test_without_leases(void **state)
{
    if (!have_kind(state))
        return;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct ws_region *r = make(2 * MIB);
        if (ws_region_idle(r) != 0)
            _exit(2);
        refuse_leases();
        if (ws_region_idle(r) != -EPERM || ws_region_was_shown(r))
            _exit(3);
        _exit(ws_region_leases_work() ? 4 : 0);
    }
    assert_int_equal(end_of(child), 0);
}

/* A temporary lack of descriptors is not a permanent answer. */
static void test_leases_are_asked_for_again(void **state)
{
    if (!have_kind(state))
        return;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit limit;
        if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
            _exit(2);
        const struct rlimit none = {.rlim_max = limit.rlim_max};
        setrlimit(RLIMIT_NOFILE, &none);
        if (ws_region_leases_work())
            _exit(3);
        setrlimit(RLIMIT_NOFILE, &limit);
        _exit(ws_region_leases_work() ? 0 : 4);
    }
    assert_int_equal(end_of(child), 0);
}

/* Released regions that a reader keeps are counted; the process's own are not. */
static void test_left(void **state)
{
    int fd = -1;

    if (!have_kind(state))
        return;
    struct ws_region *r = make(4 * MIB), *other = make(2 * MIB);
    memset(ws_region_data(r), 1, 4 * MIB);
    memset(ws_region_data(other), 1, 2 * MIB);
    assert_int_equal(ws_region_left_bytes(), 0);
    assert_int_equal(ws_region_open(r, WS_REGION_READ, &fd, &err), 0);
    ws_region_free(r);
    assert_int_equal(ws_region_left_bytes(), 4 * MIB);
    ws_region_free(other);
    assert_int_equal(ws_region_left_bytes(), 4 * MIB);
    close(fd);
    assert_int_equal(ws_region_left_bytes(), 0);
}

#define MANY 2000

struct closing {
    struct ws_region *regions[MANY];
    atomic_bool done;
};

static void *close_all(void *arg)
{
    struct closing *c = arg;
    for (size_t i = 0; i < MANY; i++)
        ws_region_free(c->regions[i]);
    atomic_store(&c->done, true);
    return NULL;
}

/* A region that is closed while it is counted does not count as another process's. */
static void test_left_while_others_close(void **state)
{
    static struct closing c;
    pthread_t thread;

    if (!have_kind(state))
        return;
    for (size_t i = 0; i < MANY; i++) {
        c.regions[i] = make(16 << 10);
        memset(ws_region_data(c.regions[i]), 1, 16 << 10);
    }
    assert_int_equal(pthread_create(&thread, NULL, close_all, &c), 0);
    uint64_t most = 0, left;
    while (!atomic_load(&c.done))
        if ((left = ws_region_left_bytes()) > most)
            most = left;
    pthread_join(thread, NULL);
    assert_int_equal(most, 0);
}

int main(void)
{
#define KIND(test, name)                                                                                     \
    {                                                                                                        \
#test " (" name ")", test, force_kind, NULL, (void *)(uintptr_t)name                                 \
    }
#define EACH_KIND(test) KIND(test, "tmpfs"), KIND(test, "memfd"), KIND(test, "memfd-plain")
    const struct CMUnitTest tests[] = {
        EACH_KIND(test_memory_is_file),
        EACH_KIND(test_kind),
        EACH_KIND(test_small_is_small),
        EACH_KIND(test_prefault),
        EACH_KIND(test_read_only_stays_so),
        EACH_KIND(test_writers_after_readers),
        EACH_KIND(test_idle),
        EACH_KIND(test_fork_holds_nothing),
        EACH_KIND(test_idle_is_quiet),
        EACH_KIND(test_idle_keeps_the_programs_sigio),
        EACH_KIND(test_resize),
        EACH_KIND(test_import),
        EACH_KIND(test_import_checks),
        EACH_KIND(test_shown_is_never_idle_again),
        EACH_KIND(test_renewed_pages_are_others),
        EACH_KIND(test_without_leases),
        EACH_KIND(test_leases_are_asked_for_again),
        KIND(test_left, "tmpfs"),
        KIND(test_left_while_others_close, "tmpfs"),
        EACH_KIND(test_link),
        cmocka_unit_test(test_prefault_in_short_steps),
        cmocka_unit_test(test_large_is_huge),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_unprivileged),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
