/* Pulls: whole, by descriptor, from a folder, from sources that cut, flip, lie, delay and end, and what is
 * left after a failure.
 *
 * timeout: 420, takes: 20
 * beside others */
#include "tests/fixtures/checkpoint.h"
#include "tests/fs/opened_store.h"
#include <dirent.h>
#include <pthread.h>
#include <unistd.h>

/* The shelf's TCP source behind a fault plan. */
static const char *faulty(const char *plan)
{
    static char url[256];

    snprintf(url, sizeof(url), "fault:%s:%s", plan, shelf_tcp_start(shelf));
    return url;
}

static void full_pull_over_tcp(void **state)
{
    struct ws_version *v;
    struct ws_version_info info;

    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", 33 * MIB + 12345);
    store = store_of(shelf_tcp_start(shelf));
    v = version(store, "actor", "1");
    assert_int_equal(ws_version_state(v), WS_KNOWN);
    info = info_of(v);
    assert_true(info.at_source);
    assert_false(info.has_manifest);
    assert_true(info.total_bytes > 33 * MIB);
    pull(v);
    assert_int_equal(ws_version_state(v), WS_READY);
    assert_same_bytes(shelf, v);
    info = info_of(v);
    assert_int_equal(info.have_bytes, info.total_bytes);
    assert_int_equal(info.moved_bytes, info.total_bytes);
    assert_string_equal(info.how, "tcp full");
    assert_true(info.pull_seconds > 0);
    assert_string_equal(info.error, "");
    assert_int_equal(stats_of(store).pulls_ok, 1);
    assert_int_equal(stats_of(store).used_bytes, info.total_bytes);
    ws_version_put(v);
}

static void many_shards_and_small_files(void **state)
{
    struct ws_version *v;

    (void)state;
    shelf_publish_shards(shelf, "actor", 7, "r1", 9, 5 * MIB + 1);
    store = store_of(shelf_tcp_start(shelf));
    v = pulled(store, "actor", "7");
    assert_same_bytes(shelf, v);
    ws_version_put(v);
}

static void a_second_version_takes_the_memory_of_the_first(void **state)
{
    struct ws_version *v;
    struct ws_error err = {0};

    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", 20 * MIB);
    shelf_publish(shelf, "actor", 2, "r1", 20 * MIB);
    store = store_of(shelf_tcp_start(shelf));
    v = pulled(store, "actor", "1");
    assert_ok(ws_version_drop(v, &err), &err);
    ws_version_put(v);
    wait_until(stats_of(store).used_bytes == 0);
    v = pulled(store, "actor", "2");
    assert_same_bytes(shelf, v);
    ws_version_put(v);
}

static void ipc_copies_no_byte(void **state)
{
    struct ws_version *v;
    struct ws_version_info info;

    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", 20 * MIB);
    store = store_of(shelf_ipc_start(shelf));
    v = pulled(store, "actor", "1");
    assert_same_bytes(shelf, v);
    info = info_of(v);
    assert_string_equal(info.how, "ipc");
    assert_int_equal(info.moved_bytes, 0);
    assert_int_equal(info.have_bytes, info.total_bytes);
    assert_int_equal(stats_of(store).used_bytes, 0);
    assert_int_equal(ws_region_kind(ws_version_region(v, 1)), WS_REGION_IMPORTED);
    assert_int_equal(shelf_holds(shelf), 1);
    ws_version_put(v);
    ws_store_free(store);
    store = NULL;
    wait_until(shelf_holds(shelf) == 0);
}

static void imported_versions_do_not_pin_the_trainer(void **state)
{

    (void)state;
    store = store_of(shelf_ipc_start(shelf));
    for (uint64_t n = 1; n <= 5; n++) {
        char name[8];
        snprintf(name, sizeof(name), "%lu", n);
        shelf_publish(shelf, "actor", n, "r1", 5 * MIB);
        ws_version_put(pulled(store, "actor", name));
    }
    wait_until(shelf_holds(shelf) == 2);           /* keep=2 */
    assert_true(has_version(store, "actor", "1")); /* known, as it is at the source */
}

static void own_memory_copies_from_ipc_too(void **state)
{
    struct ws_store_options options = {.cache_bytes = 1UL << 30, .own_memory = true};
    struct ws_version *v;

    (void)state;
    store = store_with(&options);
    shelf_publish(shelf, "actor", 1, "r1", 20 * MIB);
    add_source(store, shelf_ipc_start(shelf), NULL);
    v = pulled(store, "actor", "1");
    assert_same_bytes(shelf, v);
    assert_string_equal(info_of(v).how, "ipc full");
    assert_int_not_equal(ws_region_kind(ws_version_region(v, 1)), WS_REGION_IMPORTED);
    ws_version_put(v);
}

static void imported_memory_is_verified_when_asked(void **state)
{
    struct ws_store_options options = {.cache_bytes = 1UL << 30, .verify_imported = true};
    struct ws_version *v;

    (void)state;
    store = store_with(&options);
    shelf_publish(shelf, "actor", 1, "r1", 20 * MIB);
    shelf_publish(shelf, "actor", 2, "r1", 20 * MIB);
    shelf_damage(shelf, "actor", 2, "r1");
    add_source(store, shelf_ipc_start(shelf), NULL);
    ws_version_put(pulled(store, "actor", "1"));
    v = version(store, "actor", "2");
    pull_fails(v, WS_PRIORITY_READER, -EBADMSG, "model.safetensors");
    assert_int_equal(ws_version_state(v), WS_FAILED);
    assert_null(ws_version_region(v, 1));
    ws_version_put(v);
}

static void a_folder_is_a_source(void **state)
{
    char *folder = checkpoint_folder(), path[512], url[512];
    struct ws_version *v;
    const struct ws_safetensors *st;
    const struct ws_tensor *t;
    struct ws_error err = {0};

    (void)state;
    snprintf(path, sizeof(path), "%s/3", folder);
    checkpoint_write_model(path, 3);
    snprintf(url, sizeof(url), "dir:%s", folder);
    store = store_of(url);
    v = pulled(store, strrchr(folder, '/') + 1, "3");
    assert_string_equal(info_of(v).how, "dir full");
    for (size_t i = 0; i < ws_version_manifest(v, &err)->n_files; i++) {
        if (strcmp(ws_version_manifest(v, &err)->files[i].name, "model.safetensors") != 0)
            continue;
        st = ws_version_header(v, i, &err);
        assert_non_null(st);
        t = ws_safetensors_find(st, "embed.weight");
        for (uint64_t k = 0; k < t->end - t->begin; k++)
            assert_int_equal(ws_region_data(ws_version_region(v, i))[t->begin + k],
                             checkpoint_byte("embed.weight", 3, k));
    }
    ws_version_put(v);
    ws_store_free(store);
    store = NULL;
    checkpoint_remove(folder);
}

/* --- faults --- */

static void pull_through(const char *plan, uint64_t bytes)
{
    struct ws_version *v;

    shelf_publish_shards(shelf, "actor", 1, "r1", 3, bytes);
    store = store_of(faulty(plan));
    v = pulled(store, "actor", "1");
    assert_same_bytes(shelf, v);
    ws_version_put(v);
}

static void cut_connections_are_resumed(void **state)
{
    (void)state;
    pull_through("seed=1,cut=50", 30 * MIB);
}

static void blocks_in_any_order(void **state)
{
    (void)state;
    pull_through("seed=2,reorder", 30 * MIB);
}

static void slow_sources_are_waited_for(void **state)
{
    (void)state;
    pull_through("seed=3,delay=20,cut=20,reorder", 10 * MIB);
}

static void failing_control_calls_are_repeated(void **state)
{
    (void)state;
    pull_through("seed=4,fail=60", 10 * MIB);
}

static void flipped_bytes_are_fetched_again(void **state)
{
    /* One lane: the seed alone decides which blocks are flipped, and none is flipped three times. */
    struct ws_store_options options = {.cache_bytes = 1UL << 30, .streams = 1};
    struct ws_version *v;
    struct ws_version_info info;

    (void)state;
    store = store_with(&options);
    shelf_publish(shelf, "actor", 1, "r1", 80 * MIB);
    add_source(store, faulty("seed=9,flip=10"), NULL);
    v = pulled(store, "actor", "1");
    assert_same_bytes(shelf, v);
    info = info_of(v);
    assert_true(info.bad_blocks > 0);
    assert_true(info.moved_bytes > info.total_bytes);
    assert_int_equal(stats_of(store).bad_blocks, info.bad_blocks);
    ws_version_put(v);
}

static void expect_bad_message(const char *plan)
{
    struct ws_version *v;
    struct ws_error err = {0};

    shelf_publish(shelf, "actor", 1, "r1", 20 * MIB);
    store = store_of(faulty(plan));
    v = version(store, "actor", "1");
    assert_int_equal(ws_version_pull(v, WS_PRIORITY_READER, LONG_MS, NULL, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "block"));
    assert_int_equal(ws_version_state(v), WS_FAILED);
    assert_string_equal(info_of(v).error, err.text);
    assert_int_equal(ws_version_blocks_here(v, 0) + ws_version_blocks_here(v, 1), 0);
    assert_null(ws_version_region(v, 1));
    assert_int_equal(stats_of(store).pulls_failed, 1);
    ws_version_put(v);
}

static void bytes_that_are_always_wrong_fail_the_version(void **state)
{
    (void)state;
    expect_bad_message("seed=1,flip=100");
}

static void hashes_that_lie_fail_the_version(void **state)
{
    (void)state;
    expect_bad_message("seed=1,lie=100");
}

static void a_version_that_goes_while_it_is_pulled(void **state)
{
    struct ws_version *v;
    struct ws_error err = {0};
    int rc;

    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", 40 * MIB);
    shelf_publish(shelf, "actor", 2, "r1", 1 * MIB);
    store = store_of(faulty("stale=3"));
    v = version(store, "actor", "1");
    do /* in slices, as commands wait: the final result is reported, never that a slice timed out */
        rc = ws_version_pull(v, WS_PRIORITY_READER, 1, NULL, &err);
    while (rc == -EAGAIN);
    assert_int_equal(rc, -ESTALE);
    assert_non_null(strstr(err.text, "the newest is 2"));
    assert_int_equal(ws_version_state(v), WS_FAILED);
    ws_version_put(v);
}

/* The agent needs the slot again: it revokes the version during the pull, and answers 410 from then on. */
static void a_version_that_is_withdrawn(void **state)
{
    struct ws_version *v;
    struct ws_error err = {0};

    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", 200 * MIB);
    shelf_publish(shelf, "actor", 2, "r1", 1 * MIB);
    store = slow_store_of(shelf, 10000);
    v = half_pulled(store, "actor", "1", 0);
    shelf_withdraw(shelf, "actor", 1, "r1");
    assert_int_equal(ws_version_pull(v, WS_PRIORITY_READER, LONG_MS, NULL, &err), -ESTALE);
    assert_int_equal(ws_version_state(v), WS_FAILED);
    assert_true(has_version(store, "actor", "1")); /* with its reason */
    ws_version_put(v);
    v = pulled(store, "actor", "2");
    assert_same_bytes(shelf, v);
    ws_version_put(v);
}

/* --- sources that end and come back --- */

static void a_restarted_server_is_resumed(void **state)
{
    struct ws_version *v;
    struct ws_version_info info;
    struct ws_error err = {0};

    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", 200 * MIB);
    store = slow_store_of(shelf, 10000);
    v = half_pulled(store, "actor", "1", 8 * MIB);
    shelf_tcp_stop(shelf);
    nap();
    shelf_tcp_start(shelf);
    assert_ok(ws_version_pull(v, WS_PRIORITY_READER, LONG_MS, NULL, &err), &err);
    assert_same_bytes(shelf, v);
    info = info_of(v);
    /* Only missing blocks were fetched again. */
    assert_int_equal(info.moved_bytes, info.total_bytes);
    ws_version_put(v);
}

static void a_source_that_stays_away_fails_the_pull_and_keeps_what_came(void **state)
{
    struct ws_version *v;
    struct ws_error err = {0};
    uint64_t had;

    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", 200 * MIB);
    store = slow_store_of(shelf, 400);
    v = half_pulled(store, "actor", "1", 8 * MIB);
    shelf_tcp_stop(shelf);
    assert_int_equal(ws_version_pull(v, WS_PRIORITY_READER, LONG_MS, NULL, &err), -EHOSTUNREACH);
    assert_int_equal(ws_version_state(v), WS_FAILED);
    had = info_of(v).have_bytes;
    assert_true(had > 8 * MIB);
    assert_true(stats_of(store).retries > 0);
    /* A reader that tries again at once gets the same answer, without another wait. */
    assert_int_equal(ws_version_pull(v, WS_PRIORITY_READER, LONG_MS, NULL, &err), -EHOSTUNREACH);
    assert_int_equal(stats_of(store).pulls_failed, 1);
    shelf_tcp_start(shelf);
    wait_until(ws_version_pull(v, WS_PRIORITY_READER, LONG_MS, NULL, &err) == 0);
    assert_same_bytes(shelf, v);
    assert_string_equal(info_of(v).error, "");
    ws_version_put(v);
}

static void a_source_that_was_never_there(void **state)
{
    struct ws_source_info info[4];

    (void)state;
    char url[128];
    snprintf(url, sizeof(url), "%s", shelf_tcp_start(shelf));
    shelf_tcp_stop(shelf);
    store = store_of(url);
    assert_int_equal(ws_store_sources(store, info, 4), 1);
    assert_false(info[0].up);
    assert_string_not_equal(info[0].error, "");
    assert_true(info[0].seconds_since_contact < 0);
}

/* Two shelves with the same versions: blocks that one cannot deliver come from the other. */
static void alternatives_take_over(void **state)
{
    struct ws_version *v;

    (void)state;
    other_shelf = shelf_new();
    shelf_publish(shelf, "actor", 1, "r1", 200 * MIB);
    shelf_publish(other_shelf, "actor", 1, "r1", 200 * MIB);
    store = slow_store_of(shelf, 10000);
    add_source(store, shelf_tcp_start(other_shelf), NULL);
    v = half_pulled(store, "actor", "1", 8 * MIB);
    shelf_tcp_stop(shelf);
    pull(v);
    assert_same_bytes(other_shelf, v);
    assert_true(shelf_tcp_bytes(other_shelf) > 0);
    ws_version_put(v);
}

static void a_source_that_lost_the_version_is_left(void **state)
{
    struct ws_version *v;

    (void)state;
    other_shelf = shelf_new();
    shelf_publish(shelf, "actor", 1, "r1", 40 * MIB);
    shelf_publish(other_shelf, "actor", 1, "r1", 40 * MIB);
    store = store_of(faulty("stale=2"));
    add_source(store, shelf_tcp_start(other_shelf), NULL);
    v = pulled(store, "actor", "1");
    assert_same_bytes(other_shelf, v);
    ws_version_put(v);
}

/* A source whose version 1 is another one is no alternative. */
static void another_digest_is_another_version(void **state)
{
    struct ws_version *v;

    (void)state;
    other_shelf = shelf_new();
    shelf_publish(shelf, "actor", 1, "r1", 8 * MIB);
    shelf_publish(other_shelf, "actor", 1, "r1", 9 * MIB);
    store = store_of(shelf_tcp_start(shelf));
    v = pulled(store, "actor", "1");
    add_source(store, shelf_tcp_start(other_shelf), NULL);
    assert_same_bytes(shelf, v);
    shelf_unlist(shelf, "actor", 1, "r1");
    wait_until(!info_of(v).at_source);
    assert_int_equal(ws_version_state(v), WS_READY);
    assert_int_equal(info_of(v).error_code, EBADMSG); /* and the reason is reported */
    assert_same_bytes(shelf, v);
    shelf_unlist(other_shelf, "actor", 1, "r1");
    wait_until(info_of(v).error_code == 0);
    ws_version_put(v);
}

/* Two digests, neither of which is believed. When one source withdraws its version, the other's is pulled. */
static void sources_that_disagree_are_not_read(void **state)
{
    struct ws_error err = {0};
    struct ws_version *v;

    (void)state;
    other_shelf = shelf_new();
    for (uint64_t n = 1; n <= 2; n++) {
        shelf_publish(shelf, "actor", n, "r1", 8 * MIB);
        shelf_publish(other_shelf, "actor", n, "r1", 9 * MIB);
    }
    store = store_of(shelf_tcp_start(shelf));
    add_source(store, shelf_tcp_start(other_shelf), NULL);
    v = version(store, "actor", "1");
    assert_int_equal(ws_version_pull(v, WS_PRIORITY_SWITCH, LONG_MS, NULL, &err), -EBADMSG);
    assert_non_null(strstr(err.text, shelf_tcp_start(shelf)));
    assert_non_null(strstr(err.text, shelf_tcp_start(other_shelf)));
    shelf_unlist(other_shelf, "actor", 1, "r1");
    wait_until(ws_version_pull(v, WS_PRIORITY_SWITCH, LONG_MS, NULL, &err) == 0);
    assert_same_bytes(shelf, v);
    ws_version_put(v);
    /* The first source withdraws its version: the digest is the other one's now. */
    v = version(store, "actor", "2");
    uint64_t id = ws_version_serial(v);
    shelf_unlist(shelf, "actor", 2, "r1");
    do {
        ws_version_put(v);
        v = version(store, "actor", "2");
        nap();
    } while (ws_version_serial(v) == id);
    pull(v);
    assert_same_bytes(other_shelf, v);
    ws_version_put(v);
}

/* --- ends --- */

static void the_store_ends_in_the_middle_of_a_pull(void **state)
{
    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", 100 * MIB);
    const char *url = faulty("delay=5");
    for (unsigned round = 0; round < 10; round++) {
        struct ws_store *s = store_of(url);
        struct ws_version *v = version(s, "actor", "1");
        ws_version_start(v, WS_PRIORITY_READER);
        if (round % 2)
            wait_until(info_of(v).have_bytes > round * 4 * MIB);
        if (round % 3)
            ws_version_put(v);
        ws_store_free(s);
        if (round % 3 == 0)
            ws_version_put(v); /* a reader that outlives the store */
    }
    wait_until(shelf_holds(shelf) == 0);
}

static void a_cancelled_pull_goes_on_without_its_waiter(void **state)
{
    struct ws_version *v;
    struct ws_error err = {0};
    atomic_bool cancel;

    (void)state;
    atomic_init(&cancel, true);
    shelf_publish(shelf, "actor", 1, "r1", 60 * MIB);
    store = slow_store_of(shelf, 10000);
    v = version(store, "actor", "1");
    assert_int_equal(ws_version_pull(v, WS_PRIORITY_SWITCH, LONG_MS, &cancel, &err), -ECANCELED);
    assert_int_equal(ws_version_pull(v, WS_PRIORITY_SWITCH, 1, NULL, &err), -EAGAIN);
    assert_int_equal(err.code, ETIMEDOUT);
    wait_until(ws_version_state(v) == WS_READY);
    assert_same_bytes(shelf, v);
    ws_version_put(v);
}

struct puller {
    struct ws_store *store;
    unsigned seed;
    pthread_t thread;
};

static void *pull_at_random(void *arg)
{
    struct puller *p = arg;

    for (unsigned i = 0; i < 30; i++) {
        char name[8];
        struct ws_version *v;
        snprintf(name, sizeof(name), "%d", 1 + rand_r(&p->seed) % 4);
        v = find_now(p->store, "actor", name);
        if (!v)
            continue;
        if (rand_r(&p->seed) % 5 == 0)
            (void)!ws_version_drop(v, NULL);
        else if (ws_version_pull(v, WS_PRIORITY_READER, LONG_MS, NULL, NULL) == 0)
            assert_same_bytes(shelf, v);
        ws_version_put(v);
    }
    return NULL;
}

static void many_threads_pull_and_drop(void **state)
{
    struct puller p[6];

    (void)state;
    for (uint64_t n = 1; n <= 4; n++)
        shelf_publish_shards(shelf, "actor", n, "r1", 2, 5 * MIB);
    store = store_of(faulty("seed=5,cut=10,flip=2,reorder"));
    for (unsigned i = 0; i < 6; i++) {
        p[i] = (struct puller){.store = store, .seed = i};
        assert_int_equal(pthread_create(&p[i].thread, NULL, pull_at_random, &p[i]), 0);
    }
    for (unsigned i = 0; i < 6; i++)
        pthread_join(p[i].thread, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORE_TEST(full_pull_over_tcp),
        STORE_TEST(many_shards_and_small_files),
        STORE_TEST(a_second_version_takes_the_memory_of_the_first),
        STORE_TEST(ipc_copies_no_byte),
        STORE_TEST(imported_versions_do_not_pin_the_trainer),
        STORE_TEST(own_memory_copies_from_ipc_too),
        STORE_TEST(imported_memory_is_verified_when_asked),
        STORE_TEST(a_folder_is_a_source),
        STORE_TEST(cut_connections_are_resumed),
        STORE_TEST(blocks_in_any_order),
        STORE_TEST(slow_sources_are_waited_for),
        STORE_TEST(failing_control_calls_are_repeated),
        STORE_TEST(flipped_bytes_are_fetched_again),
        STORE_TEST(bytes_that_are_always_wrong_fail_the_version),
        STORE_TEST(hashes_that_lie_fail_the_version),
        STORE_TEST(a_version_that_goes_while_it_is_pulled),
        STORE_TEST(a_version_that_is_withdrawn),
        STORE_TEST(a_restarted_server_is_resumed),
        STORE_TEST(a_source_that_stays_away_fails_the_pull_and_keeps_what_came),
        STORE_TEST(a_source_that_was_never_there),
        STORE_TEST(alternatives_take_over),
        STORE_TEST(a_source_that_lost_the_version_is_left),
        STORE_TEST(another_digest_is_another_version),
        STORE_TEST(sources_that_disagree_are_not_read),
        STORE_TEST(the_store_ends_in_the_middle_of_a_pull),
        STORE_TEST(a_cancelled_pull_goes_on_without_its_waiter),
        STORE_TEST(many_threads_pull_and_drop),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
