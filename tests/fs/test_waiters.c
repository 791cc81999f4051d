/* Waiters: blocks that are waited for are fetched first; deadlines, cancels, failures, and many at once.
 *
 * beside others */
#include "fs/store/state.h"
#include "fs/store/waiters.h"
#include "tests/fs/opened_store.h"
#include "transports/base/clock.h"
#include <pthread.h>

/* A waiter that records how it was completed. */
struct waiter {
    struct ws_waiter base; /* first */
    atomic_int n_done, result;
    atomic_uint order;
};

static atomic_uint n_completed;

static void on_done(struct ws_waiter *w, int result)
{
    struct waiter *waiter = (struct waiter *)w;

    atomic_store(&waiter->order, atomic_fetch_add(&n_completed, 1) + 1);
    atomic_store(&waiter->result, result);
    atomic_fetch_add(&waiter->n_done, 1);
}

static void init_waiter(struct waiter *w)
{
    memset(w, 0, sizeof(*w));
    w->base.done = on_done;
    atomic_init(&w->result, 1);
}

static int wait_for(struct waiter *w, struct ws_version *v, size_t file, size_t first, size_t n,
                    unsigned timeout_ms)
{
    init_waiter(w);
    return ws_version_await(v, file, first, n, timeout_ms, &w->base);
}

static int result_of(struct waiter *w)
{
    wait_until(atomic_load(&w->n_done) == 1);
    return atomic_load(&w->result);
}

/* One lane with a slow source, so that there is an order. */
static struct ws_version *slow_version(uint64_t bytes)
{
    atomic_store(&n_completed, 0);
    shelf_publish(shelf, "actor", 1, "r1", bytes);
    store = slow_store_of(shelf, 10000);
    return version(store, "actor", "1");
}

static void awaited_blocks_come_first(void **state)
{
    struct ws_version *v = slow_version(200 * MIB);
    struct waiter w, all;
    size_t here;

    (void)state;
    assert_non_null(ws_version_manifest(v, NULL));
    assert_int_equal(wait_for(&all, v, WS_FILE_ALL, 0, 0, LONG_MS), 0);
    assert_int_equal(wait_for(&w, v, 1, 48, 1, LONG_MS), 0);
    assert_int_equal(result_of(&w), 0);
    here = ws_version_blocks_here(v, 1);
    assert_true(here < 40); /* of 51: the 48th did not wait for those before it */
    assert_memory_equal(ws_region_data(ws_version_region(v, 1)) + 48 * WS_BLOCK_BYTES,
                        shelf_bytes(shelf, "actor", 1, "r1", "model.safetensors", &(uint64_t){0}) +
                            48 * WS_BLOCK_BYTES,
                        WS_BLOCK_BYTES);
    assert_int_equal(result_of(&all), 0);
    assert_true(atomic_load(&all.order) > atomic_load(&w.order));
    assert_same_bytes(shelf, v);
    ws_version_put(v);
}

static void bytes_that_are_here_need_no_waiter(void **state)
{
    struct ws_version *v = slow_version(5 * MIB);
    struct waiter w;

    (void)state;
    pull(v);
    assert_int_equal(wait_for(&w, v, WS_FILE_ALL, 0, 0, 0), 1);
    assert_int_equal(wait_for(&w, v, WS_FILE_HEADERS, 0, 0, 0), 1);
    assert_int_equal(wait_for(&w, v, 1, 0, 2, 0), 1);
    assert_int_equal(wait_for(&w, v, 1, 1, 1000, 0), 1);
    assert_int_equal(wait_for(&w, v, 0, 0, 0, 0), 1);
    assert_int_equal(atomic_load(&w.n_done), 0);
    ws_version_put(v);
}

static void a_waiter_for_the_manifest_moves_no_weights(void **state)
{
    struct ws_version *v = slow_version(20 * MIB);
    struct waiter w;

    (void)state;
    assert_int_equal(wait_for(&w, v, 0, 0, 0, LONG_MS), 0);
    assert_int_equal(result_of(&w), 0);
    assert_true(ws_version_has_manifest(v));
    assert_int_equal(ws_version_state(v), WS_KNOWN);
    assert_int_equal(wait_for(&w, v, WS_FILE_HEADERS, 0, 0, LONG_MS), 0);
    assert_int_equal(result_of(&w), 0);
    assert_non_null(ws_safetensors_find(ws_version_header(v, 1, NULL), "weight"));
    assert_int_equal(ws_version_state(v), WS_KNOWN);
    assert_int_equal(stats_of(store).used_bytes, 0);
    assert_int_equal(ws_version_blocks_here(v, 1), 0);
    ws_version_put(v);
}

static void a_deadline_ends_the_wait_and_not_the_pull(void **state)
{
    struct ws_version *v = slow_version(100 * MIB);
    struct waiter w[50], all;

    (void)state;
    assert_non_null(ws_version_manifest(v, NULL));
    for (unsigned i = 0; i < 50; i++)
        assert_int_equal(wait_for(&w[i], v, WS_FILE_ALL, 0, 0, i % 7), 0);
    assert_int_equal(wait_for(&all, v, WS_FILE_ALL, 0, 0, LONG_MS), 0);
    for (unsigned i = 0; i < 50; i++)
        assert_int_equal(result_of(&w[i]), -ETIMEDOUT);
    assert_int_equal(result_of(&all), 0);
    assert_same_bytes(shelf, v);
    ws_version_put(v);
}

static void a_cancelled_waiter_is_never_completed(void **state)
{
    struct ws_version *v = slow_version(40 * MIB);
    struct waiter w[20];
    unsigned n_cancelled = 0;

    (void)state;
    assert_non_null(ws_version_manifest(v, NULL));
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(wait_for(&w[i], v, 1, i % 10, 1, LONG_MS), 0);
    for (unsigned i = 0; i < 20; i += 2) {
        if (ws_waiter_cancel(&w[i].base)) {
            assert_false(ws_waiter_cancel(&w[i].base));
            assert_int_equal(atomic_load(&w[i].n_done), 0);
            w[i].base.done = NULL; /* a call would crash */
            n_cancelled++;
        }
    }
    assert_true(n_cancelled > 0);
    for (unsigned i = 1; i < 20; i += 2)
        assert_int_equal(result_of(&w[i]), 0);
    pull(v);
    ws_version_put(v);
}

static void failures_reach_every_waiter(void **state)
{
    struct ws_store_options options = {.cache_bytes = 1UL << 30, .deadline_ms = 500};
    struct ws_version *v;
    struct waiter w[5];
    char url[256];

    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", 60 * MIB);
    store = store_with(&options);
    snprintf(url, sizeof(url), "fault:stale=4:%s", shelf_tcp_start(shelf));
    add_source(store, url, NULL);
    v = version(store, "actor", "1");
    assert_non_null(ws_version_manifest(v, NULL));
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(wait_for(&w[i], v, 1, 10 + i, 1, LONG_MS), 0);
    for (unsigned i = 0; i < 5; i++) {
        int result = result_of(&w[i]);
        if (result != 0)
            assert_int_equal(result, -ESTALE);
    }
    wait_until(ws_version_state(v) == WS_FAILED);
    /* At once again: the same answer, by the callback. */
    assert_int_equal(wait_for(&w[0], v, WS_FILE_ALL, 0, 0, LONG_MS), 0);
    assert_int_equal(result_of(&w[0]), -ESTALE);
    ws_version_put(v);
}

static void no_such_file(void **state)
{
    struct ws_version *v = slow_version(MIB);
    struct waiter w;

    (void)state;
    assert_non_null(ws_version_manifest(v, NULL));
    /* n = 0 requests the manifest only, for any file. */
    assert_int_equal(wait_for(&w, v, 7, 0, 0, LONG_MS), 1);
    assert_int_equal(wait_for(&w, v, 7, 0, 1, LONG_MS), 0);
    assert_int_equal(result_of(&w), -EINVAL);
    ws_version_put(v);
}

static void waiters_end_with_the_store(void **state)
{
    struct ws_version *v = slow_version(200 * MIB);
    struct waiter w;

    (void)state;
    assert_int_equal(wait_for(&w, v, WS_FILE_ALL, 0, 0, LONG_MS), 0);
    ws_store_free(store);
    store = NULL;
    assert_int_equal(atomic_load(&w.n_done), 1);
    assert_int_equal(atomic_load(&w.result), -ECANCELED);
    ws_version_put(v);
}

/* --- by hand: with version, deadline and result as in the list --- */

#define HOUR_NS    (3600 * 1000 * WS_MS_NS)
#define NEVER_HERE 7 /* there is no such file */

static void put(struct ws_version *v, struct waiter *w, size_t file, uint64_t deadline_ns,
                uint64_t progress_timeout_ns)
{
    init_waiter(w);
    w->base.version = v;
    w->base.file = file;
    w->base.n = 1;
    w->base.deadline_ns = deadline_ns;
    w->base.progress_timeout_ns = progress_timeout_ns;
    w->base.queued = true;
    ws_version_get(v);
    atomic_fetch_add(&v->n_waiters, 1);
    pthread_mutex_lock(&store->lock);
    w->base.prev = v->last_waiter;
    *(v->last_waiter ? &v->last_waiter->next : &v->waiters) = &w->base;
    v->last_waiter = &w->base;
    pthread_mutex_unlock(&store->lock);
}

static void run_deadlines(void)
{
    pthread_mutex_lock(&store->lock);
    store->next_deadline_ns = 0;
    pthread_cond_signal(&store->deadline_changed);
    pthread_mutex_unlock(&store->lock);
}

/* Present bytes are reported as present, whatever failed or timed out meanwhile. */
static void present_bytes_are_no_failure(void **state)
{
    struct ws_version *v = slow_version(MIB);
    struct waiter late, failed, missing;
    struct ws_waiter *chain;

    (void)state;
    pull(v);
    put(v, &late, 1, 0, 0);
    run_deadlines();
    assert_int_equal(result_of(&late), 0);
    put(v, &failed, 1, WS_NEVER, 0);
    put(v, &missing, NEVER_HERE, WS_NEVER, 0);
    pthread_mutex_lock(&store->lock);
    chain = ws_waiters_collect(v, -EIO);
    pthread_mutex_unlock(&store->lock);
    ws_waiters_complete(chain);
    assert_int_equal(atomic_load(&failed.result), 0);
    assert_int_equal(atomic_load(&missing.result), -EIO);
    ws_version_put(v);
}

/* A patient waiter's deadline counts from the last byte; a failed version does not wait. */
static void silence_counts_from_the_last_byte(void **state)
{
    struct ws_store_options options = {.cache_bytes = 1UL << 30, .deadline_ms = LONG_MS, .threads = 2};
    struct waiter all, patient, failed, other;
    struct ws_version *v;

    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", MIB);
    store = store_with(&options);
    add_source(store, shelf_tcp_start(shelf), NULL);
    v = version(store, "actor", "1");
    shelf_tcp_stop(shelf); /* the pull keeps trying */
    assert_int_equal(wait_for(&all, v, WS_FILE_ALL, 0, 0, LONG_MS), 0);
    put(v, &patient, NEVER_HERE, 0, HOUR_NS);
    put(v, &failed, NEVER_HERE, 0, HOUR_NS);
    failed.base.result = -ESTALE;
    put(v, &other, NEVER_HERE, 0, 0);
    run_deadlines();
    assert_int_equal(result_of(&other), -ETIMEDOUT);
    assert_int_equal(result_of(&failed), -ESTALE);
    assert_int_equal(atomic_load(&patient.n_done), 0);
    ws_store_free(store);
    store = NULL;
    assert_int_equal(result_of(&patient), -ECANCELED);
    assert_int_equal(result_of(&all), -ECANCELED);
    ws_version_put(v);
}

/* Without a pull only the end of the store completes it. */
static void a_waiter_without_a_pull_ends_with_the_store(void **state)
{
    struct ws_version *v = slow_version(MIB);
    struct waiter w;

    (void)state;
    put(v, &w, WS_FILE_ALL, WS_NEVER, 0);
    ws_store_free(store);
    store = NULL;
    assert_int_equal(result_of(&w), -ECANCELED);
    ws_version_put(v);
}

struct reader {
    struct ws_version *version;
    unsigned seed;
    pthread_t thread;
};

/* Like a FUSE reader: waits for blocks in any order, cancels some, compares the bytes. */
static void *read_blocks(void *arg)
{
    struct reader *r = arg;
    uint64_t size;
    const unsigned char *want = shelf_bytes(shelf, "actor", 1, "r1", "model.safetensors", &size);
    struct waiter w;

    for (unsigned i = 0; i < 100; i++) {
        size_t block = (size_t)rand_r(&r->seed) % (size / WS_BLOCK_BYTES);
        int rc = wait_for(&w, r->version, 1, block, 1, LONG_MS);
        if (rc == 0 && rand_r(&r->seed) % 3 == 0 && ws_waiter_cancel(&w.base))
            continue;
        assert_int_equal(rc == 1 ? 0 : result_of(&w), 0);
        assert_memory_equal(ws_region_data(ws_version_region(r->version, 1)) + block * WS_BLOCK_BYTES,
                            want + block * WS_BLOCK_BYTES, WS_BLOCK_BYTES);
    }
    return NULL;
}

static void many_readers_of_a_filling_version(void **state)
{
    struct ws_version *v = slow_version(80 * MIB);
    struct reader r[8];

    (void)state;
    assert_non_null(ws_version_manifest(v, NULL));
    for (unsigned i = 0; i < 8; i++) {
        r[i] = (struct reader){.version = v, .seed = i};
        assert_int_equal(pthread_create(&r[i].thread, NULL, read_blocks, &r[i]), 0);
    }
    for (unsigned i = 0; i < 8; i++)
        pthread_join(r[i].thread, NULL);
    ws_version_put(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORE_TEST(awaited_blocks_come_first),
        STORE_TEST(bytes_that_are_here_need_no_waiter),
        STORE_TEST(a_waiter_for_the_manifest_moves_no_weights),
        STORE_TEST(a_deadline_ends_the_wait_and_not_the_pull),
        STORE_TEST(a_cancelled_waiter_is_never_completed),
        STORE_TEST(failures_reach_every_waiter),
        STORE_TEST(no_such_file),
        STORE_TEST(waiters_end_with_the_store),
        STORE_TEST(present_bytes_are_no_failure),
        STORE_TEST(silence_counts_from_the_last_byte),
        STORE_TEST(a_waiter_without_a_pull_ends_with_the_store),
        STORE_TEST(many_readers_of_a_filling_version),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
