/* Helpers of the store's tests: a shelf as its source, a store with short deadlines, lookups, waits for a
 * state, comparisons of bytes. Static, because these programs are one file each. */
#ifndef WS_TESTS_OPENED_STORE_H
#define WS_TESTS_OPENED_STORE_H
#include "fs/pull/pull.h"
#include "fs/store/store.h"
#include "tests/fixtures/shelf.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define MIB     (1UL << 20)
#define LONG_MS 60000 /* bounds a wait that must succeed */

/* Each test's own, between setup_shelf and teardown_store. */
static struct shelf *shelf __attribute__((unused));
static struct shelf *other_shelf __attribute__((unused)); /* a second source, if a test sets it */
static struct ws_store *store __attribute__((unused));    /* if a test sets it */

static inline int setup_shelf(void **state)
{
    (void)state;
    shelf = shelf_new();
    return 0;
}

static inline int teardown_store(void **state)
{
    (void)state;
    ws_store_free(store);
    store = NULL;
    if (other_shelf)
        shelf_free(other_shelf);
    other_shelf = NULL;
    shelf_free(shelf);
    return 0;
}

#define STORE_TEST(f) cmocka_unit_test_setup_teardown(f, setup_shelf, teardown_store)

static inline void assert_ok(int rc, const struct ws_error *err)
{
    if (rc < 0)
        fail_msg("%s: %s", ws_errno_name(-rc), err->text);
}

static inline struct ws_store *store_with(const struct ws_store_options *options)
{
    struct ws_store *s = NULL;
    struct ws_error err = {0};

    assert_ok(ws_store_new(&s, &ws_puller, options, &err), &err);
    return s;
}

/* Adds a source and waits for its first answer. */
static inline void add_source(struct ws_store *s, const char *url, const char *model)
{
    struct ws_error err = {0};

    assert_ok(ws_store_add(s, url, model, NULL, &err), &err);
    assert_true(ws_store_wait_first(s, LONG_MS));
}

static inline struct ws_store *store_of(const char *url)
{
    struct ws_store_options options = {.cache_bytes = 1UL << 30, .deadline_ms = 2000, .threads = 2};
    struct ws_store *s = store_with(&options);

    add_source(s, url, NULL);
    return s;
}

/* A store whose pull is slow enough to be interrupted: one lane, and the source takes 30 ms for every 16
 * MiB. */
static inline struct ws_store *slow_store_of(struct shelf *from, unsigned deadline_ms)
{
    struct ws_store_options options = {
        .cache_bytes = 1UL << 30, .streams = 1, .deadline_ms = deadline_ms, .threads = 2};
    struct ws_store *s = store_with(&options);
    char url[256];

    snprintf(url, sizeof(url), "fault:delay=30:%s", shelf_tcp_start(from));
    add_source(s, url, NULL);
    return s;
}

static inline void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

/* Waits until the condition holds; fails the test after a minute. */
#define wait_until(condition)                                                                                \
    do {                                                                                                     \
        unsigned naps_ = 0;                                                                                  \
        while (!(condition)) {                                                                               \
            if (++naps_ > LONG_MS / 5)                                                                       \
                fail_msg("never came true: %s", #condition);                                                 \
            nap();                                                                                           \
        }                                                                                                    \
    } while (0)

static inline struct ws_version *find_now(struct ws_store *s, const char *model, const char *name)
{
    struct ws_model *m = ws_store_find(s, model);
    struct ws_version *v = m ? ws_version_find(m, name, NULL) : NULL;

    if (m)
        ws_model_put(m);
    return v;
}

static inline bool has_version(struct ws_store *s, const char *model, const char *name)
{
    struct ws_version *v = find_now(s, model, name);

    if (v)
        ws_version_put(v);
    return v != NULL;
}

/* The version of that name, once the store knows it. */
static inline struct ws_version *version(struct ws_store *s, const char *model, const char *name)
{
    struct ws_version *v = NULL;

    wait_until((v = find_now(s, model, name)) != NULL);
    return v;
}

static inline void pull(struct ws_version *v)
{
    struct ws_error err = {0};

    assert_ok(ws_version_pull(v, WS_PRIORITY_SWITCH, LONG_MS, NULL, &err), &err);
}

static inline struct ws_version *pulled(struct ws_store *s, const char *model, const char *name)
{
    struct ws_version *v = version(s, model, name);

    pull(v);
    return v;
}

/* A version whose pull has brought some bytes, and is still running. */
static inline struct ws_version *half_pulled(struct ws_store *s, const char *model, const char *name,
                                             uint64_t bytes)
{
    struct ws_version *v = version(s, model, name);
    struct ws_version_info info;

    ws_version_start(v, WS_PRIORITY_READER);
    wait_until((ws_version_info(v, &info), info.have_bytes > bytes));
    return v;
}

/* Its pull fails with that code, and a message that contains the text. */
static inline void pull_fails(struct ws_version *v, enum ws_priority priority, int code, const char *text)
{
    struct ws_error err = {0};

    assert_int_equal(ws_version_pull(v, priority, LONG_MS, NULL, &err), code);
    if (!strstr(err.text, text))
        fail_msg("'%s' does not say '%s'", err.text, text);
}

/* It is complete, and every byte equals the shelf's. */
static inline void assert_same_bytes(struct shelf *from, struct ws_version *v)
{
    const struct ws_manifest *m = ws_version_manifest(v, NULL);

    assert_non_null(m);
    for (size_t i = 0; i < m->n_files; i++) {
        uint64_t size;
        const unsigned char *want =
            shelf_bytes(from, m->model, m->version, m->lineage, m->files[i].name, &size);
        struct ws_region *r = ws_version_region(v, i);
        assert_non_null(r);
        assert_int_equal(size, ws_region_size(r));
        assert_int_equal(ws_version_blocks_here(v, i), m->files[i].n_blocks);
        assert_memory_equal(ws_region_data(r), want, size);
    }
}

static inline struct ws_version_info info_of(struct ws_version *v)
{
    struct ws_version_info info;

    ws_version_info(v, &info);
    return info;
}

static inline struct ws_store_stats stats_of(struct ws_store *s)
{
    struct ws_store_stats stats;

    ws_store_stats(s, &stats);
    return stats;
}

#endif
