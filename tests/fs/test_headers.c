/* A look at the tensors of a version brings the header of each of its files, and nothing else, whatever happens to its
 * lanes. */
#include "fs/store/content.h"
#include "tests/fs/opened_store.h"

#define SHARDS 11U /* more than lanes, and no multiple of them */

struct look {
    struct ws_waiter w;
    atomic_int result; /* 1: not yet */
};

static void done(struct ws_waiter *w, int result)
{
    atomic_store(&((struct look *)w)->result, result);
}

/* The result of a look at the headers. */
static int look(struct ws_version *v)
{
    struct look l = {.w = {.done = done}, .result = 1};

    if (ws_version_await(v, WS_FILE_HEADERS, 0, 0, LONG_MS, &l.w) == 1)
        return 0;
    wait_until(atomic_load(&l.result) != 1);
    return atomic_load(&l.result);
}

static struct ws_version *published_through(const char *plan, unsigned streams)
{
    struct ws_store_options options = {.cache_bytes = 1UL << 30, .deadline_ms = 20000, .streams = streams};
    char url[256];

    shelf_publish_shards(shelf, "actor", 1, "r1", SHARDS, SHARDS * MIB);
    store = store_with(&options);
    snprintf(url, sizeof(url), "%s%s", plan, shelf_tcp_start(shelf));
    add_source(store, url, NULL);
    return version(store, "actor", "1");
}

static void headers_come_through(const char *plan, unsigned streams)
{
    struct ws_version *v = published_through(plan, streams);
    const struct ws_manifest *m;
    char name[32];

    assert_int_equal(look(v), 0);
    m = ws_version_manifest(v, NULL);
    assert_int_equal(m->n_files, SHARDS + 1);
    for (size_t i = 0; i < m->n_files; i++) {
        const struct ws_safetensors *st = ws_version_header(v, i, NULL);
        if (!m->files[i].header_bytes)
            continue;
        assert_non_null(st);
        snprintf(name, sizeof(name), "weight.%zu", i); /* config.json is file 0 */
        assert_non_null(ws_safetensors_find(st, name));
    }
    assert_int_equal(ws_content_bytes(v), 0);
    assert_int_equal(stats_of(store).used_bytes, 0);
    ws_version_put(v);
}

static void several_lanes_bring_them(void **state)
{
    (void)state;
    headers_come_through("", 4);
}

static void one_lane_brings_them(void **state)
{
    (void)state;
    headers_come_through("", 1);
}

static void what_was_cut_off_comes_again(void **state)
{
    (void)state;
    headers_come_through("fault:seed=1,cut=40:", 3);
}

static void what_came_wrong_comes_again(void **state)
{
    (void)state;
    headers_come_through("fault:seed=9,flip=10:", 1);
}

static void what_is_always_wrong_is_refused(void **state)
{
    struct ws_version *v = published_through("fault:seed=1,flip=100:", 4);

    (void)state;
    assert_int_equal(look(v), -EBADMSG);
    for (size_t i = 0; i <= SHARDS; i++)
        assert_null(ws_version_header(v, i, NULL));
    assert_non_null(strstr(info_of(v).error, "not the manifest's"));
    ws_version_put(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORE_TEST(several_lanes_bring_them),        STORE_TEST(one_lane_brings_them),
        STORE_TEST(what_was_cut_off_comes_again),    STORE_TEST(what_came_wrong_comes_again),
        STORE_TEST(what_is_always_wrong_is_refused),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
