/* What of S3 needs no server: places, addresses, encoding, XML, refusals, AWS's files. tests/mount/test_s3.py has the servers. */
#include "tests/fixtures/private_folder.h"
#include "transports/s3/place.h"
#include "transports/s3/profile.h"
#include "transports/s3/refusal.h"
#include "transports/s3/xml.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static void test_places(void **state)
{
    static const struct {
        const char *url;
        int rc;
        const char *bucket, *prefix;
    } cases[] = {
        {"s3://weights", 0, "weights", ""},
        {"s3://weights/", 0, "weights", ""},
        {"s3://weights/run7/a b=\xC3\xA9//", 0, "weights", "run7/a b=\xC3\xA9"},
        {"gs://a.b-c_d/x", 0, "a.b-c_d", "x"},
        {"s3://", -EINVAL, NULL, NULL},
        {"s3:///x", -EINVAL, NULL, NULL},
        {"s3://ab", -EINVAL, NULL, NULL},
        {"s3://a..b", -EINVAL, NULL, NULL},
        {"s3://user@bucket/x", -EINVAL, NULL, NULL},
        {"s3://weights//x", -EINVAL, NULL, NULL},
        {"s3://weights/a/../b", -EINVAL, NULL, NULL},
        {"s3://weights/.", -EINVAL, NULL, NULL},
        {"s3://weights/a\nb", -EINVAL, NULL, NULL},
        {"s3://weights/\xFF", -EINVAL, NULL, NULL},
        {"az://weights/x", -ENOTSUP, NULL, NULL},
        {"abfss://weights/x", -ENOTSUP, NULL, NULL},
        {"http://weights/x", -EINVAL, NULL, NULL},
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct ws_s3_place p;
        struct ws_error err = {0};
        assert_int_equal(ws_s3_place_parse(cases[i].url, &p, &err), cases[i].rc);
        if (cases[i].rc < 0) {
            assert_int_equal(err.code, -cases[i].rc);
            continue;
        }
        assert_string_equal(p.bucket, cases[i].bucket);
        assert_string_equal(p.prefix, cases[i].prefix);
    }
}

static void test_addresses(void **state)
{
    static const struct {
        const char *place, *endpoint, *region, *want;
    } cases[] = {
        {"s3://weights/x", NULL, "eu-west-1", "https://weights.s3.eu-west-1.amazonaws.com"},
        {"s3://weights/x", NULL, "cn-north-1", "https://weights.s3.cn-north-1.amazonaws.com.cn"},
        {"s3://we.ights/x", NULL, "us-east-1", "https://s3.us-east-1.amazonaws.com/we.ights"},
        {"s3://weights/x", "http://minio:9000/", "us-east-1", "http://minio:9000/weights"},
        {"gs://weights/x", NULL, "auto", "https://storage.googleapis.com/weights"},
        {"gs://weights/x", "http://127.0.0.1:1", "auto", "http://127.0.0.1:1/weights"},
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct ws_s3_place p;
        assert_int_equal(ws_s3_place_parse(cases[i].place, &p, NULL), 0);
        char *url = ws_s3_place_url(&p, cases[i].endpoint, cases[i].region);
        assert_string_equal(url, cases[i].want);
        free(url);
    }
}

static void test_encoding(void **state)
{
    char *path = ws_s3_encode("/a b/c=d+e~f.g_h-i(1)\xC3\xA9*", true), *query = ws_s3_encode("a/b=", false);
    (void)state;
    assert_string_equal(path, "/a%20b/c%3Dd%2Be~f.g_h-i%281%29%C3%A9%2A");
    assert_string_equal(query, "a%2Fb%3D");
    assert_true(ws_s3_xml_decode_url(path));
    assert_string_equal(path, "/a b/c=d+e~f.g_h-i(1)\xC3\xA9*");
    free(path);
    free(query);
    static const char *const bad[] = {"%", "%4", "%4x", "%00", "a%g1"};
    for (size_t i = 0; i < LENGTH(bad); i++) {
        char text[8];
        strcpy(text, bad[i]);
        assert_false(ws_s3_xml_decode_url(text));
    }
}

static void test_xml(void **state)
{
    static const char text[] =
        "<?xml version=\"1.0\"?><R xmlns=\"x\"><Keys>no</Keys><Key>a&amp;b&#34;&lt;</Key><Empty/>"
        "<Key>c</Key><Long>0123456789</Long><Open>x";
    const char *at = text;
    char out[8];
    (void)state;
    assert_true(ws_s3_xml_next(&at, NULL, "Key", out, sizeof(out)));
    assert_string_equal(out, "a&b\"<");
    assert_true(ws_s3_xml_next(&at, NULL, "Key", out, sizeof(out)));
    assert_string_equal(out, "c");
    assert_false(ws_s3_xml_next(&at, NULL, "Key", out, sizeof(out)));
    assert_true(ws_s3_xml_get(text, "Empty", out, sizeof(out)));
    assert_string_equal(out, "");
    assert_false(ws_s3_xml_get(text, "Long", out, sizeof(out)));
    assert_string_equal(out, "");
    assert_false(ws_s3_xml_get(text, "Open", out, sizeof(out)));
    assert_true(ws_s3_xml_has(text, "R") && !ws_s3_xml_has(text, "Ke") && !ws_s3_xml_has("<html>", "R"));
}

static void test_refusals(void **state)
{
    static const struct {
        long status;
        const char *text;
        int rc;
        enum ws_s3_refusal kind;
        const char *says;
    } cases[] = {
        {404, "<Error><Code>NoSuchKey</Code></Error>", -ENOENT, WS_S3_FINAL, "NoSuchKey"},
        {404, "", -ENOENT, WS_S3_FINAL, "404"},
        {404, "<Error><Code>NoSuchBucket</Code></Error>", -ENXIO, WS_S3_FINAL, "no such bucket"},
        {403, "<Error><Code>SignatureDoesNotMatch</Code></Error>", -EACCES, WS_S3_EXPIRED,
         "AWS_SECRET_ACCESS_KEY"},
        {403, "<Error><Code>RequestTimeTooSkewed</Code></Error>", -EACCES, WS_S3_FINAL, "clock"},
        {400, "<Error><Code>ExpiredToken</Code></Error>", -EACCES, WS_S3_EXPIRED, "expired"},
        {400, "<Error><Code>RequestTimeout</Code></Error>", -ECONNRESET, WS_S3_TEMPORARY, "RequestTimeout"},
        {400, "<Error><Code>AuthorizationHeaderMalformed</Code></Error>", -EINVAL, WS_S3_FINAL,
         "in eu-west-9"},
        {301, "", -EINVAL, WS_S3_FINAL, "in eu-west-9"},
        {503, "<html>", -ECONNRESET, WS_S3_TEMPORARY, "<html>"},
        {429, "", -ECONNRESET, WS_S3_TEMPORARY, "429"},
        {507, "", -ENOSPC, WS_S3_FINAL, "507"},
        {501, "<Error><Code>NotImplemented</Code><Message>why</Message></Error>", -EOPNOTSUPP, WS_S3_FINAL,
         "why"},
        {501, "", -EOPNOTSUPP, WS_S3_FINAL, "501"},
        {412, "<Error><Code>PreconditionFailed</Code></Error>", -ESTALE, WS_S3_FINAL, "another process"},
        {409, "<Error><Code>ConditionalRequestConflict</Code></Error>", -ECONNRESET, WS_S3_TEMPORARY, "409"},
        {400, "<Error><Code>MalformedXML</Code><Message>why</Message></Error>", -EPROTO, WS_S3_FINAL, "why"},
    };
    char region[] = "eu-west-9";
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char text[256];
        struct ws_error err = {0};
        enum ws_s3_refusal kind;
        struct ws_http_reply reply = {
            .status = cases[i].status, .text = text, .kept = {NULL, NULL, NULL, region}};
        strcpy(text, cases[i].text);
        assert_int_equal(ws_s3_refusal("http://h", "/p", &reply, &kind, &err), cases[i].rc);
        assert_int_equal(kind, cases[i].kind);
        assert_non_null(strstr(err.text, cases[i].says));
    }
}

static void put(const char *folder, const char *name, const char *text, const char *variable)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    setenv(variable, path, 1);
}

static void test_profiles(void **state)
{
    char folder[256];
    struct ws_s3_profile p;
    struct ws_error err = {0};
    (void)state;
    assert_true(private_folder(folder, sizeof(folder), "s3"));
    put(folder, "credentials",
        "# aws_access_key_id = no\n[default]\naws_access_key_id = id0\r\n  aws_secret_access_key = nested\n"
        "[ train ]\naws_access_key_id=id1\naws_secret_access_key = a=b\naws_session_token =\n",
        "AWS_SHARED_CREDENTIALS_FILE");
    put(folder, "config",
        "[default]\nregion = eu-west-1\naws_secret_access_key = s0\n[profile train]\nregion=r1\n"
        "aws_access_key_id = other\nendpoint_url = http://h\ns3 =\n  endpoint_url = http://no\n[profile "
        "sso]\nsso_session = x\n",
        "AWS_CONFIG_FILE");
    unsetenv("AWS_PROFILE");
    assert_int_equal(ws_s3_profile_read(&p, &err), 0);
    assert_string_equal(p.key_id, "id0");
    assert_string_equal(p.secret, "s0");
    assert_string_equal(p.region, "eu-west-1");
    ws_s3_profile_release(&p);
    setenv("AWS_PROFILE", "train", 1);
    assert_int_equal(ws_s3_profile_read(&p, &err), 0);
    assert_string_equal(p.key_id, "id1");
    assert_string_equal(p.secret, "a=b");
    assert_null(p.session);
    assert_string_equal(p.endpoint, "http://h");
    ws_s3_profile_release(&p);
    setenv("AWS_PROFILE", "sso", 1);
    assert_int_equal(ws_s3_profile_read(&p, &err), 0);
    assert_string_equal(p.other, "sso_session");
    assert_null(p.secret);
    ws_s3_profile_release(&p);
    setenv("AWS_PROFILE", "nobody", 1);
    assert_int_equal(ws_s3_profile_read(&p, &err), -EINVAL);
    unsetenv("AWS_PROFILE");
    setenv("AWS_CONFIG_FILE", "/nowhere/config", 1);
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/credentials", 1);
    assert_int_equal(ws_s3_profile_read(&p, &err), 0);
    assert_null(p.key_id);
    ws_s3_profile_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places), cmocka_unit_test(test_addresses), cmocka_unit_test(test_encoding),
        cmocka_unit_test(test_xml),    cmocka_unit_test(test_refusals),  cmocka_unit_test(test_profiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
