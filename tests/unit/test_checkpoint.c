/* The public functions for readers: safetensors headers, indexes, weight files by name, layouts, dtypes. The
 * parsers' tests (test_safetensors, test_folder, test_layout) have all refusals; here the public functions
 * must agree. */
#include "backends/trainer/wsync.h"
#include "transports/base/limits.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))
#define INDEX     "model.safetensors.index.json"

static int file_of(const void *bytes, size_t n)
{
    int fd = memfd_create("file", MFD_CLOEXEC);
    assert_true(fd >= 0 && pwrite(fd, bytes, n, 0) == (ssize_t)n);
    return fd;
}

/* A safetensors file with that header and that many bytes of data. */
static int weights_of(const char *header, size_t data_bytes)
{
    char bytes[4096] = {0};
    uint64_t length = strlen(header);
    assert_true(8 + length + data_bytes <= sizeof(bytes));
    memcpy(bytes, &length, sizeof(length));
    memcpy(bytes + 8, header, length);
    return file_of(bytes, 8 + length + data_bytes);
}

static wsync_safetensors *open_weights(const char *header, size_t data_bytes)
{
    wsync_safetensors *st;
    int fd = weights_of(header, data_bytes);
    if (wsync_safetensors_open(fd, &st) < 0)
        fail_msg("%s", wsync_error());
    close(fd);
    return st;
}

static wsync_index *open_index(const char *text)
{
    wsync_index *index;
    int fd = file_of(text, strlen(text));
    if (wsync_index_open(fd, &index) < 0)
        fail_msg("%s", wsync_error());
    close(fd);
    return index;
}

static void test_file(void **state)
{
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                                 "\"z\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}  ";
    wsync_safetensors *st = open_weights(header, 16);
    const uint64_t begin = 8 + strlen(header);
    const wsync_tensor *z = wsync_safetensors_tensor(st, 0), *a = wsync_safetensors_tensor(st, 1);

    (void)state;
    assert_string_equal(z->name, "z");
    assert_int_equal(z->dtype, WSYNC_F32);
    assert_int_equal(z->n_dims, 0);
    assert_int_equal(z->begin, begin);
    assert_string_equal(a->name, "a");
    assert_int_equal(a->dtype, WSYNC_BF16);
    assert_int_equal(a->n_dims, 2);
    assert_true(a->shape[0] == 2 && a->shape[1] == 3 && a->begin == z->end && a->end == begin + 16);
    assert_null(wsync_safetensors_tensor(st, 2));
    assert_string_equal(wsync_safetensors_metadata(st), "{\"format\":\"pt\"}");
    wsync_safetensors_close(st);
    st = open_weights("{}", 0);
    assert_null(wsync_safetensors_tensor(st, 0));
    assert_null(wsync_safetensors_metadata(st));
    wsync_safetensors_close(st);
    wsync_safetensors_close(NULL);
}

static void test_bad_file(void **state)
{
    static const struct {
        const char *header;
        const char *reason;
    } cases[] = {{"{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}", "cut off"},
                 {"{\"a\":{\"dtype\":\"F7\",\"shape\":[8],\"data_offsets\":[0,8]}}", "F7"},
                 {"[]", "does not begin with"},
                 {"{}", "8 bytes follow"}};
    wsync_safetensors *st = (void *)1;
    int ends[2];

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        int fd = weights_of(cases[i].header, 8);
        assert_int_equal(wsync_safetensors_open(fd, &st), -EBADMSG);
        assert_null(st);
        assert_non_null(strstr(wsync_error(), cases[i].reason));
        close(fd);
    }
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(wsync_safetensors_open(ends[0], &st), -EINVAL);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(wsync_safetensors_open(-1, &st), -EBADF);
}

static void test_index(void **state)
{
    wsync_index *index = open_index("{\"metadata\":{},\"weight_map\":{\"z\":\"m.safetensors\","
                                    "\"a\":\"m.safetensors\",\"b\":\"n.safetensors\"}}");
    wsync_safetensors *both = open_weights("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                                           "\"z\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                                           2);
    wsync_safetensors *one =
        open_weights("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    static const char *const want[][2] = {
        {"z", "m.safetensors"}, {"a", "m.safetensors"}, {"b", "n.safetensors"}};
    const char *file;

    (void)state;
    for (size_t i = 0; i < LENGTH(want); i++) {
        assert_string_equal(wsync_index_tensor(index, i, &file), want[i][0]);
        assert_string_equal(file, want[i][1]);
    }
    assert_null(wsync_index_tensor(index, LENGTH(want), NULL));
    assert_int_equal(wsync_index_check(index, "m.safetensors", both), 0);
    assert_int_equal(wsync_index_check(index, "m.safetensors", one), -EBADMSG);
    assert_string_equal(wsync_error(),
                        INDEX ": it places tensor \"z\" in m.safetensors, which does not hold it");
    assert_int_equal(wsync_index_check(index, "n.safetensors", one), -EBADMSG);
    assert_string_equal(wsync_error(),
                        "n.safetensors holds tensor \"a\", which " INDEX " does not place there");
    assert_int_equal(wsync_index_check(index, "o.safetensors", one), -EBADMSG);
    wsync_safetensors_close(both);
    wsync_safetensors_close(one);
    wsync_index_close(index);
    wsync_index_close(NULL);
}

static void test_bad_index(void **state)
{
    static const struct {
        const char *text;
        const char *reason;
    } cases[] = {{"", INDEX},
                 {"{}", "no \"weight_map\""},
                 {"{\"weight_map\":{\"a\":7}}", "a string should be"},
                 {"{\"weight_map\":{\"a\":\"config.json\"}}", "no *.safetensors file"},
                 {"{\"weight_map\":{\"a\":\".safetensors\"}}", "no *.safetensors file"},
                 {"{\"weight_map\":{\"a\":\"m.safetensors\",\"a\":\"n.safetensors\"}}", "twice"}};
    wsync_index *index = (void *)1;

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        int fd = file_of(cases[i].text, strlen(cases[i].text));
        assert_int_equal(wsync_index_open(fd, &index), -EBADMSG);
        assert_null(index);
        assert_non_null(strstr(wsync_error(), cases[i].reason));
        close(fd);
    }
    int large = file_of("", 0);
    assert_int_equal(ftruncate(large, (off_t)WS_MAX_MANIFEST_BYTES + 1), 0);
    assert_int_equal(wsync_index_open(large, &index), -E2BIG);
    close(large);
}

static void test_select(void **state)
{
    static const char *const names[] = {"m-00002-of-00002.safetensors", "config.json", ".hidden.safetensors",
                                        "m-00001-of-00002.safetensors", "extra.safetensors"};
    wsync_index *index = open_index("{\"weight_map\":{\"a\":\"m-00001-of-00002.safetensors\","
                                    "\"b\":\"m-00002-of-00002.safetensors\"}}");
    unsigned char chosen[LENGTH(names)];

    (void)state;
    assert_int_equal(wsync_select_weights(names, LENGTH(names), NULL, chosen), 0);
    assert_memory_equal(chosen, "\1\0\0\1\1", LENGTH(names));
    assert_int_equal(wsync_select_weights(names, LENGTH(names), index, chosen), 0);
    assert_memory_equal(chosen, "\1\0\0\1\0", LENGTH(names));
    assert_int_equal(wsync_select_weights(names, 3, NULL, chosen), -ENOENT);
    assert_string_equal(wsync_error(), "m-00001-of-00002.safetensors is missing: by their names there are 2 "
                                       "such files");
    assert_int_equal(wsync_select_weights(names, 3, index, chosen), -ENOENT);
    assert_non_null(strstr(wsync_error(), "m-00001-of-00002.safetensors, which is missing"));
    assert_int_equal(wsync_select_weights(names + 1, 2, NULL, chosen), -ENOENT);
    assert_string_equal(wsync_error(), "there is no *.safetensors file in it");
    assert_int_equal(wsync_select_weights(NULL, 0, NULL, NULL), -ENOENT);
    wsync_index_close(index);
    index = open_index("{\"weight_map\":{\"a\":\"m-00001-of-00002.safetensors\"}}");
    assert_int_equal(wsync_select_weights(names, LENGTH(names), index, chosen), -ENOENT);
    assert_string_equal(wsync_error(), "m-00002-of-00002.safetensors is missing: by their names there are 2 "
                                       "such files");
    wsync_index_close(index);
}

static void expect(const wsync_differences *d, size_t i, wsync_difference_kind kind, const char *name,
                   const char *text)
{
    const wsync_difference *one = wsync_difference_at(d, i);
    assert_non_null(one);
    assert_int_equal(one->kind, kind);
    assert_string_equal(one->name, name);
    assert_string_equal(one->text, text);
}

static void test_layouts(void **state)
{
    const wsync_tensor have[] = {{.name = "c", .dtype = WSYNC_F32, .n_dims = 2, .shape = {4, 1}},
                                 {.name = "a", .dtype = WSYNC_F16, .n_dims = 2, .shape = {2, 3}},
                                 {.name = "b", .dtype = WSYNC_U8, .begin = 7},
                                 {.name = "new\n", .dtype = WSYNC_BF16, .n_dims = 1, .shape = {7}}};
    const wsync_tensor want[] = {{.name = "b", .dtype = WSYNC_U8, .shape = {9}},
                                 {.name = "old", .dtype = WSYNC_I64},
                                 {.name = "c", .dtype = WSYNC_F32, .n_dims = 1, .shape = {4}},
                                 {.name = "a", .dtype = WSYNC_BF16, .n_dims = 2, .shape = {2, 3}}};
    const wsync_tensor bad[] = {{.dtype = WSYNC_U8},
                                {.name = "a", .dtype = (wsync_dtype)1000},
                                {.name = "a", .n_dims = WSYNC_MAX_DIMS + 1}};
    wsync_differences *d;

    (void)state;
    assert_int_equal(wsync_layout_compare(have, LENGTH(have), want, LENGTH(want), &d), 4);
    expect(d, 0, WSYNC_DIFFERS, "a", "F16 [2,3], was BF16 [2,3]");
    expect(d, 1, WSYNC_DIFFERS, "c", "F32 [4,1], was F32 [4]");
    expect(d, 2, WSYNC_EXTRA, "new\n", "BF16 [7]");
    expect(d, 3, WSYNC_MISSING, "old", "I64 []");
    assert_null(wsync_difference_at(d, 4));
    wsync_differences_free(d);
    assert_int_equal(wsync_layout_compare(have, LENGTH(have), have, LENGTH(have), &d), 0);
    assert_null(wsync_difference_at(d, 0));
    wsync_differences_free(d);
    assert_int_equal(wsync_layout_compare(NULL, 0, NULL, 0, &d), 0);
    wsync_differences_free(d);
    for (size_t i = 0; i < LENGTH(bad); i++) {
        assert_int_equal(wsync_layout_compare(have, 1, &bad[i], 1, &d), -EINVAL);
        assert_null(d);
    }
    wsync_differences_free(NULL);
}

static void test_dtypes(void **state)
{
    unsigned n = 0;

    (void)state;
    for (; wsync_dtype_safetensors((wsync_dtype)n); n++)
        assert_true(wsync_dtype_bits((wsync_dtype)n) >= 4 && wsync_dtype_bits((wsync_dtype)n) <= 64);
    assert_int_equal(n, WSYNC_C64 + 1);
    assert_string_equal(wsync_dtype_safetensors(WSYNC_F8_E4M3), "F8_E4M3");
    assert_int_equal(wsync_dtype_bits(WSYNC_F6_E2M3), 6);
    assert_int_equal(wsync_dtype_bits(WSYNC_C64), 64);
    assert_int_equal(wsync_dtype_bits((wsync_dtype)n), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file),      cmocka_unit_test(test_bad_file), cmocka_unit_test(test_index),
        cmocka_unit_test(test_bad_index), cmocka_unit_test(test_select),   cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_dtypes),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
