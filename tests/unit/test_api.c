/* Paths of the API: a written path reads back the same, whatever the names; malformed ones are refused. */
#include "transports/protocol/api.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* As a server does: without the query. */
static int parse(char *path, struct ws_api_request *q)
{
    struct ws_error err = {0};
    char *query = strchr(path, '?');
    if (query)
        *query++ = 0;
    return ws_api_parse(path, query, q, &err);
}

static void test_round_trip(void **state)
{
    static const char *const names[] = {"actor", "Qwen3 0.6B", "a?b&c=d", "\xC3\xA4\xC3\xB6", "a+b#c", "~x"};
    static const enum ws_api_kind kinds[] = {WS_API_MANIFEST, WS_API_FILE, WS_API_MAP, WS_API_UNMAP,
                                             WS_API_OTHER};
    static const char *const verbs[] = {"manifest", "files", "map", "unmap", "loaded"};
    char path[WS_API_PATH_BYTES], longest[WS_MAX_NAME + 1];
    struct ws_api_request q;
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
            const char *file = kinds[k] == WS_API_FILE ? "a%b c.json" : NULL;
            ws_api_version_path(path, verbs[k], names[i], 1UL << 60, file, k % 2 ? "run-1" : NULL);
            assert_int_equal(parse(path, &q), 0);
            assert_int_equal(q.kind, kinds[k]);
            assert_string_equal(q.model, names[i]);
            assert_string_equal(q.verb, kinds[k] == WS_API_OTHER ? "loaded" : "");
            assert_true(q.has_version);
            assert_int_equal(q.version, 1UL << 60);
            assert_string_equal(q.file, file ? file : "");
            assert_string_equal(q.lineage, k % 2 ? "run-1" : "");
        }
        ws_api_models_path(path, names[i], 7, 1500, i % 2 ? NULL : "node 1:/mnt/ä&b");
        assert_int_equal(parse(path, &q), 0);
        assert_true(q.kind == WS_API_EVENTS && q.since == 7 && q.timeout_ms == 1500);
        assert_string_equal(q.model, names[i]);
        assert_string_equal(q.mount_id, i % 2 ? "" : "node 1:/mnt/ä&b");
        ws_api_model_path(path, "mounts", names[i]);
        assert_int_equal(parse(path, &q), 0);
        assert_true(q.kind == WS_API_OTHER && !q.has_version && strcmp(q.verb, "mounts") == 0);
        assert_string_equal(q.model, names[i]);
    }
    ws_api_models_path(path, NULL, 0, 0, NULL);
    assert_string_equal(path, "/v1/models");
    memset(longest, ' ', WS_MAX_NAME); /* three bytes each when encoded */
    longest[WS_MAX_NAME] = 0;
    ws_api_version_path(path, "files", longest, UINT64_MAX, longest, "0123456789abcdef0123456789abcdef");
    assert_int_equal(parse(path, &q), 0);
    assert_string_equal(q.file, longest);
}

static void test_malformed(void **state)
{
    static const char *const bad[] = {
        "/v1/m/1/files/",
        "/v1/m/1/files/a/b",
        "/v1/m/1/files/..",
        "/v1/m/1/files/a%00",
        "/v1/m/1/files/a%2",
        "/v1/m/1/files/%2e%2e",
        "/v1/events?since=x",
        "/v1/m/1/files/a%2Fb",
        "/v1/m/events?since=-1",
        "/v1/events?since=1&timeout_ms=99999999999999999999",
        "/v1/m/1/manifest?run=0123456789abcdef0123456789abcdef0",
    };
    static const char *const other[] = {"/v1/m/1",  "/v1/m/x/manifest", "/v1/ctl/1/manifest",
                                        "/metrics", "/v1/m/1/mapped",   "/v1/m/-1/manifest",
                                        "/"};
    struct ws_api_request q;
    char path[256];
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        strcpy(path, bad[i]);
        assert_int_equal(parse(path, &q), -EINVAL);
    }
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        strcpy(path, other[i]);
        assert_int_equal(parse(path, &q), 0);
        assert_int_equal(q.kind, WS_API_OTHER);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip), cmocka_unit_test(test_malformed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
