/* Memory that is handed on with what is in it: never where anybody else can see it, however late he looked.
 */
#include "fs/pull/delta_plan.h"
#include "fs/store/cache_budget.h"
#include "fs/store/content.h"
#include "fs/store/handover.h"
#include "fs/store/version.h"
#include "tests/fs/opened_store.h"
#include <unistd.h>

static struct shelf *shelf;
static struct ws_store *store;

static int setup(void **state)
{
    (void)state;
    shelf = shelf_new();
    shelf_publish(shelf, "actor", 1, "r", 3 * MIB);
    store = store_of(shelf_tcp_start(shelf));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ws_store_free(store);
    shelf_free(shelf);
    return 0;
}

/* A version without memory of its own, with the files of another. */
static struct ws_version *heir_of(struct ws_version *v)
{
    struct ws_error err = {0};
    struct ws_manifest *m = NULL;
    assert_ok(ws_manifest_copy(ws_version_manifest(v, NULL), &m), &err);
    pthread_mutex_lock(&store->lock);
    struct ws_version *heir = ws_version_new(v->model, v->number + 1, v->run);
    assert_non_null(heir);
    heir->pinned = true;
    assert_ok(ws_content_describe(heir, m, &err), &err);
    ws_version_get(heir);
    pthread_mutex_unlock(&store->lock);
    return heir;
}

/* It goes, and its memory is the heir's or nobody's. The reference is this function's. */
static bool bequeath(struct ws_version *v, struct ws_version *heir, size_t n_files)
{
    atomic_bool stop = false;
    _Atomic(uint64_t) **here = NULL;
    struct ws_changes changes;
    ws_changes_init(&changes);
    pthread_mutex_lock(&store->lock);
    struct ws_bequest *b = ws_bequest_new(v, heir, &changes);
    pthread_mutex_unlock(&store->lock);
    assert_non_null(b);
    ws_changes_tell(&changes, store);
    ws_version_put(v);
    const bool handed = ws_bequest_take(b, &stop, &here);
    for (size_t i = 0; handed && i < n_files; i++)
        free(here[i]);
    free(here);
    return handed;
}

static void what_nobody_else_had_is_handed_on(void **state)
{
    struct ws_version *v = pulled(store, "actor", "1"), *heir = heir_of(v);
    const struct ws_manifest *m = ws_version_manifest(heir, NULL);
    struct ws_region *before = ws_version_region(v, 0);
    uint64_t size;
    (void)state;
    const unsigned char *want = shelf_bytes(shelf, "actor", 1, "r", m->files[0].name, &size);
    assert_true(bequeath(v, heir, m->n_files));
    assert_ptr_equal(ws_content_region(heir, 0), before);
    assert_memory_equal(ws_region_data(before), want, size);
    ws_version_put(heir);
}

/* Its pages may be in a pipe or a socket's queue of whoever opened it, after he has closed it. */
static void what_was_opened_once_is_not(void **state)
{
    struct ws_version *v = pulled(store, "actor", "1"), *heir = heir_of(v);
    const size_t n = ws_version_manifest(heir, NULL)->n_files;
    int fd;
    (void)state;
    for (size_t i = 0; i < n; i++)
        assert_false(ws_region_was_shown(ws_version_region(v, i)));
    assert_int_equal(ws_region_open(ws_version_region(v, n - 1), WS_REGION_READ, &fd, NULL), 0);
    close(fd);
    assert_false(bequeath(v, heir, n));
    assert_null(ws_content_region(heir, 0));
    ws_version_put(heir);
}

static void what_is_open_is_not(void **state)
{
    struct ws_version *v = pulled(store, "actor", "1"), *heir = heir_of(v);
    const size_t n = ws_version_manifest(heir, NULL)->n_files;
    int fd;
    (void)state;
    assert_int_equal(ws_region_open(ws_version_region(v, n - 1), WS_REGION_COPY, &fd, NULL), 0);
    assert_false(bequeath(v, heir, n));
    assert_null(ws_content_region(heir, 0));
    close(fd);
    ws_version_put(heir);
}

/* Nobody wants the memory any more. */
static void an_heir_that_was_dropped_gets_nothing(void **state)
{
    struct ws_version *v = pulled(store, "actor", "1"), *heir = heir_of(v);
    const size_t n = ws_version_manifest(heir, NULL)->n_files;
    struct ws_changes changes;
    (void)state;
    ws_changes_init(&changes);
    pthread_mutex_lock(&store->lock);
    ws_version_retire(heir, &changes);
    pthread_mutex_unlock(&store->lock);
    ws_changes_tell(&changes, store);
    assert_false(bequeath(v, heir, n));
    assert_null(ws_content_region(heir, 0));
    ws_version_put(heir);
}

struct room {
    uint64_t used, waiting, own;
};

static struct room room_of(const struct ws_version *v)
{
    pthread_mutex_lock(&store->lock);
    const struct room r = {store->used_bytes, store->waiting_bytes, v ? v->own_bytes : 0};
    pthread_mutex_unlock(&store->lock);
    return r;
}

static void assert_room(struct room r, uint64_t used, uint64_t waiting, uint64_t own)
{
    assert_int_equal(r.used, used);
    assert_int_equal(r.waiting, waiting);
    assert_int_equal(r.own, own);
}

/* What a version took of the cache goes with its memory, and comes back once. */
static void room_goes_with_the_memory(void **state)
{
    struct ws_version *v = pulled(store, "actor", "1"), *heir = heir_of(v);
    const uint64_t all = room_of(v).own;
    struct ws_changes changes;
    (void)state;
    assert_room(room_of(v), all, 0, all);
    assert_true(bequeath(v, heir, ws_version_manifest(heir, NULL)->n_files));
    assert_room(room_of(heir), all, 0, all);
    ws_changes_init(&changes);
    pthread_mutex_lock(&store->lock);
    ws_version_retire(heir, &changes);
    pthread_mutex_unlock(&store->lock);
    ws_changes_tell(&changes, store);
    assert_room(room_of(heir), all, all, all);
    ws_version_put(heir);
    wait_until(room_of(NULL).used == 0);
    assert_room(room_of(NULL), 0, 0, 0);
}

/* The plan of a version that comes by a delta alone, whose base nothing protects. True: in place. */
static bool is_made_in_place(struct ws_version *base, struct ws_version *v)
{
    static struct ws_links k;
    struct ws_delta_plan plan = {0};
    struct ws_route route;
    char why[WS_HOW_CHARS];
    struct ws_delta_link l = {.base = ws_version_mark(base), .target = ws_version_mark(v)};
    memcpy(l.base_digest, base->digest, sizeof(l.base_digest));
    memcpy(l.target_digest, v->digest, sizeof(l.target_digest));
    k = (struct ws_links){.offers[0] = {.link = l, .figures.state = WS_DELTA_WHOLE}, .n = 1};
    pthread_mutex_lock(&store->lock);
    v->sources = v->partial = 1;
    store->options.keep = 0;
    ws_route_init(&route, v);
    pthread_mutex_unlock(&store->lock);
    ws_version_put(base);
    assert_true(ws_delta_plan_make(&plan, &route, &k, why));
    const bool in_place = !plan.copied;
    ws_delta_plan_release(&plan);
    ws_route_release(&route);
    return in_place;
}

static void what_has_no_memory_is_made_in_place(void **state)
{
    struct ws_version *v = pulled(store, "actor", "1"), *heir = heir_of(v);
    (void)state;
    assert_true(is_made_in_place(v, heir));
    ws_version_put(heir);
}

/* As after a pull that failed before any byte came: that memory would be lost. */
static void what_has_memory_of_its_own_is_not(void **state)
{
    struct ws_version *v = pulled(store, "actor", "1"), *heir = heir_of(v);
    atomic_bool stop = false;
    struct ws_error err;
    (void)state;
    assert_ok(ws_room_take(heir, MIB, &stop, &err), &err);
    assert_false(is_made_in_place(v, heir));
    assert_int_equal(heir->own_bytes, MIB);
    ws_version_put(heir);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(what_nobody_else_had_is_handed_on),
        TEST(what_was_opened_once_is_not),
        TEST(what_is_open_is_not),
        TEST(an_heir_that_was_dropped_gets_nothing),
        TEST(room_goes_with_the_memory),
        TEST(what_has_no_memory_is_made_in_place),
        TEST(what_has_memory_of_its_own_is_not),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
