/* Memory handed over to a successor with its bytes: never if another process has ever had any of it. */
#include "fs/pull/delta_plan.h"
#include "fs/store/cache_budget.h"
#include "fs/store/content.h"
#include "fs/store/handover.h"
#include "fs/store/version.h"
#include "tests/fs/opened_store.h"
#include <unistd.h>

static int setup(void **state)
{
    setup_shelf(state);
    shelf_publish(shelf, "actor", 1, "r", 3 * MIB);
    store = store_of(shelf_tcp_start(shelf));
    return 0;
}

/* A version without memory of its own, with the files of another. */
static struct ws_version *successor_of(struct ws_version *v)
{
    struct ws_error err = {0};
    struct ws_manifest *m = NULL;
    assert_ok(ws_manifest_copy(ws_version_manifest(v, NULL), &m), &err);
    pthread_mutex_lock(&store->lock);
    struct ws_version *successor = ws_version_new(v->model, v->number + 1, v->lineage);
    assert_non_null(successor);
    successor->pinned = true;
    assert_ok(ws_content_set_manifest(successor, m, &err), &err);
    ws_version_get(successor);
    pthread_mutex_unlock(&store->lock);
    return successor;
}

/* The version is released, and its memory is the successor's or freed. This function owns the reference. */
static bool hand_over(struct ws_version *v, struct ws_version *successor, size_t n_files)
{
    atomic_bool stop = false;
    _Atomic(uint64_t) **here = NULL;
    struct ws_store_events events;
    ws_store_events_init(&events);
    pthread_mutex_lock(&store->lock);
    struct ws_handover *h = ws_handover_new(v, successor, false, &events);
    pthread_mutex_unlock(&store->lock);
    assert_non_null(h);
    ws_store_events_notify(&events, store);
    ws_version_put(v);
    const bool handed = ws_handover_wait(h, &stop, &here);
    for (size_t i = 0; handed && i < n_files; i++)
        free(here[i]);
    free(here);
    return handed;
}

static void memory_that_no_process_had_is_handed_over(void **state)
{
    struct ws_version *v = pulled(store, "actor", "1"), *successor = successor_of(v);
    const struct ws_manifest *m = ws_version_manifest(successor, NULL);
    struct ws_region *before = ws_version_region(v, 0);
    uint64_t size;
    (void)state;
    const unsigned char *want = shelf_bytes(shelf, "actor", 1, "r", m->files[0].name, &size);
    assert_true(hand_over(v, successor, m->n_files));
    assert_ptr_equal(ws_content_region(successor, 0), before);
    assert_memory_equal(ws_region_data(before), want, size);
    ws_version_put(successor);
}

/* After the opener has closed it, its pages may still be in a pipe or in the send queue of a socket. */
static void memory_that_was_opened_once_is_not(void **state)
{
    struct ws_version *v = pulled(store, "actor", "1"), *successor = successor_of(v);
    const size_t n = ws_version_manifest(successor, NULL)->n_files;
    int fd;
    (void)state;
    for (size_t i = 0; i < n; i++)
        assert_false(ws_region_was_shown(ws_version_region(v, i)));
    assert_int_equal(ws_region_open(ws_version_region(v, n - 1), WS_REGION_READ, &fd, NULL), 0);
    close(fd);
    assert_false(hand_over(v, successor, n));
    assert_null(ws_content_region(successor, 0));
    ws_version_put(successor);
}

static void memory_that_is_open_is_not(void **state)
{
    struct ws_version *v = pulled(store, "actor", "1"), *successor = successor_of(v);
    const size_t n = ws_version_manifest(successor, NULL)->n_files;
    int fd;
    (void)state;
    assert_int_equal(ws_region_open(ws_version_region(v, n - 1), WS_REGION_COPY, &fd, NULL), 0);
    assert_false(hand_over(v, successor, n));
    assert_null(ws_content_region(successor, 0));
    close(fd);
    ws_version_put(successor);
}

/* The memory is no longer used. */
static void a_dropped_successor_gets_nothing(void **state)
{
    struct ws_version *v = pulled(store, "actor", "1"), *successor = successor_of(v);
    const size_t n = ws_version_manifest(successor, NULL)->n_files;
    struct ws_store_events events;
    (void)state;
    ws_store_events_init(&events);
    pthread_mutex_lock(&store->lock);
    ws_version_retire(successor, &events);
    pthread_mutex_unlock(&store->lock);
    ws_store_events_notify(&events, store);
    assert_false(hand_over(v, successor, n));
    assert_null(ws_content_region(successor, 0));
    ws_version_put(successor);
}

struct budget {
    uint64_t used, waiting, own;
};

static struct budget budget_of(const struct ws_version *v)
{
    pthread_mutex_lock(&store->lock);
    const struct budget r = {store->used_bytes, store->waiting_bytes, v ? v->own_bytes : 0};
    pthread_mutex_unlock(&store->lock);
    return r;
}

static void assert_budget(struct budget r, uint64_t used, uint64_t waiting, uint64_t own)
{
    assert_int_equal(r.used, used);
    assert_int_equal(r.waiting, waiting);
    assert_int_equal(r.own, own);
}

/* A version's share of the cache is released with its memory, exactly once. */
static void the_budget_goes_with_the_memory(void **state)
{
    struct ws_version *v = pulled(store, "actor", "1"), *successor = successor_of(v);
    const uint64_t all = budget_of(v).own;
    struct ws_store_events events;
    (void)state;
    assert_budget(budget_of(v), all, 0, all);
    assert_true(hand_over(v, successor, ws_version_manifest(successor, NULL)->n_files));
    assert_budget(budget_of(successor), all, 0, all);
    ws_store_events_init(&events);
    pthread_mutex_lock(&store->lock);
    ws_version_retire(successor, &events);
    pthread_mutex_unlock(&store->lock);
    ws_store_events_notify(&events, store);
    assert_budget(budget_of(successor), all, all, all);
    ws_version_put(successor);
    wait_until(budget_of(NULL).used == 0);
    assert_budget(budget_of(NULL), 0, 0, 0);
}

/* The plan of a version that arrives only as a delta, with an unprotected base. Returns true for in place. */
static bool is_made_in_place(struct ws_version *base, struct ws_version *v)
{
    static struct ws_delta_chain chain;
    struct ws_delta_plan plan = {0};
    struct ws_source_select route;
    char why[WS_HOW_CHARS];
    struct ws_delta_link l = {.base = ws_version_id(base), .target = ws_version_id(v)};
    memcpy(l.base_digest, base->digest, sizeof(l.base_digest));
    memcpy(l.target_digest, v->digest, sizeof(l.target_digest));
    chain = (struct ws_delta_chain){.entries[0] = {.link = l, .stats.state = WS_DELTA_WHOLE}, .n = 1};
    pthread_mutex_lock(&store->lock);
    v->sources = v->partial = 1;
    store->options.keep = 0;
    ws_source_select_init(&route, v);
    pthread_mutex_unlock(&store->lock);
    ws_version_put(base);
    assert_int_equal(ws_delta_plan_make(&plan, &route, &chain, why, NULL), 1);
    const bool in_place = !plan.copied;
    ws_delta_plan_release(&plan);
    ws_source_select_release(&route);
    return in_place;
}

static void a_version_without_memory_is_made_in_place(void **state)
{
    struct ws_version *v = pulled(store, "actor", "1"), *successor = successor_of(v);
    (void)state;
    assert_true(is_made_in_place(v, successor));
    ws_version_put(successor);
}

/* As after a pull that failed before any byte arrived: that memory would be lost. */
static void a_version_with_memory_of_its_own_is_not(void **state)
{
    struct ws_version *v = pulled(store, "actor", "1"), *successor = successor_of(v);
    atomic_bool stop = false;
    struct ws_error err;
    (void)state;
    assert_ok(ws_cache_budget_claim(successor, MIB, &stop, &err), &err);
    assert_false(is_made_in_place(v, successor));
    assert_int_equal(successor->own_bytes, MIB);
    ws_version_put(successor);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown_store)
    const struct CMUnitTest tests[] = {
        TEST(memory_that_no_process_had_is_handed_over),
        TEST(memory_that_was_opened_once_is_not),
        TEST(memory_that_is_open_is_not),
        TEST(a_dropped_successor_gets_nothing),
        TEST(the_budget_goes_with_the_memory),
        TEST(a_version_without_memory_is_made_in_place),
        TEST(a_version_with_memory_of_its_own_is_not),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
