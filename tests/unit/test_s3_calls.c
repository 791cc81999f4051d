/* Calls of an object store that does not keep to S3: what it says is no success, and no silence is taken for an answer. */
#include "tests/fixtures/bad_server.h"
#include "transports/s3/object.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define REPLY(status, headers, body)                                                                         \
    "HTTP/1.1 " status "\r\nConnection: close\r\nContent-Length: " body "\r\n" headers "\r\n"
#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

struct world {
    struct bad_server *server;
    struct ws_s3_bucket *bucket;
};

static void start(struct world *w, const struct bad_step *steps, size_t n)
{
    const struct ws_s3_options options = {.stall_s = 1};
    struct ws_error err = {0};
    char url[64];
    w->server = bad_server_start(steps, n);
    assert_non_null(w->server);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", bad_server_port(w->server));
    setenv("AWS_ENDPOINT_URL", url, 1);
    setenv("AWS_ACCESS_KEY_ID", "AKIA", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-tests", 1);
    setenv("HOME", "/nowhere", 1);
    if (ws_s3_bucket_open(&w->bucket, "s3://weights/run", &options, &err) < 0)
        fail_msg("%s", err.text);
}

static void stop(struct world *w)
{
    ws_s3_bucket_free(w->bucket);
    bad_server_stop(w->server);
}

/* What came is the whole object only if the store says so. */
static void a_part_is_not_the_whole(void **state)
{
    static const struct bad_step steps[] = {
        {"GET", BAD_REPLY, 0, REPLY("206 Partial Content", "Content-Range: bytes 0-1/5\r\n", "2") "{}"}};
    struct ws_error err = {0};
    struct world w;
    char *text;
    size_t n;
    (void)state;
    start(&w, steps, LENGTH(steps));
    assert_int_equal(ws_s3_get(w.bucket, "x", 100, NULL, true, NULL, &text, &n, &err), -EPROTO);
    assert_null(text);
    stop(&w);
}

/* A proxy's pages have ETags, too. */
static void a_page_is_no_receipt(void **state)
{
    static const struct bad_step steps[] = {
        {"PUT", BAD_REPLY, 0, REPLY("200 OK", "ETag: \"page\"\r\n", "6") "<html>"},
        {"DELETE", BAD_REPLY, 0, REPLY("200 OK", "", "6") "<html>"}};
    struct ws_error err = {0};
    struct world w;
    (void)state;
    start(&w, steps, LENGTH(steps));
    assert_int_equal(ws_s3_put(w.bucket, "x", "bytes", 5, NULL, &err), -EPROTO);
    assert_non_null(strstr(err.text, "proxy"));
    assert_int_equal(ws_s3_remove(w.bucket, "x", true, &err), -EPROTO);
    stop(&w);
}

/* 304 answers who reads. A store that says so to who writes has not written. */
static void unchanged_is_not_written(void **state)
{
    static const struct bad_step steps[] = {
        {"PUT", BAD_REPLY, 0, REPLY("304 Not Modified", "ETag: \"e\"\r\n", "0")}};
    struct ws_error err = {0};
    char etag[128] = "";
    struct world w;
    (void)state;
    start(&w, steps, LENGTH(steps));
    assert_int_equal(ws_s3_put_if(w.bucket, "x", "bytes", 5, etag, &err), -EPROTO);
    assert_int_equal(etag[0], 0);
    stop(&w);
}

static int take(void *arg, const char *bytes, size_t n)
{
    (void)arg;
    (void)bytes;
    (void)n;
    return 0;
}

struct keys {
    unsigned n;
    char last[64];
};

static int on_key(void *arg, const char *key)
{
    struct keys *k = arg;
    k->n++;
    snprintf(k->last, sizeof(k->last), "%s", key);
    return 0;
}

static void a_list_is_whole(void **state)
{
    static const struct bad_step no_token[] = {{"list-type", BAD_JSON, 200,
                                                "<ListBucketResult><IsTruncated>true</IsTruncated>"
                                                "<Key>run/v1/a</Key></ListBucketResult>"}};
    static const struct bad_step again[] = {
        {"list-type", BAD_JSON, 200,
         "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
         "<Key>run/v1/a</Key></ListBucketResult>"}};
    static const struct bad_step others[] = {
        {"list-type", BAD_JSON, 200,
         "<ListBucketResult><Key>run/v1/a</Key><Key>run</Key><Key>runs/v1/b</Key><Key>v1/c</Key>"
         "</ListBucketResult>"}};
    struct ws_error err = {0};
    struct keys k = {0};
    struct world w;
    (void)state;
    start(&w, no_token, 1);
    assert_int_equal(ws_s3_list(w.bucket, "v1/", on_key, &k, &err), -EPROTO);
    stop(&w);
    start(&w, again, 1);
    assert_int_equal(ws_s3_list(w.bucket, "v1/", on_key, &k, &err), -EPROTO);
    stop(&w);
    start(&w, others, 1);
    k = (struct keys){0};
    assert_int_equal(ws_s3_list(w.bucket, "v1/", on_key, &k, &err), 0);
    assert_int_equal(k.n, 1);
    assert_string_equal(k.last, "v1/a");
    stop(&w);
}

/* A store that says nothing, and one that sends next to nothing, are given up after three tries. */
static void silence_ends(void **state)
{
    static const struct bad_step steps[] = {
        {"GET /weights/run/hang", BAD_HANG, 0, NULL},
        {"GET /weights/run/drip", BAD_DRIP, 0, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"},
        {"GET /weights/run/range", BAD_DRIP, 0,
         "HTTP/1.1 206 X\r\nContent-Length: 1000000\r\nContent-Range: bytes 0-999999/1000000\r\n\r\n"},
    };
    struct ws_error err = {0};
    struct ws_s3_reply reply;
    struct world w;
    char *text;
    size_t n;
    (void)state;
    start(&w, steps, LENGTH(steps));
    assert_int_equal(ws_s3_get(w.bucket, "hang", 100, NULL, false, NULL, &text, &n, &err), -ETIMEDOUT);
    assert_non_null(strstr(err.text, "tried 3 times"));
    assert_non_null(strstr(err.text, "nothing moved for 1 s"));
    assert_int_equal(bad_server_hits(w.server, 0), 3);
    assert_int_equal(ws_s3_get(w.bucket, "drip", 1 << 20, NULL, false, NULL, &text, &n, &err), -ETIMEDOUT);
    assert_non_null(strstr(err.text, "next to nothing moved for 1 s"));
    assert_int_equal(bad_server_hits(w.server, 1), 3);
    const struct ws_s3_request range = {.key = "range", .came = take, .n = 1000000, .is_once = true};
    assert_int_equal(ws_s3_call(w.bucket, &range, &reply, &err), -ETIMEDOUT);
    ws_s3_reply_release(&reply);
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_is_not_the_whole),
        cmocka_unit_test(a_page_is_no_receipt),
        cmocka_unit_test(unchanged_is_not_written),
        cmocka_unit_test(a_list_is_whole),
        cmocka_unit_test(silence_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
