/* The pool: a returned region is reused, but never while a process can still read it, and the pool never
 * keeps more than allowed. Inodes distinguish regions. */
#include "transports/memory/available.h"
#include "transports/memory/pool.h"
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
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB     (1UL << 20)
#define WAIT_MS 60000 /* bounds a wait for the background thread; nothing is measured */

static struct ws_error err;

static struct ws_pool *make(uint64_t keep_bytes)
{
    struct ws_pool *p = NULL;
    assert_int_equal(ws_pool_new(&p, keep_bytes, 2, &err), 0);
    return p;
}

static struct ws_region *get(struct ws_pool *p, uint64_t size)
{
    struct ws_region *r = NULL;
    if (ws_pool_get(p, size, &r, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(ws_region_size(r), size);
    return r;
}

/* Reserves are made only while memory is plentiful. */
static void need_memory(void)
{
    if (ws_memory_available(NULL) < 2048 * MIB)
        skip();
}

static ino_t inode(struct ws_region *r)
{
    struct stat st;
    assert_int_equal(fstat(ws_region_fd(r), &st), 0);
    return st.st_ino;
}

static void assert_settles(struct ws_pool *p, size_t n_free, size_t n_waiting)
{
    struct ws_pool_stats s = {0};
    for (int ms = 0; ms < WAIT_MS; ms += 5) {
        ws_pool_stats(p, &s);
        if (s.n_wanted == 0 && s.n_free == n_free && s.n_waiting == n_waiting)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    fail_msg("%zu free, %zu waiting, %zu wanted; expected %zu and %zu", s.n_free, s.n_waiting, s.n_wanted,
             n_free, n_waiting);
}

static void test_recycles(void **state)
{
    struct ws_pool *p = make(64 * MIB);
    struct ws_pool_stats s;

    (void)state;
    struct ws_region *r = get(p, 8 * MIB);
    ino_t first = inode(r);
    memset(ws_region_data(r), 7, 8 * MIB);
    ws_pool_put(p, r);
    assert_settles(p, 1, 0);
    ws_pool_stats(p, &s);
    assert_int_equal(s.free_bytes, 8 * MIB);
    assert_int_equal(s.waiting_bytes, 0);
    r = get(p, 6 * MIB + 3); /* cut */
    assert_int_equal(inode(r), first);
    assert_int_equal(ws_region_data(r)[5], 7);
    ws_pool_put(p, r);
    r = get(p, 6 * MIB); /* at once: without waiting for the background thread */
    assert_int_equal(inode(r), first);
    ws_region_free(r);
    ws_pool_put(p, NULL);
    ws_pool_free(p);
    ws_pool_free(NULL);
}

static void test_waits_for_readers(void **state)
{
    struct ws_pool *p = make(64 * MIB);
    struct ws_pool_stats s;
    int fd = -1;

    (void)state;
    struct ws_region *r = get(p, 4 * MIB);
    memset(ws_region_data(r), 1, 4 * MIB);
    ino_t held = inode(r);
    assert_int_equal(ws_region_open(r, WS_REGION_READ, &fd, &err), 0);
    unsigned char *m = mmap(NULL, 4 * MIB, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_ptr_not_equal(m, MAP_FAILED);
    close(fd);
    ws_pool_put(p, r);
    assert_settles(p, 0, 1);
    ws_pool_stats(p, &s);
    assert_int_equal(s.waiting_bytes, 4 * MIB);
    for (int i = 0; i < 3; i++) {
        r = get(p, 4 * MIB);
        assert_int_not_equal(inode(r), held);
        memset(ws_region_data(r), 2, 4 * MIB);
        ws_region_free(r);
    }
    for (size_t i = 0; i < 4 * MIB; i++)
        assert_int_equal(m[i], 1);
    munmap(m, 4 * MIB);
    assert_settles(p, 0, 0); /* it may have pages that no lease shows */
    r = get(p, 4 * MIB);
    assert_int_not_equal(inode(r), held);
    ws_region_free(r);
    ws_pool_free(p);
}

/* A reader that has closed the file still has its pages in a pipe: the region's next user must not write
 * them. */
static void test_pages_in_a_pipe_stay(void **state)
{
    struct ws_pool *p = make(64 * MIB);
    int ends[2], fd = -1;
    unsigned char got[4096];

    (void)state;
    assert_int_equal(pipe(ends), 0);
    struct ws_region *r = get(p, 4 * MIB);
    memset(ws_region_data(r), 1, 4 * MIB);
    assert_int_equal(ws_region_open(r, WS_REGION_READ, &fd, &err), 0);
    assert_int_equal(splice(fd, NULL, ends[1], NULL, sizeof(got), 0), sizeof(got));
    close(fd);
    ws_pool_put(p, r);
    assert_settles(p, 0, 0);
    for (int i = 0; i < 3; i++) {
        r = get(p, 4 * MIB);
        memset(ws_region_data(r), 2, 4 * MIB);
        ws_pool_put(p, r);
    }
    assert_int_equal(read(ends[0], got, sizeof(got)), sizeof(got));
    for (size_t i = 0; i < sizeof(got); i++)
        assert_int_equal(got[i], 1);
    close(ends[0]);
    close(ends[1]);
    ws_pool_free(p);
}

static void test_best_fit(void **state)
{
    struct ws_pool *p = make(256 * MIB);
    struct ws_region *r[3] = {get(p, 4 * MIB), get(p, 40 * MIB), get(p, 12 * MIB)};
    ino_t of[3] = {inode(r[0]), inode(r[1]), inode(r[2])};

    (void)state;
    for (size_t i = 0; i < 3; i++)
        ws_pool_put(p, r[i]);
    assert_settles(p, 3, 0);
    r[0] = get(p, 8 * MIB);
    assert_int_equal(inode(r[0]), of[2]);
    r[1] = get(p, 9 * MIB); /* 40 MiB would waste more than half: a new one */
    for (size_t i = 0; i < 3; i++)
        assert_int_not_equal(inode(r[1]), of[i]);
    r[2] = get(p, 20 * MIB);
    assert_int_equal(inode(r[2]), of[1]);
    for (size_t i = 0; i < 3; i++)
        ws_region_free(r[i]);
    ws_pool_free(p);
}

static void test_keeps_no_more_than_allowed(void **state)
{
    struct ws_pool *p = make(20 * MIB);
    struct ws_region *r[4];
    ino_t of[4];
    struct ws_pool_stats s;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        r[i] = get(p, 8 * MIB);
        of[i] = inode(r[i]);
    }
    for (size_t i = 0; i < 3; i++) {
        ws_pool_put(p, r[i]);
        assert_settles(p, i < 2 ? i + 1 : 2, 0);
    }
    ws_pool_stats(p, &s);
    assert_int_equal(s.free_bytes, 16 * MIB);
    for (size_t i = 0; i < 2; i++) { /* the oldest was freed */
        r[i] = get(p, 8 * MIB);
        assert_true(inode(r[i]) == of[1] || inode(r[i]) == of[2]);
    }
    for (size_t i = 0; i < 2; i++)
        ws_region_free(r[i]);
    ws_pool_put(p, get(p, 30 * MIB)); /* more than the pool ever keeps */
    assert_settles(p, 0, 0);
    ws_region_free(r[3]);
    ws_pool_free(p);
}

static void test_small_and_imported_are_freed(void **state)
{
    struct ws_pool *p = make(64 * MIB);
    struct ws_pool_stats s;
    struct ws_region *in = NULL;
    int fd = -1;

    (void)state;
    ws_pool_put(p, get(p, 1000));
    struct ws_region *r = get(p, 2 * MIB);
    assert_int_equal(ws_region_open(r, WS_REGION_COPY, &fd, &err), 0);
    assert_int_equal(ws_region_import(&in, fd, 2 * MIB, false, &err), 0);
    ws_pool_put(p, in);
    ws_pool_stats(p, &s);
    assert_int_equal(s.n_free + s.n_waiting, 0);
    assert_int_equal(ws_region_idle(r), 0); /* the imported region is released */
    ws_region_free(r);
    ws_pool_free(p);
}

static void test_reserve(void **state)
{
    struct ws_pool *p = make(64 * MIB);
    struct ws_pool_stats s;
    struct stat st;

    (void)state;
    need_memory();
    for (int i = 0; i < 3; i++)
        ws_pool_reserve(p, 8 * MIB);
    assert_settles(p, 3, 0);
    ws_pool_stats(p, &s);
    assert_int_equal(s.free_bytes, 24 * MIB);
    for (int i = 0; i < 3; i++) {
        struct ws_region *r = get(p, 8 * MIB);
        assert_int_equal(fstat(ws_region_fd(r), &st), 0);
        assert_int_equal(st.st_blocks * 512, 8 * MIB); /* its pages are present */
        assert_settles(p, 2 - (size_t)i, 0);
        ws_region_free(r);
    }
    /* Free regions already count, and are not counted twice. */
    ws_pool_put(p, get(p, 8 * MIB));
    assert_settles(p, 1, 0);
    ws_pool_reserve(p, 8 * MIB);
    assert_settles(p, 1, 0);
    ws_pool_reserve(p, 8 * MIB);
    assert_settles(p, 2, 0);
    /* Nothing is made beyond the limit, and no requested region is evicted. */
    ws_pool_reserve(p, 50 * MIB);
    assert_settles(p, 2, 0);
    ws_pool_put(p, get(p, 60 * MIB));
    assert_settles(p, 2, 0);
    /* Cancelled reserves make room. */
    ws_pool_reserve(p, 0);
    ws_pool_reserve(p, 60 * MIB);
    assert_settles(p, 1, 0);
    ws_pool_stats(p, &s);
    assert_int_equal(s.free_bytes, 60 * MIB);
    ws_pool_reserve(p, 100); /* small ones are not kept */
    assert_settles(p, 1, 0);
    ws_pool_free(p);
}

static void test_trim(void **state)
{
    struct ws_pool *p = make(64 * MIB);
    struct ws_region *r[2] = {get(p, 8 * MIB), get(p, 8 * MIB)};
    ino_t newest = inode(r[1]);

    (void)state;
    need_memory();
    for (size_t i = 0; i < 2; i++) {
        ws_pool_put(p, r[i]);
        assert_settles(p, i + 1, 0);
    }
    ws_pool_trim(p, 16 * MIB);
    assert_settles(p, 2, 0);
    ws_pool_trim(p, 15 * MIB);
    assert_settles(p, 1, 0);
    ws_pool_reserve(p, 8 * MIB);
    assert_settles(p, 1, 0);
    r[0] = get(p, 8 * MIB);
    assert_int_equal(inode(r[0]), newest);
    ws_pool_put(p, r[0]);
    ws_pool_reserve(p, 8 * MIB);
    assert_settles(p, 1, 0);
    ws_pool_trim(p, 0); /* requested regions too */
    assert_settles(p, 0, 0);
    ws_pool_free(p);
}

/* A get during the making of its reserve waits for that region, however far it is. */
static void test_get_claims_its_reserve(void **state)
{
    struct ws_pool *p = make(2048 * MIB);

    (void)state;
    need_memory();
    for (int round = 0; round < 6; round++) {
        struct ws_region *r[3];
        for (int i = 0; i < 3; i++)
            ws_pool_reserve(p, 200 * MIB);
        nanosleep(&(struct timespec){.tv_nsec = round * 3000000}, NULL);
        for (int i = 0; i < 3; i++) {
            r[i] = get(p, 200 * MIB);
            ws_region_data(r[i])[200 * MIB - 1] = 1;
        }
        assert_settles(p, 0, 0); /* three were requested and three were used */
        for (int i = 0; i < 3; i++)
            ws_region_free(r[i]);
    }
    ws_pool_free(p);
}

/* Waits until the reserve of that size is being made, and no other region is free. */
static void assert_begins(struct ws_pool *p, uint64_t free_bytes)
{
    struct ws_pool_stats s = {0};
    for (int ms = 0; ms < WAIT_MS; ms++) {
        ws_pool_stats(p, &s);
        if (s.free_bytes >= free_bytes)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    fail_msg("the reserve was never begun");
}

/* A region being made counts like an existing one: for the limit, and for the gets that may have it. */
static void test_a_reserve_that_is_made_counts(void **state)
{
    struct ws_pool *p = make(700 * MIB);
    struct ws_pool_stats s;

    (void)state;
    need_memory();
    struct ws_region *first = get(p, 200 * MIB), *second = get(p, 150 * MIB), *third = get(p, 400 * MIB);
    ws_pool_put(p, first);
    assert_settles(p, 1, 0);
    ws_pool_reserve(p, 400 * MIB);
    assert_begins(p, 600 * MIB);
    ws_pool_put(p, third); /* there is no room beside it */
    ws_region_free(get(p, MIB));
    ws_pool_put(p, second); /* the first one makes room for it */
    struct ws_region *larger = get(p, 500 * MIB);
    assert_settles(p, 2, 0); /* the smaller reserve stays */
    ws_pool_stats(p, &s);
    assert_int_equal(s.free_bytes, 550 * MIB);
    ws_region_free(larger);
    ws_pool_free(p);
}

static void test_free_does_not_wait(void **state)
{
    struct ws_pool *p = make(1024 * MIB);
    int fd = -1;

    (void)state;
    struct ws_region *r = get(p, 2 * MIB), *out = get(p, 2 * MIB);
    memset(ws_region_data(r), 3, 2 * MIB);
    assert_int_equal(ws_region_open(r, WS_REGION_READ, &fd, &err), 0);
    unsigned char *m = mmap(NULL, 2 * MIB, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(m, MAP_FAILED);
    close(fd);
    ws_pool_put(p, r);
    for (int i = 0; i < 4; i++)
        ws_pool_reserve(p, 250 * MIB);
    ws_pool_free(p);
    for (size_t i = 0; i < 2 * MIB; i++)
        assert_int_equal(m[i], 3);
    munmap(m, 2 * MIB);
    ws_region_data(out)[0] = 1; /* a region in use belongs to its user */
    ws_region_free(out);
}

enum { WRITERS = 3, READERS = 3, ROUNDS = 150, SHELVES = 4 };

/* Readers get a descriptor of published memory, then map and read it for any time while it is returned: they
 * must see only its bytes. */
struct shop {
    struct ws_pool *pool;
    pthread_mutex_t lock;
    int shelf[SHELVES]; /* guarded by lock; descriptors, -1: empty */
    atomic_uint next, wrong, read;
    atomic_bool closed;
};

static void *write_versions(void *arg)
{
    struct shop *s = arg;
    for (int i = 0; i < ROUNDS; i++) {
        struct ws_region *r = NULL;
        uint64_t size = MIB + (uint64_t)(i % 3) * MIB / 2;
        int fd = -1, old;
        if (ws_pool_get(s->pool, size, &r, NULL) < 0)
            abort();
        unsigned mark = atomic_fetch_add(&s->next, 1) + 1, *words = (unsigned *)(void *)ws_region_data(r);
        for (size_t w = 0; w < size / sizeof(*words); w++)
            words[w] = mark;
        if (ws_region_open(r, WS_REGION_READ, &fd, NULL) < 0)
            abort();
        pthread_mutex_lock(&s->lock);
        old = s->shelf[mark % SHELVES];
        s->shelf[mark % SHELVES] = fd;
        pthread_mutex_unlock(&s->lock);
        if (old >= 0)
            close(old);
        ws_pool_put(s->pool, r);
    }
    return NULL;
}

static void *read_versions(void *arg)
{
    struct shop *s = arg;
    struct stat st;
    for (unsigned i = 0; !atomic_load(&s->closed); i++) {
        pthread_mutex_lock(&s->lock);
        int fd = s->shelf[i % SHELVES] < 0 ? -1 : fcntl(s->shelf[i % SHELVES], F_DUPFD_CLOEXEC, 0);
        pthread_mutex_unlock(&s->lock);
        if (fd < 0)
            continue;
        if (fstat(fd, &st) != 0)
            abort();
        size_t size = (size_t)st.st_size;
        const unsigned *words = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        close(fd);
        if (words == MAP_FAILED)
            abort();
        for (size_t w = 0; w < size / sizeof(*words); w += 31)
            if (words[w] != words[0])
                atomic_fetch_add(&s->wrong, 1);
        atomic_fetch_add(&s->read, 1);
        munmap((void *)(uintptr_t)words, size);
    }
    return NULL;
}

static void test_readers_never_see_the_next_version(void **state)
{
    struct shop s = {.pool = make(16 * MIB), .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t writers[WRITERS], readers[READERS];

    (void)state;
    memset(s.shelf, -1, sizeof(s.shelf));
    for (size_t i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&readers[i], NULL, read_versions, &s), 0);
    for (size_t i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&writers[i], NULL, write_versions, &s), 0);
    for (size_t i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    atomic_store(&s.closed, true);
    for (size_t i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    for (size_t i = 0; i < SHELVES; i++)
        if (s.shelf[i] >= 0)
            close(s.shelf[i]);
    assert_true(atomic_load(&s.read) > 0);
    assert_int_equal(atomic_load(&s.wrong), 0);
    assert_int_equal(atomic_load(&s.next), WRITERS * ROUNDS);
    ws_pool_free(s.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recycles),
        cmocka_unit_test(test_waits_for_readers),
        cmocka_unit_test(test_pages_in_a_pipe_stay),
        cmocka_unit_test(test_best_fit),
        cmocka_unit_test(test_keeps_no_more_than_allowed),
        cmocka_unit_test(test_small_and_imported_are_freed),
        cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_trim),
        cmocka_unit_test(test_get_claims_its_reserve),
        cmocka_unit_test(test_a_reserve_that_is_made_counts),
        cmocka_unit_test(test_free_does_not_wait),
        cmocka_unit_test(test_readers_never_see_the_next_version),
    };
    unsetenv("WSYNC_REGION");
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
