#include "tests/conformance/ucx_cases.h"
#include "tests/conformance/suite.h"
#include "transports/protocol/api.h"
#include "transports/ucx/engine.h"
#include "transports/ucx/hex.h"
#include "transports/ucx/wire.h"
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef __SANITIZE_THREAD__
#define IS_THREAD_SANITIZER true
#else
#define IS_THREAD_SANITIZER false
#endif

/* A reader that keeps to no rules. */
struct reader {
    struct world w;
    struct ws_ucx_worker *worker;
    char path[WS_API_PATH_BYTES], key[WS_UCX_KEY_CHARS + 1];
    unsigned n_replies, n_data;
    uint32_t code;
    bool keeps; /* data, which it never fetches; else that is dropped */
};

static bool on_reply(void *arg, const struct ws_ucx_message *m)
{
    struct reader *r = arg;
    struct ws_ucx_reply reply;
    assert_int_equal(m->n_header, sizeof(reply));
    memcpy(&reply, m->header, sizeof(reply));
    r->n_replies++;
    r->n_data += m->bytes > 0;
    r->code = reply.code;
    return r->keeps; /* the data stays where it is */
}

static void on_asked(void *arg, int rc)
{
    (void)arg;
    (void)rc;
}

/* A reader more of the world's version. */
static void join(struct reader *r, const struct world *w)
{
    struct ws_error err = {0};
    unsigned char address[WS_UCX_ADDRESS_BYTES];
    char text[2 * WS_UCX_ADDRESS_BYTES + 1];
    json_t *body, *reply = NULL;
    size_t n = 0;
    *r = (struct reader){.w = *w};
    ws_api_version_path(r->path, "ucx", WORLD_MODEL, 1, NULL, NULL);
    assert_int_equal(ws_ucx_worker_new(&r->worker, on_reply, r, &err), 0);
    assert_int_equal(ws_ucx_worker_address(r->worker, address, &n, &err), 0);
    ws_ucx_hex_format(address, n, text);
    body = json_pack("{s:s,s:s}", "release", ws_ucx_release(), "address", text);
    assert_int_equal(ws_source_call(r->w.source, "POST", r->path, body, &reply, &err), 0);
    assert_int_equal(
        ws_ucx_hex_parse(json_string_value(json_object_get(reply, "address")), address, sizeof(address), &n),
        0);
    snprintf(r->key, sizeof(r->key), "%s", json_string_value(json_object_get(reply, "key")));
    json_decref(body);
    json_decref(reply);
    assert_int_equal(ws_ucx_connect(r->worker, address, n, &err), 0);
}

static void open_reader(struct reader *r, const struct world *w)
{
    struct world own = *w;
    world_open(&own, NULL);
    world_publish(&own, 1, 1);
    join(r, &own);
}

static void close_reader(struct reader *r)
{
    ws_ucx_worker_free(r->worker);
    world_close(&r->w);
}

/* Waits for one more reply, at most that long. */
static bool is_answered(struct reader *r, int64_t ms)
{
    const unsigned before = r->n_replies;
    for (const int64_t end = now_ms() + ms; r->n_replies == before && now_ms() < end;)
        if (!ws_ucx_progress(r->worker))
            usleep(500);
    return r->n_replies > before;
}

static void ask(struct reader *r, const struct ws_ucx_request *q, size_t n)
{
    assert_int_equal(ws_ucx_send(r->worker, q, n, NULL, NULL, 0, on_asked, NULL), 0);
}

static struct ws_ucx_request request_of(const struct reader *r)
{
    struct ws_ucx_request q = {.mark = WS_UCX_REQUEST_MARK, .id = 1, .file = 0, .at = 100, .bytes = 1000};
    memcpy(q.key, r->key, sizeof(q.key));
    return q;
}

static void ranges_are_checked(void **state)
{
    struct reader r;
    open_reader(&r, *state);
    const uint64_t size = world_sizes[0];
    const struct {
        uint32_t file;
        uint64_t id, at, bytes;
    } bad[] = {{0, 1, size, 1},        {0, 1, size - 1, 2},
               {0, 1, 0, 0},           {0, 1, 0, WS_UCX_PIECE_BYTES + 1},
               {0, 1, UINT64_MAX, 2},  {0, 1, 2, UINT64_MAX},
               {WORLD_FILES, 1, 0, 1}, {UINT32_MAX, 1, 0, 1},
               {1, 1, 0, 1},           {0, 0, 0, 1}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ws_ucx_request q = request_of(&r);
        q.file = bad[i].file;
        q.id = bad[i].id;
        q.at = bad[i].at;
        q.bytes = bad[i].bytes;
        ask(&r, &q, sizeof(q));
        assert_true(is_answered(&r, 20000));
        assert_int_equal(r.code, ERANGE);
        assert_int_equal(r.n_data, 0);
    }
    struct ws_ucx_request q = request_of(&r);
    ask(&r, &q, sizeof(q));
    assert_true(is_answered(&r, 20000));
    assert_int_equal(r.code, 0);
    assert_int_equal(r.n_data, 1);
    close_reader(&r);
}

static void keys_are_checked(void **state)
{
    struct reader r;
    struct ws_ucx_server_stats stats;
    open_reader(&r, *state);
    struct ws_ucx_request q = request_of(&r);
    q.key[31] ^= 1;
    ask(&r, &q, sizeof(q));
    q = request_of(&r);
    q.mark++;
    ask(&r, &q, sizeof(q));
    q = request_of(&r);
    ask(&r, &q, sizeof(q) - 1);
    assert_false(is_answered(&r, 300));
    ws_ucx_server_stats(r.w.ucx, &stats);
    assert_int_equal(stats.refused, 3);
    assert_int_equal(stats.bytes, 0);
    ask(&r, &q, sizeof(q)); /* it serves on */
    assert_true(is_answered(&r, 20000));
    assert_int_equal(r.n_data, 1);
    close_reader(&r);
}

static void nothing_comes_after_the_lease(void **state)
{
    struct reader r;
    struct ws_error err = {0};
    struct ws_ucx_server_stats stats;
    open_reader(&r, *state);
    struct ws_ucx_request q = request_of(&r);
    ask(&r, &q, sizeof(q));
    assert_true(is_answered(&r, 20000));
    assert_int_equal(memory_catalog_leases(r.w.catalog), 1);
    json_t *body = json_pack("{s:s,s:b}", "key", r.key, "end", 1), *reply = NULL;
    assert_int_equal(ws_source_call(r.w.source, "POST", r.path, body, &reply, &err), 0);
    json_decref(reply);
    for (int i = 0; i < 1000 && memory_catalog_leases(r.w.catalog); i++)
        usleep(10000);
    assert_int_equal(memory_catalog_leases(r.w.catalog), 0);
    ask(&r, &q, sizeof(q));
    assert_false(is_answered(&r, 300));
    ws_ucx_server_stats(r.w.ucx, &stats);
    assert_int_equal(stats.bytes, 1000);
    assert_int_equal(ws_source_call(r.w.source, "POST", r.path, body, &reply, &err), -ESTALE);
    json_decref(body);
    close_reader(&r);
}

/* The data of its request was never fetched. */
static void a_reader_that_is_silent_ends(void **state)
{
    struct reader r;
    open_reader(&r, *state);
    struct ws_ucx_request q = request_of(&r);
    q.at = 0;
    q.bytes = WS_UCX_PIECE_BYTES;
    ask(&r, &q, sizeof(q));
    assert_true(is_answered(&r, 20000));
    memory_catalog_revoke(r.w.catalog, WORLD_MODEL, 1, true);
    for (int i = 0; i < 3000 && memory_catalog_leases(r.w.catalog); i++)
        usleep(10000);
    assert_int_equal(memory_catalog_leases(r.w.catalog), 0);
    close_reader(&r);
}

/* Ends one of two leases whose reader is silent; until that is over the other one asks. How long it waited at most. */
static int64_t longest_wait(struct reader *r)
{
    struct reader silent;
    struct ws_error err = {0};
    int64_t longest = 0;
    join(&silent, &r->w);
    silent.keeps = true;
    struct ws_ucx_request q = request_of(&silent);
    q.at = 0;
    q.bytes = WS_UCX_PIECE_BYTES;
    ask(&silent, &q, sizeof(q));
    assert_true(is_answered(&silent, 20000));
    json_t *body = json_pack("{s:s,s:b}", "key", silent.key, "end", 1), *reply = NULL;
    assert_int_equal(ws_source_call(r->w.source, "POST", r->path, body, &reply, &err), 0);
    json_decref(reply);
    json_decref(body);
    for (const int64_t end = now_ms() + 20000; memory_catalog_leases(r->w.catalog) > 1 && now_ms() < end;) {
        const int64_t asked = now_ms();
        q = request_of(r);
        ask(r, &q, sizeof(q));
        assert_true(is_answered(r, 20000));
        longest = now_ms() - asked > longest ? now_ms() - asked : longest;
    }
    assert_int_equal(memory_catalog_leases(r->w.catalog), 1);
    ws_ucx_worker_free(silent.worker);
    return longest;
}

/* It takes two seconds to end one that is silent. A machine that is busy may have its part in one wait, not in all. */
static void a_silent_reader_is_not_waited_for(void **state)
{
    struct reader r;
    int64_t waited = INT64_MAX;
    open_reader(&r, *state);
    for (int tries = 0; tries < 5 && waited >= 1000; tries++)
        waited = longest_wait(&r);
    assert_in_range(waited, 0, 999);
    close_reader(&r);
}

static void another_release_is_refused(void **state)
{
    struct world w = *(struct world *)*state;
    struct ws_error err = {0};
    char path[WS_API_PATH_BYTES];
    json_t *body = json_pack("{s:s}", "release", "9.8.7"), *none = json_object(), *reply;
    world_open(&w, NULL);
    world_publish(&w, 1, 1);
    ws_api_version_path(path, "ucx", WORLD_MODEL, 1, NULL, NULL);
    assert_int_equal(ws_source_call(w.source, "POST", path, body, &reply, &err), -EOPNOTSUPP);
    assert_non_null(strstr(err.text, "9.8.7"));
    assert_non_null(strstr(err.text, ws_ucx_release()));
    assert_int_equal(ws_source_call(w.source, "POST", path, none, &reply, &err), -EINVAL);
    json_object_set_new(body, "release", json_string(ws_ucx_release()));
    assert_int_equal(ws_source_call(w.source, "POST", path, body, &reply, &err), -EINVAL); /* no address */
    assert_int_equal(memory_catalog_leases(w.catalog), 0);
    json_decref(none);
    json_decref(body);
    world_close(&w);
}

static void addresses_are_checked(void **state)
{
    unsigned char out[4];
    size_t n;
    (void)state;
    assert_int_equal(ws_ucx_hex_parse("00ff7a10", out, 4, &n), 0);
    assert_true(n == 4 && out[1] == 0xff && out[2] == 0x7a);
    static const char *const bad[] = {NULL, "", "0", "0g", "00ff7a1000", "FF", "0x"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(ws_ucx_hex_parse(bad[i], out, 4, &n), -EPROTO);
}

static void cannot_be_used(void **state)
{
    struct ws_error why = {0};
    (void)state;
    if (IS_THREAD_SANITIZER)
        print_message("UCX is not made with the thread sanitizer\n");
    else if (ws_ucx_available(&why) < 0)
        print_message("%s\n", why.text);
    skip();
}

static struct world ucx = {.transport = "ucx"};
static struct world ucx_faults = {.transport = "ucx",
                                  .faults = "seed=6,cut=20,flip=20,lie=10,fail=20,reorder"};

int run_ucx_cases(const char *tls)
{
    static const struct CMUnitTest none[] = {{"ucx cannot be used", cannot_be_used, NULL, NULL, NULL}};
    static const struct CMUnitTest tests[] = {
        CASES(ucx),
        CASES(ucx_faults),
        {"unknown is not there", unknown_is_not_there, NULL, NULL, &ucx},
        {"revoked in the middle", revoked_in_the_middle, NULL, NULL, &ucx},
        {"server dies between", server_dies_between, NULL, NULL, &ucx},
        {"ranges are checked", ranges_are_checked, NULL, NULL, &ucx},
        {"keys are checked", keys_are_checked, NULL, NULL, &ucx},
        {"nothing comes after the lease", nothing_comes_after_the_lease, NULL, NULL, &ucx},
        {"a reader that is silent ends", a_reader_that_is_silent_ends, NULL, NULL, &ucx},
        {"a silent reader is not waited for", a_silent_reader_is_not_waited_for, NULL, NULL, &ucx},
        {"another release is refused", another_release_is_refused, NULL, NULL, &ucx},
        {"addresses are checked", addresses_are_checked, NULL, NULL, NULL},
    };
    (void)setenv("UCX_TLS", tls, 1);
    return IS_THREAD_SANITIZER || ws_ucx_available(NULL) < 0 ? cmocka_run_group_tests(none, NULL, NULL)
                                                             : cmocka_run_group_tests(tests, NULL, NULL);
}
