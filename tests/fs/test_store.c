/* The store's objects: names and lineages, links, eviction, pins, drops, what listeners are told, headers,
 * verification, sources added and removed, reports.
 *
 * timeout: 250
 * beside others */
#include "fs/store/cache_budget.h"
#include "fs/store/content.h"
#include "tests/fs/opened_store.h"
#include "transports/simd/copy.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

static struct ws_store *store_of_cache(uint64_t bytes, unsigned keep)
{
    struct ws_store_options options = {.cache_bytes = bytes, .keep = keep, .deadline_ms = 2000, .threads = 2};
    struct ws_store *s = store_with(&options);

    add_source(s, shelf_tcp_start(shelf), NULL);
    return s;
}

static bool is_here(struct ws_store *s, const char *name)
{
    struct ws_version *v = find_now(s, "actor", name);
    bool here = v && ws_version_state(v) == WS_READY;

    if (v)
        ws_version_put(v);
    return here;
}

static void put_pulled(struct ws_store *s, const char *name)
{
    ws_version_put(pulled(s, "actor", name));
}

static uint64_t latest(struct ws_store *s)
{
    struct ws_model *m = ws_store_find(s, "actor");
    struct ws_version *v = m ? ws_model_latest(m) : NULL;
    uint64_t number = v ? ws_version_number(v) : 0;

    if (v)
        ws_version_put(v);
    if (m)
        ws_model_put(m);
    return number;
}

/* --- names --- */

static void versions_are_found_by_their_names(void **state)
{
    static const char *const wrong[] = {"3",
                                        "01",
                                        "+1",
                                        " 1",
                                        "1 ",
                                        "1@r1",
                                        "1@",
                                        "@r1",
                                        "0x1",
                                        "-1",
                                        "",
                                        "abc",
                                        "18446744073709551617",
                                        "current",
                                        "previous"};
    struct ws_model *m;
    struct ws_version *v;
    struct ws_error err = {0};
    char name[WS_MAX_NAME + 1];

    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", MIB);
    shelf_publish(shelf, "actor", 2, "r1", MIB);
    store = store_of(shelf_tcp_start(shelf));
    m = ws_store_find(store, "actor");
    assert_non_null(m);
    assert_string_equal(ws_model_name(m), "actor");
    assert_null(ws_store_find(store, "critic"));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_null(ws_version_find(m, wrong[i], &err));
        assert_int_equal(err.code, ENOENT);
    }
    v = ws_version_find(m, "2", &err);
    ws_version_name(v, name);
    assert_string_equal(name, "2");
    assert_string_equal(ws_version_lineage(v), "r1");
    assert_ptr_equal(ws_version_model(v), m);
    ws_version_put(v);
    v = ws_version_find(m, "latest", &err);
    assert_int_equal(ws_version_number(v), 2);
    assert_ptr_equal(ws_version_by_serial(store, ws_version_serial(v)), v);
    ws_version_put(v);
    ws_version_put(v);
    assert_null(ws_version_by_serial(store, 1UL << 27));
    ws_model_put(m);
}

static void count_models(void *arg, struct ws_model *m)
{
    strcat(arg, ws_model_name(m));
}

static void count_versions(void *arg, struct ws_version *v)
{
    size_t n = strlen(arg);

    snprintf((char *)arg + n, 64 - n, "%lu ", ws_version_number(v));
}

static void models_and_versions_are_visited_in_order(void **state)
{
    struct ws_model *m;
    char models[64] = "", versions[64] = "";

    (void)state;
    shelf_publish(shelf, "b", 5, "r1", MIB);
    shelf_publish(shelf, "c", 1, "r1", MIB);
    shelf_publish(shelf, "a", 10, "r1", MIB);
    shelf_publish(shelf, "a", 20, "r1", MIB);
    shelf_publish(shelf, "a", 100, "r1", MIB);
    store = store_of(shelf_tcp_start(shelf));
    ws_store_each(store, count_models, models);
    assert_string_equal(models, "abc");
    m = ws_store_find(store, "a");
    ws_model_each(m, count_versions, versions);
    assert_string_equal(versions, "10 20 100 ");
    ws_model_put(m);
}

static void a_version_unknown_to_the_source_vanishes_unless_held(void **state)
{

    (void)state;
    for (uint64_t n = 1; n <= 3; n++)
        shelf_publish(shelf, "actor", n, "r1", MIB);
    store = store_of(shelf_tcp_start(shelf));
    put_pulled(store, "2");
    shelf_unlist(shelf, "actor", 1, "r1");
    shelf_unlist(shelf, "actor", 2, "r1");
    wait_until(!has_version(store, "actor", "1"));
    assert_true(is_here(store, "2"));
    assert_int_equal(latest(store), 3);
    shelf_unlist(shelf, "actor", 3, "r1");
    wait_until(latest(store) == 2);
}

static void versions_stay_known_while_the_source_is_down(void **state)
{
    struct ws_source_info info;

    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", MIB);
    store = store_of(shelf_tcp_start(shelf));
    shelf_tcp_stop(shelf);
    wait_until(ws_store_sources(store, &info, 1) == 1 && !info.up);
    assert_true(has_version(store, "actor", "1"));
    shelf_tcp_start(shelf);
    wait_until(ws_store_sources(store, &info, 1) == 1 && info.up);
    assert_true(info.seconds_since_contact >= 0);
    assert_string_equal(info.transport, "tcp");
}

/* --- lineages --- */

struct heard {
    pthread_mutex_t lock;
    char text[4096];
    bool from_nobody; /* a version became known while no source was up */
};

static void hear(void *arg, enum ws_store_event event, struct ws_model *m, struct ws_version *v)
{
    static const char *const names[] = {
        [WS_MODEL_ADDED] = "model+",      [WS_MODEL_REMOVED] = "model-",    [WS_MODEL_LISTED] = "listed",
        [WS_MODEL_DESIRED] = "desired",   [WS_MODEL_OFFERS] = "offers",     [WS_VERSION_KNOWN] = "known",
        [WS_VERSION_STATE] = "state",     [WS_VERSION_RENAMED] = "renamed", [WS_VERSION_GONE] = "gone",
        [WS_VERSION_RETIRED] = "deleted",
    };
    struct heard *h = arg;
    struct ws_source_info source = {0};
    char name[WS_MAX_NAME + 1] = "";
    size_t n;

    if (v)
        ws_version_name(v, name);
    (void)ws_store_sources(store, &source, 1);
    pthread_mutex_lock(&h->lock);
    h->from_nobody |= event == WS_VERSION_KNOWN && !source.up;
    n = strlen(h->text);
    snprintf(h->text + n, sizeof(h->text) - n, "%s %s%s%s;", names[event], v ? name : ws_model_name(m),
             event == WS_VERSION_STATE ? "=" : "",
             event == WS_VERSION_STATE ? ws_version_state_name(ws_version_state(v)) : "");
    pthread_mutex_unlock(&h->lock);
}

static bool has_heard(struct heard *h, const char *what)
{
    bool yes;

    pthread_mutex_lock(&h->lock);
    yes = strstr(h->text, what) != NULL;
    pthread_mutex_unlock(&h->lock);
    return yes;
}

static void a_new_lineage_supersedes_the_old(void **state)
{
    struct ws_store_options options = {.cache_bytes = 1UL << 30};
    struct heard heard = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct ws_version *old, *new;
    char name[WS_MAX_NAME + 1];

    (void)state;
    store = store_with(&options);
    ws_store_listen(store, hear, &heard);
    for (uint64_t n = 45; n <= 47; n++)
        shelf_publish(shelf, "actor", n, "r1", MIB);
    add_source(store, shelf_tcp_start(shelf), NULL);
    pthread_mutex_lock(&heard.lock);
    assert_false(heard.from_nobody);
    pthread_mutex_unlock(&heard.lock);
    old = pulled(store, "actor", "46");
    shelf_publish(shelf, "actor", 46, "r2", 2 * MIB);
    wait_until(has_heard(&heard, "renamed 46@r1"));
    wait_until(has_heard(&heard, "gone 45")); /* events are delivered one after the other */
    wait_until(has_heard(&heard, "gone 47"));
    ws_version_name(old, name);
    assert_string_equal(name, "46@r1");
    assert_int_equal(latest(store), 46);
    assert_false(has_version(store, "actor", "47"));
    new = pulled(store, "actor", "46");
    assert_ptr_not_equal(old, new);
    assert_string_equal(ws_version_lineage(new), "r2");
    assert_same_bytes(shelf, new);
    assert_same_bytes(shelf, old);
    assert_ptr_equal(find_now(store, "actor", "46@r1"), old);
    ws_version_put(old);
    assert_ok(ws_version_drop(old, NULL), &(struct ws_error){0});
    assert_false(has_version(store, "actor", "46@r1")); /* superseded: it does not come back */
    ws_version_put(old);
    ws_version_put(new);
}

static void listeners_hear_a_pull_and_a_drop(void **state)
{
    struct ws_store_options options = {.cache_bytes = 1UL << 30};
    struct heard heard = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct ws_version *v;
    uint64_t id;

    (void)state;
    store = store_with(&options);
    shelf_publish(shelf, "actor", 1, "r1", MIB);
    ws_store_listen(store, hear, &heard);
    add_source(store, shelf_tcp_start(shelf), NULL);
    v = pulled(store, "actor", "1");
    wait_until(has_heard(&heard, "state 1=ready"));
    wait_until(has_heard(&heard, "model+ actor;known 1;") && has_heard(&heard, "listed actor;"));
    wait_until(has_heard(&heard, "state 1="));
    id = ws_version_serial(v);
    assert_ok(ws_version_drop(v, NULL), &(struct ws_error){0});
    wait_until(has_heard(&heard, "gone 1;known 1;")); /* still at the source: back as another object */
    assert_int_equal(ws_version_state(v), WS_DROPPING);
    assert_false(ws_version_is_named(v));
    assert_true(ws_version_is_complete(v)); /* its bytes are here, with or without a name */
    ws_version_put(v);
    v = version(store, "actor", "1");
    assert_int_not_equal(ws_version_serial(v), id);
    assert_int_equal(ws_version_state(v), WS_KNOWN);
    ws_version_put(v);
}

/* --- current and previous --- */

static void current_and_previous_move_together(void **state)
{
    struct ws_model *m;
    struct ws_version *one, *two, *v;
    struct ws_error err = {0};

    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", MIB);
    shelf_publish(shelf, "actor", 2, "r1", MIB);
    store = store_of(shelf_tcp_start(shelf));
    m = ws_store_find(store, "actor");
    assert_null(ws_model_current(m));
    one = pulled(store, "actor", "1");
    two = pulled(store, "actor", "2");
    ws_model_set_current(m, one);
    assert_int_equal(ws_version_state(one), WS_ACTIVE);
    assert_null(ws_model_previous(m));
    ws_model_set_current(m, two);
    ws_model_set_current(m, two);
    assert_int_equal(ws_version_state(one), WS_READY);
    v = ws_model_previous(m);
    assert_ptr_equal(v, one);
    ws_version_put(v);
    assert_int_equal(ws_version_drop(two, &err), -EBUSY);
    assert_ok(ws_version_drop(one, &err), &err);
    assert_null(ws_model_previous(m));
    ws_version_put(one);
    ws_version_put(two);
    ws_model_put(m);
}

/* --- the cache --- */

/* A cache of two versions and a half, keep=1: the oldest is evicted. */
static void the_oldest_is_evicted(void **state)
{

    (void)state;
    for (uint64_t n = 1; n <= 4; n++)
        shelf_publish(shelf, "actor", n, "r1", 20 * MIB);
    store = store_of_cache(50 * MIB, 1);
    put_pulled(store, "1");
    put_pulled(store, "2");
    assert_true(is_here(store, "1"));
    put_pulled(store, "3");
    assert_false(is_here(store, "1"));
    assert_true(has_version(store, "actor", "1"));
    assert_true(is_here(store, "2"));
    put_pulled(store, "4");
    assert_false(is_here(store, "2"));
    assert_true(stats_of(store).used_bytes <= 50 * MIB);
}

static void pinned_current_and_open_versions_stay(void **state)
{
    struct ws_model *m;
    struct ws_version *v, *open;
    struct ws_error err = {0};

    (void)state;
    for (uint64_t n = 1; n <= 5; n++)
        shelf_publish(shelf, "actor", n, "r1", 10 * MIB);
    store = store_of_cache(45 * MIB, 1);
    m = ws_store_find(store, "actor");
    v = pulled(store, "actor", "1");
    assert_ok(ws_version_pin(v, true, &err), &err);
    assert_int_equal(ws_version_drop(v, &err), -EBUSY);
    assert_true(info_of(v).pinned);
    ws_version_put(v);
    v = pulled(store, "actor", "2");
    ws_model_set_current(m, v);
    ws_version_put(v);
    open = pulled(store, "actor", "3");
    ws_version_retain(open, 1);
    put_pulled(store, "4");
    v = version(store, "actor", "5");
    assert_int_equal(ws_version_pull(v, WS_PRIORITY_SWITCH, LONG_MS, NULL, &err), 0);
    assert_false(is_here(store, "4")); /* the only one that could be evicted */
    assert_ok(ws_version_pin(v, true, &err), &err);
    ws_version_put(v);
    v = version(store, "actor", "4");
    assert_int_equal(ws_version_pull(v, WS_PRIORITY_SWITCH, LONG_MS, NULL, &err), -ENOSPC);
    assert_non_null(strstr(err.text, "echo \"drop 3\" > /wsync/actor/ctl"));
    assert_non_null(strstr(err.text, "pinned"));
    assert_non_null(strstr(err.text, "served by the engines"));
    ws_version_put(v);
    ws_version_retain(open, -1);
    ws_version_put(open);
    wait_until((v = pulled(store, "actor", "4")) != NULL);
    assert_false(is_here(store, "3"));
    ws_version_put(v);
    ws_model_put(m);
}

static void more_than_the_cache_is_refused(void **state)
{
    struct ws_version *v;

    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", 20 * MIB);
    store = store_of_cache(8 * MIB, 1);
    v = version(store, "actor", "1");
    pull_fails(v, WS_PRIORITY_SWITCH, -ENOSPC, "cache=");
    assert_int_equal(ws_version_state(v), WS_FAILED);
    assert_int_equal(stats_of(store).used_bytes, 0);
    ws_version_put(v);
}

/* A reader that still maps a dropped version keeps its bytes, and they count as used. */
static void memory_that_is_mapped_is_not_used_again(void **state)
{
    struct ws_version *v;
    struct ws_error err = {0};
    unsigned char *map;
    uint64_t size;
    const unsigned char *want;
    int fd;

    (void)state;
    for (uint64_t n = 1; n <= 2; n++)
        shelf_publish(shelf, "actor", n, "r1", 20 * MIB);
    store = store_of_cache(30 * MIB, 1);
    v = pulled(store, "actor", "1");
    size = ws_version_manifest(v, &err)->files[1].size_bytes;
    assert_ok(ws_region_open(ws_version_region(v, 1), WS_REGION_READ, &fd, &err), &err);
    map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    close(fd);
    assert_ok(ws_version_drop(v, &err), &err);
    ws_version_put(v);
    wait_until(stats_of(store).waiting_bytes > 20 * MIB);
    v = version(store, "actor", "2");
    assert_int_equal(ws_version_pull(v, WS_PRIORITY_SWITCH, LONG_MS, NULL, &err), -ENOSPC);
    want = shelf_bytes(shelf, "actor", 1, "r1", "model.safetensors", &size);
    assert_memory_equal(map, want, size);
    munmap(map, size);
    wait_until(ws_version_pull(v, WS_PRIORITY_SWITCH, LONG_MS, NULL, &err) == 0);
    assert_same_bytes(shelf, v);
    ws_version_put(v);
}

static atomic_uint n_reclaimed;

static void on_reclaim(void *arg, struct ws_version *v)
{
    /* The hook may use the version, and take references that it releases. */
    if (ws_version_has_manifest(ws_version_get(v)))
        atomic_fetch_add((atomic_uint *)arg, 1);
    ws_version_put(v);
}

static void memory_returns_after_the_last_use(void **state)
{
    struct ws_version *v;
    struct ws_error err = {0};

    (void)state;
    atomic_store(&n_reclaimed, 0);
    shelf_publish(shelf, "actor", 1, "r1", 5 * MIB);
    store = store_of(shelf_tcp_start(shelf));
    ws_store_set_reclaim(store, on_reclaim, &n_reclaimed);
    v = pulled(store, "actor", "1");
    ws_version_use(v, 3); /* lookups */
    assert_ok(ws_version_drop(v, &err), &err);
    ws_version_put(v);
    assert_same_bytes(shelf, v);
    assert_ptr_equal(ws_version_by_serial(store, ws_version_serial(v)), v);
    ws_version_put(v);
    assert_int_equal(atomic_load(&n_reclaimed), 0);
    assert_true(stats_of(store).waiting_bytes > 5 * MIB);
    ws_version_use(v, -3);
    wait_until(stats_of(store).used_bytes == 0);
    assert_int_equal(atomic_load(&n_reclaimed), 1);
}

static void dropping_while_it_is_pulled_ends_the_pull(void **state)
{
    struct ws_version *v;
    struct ws_error err = {0};

    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", 200 * MIB);
    store = slow_store_of(shelf, 10000);
    v = half_pulled(store, "actor", "1", 0);
    assert_ok(ws_version_drop(v, &err), &err);
    assert_int_equal(ws_version_pull(v, WS_PRIORITY_READER, LONG_MS, NULL, &err) < 0, 1);
    ws_version_put(v);
    wait_until(stats_of(store).used_bytes == 0);
    put_pulled(store, "1");
}

/* --- contents --- */

static void headers_are_here_when_their_blocks_are(void **state)
{
    struct ws_version *v;
    struct ws_error err = {0};
    const struct ws_safetensors *st;

    (void)state;
    shelf_publish_shards(shelf, "actor", 1, "r1", 2, 20 * MIB);
    store = store_of(shelf_tcp_start(shelf));
    v = version(store, "actor", "1");
    assert_false(ws_version_has_manifest(v));
    assert_null(ws_version_header(v, 1, &err));
    assert_int_equal(err.code, EAGAIN);
    assert_int_equal(ws_version_manifest(v, &err)->n_files, 3);
    assert_null(ws_version_header(v, 1, &err));
    assert_int_equal(err.code, EAGAIN);
    assert_int_equal(ws_version_state(v), WS_KNOWN);
    pull(v);
    st = ws_version_header(v, 1, &err);
    assert_non_null(st);
    assert_ptr_equal(ws_version_header(v, 1, &err), st);
    assert_non_null(ws_safetensors_find(st, "weight.1"));
    assert_null(ws_version_header(v, 0, &err)); /* a sidecar */
    assert_null(ws_version_header(v, 99, &err));
    ws_version_put(v);
}

/* As from an agent that now has other bytes under the same number. */
static void a_manifest_that_differs_from_the_listing_is_refused(void **state)
{
    struct ws_error err = {0};
    struct ws_manifest_file *f;
    struct ws_manifest *m;
    (void)state;
    shelf_publish(shelf, "actor", 1, "r", MIB);
    store = store_of_cache(64 * MIB, 2);
    struct ws_version *v = version(store, "actor", "1");
    assert_int_equal(ws_manifest_new(&m, "actor", 1, "r", &err), 0);
    assert_int_equal(ws_manifest_add(m, "config.json", 2, 0, &f, &err), 0);
    ws_manifest_seal(m);
    pthread_mutex_lock(&store->lock);
    const int rc = ws_content_set_manifest(v, m, &err);
    pthread_mutex_unlock(&store->lock);
    assert_int_equal(rc, -EBADMSG);
    assert_non_null(strstr(err.text, "its source lists it with"));
    pull(v);
    assert_same_bytes(shelf, v);
    ws_version_put(v);
}

static void verify_finds_a_changed_byte(void **state)
{
    const atomic_bool over = true;
    const atomic_bool *const no_stop[2] = {NULL}, *const stop[2] = {NULL, &over};
    struct ws_version *v;
    struct ws_error err = {0};

    (void)state;
    shelf_publish_shards(shelf, "actor", 1, "r1", 2, 10 * MIB);
    store = store_of(shelf_tcp_start(shelf));
    v = version(store, "actor", "1");
    assert_int_equal(ws_version_verify(v, no_stop, &err), -ENOENT);
    pull(v);
    assert_ok(ws_version_verify(v, no_stop, &err), &err);
    assert_int_equal(ws_version_verify(v, stop, &err), -ECANCELED);
    ws_region_data(ws_version_region(v, 2))[WS_BLOCK_BYTES] ^= 1;
    assert_int_equal(ws_version_verify(v, no_stop, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "block 1 of actor/1/model-00002-of-00002.safetensors"));
    ws_version_put(v);
}

/* --- sources --- */

static void sources_for_one_model(void **state)
{
    struct ws_store_options options = {.cache_bytes = 1UL << 30};
    struct ws_error err = {0};
    const char *url;

    (void)state;
    store = store_with(&options);
    shelf_publish(shelf, "actor", 1, "r1", MIB);
    shelf_publish(shelf, "critic", 1, "r1", MIB);
    url = shelf_tcp_start(shelf);
    assert_int_equal(ws_store_add(store, "gopher://x", NULL, NULL, &err), -EINVAL);
    assert_int_equal(ws_store_add(store, url, "../x", NULL, &err), -EINVAL);
    add_source(store, url, "critic");
    add_source(store, url, "later");
    ws_version_put(version(store, "critic", "1"));
    assert_null(ws_store_find(store, "actor"));
    ws_model_put(ws_store_find(store, "later")); /* it is there before its first version */
    shelf_publish(shelf, "later", 8, "r1", MIB);
    ws_version_put(version(store, "later", "8"));
    assert_int_equal(ws_store_sources(store, (struct ws_source_info[4]){0}, 4), 2);
    assert_ok(ws_store_remove(store, "critic", &err), &err);
    assert_null(ws_store_find(store, "critic"));
    assert_int_equal(ws_store_remove(store, "critic", &err), -ENOENT);
    assert_int_equal(ws_store_sources(store, (struct ws_source_info[4]){0}, 4), 1);
}

static void a_removed_model_does_not_come_back_by_itself(void **state)
{
    struct ws_version *v;
    struct ws_error err = {0};

    (void)state;
    shelf_publish(shelf, "actor", 1, "r1", 5 * MIB);
    store = store_of(shelf_tcp_start(shelf));
    v = pulled(store, "actor", "1");
    assert_ok(ws_store_remove(store, "actor", &err), &err);
    assert_same_bytes(shelf, v); /* readers continue */
    ws_version_put(v);
    shelf_publish(shelf, "critic", 1, "r1", MIB);
    ws_version_put(version(store, "critic", "1")); /* a new listing was processed */
    assert_null(ws_store_find(store, "actor"));
    add_source(store, shelf_tcp_start(shelf), "actor");
    ws_version_put(version(store, "actor", "1"));
}

static bool has_reports(struct shelf *of, size_t n)
{
    json_t *reports = shelf_reports(of);
    bool yes = json_array_size(reports) >= n;

    json_decref(reports);
    return yes;
}

static void reports_reach_the_source(void **state)
{
    struct ws_version *v;
    json_t *reports;
    const char *path;

    (void)state;
    shelf_publish(shelf, "actor", 3, "r1", MIB);
    store = store_of(shelf_tcp_start(shelf));
    v = version(store, "actor", "3");
    const struct ws_version_id id = ws_version_id(v);
    ws_model_report(ws_version_model(v), &id, "loaded", json_pack("{s:s,s:b}", "host", "here", "ok", 1));
    ws_model_report(ws_version_model(v), &id, "loaded", json_pack("{s:s,s:b}", "host", "there", "ok", 0));
    ws_version_put(v);
    wait_until(has_reports(shelf, 2));
    reports = shelf_reports(shelf);
    path = json_string_value(json_object_get(json_array_get(reports, 0), "path"));
    assert_string_equal(path, "/v1/actor/3/loaded");
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(json_array_get(reports, 1), "body"), "host")),
        "there");
    json_decref(reports);
}

/* An agent that hangs delays no other's reports, and has its own when it goes on, in their order. */
static void a_hanging_source_delays_no_others_reports(void **state)
{
    struct ws_version *v;
    json_t *reports;

    (void)state;
    other_shelf = shelf_new();
    shelf_publish(shelf, "actor", 3, "r1", MIB);
    shelf_publish(other_shelf, "actor", 3, "r1", MIB);
    store = store_of(shelf_tcp_start(shelf));
    add_source(store, shelf_tcp_start(other_shelf), NULL);
    v = version(store, "actor", "3");
    wait_until(info_of(v).n_sources == 2);
    const struct ws_version_id id = ws_version_id(v);
    shelf_hold_reports(shelf, true);
    for (int i = 0; i < 3; i++)
        ws_model_report(ws_version_model(v), &id, "loaded", json_pack("{s:i}", "number", i));
    ws_version_put(v);
    wait_until(has_reports(other_shelf, 3) && shelf_held_reports(shelf) == 1);
    assert_false(has_reports(shelf, 1));
    shelf_hold_reports(shelf, false);
    wait_until(has_reports(shelf, 3));
    reports = shelf_reports(shelf);
    for (int i = 0; i < 3; i++)
        assert_int_equal(json_integer_value(json_object_get(
                             json_object_get(json_array_get(reports, (size_t)i), "body"), "number")),
                         i);
    json_decref(reports);
}

/* A full cache accepts nothing, however much memory the machine still has. */
static void the_cache_limit(void **state)
{
    (void)state;
    assert_int_equal(ws_cache_budget_default(1000 * MIB), 1000 * MIB / 10 * 8);
    assert_int_equal(ws_cache_budget_default(160 * MIB), 96 * MIB); /* 0.8 of it would leave 32 */
    assert_int_equal(ws_cache_budget_default(128 * MIB), 64 * MIB);
    assert_int_equal(ws_cache_budget_default(20 * MIB), 10 * MIB);
    assert_int_equal(ws_cache_budget_limit(100, 0, 1000), 100);
    assert_int_equal(ws_cache_budget_limit(100, 60, 20), 80); /* the machine has less */
    assert_int_equal(ws_cache_budget_limit(100, 60, 40), 100);
    assert_int_equal(ws_cache_budget_limit(100, 100, 50), 100);
    assert_int_equal(ws_cache_budget_limit(100, 100, 0), 100);
    assert_int_equal(ws_cache_budget_limit(100, 130, 50), 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cache_limit),
        STORE_TEST(versions_are_found_by_their_names),
        STORE_TEST(models_and_versions_are_visited_in_order),
        STORE_TEST(a_version_unknown_to_the_source_vanishes_unless_held),
        STORE_TEST(versions_stay_known_while_the_source_is_down),
        STORE_TEST(a_new_lineage_supersedes_the_old),
        STORE_TEST(listeners_hear_a_pull_and_a_drop),
        STORE_TEST(current_and_previous_move_together),
        STORE_TEST(the_oldest_is_evicted),
        STORE_TEST(pinned_current_and_open_versions_stay),
        STORE_TEST(more_than_the_cache_is_refused),
        STORE_TEST(memory_that_is_mapped_is_not_used_again),
        STORE_TEST(memory_returns_after_the_last_use),
        STORE_TEST(dropping_while_it_is_pulled_ends_the_pull),
        STORE_TEST(headers_are_here_when_their_blocks_are),
        STORE_TEST(a_manifest_that_differs_from_the_listing_is_refused),
        STORE_TEST(verify_finds_a_changed_byte),
        STORE_TEST(sources_for_one_model),
        STORE_TEST(a_removed_model_does_not_come_back_by_itself),
        STORE_TEST(reports_reach_the_source),
        STORE_TEST(a_hanging_source_delays_no_others_reports),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
