/* The delta of a view that was made here: when one is made, and that versions which go meanwhile end it. Which bytes it has
 * tests/mount/test_derived.py sees; here versions are pulled, since a delta does not know how its versions came. */
#include "fs/pull/derived_delta.h"
#include "fs/store/comparison.h"
#include "fs/store/delta_cache.h"
#include "tests/fs/opened_store.h"

#define FILE_BYTES (9 * MIB) /* three blocks, all of them others in each version */

static struct ws_store_options options; /* each test's own */

static int setup(void **state)
{
    setup_shelf(state);
    for (uint64_t v = 1; v <= 2; v++)
        shelf_publish(shelf, "actor", v, "r", FILE_BYTES);
    options = (struct ws_store_options){.cache_bytes = 1UL << 30,
                                        .deadline_ms = 2000,
                                        .threads = 1,
                                        .serves = true,
                                        .delta_cache_bytes = WS_DELTA_CACHE_GROWS};
    return 0;
}

static void open_store(void)
{
    store = store_with(&options);
    add_source(store, shelf_tcp_start(shelf), NULL);
}

static struct ws_derived_delta *delta_to(struct ws_version *v)
{
    struct ws_derived_delta *d = ws_derived_delta_new(v, ws_version_manifest(v, NULL));

    pthread_mutex_lock(&store->lock);
    ws_derived_delta_list(d);
    pthread_mutex_unlock(&store->lock);
    return d;
}

/* The one from base to the next version that is listed, counted. A mount that asks for it says with which level the next one should be
 * compressed for it. */
static struct ws_delta *get_delta(uint64_t base, unsigned level)
{
    struct ws_model *m = ws_store_find(store, "actor");
    const struct ws_version_id from = ws_version_id_make(base, "r");
    struct ws_delta *d = ws_model_delta(m, base + 1, "r", &from, level);

    ws_model_put(m);
    return d;
}

/* Is there one, and what is known of it. */
static bool ask_for_delta(uint64_t base, unsigned level, struct ws_delta_stats *out)
{
    struct ws_delta *d = get_delta(base, level);
    const bool found = d;

    if (d)
        ws_delta_stats(d, out);
    ws_delta_put(d);
    return found;
}

static bool find_delta(struct ws_delta_stats *out)
{
    return ask_for_delta(1, 0, out);
}

static void drop(struct ws_version *v)
{
    struct ws_error err = {0};

    assert_ok(ws_version_drop(v, &err), &err);
}

static void it_grows_from_when_it_is_listed(void **state)
{
    struct ws_delta_stats stats;
    (void)state;
    open_store();
    struct ws_version *old = pulled(store, "actor", "1"), *v = pulled(store, "actor", "2");
    struct ws_derived_delta *d = ws_derived_delta_new(v, ws_version_manifest(v, NULL));
    assert_non_null(d);
    assert_false(find_delta(&stats));
    ws_derived_delta_give_up(d);
    d = delta_to(v);
    assert_true(find_delta(&stats));
    assert_int_equal(stats.state, WS_DELTA_GROWING);
    ws_derived_delta_make(d);
    assert_true(find_delta(&stats));
    assert_int_equal(stats.state, WS_DELTA_GIVEN_UP); /* it has all blocks: more than half of the version */
    assert_true(stats.n_records > 0);
    d = delta_to(v);
    ws_derived_delta_give_up(d); /* of a version that failed in the end: nobody is to wait for it */
    assert_false(find_delta(&stats));
    ws_version_put(old);
    ws_version_put(v);
}

/* Nothing is compared any more, the memory of what went comes back, and what was begun is not listed. */
static void goes_meanwhile(const char *name)
{
    struct ws_delta_stats stats;
    open_store();
    struct ws_version *old = pulled(store, "actor", "1"), *v = pulled(store, "actor", "2");
    struct ws_derived_delta *d = delta_to(v), *again = delta_to(v);
    struct ws_delta *listed = get_delta(1, 0);
    const uint64_t both = stats_of(store).used_bytes;
    drop(name[0] == '1' ? old : v);
    ws_version_put(old);
    nap();
    assert_int_equal(stats_of(store).used_bytes, both); /* it is held */
    ws_derived_delta_make(d);
    ws_derived_delta_make(again);
    ws_delta_stats(listed, &stats);
    assert_int_equal(stats.state, WS_DELTA_GIVEN_UP);
    assert_int_equal(stats.n_records, 0);
    ws_delta_put(listed);
    assert_false(find_delta(&stats));
    ws_version_put(v);
    wait_until(stats_of(store).used_bytes == both / 2);
}

static void a_base_that_is_dropped_ends_it(void **state)
{
    (void)state;
    goes_meanwhile("1");
}

static void a_target_that_is_dropped_ends_it(void **state)
{
    (void)state;
    goes_meanwhile("2");
}

static void a_store_that_stops_ends_it(void **state)
{
    struct ws_delta_stats stats;
    (void)state;
    open_store();
    struct ws_version *old = pulled(store, "actor", "1"), *v = pulled(store, "actor", "2");
    struct ws_derived_delta *d = delta_to(v);
    struct ws_delta *listed = get_delta(1, 0);
    ws_version_put(old);
    ws_version_put(v);
    ws_store_stop(store);
    ws_derived_delta_make(d); /* as a pull's thread does that is late; teardown finds what it would leave */
    ws_delta_stats(listed, &stats);
    assert_int_equal(stats.state, WS_DELTA_GIVEN_UP);
    assert_int_equal(stats.n_records, 0);
    ws_delta_put(listed);
}

/* Each of these bytes, step apart, is the version's number. */
static void publish_like(uint64_t version, size_t step)
{
    static unsigned char bytes[MIB];
    const struct shelf_file file = {.name = "data.bin", .bytes = bytes, .n_bytes = MIB, .size_bytes = MIB};

    for (size_t i = 0; i < MIB; i += step)
        bytes[i] = (unsigned char)version;
    shelf_publish_files(shelf, "actor", version, "r", &file, 1);
}

static void the_next_one_is_compressed_as_a_mount_asks(void **state)
{
    struct ws_delta_stats stats[3];
    struct ws_version *versions[4];
    (void)state;
    for (uint64_t v = 3; v <= 6; v++)
        publish_like(v, 64);
    open_store();
    for (unsigned i = 0; i < 4; i++) {
        const char *const names[] = {"3", "4", "5", "6"};
        versions[i] = pulled(store, "actor", names[i]);
        struct ws_derived_delta *d = delta_to(versions[i]);
        assert_int_equal(d != NULL, i > 0); /* from the version before: the first has none with its files */
        ws_derived_delta_make(d);
        if (i > 0)
            assert_true(ask_for_delta(i + 2, i == 1 ? 3 : 0, &stats[i - 1]));
    }
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(stats[i].state, WS_DELTA_WHOLE);
    assert_true(stats[1].bytes < stats[0].bytes / 2);
    assert_int_equal(stats[2].bytes, stats[0].bytes); /* nobody asked again */
    for (unsigned i = 0; i < 4; i++)
        ws_version_put(versions[i]);
}

/* One after the other, each with the delta to it; the versions are counted. */
static void pull_and_compare(const char *const *names, size_t n, struct ws_version **out)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = pulled(store, "actor", names[i]);
        ws_derived_delta_make(delta_to(out[i]));
    }
}

static void one_that_has_no_room_costs_none_before_it(void **state)
{
    const char *const names[] = {"3", "4", "5", "6"};
    struct ws_delta_stats stats;
    struct ws_version *versions[4];
    (void)state;
    options.delta_cache_bytes = 100000;
    for (uint64_t v = 3; v <= 6; v++)
        publish_like(v, v == 6 ? 2 : 4096);
    open_store();
    pull_and_compare(names, 4, versions);
    assert_false(ask_for_delta(5, 0, &stats));
    for (uint64_t base = 3; base <= 4; base++) {
        assert_true(ask_for_delta(base, 0, &stats));
        assert_int_equal(stats.state, WS_DELTA_WHOLE);
    }
    for (unsigned i = 0; i < 4; i++)
        ws_version_put(versions[i]);
}

/* Leaves have the version that the first one leads from. */
static void a_version_that_is_made_again_keeps_the_one_that_led_to_it(void **state)
{
    const char *const names[] = {"3", "4", "5"};
    struct ws_delta_stats stats;
    struct ws_version *versions[3];
    (void)state;
    for (uint64_t v = 3; v <= 5; v++)
        publish_like(v, 4096);
    open_store();
    pull_and_compare(names, 3, versions);
    drop(versions[1]);
    drop(versions[2]);
    struct ws_version *again = pulled(store, "actor", "5");
    assert_null(delta_to(again));
    assert_true(ask_for_delta(4, 0, &stats));
    assert_int_equal(stats.state, WS_DELTA_WHOLE);
    ws_version_put(again);
    for (unsigned i = 0; i < 3; i++)
        ws_version_put(versions[i]);
}

/* No delta is made. The caller sets what is in the way. */
static void has_none(struct ws_version *old, const char *target)
{
    struct ws_version *v = pulled(store, "actor", target);
    assert_null(delta_to(v));
    if (old)
        ws_version_put(old);
    ws_version_put(v);
}

static void there_is_none_where_no_mount_can_fetch_it(void **state)
{
    (void)state;
    options.serves = false;
    open_store();
    has_none(pulled(store, "actor", "1"), "2");
}

static void there_is_none_without_a_cache_for_deltas(void **state)
{
    (void)state;
    options.delta_cache_bytes = 0;
    open_store();
    has_none(pulled(store, "actor", "1"), "2");
}

static void there_is_none_without_a_version_before(void **state)
{
    (void)state;
    open_store();
    has_none(NULL, "2");
}

static void there_is_none_from_another_lineage(void **state)
{
    (void)state;
    open_store();
    struct ws_version *old = pulled(store, "actor", "1");
    shelf_publish(shelf, "actor", 2, "s", FILE_BYTES); /* as long a name: its files have the same sizes */
    wait_until(has_version(store, "actor", "1@r"));
    has_none(old, "2");
}

static void there_is_none_from_other_files(void **state)
{
    (void)state;
    open_store();
    struct ws_version *old = pulled(store, "actor", "1");
    shelf_publish_shards(shelf, "actor", 3, "r", 2, FILE_BYTES);
    has_none(old, "3");
}

#define DELTA_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown_store)

int main(void)
{
    const struct CMUnitTest tests[] = {
        DELTA_TEST(it_grows_from_when_it_is_listed),
        DELTA_TEST(a_base_that_is_dropped_ends_it),
        DELTA_TEST(a_target_that_is_dropped_ends_it),
        DELTA_TEST(a_store_that_stops_ends_it),
        DELTA_TEST(the_next_one_is_compressed_as_a_mount_asks),
        DELTA_TEST(one_that_has_no_room_costs_none_before_it),
        DELTA_TEST(a_version_that_is_made_again_keeps_the_one_that_led_to_it),
        DELTA_TEST(there_is_none_where_no_mount_can_fetch_it),
        DELTA_TEST(there_is_none_without_a_cache_for_deltas),
        DELTA_TEST(there_is_none_without_a_version_before),
        DELTA_TEST(there_is_none_from_another_lineage),
        DELTA_TEST(there_is_none_from_other_files),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
