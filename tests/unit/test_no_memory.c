/* Running out of memory: each operation is repeated with its first, second, ... allocation failing until
 * it succeeds. Every failure must come back as -ENOMEM, with nothing leaked; the C library's malloc is
 * interposed for that, which a sanitizer's own does not allow. */
#include "backends/trainer/wsync.h"
#include "tests/fixtures/private_folder.h"
#include "transports/format/manifest.h"
#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/fixtures/filled_folder.h"

#ifdef __has_feature /* clang */
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAVE_INTERPOSED 0
#else
#define HAVE_INTERPOSED 1
#endif

static long countdown = -1; /* allocations until one fails; negative: none does */
static long live;           /* allocated blocks, while counting */
static int counting;

#if HAVE_INTERPOSED
/* The project is compiled with hidden symbols; libraries must find these functions. */
#define EXPORTED __attribute__((visibility("default")))
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void __libc_free(void *p);
EXPORTED void *malloc(size_t n);
EXPORTED void *calloc(size_t n, size_t size);
EXPORTED void *realloc(void *p, size_t n);
EXPORTED void free(void *p);

static int refuse(void)
{
    if (!counting || countdown < 0)
        return 0;
    if (countdown-- > 0)
        return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n)
{
    if (refuse())
        return NULL;
    live += counting;
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    if (refuse())
        return NULL;
    live += counting;
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    /* Shrinking in place cannot fail; the C library relies on it. */
    if ((!p || malloc_usable_size(p) < n) && refuse())
        return NULL;
    if (!p)
        live += counting;
    return __libc_realloc(p, n);
}

void free(void *p)
{
    if (p)
        live -= counting;
    __libc_free(p);
}
#endif

/* One operation, with everything freed again: 0 or its error. */
typedef int operation(void);

static void exhaust(operation *run)
{
    long n = 0;
    int rc;

    assert_int_equal(run(), 0); /* fills libraries' caches */
    do {
        live = 0;
        countdown = n++;
        counting = 1;
        rc = run();
        counting = 0;
        if (rc != 0 && rc != -ENOMEM)
            fail_msg("allocation %ld failed: returned %d", n, rc);
        if (live != 0)
            fail_msg("allocation %ld failed: %ld blocks leaked", n, live);
    } while (countdown < 0); /* it was reached, so an allocation did fail */
    assert_int_equal(rc, 0);
    assert_true(n > 1);
}

static const struct ws_tensor specs[] = {
    {.name = "b.weight", .dtype = WS_F32, .n_dims = 2, .shape = {2, 3}},
    {.name = "a/\xC3\xA4", .dtype = WS_U8, .n_dims = 1, .shape = {3}},
    {.name = "c", .dtype = WS_BF16, .n_dims = 0},
};

static int lay_out(void)
{
    struct ws_safetensors *st;
    struct ws_error err;
    void *header;
    int rc = ws_safetensors_layout(specs, 3, "{\"format\":\"pt\"}", &st, &header, &err);

    if (rc < 0)
        return rc;
    ws_safetensors_free(st);
    free(header);
    return 0;
}

static void test_layout(void **state)
{
    (void)state;
    exhaust(lay_out);
}

static int make_manifest(struct ws_manifest **m)
{
    struct ws_manifest_file *f;
    int rc = ws_manifest_new(m, "actor", 1, "run", NULL);

    if (rc < 0)
        return rc;
    rc = ws_manifest_add(*m, "model.safetensors", 3 * WS_BLOCK_BYTES, 4096, &f, NULL);
    if (rc == 0)
        rc = ws_manifest_add(*m, "config.json", 2, 0, &f, NULL);
    if (rc == 0)
        rc = ws_manifest_freeze(*m, "vision", NULL);
    if (rc < 0) {
        ws_manifest_free(*m);
        return rc;
    }
    ws_manifest_seal(*m);
    return 0;
}

static int manifest_both_ways(void)
{
    struct ws_manifest *m, *copy = NULL, *back = NULL;
    struct ws_error err;
    char *json = NULL;
    size_t length = 0;
    int rc = make_manifest(&m);

    if (rc < 0)
        return rc;
    rc = ws_manifest_copy(m, &copy);
    if (rc == 0)
        rc = ws_manifest_to_json(copy, &json, &length, &err);
    if (rc == 0)
        rc = ws_manifest_from_json(json, length, &back, &err);
    ws_manifest_free(m);
    ws_manifest_free(copy);
    ws_manifest_free(back);
    free(json);
    return rc;
}

static void test_manifest(void **state)
{
    (void)state;
    exhaust(manifest_both_ways);
}

static int compare_layouts(void)
{
    struct ws_safetensors *st[2] = {NULL, NULL};
    void *header[2] = {NULL, NULL};
    char *report = NULL;
    int rc = ws_safetensors_layout(specs, 3, NULL, &st[0], &header[0], NULL);

    if (rc == 0)
        rc = ws_safetensors_layout(specs, 2, NULL, &st[1], &header[1], NULL);
    if (rc == 0)
        rc = ws_layout_compare(st, 1, st + 1, 1, &report);
    if (rc == -EPROTO)
        rc = 0;
    for (int i = 0; i < 2; i++) {
        ws_safetensors_free(st[i]);
        free(header[i]);
    }
    free(report);
    return rc;
}

static void test_compare(void **state)
{
    (void)state;
    exhaust(compare_layouts);
}

static char dir[64];
static const char *const names[] = {"model.safetensors", "extra.safetensors", "config.json",
                                    "model.safetensors.index.json"};

static int open_folder(void)
{
    struct ws_folder *f;
    struct ws_error err;
    int rc = ws_folder_open(dir, &f, &err);

    if (rc == 0)
        ws_folder_free(f);
    return rc;
}

static void test_folder(void **state)
{
    static const char index[] = "{\"weight_map\":{\"x\":\"model.safetensors\"}}";
    static const struct ws_tensor empty = {.name = "x", .dtype = WS_U8, .n_dims = 1, .shape = {0}};
    struct ws_safetensors *st;
    struct ws_error err;
    char path[128];
    void *header;

    (void)state;
    assert_true(private_folder(dir, sizeof(dir), "memory"));
    assert_int_equal(ws_safetensors_layout(&empty, 1, NULL, &st, &header, &err), 0);
    folder_put(dir, names[0], header, st->data_begin);
    folder_put(dir, names[1], header, st->data_begin);
    folder_put(dir, names[2], "{}", 2);
    folder_put(dir, names[3], index, sizeof(index) - 1);
    ws_safetensors_free(st);
    free(header);
    exhaust(open_folder);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(dir), 0);
}

static int sync_info_both_ways(void)
{
    static const char *const urls[] = {"http://a", "http://b"};
    wsync_sync_info info = {.struct_size = sizeof(info), .strategy = WSYNC_TCP}, *back = NULL;
    char *json = NULL, *again = NULL;
    info.source = (wsync_source_info){.model = "actor", .version = 3, .run = "r", .urls = urls, .n_urls = 2};
    int rc = wsync_sync_info_encode(&info, &json);
    if (rc == 0)
        rc = wsync_sync_info_decode(json, strlen(json), NULL, &back);
    if (rc == 0)
        rc = wsync_sync_info_encode(back, &again);
    if (rc == 0)
        assert_string_equal(json, again);
    wsync_sync_info_free(back);
    free(json);
    free(again);
    return rc;
}

/* Of chunks, a request; of that JSON; of that a request with handles. */
static int request_both_ways(void)
{
    static const char text[] =
        "{\"names\":[\"a\",\"b\"],\"dtypes\":[\"int8\",\"int8\"],\"shapes\":[[4],[2]],"
        "\"sizes\":[4,2],\"ipc_handles\":{\"g\":\"AAAA\",\"h\":\"AAA=\"},\"run\":\"r\"}";
    const wsync_param p[] = {{.name = "m.a.w", .dtype = WSYNC_BF16, .n_dims = 1, .shape = {3}},
                             {.name = "n.a.w", .dtype = WSYNC_F32, .n_dims = 1, .shape = {2}}};
    wsync_chunks *chunks = NULL;
    wsync_update_request *request = NULL, *back = NULL, *handles = NULL;
    char *json = NULL;
    int rc = wsync_chunks_open(p, 2, NULL, &chunks);
    if (rc == 0)
        rc = wsync_update_request_of(wsync_chunks_get(chunks, 0), WSYNC_BROADCAST, &request);
    if (rc == 0)
        rc = wsync_update_request_encode(request, &json);
    if (rc == 0)
        rc = wsync_update_request_decode(json, strlen(json), NULL, &back);
    if (rc == 0)
        rc = wsync_update_request_decode(text, sizeof(text) - 1, "cuda_ipc", &handles);
    wsync_chunks_close(chunks);
    wsync_update_request_free(request);
    wsync_update_request_free(back);
    wsync_update_request_free(handles);
    free(json);
    return rc;
}

static void test_strategy(void **state)
{
    (void)state;
    exhaust(sync_info_both_ways);
    exhaust(request_both_ways);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout), cmocka_unit_test(test_manifest), cmocka_unit_test(test_compare),
        cmocka_unit_test(test_folder), cmocka_unit_test(test_strategy),
    };

    if (!HAVE_INTERPOSED) {
        puts("1..1\nok 1 - no_memory # SKIP the sanitizer has a malloc of its own");
        return 0;
    }
    setenv("WSYNC_LOG", "error", 1); /* the folder logs each time which file it ignores */
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("no_memory", tests, NULL, NULL);
}
