/* Safetensors headers: the stock writer's files are read, malformed ones are refused with the reason, and our
 * own layout reads back and is aligned. */
#include "tests/fixtures/private_folder.h"
#include "transports/format/safetensors.h"
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static struct ws_error err;

/* Parses a file of this header and data_bytes of data. The header is in a block of exactly its size, so that
 * a sanitizer detects a read beyond it. */
static int parse_bytes(const char *json, size_t json_bytes, uint64_t data_bytes, struct ws_safetensors **st)
{
    uint64_t length = htole64(json_bytes);
    unsigned char *file = malloc(8 + json_bytes);
    int rc;

    assert_non_null(file);
    memcpy(file, &length, 8);
    memcpy(file + 8, json, json_bytes);
    err = (struct ws_error){0};
    rc = ws_safetensors_parse(file, 8 + json_bytes, 8 + json_bytes + data_bytes, st, &err);
    free(file);
    return rc;
}

static int parse(const char *json, uint64_t data_bytes, struct ws_safetensors **st)
{
    return parse_bytes(json, strlen(json), data_bytes, st);
}

/* A file as safetensors 0.8.0 wrote it (numpy, with metadata). */
static const char stock[] =
    "h\x01\0\0\0\0\0\0"
    "{\"__metadata__\":{\"who\":\"stock\",\"format\":\"pt\"},"
    "\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
    "\"empty\":{\"dtype\":\"F16\",\"shape\":[0,4],\"data_offsets\":[32,32]},"
    "\"a.bias\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[32,35]},"
    "\"p\xC3\xA4th/with slash\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[35,37]}}   "
    "\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xA0@\x01\x02\x03\x01\0";

static void assert_stock(const struct ws_safetensors *st)
{
    static const char *const names[] = {"a.bias", "b.weight", "empty", "p\xC3\xA4th/with slash", "scalar"};
    const size_t bytes = sizeof(stock) - 1, begin = 8 + 0x168;
    const struct ws_tensor *t;
    float value;

    assert_int_equal(st->file_bytes, bytes);
    assert_int_equal(st->data_begin, begin);
    assert_int_equal(st->n_tensors, LENGTH(names));
    for (size_t i = 0; i < LENGTH(names); i++)
        assert_string_equal(st->tensors[i].name, names[i]);
    assert_string_equal(st->metadata, "{\"who\":\"stock\",\"format\":\"pt\"}");

    t = ws_safetensors_find(st, "b.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, WS_F32);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->begin, begin + 8);
    assert_int_equal(t->end, begin + 32);
    memcpy(&value, stock + t->begin + 5 * sizeof(value), sizeof(value));
    assert_true(value == 5.0F);

    t = ws_safetensors_find(st, "empty");
    assert_non_null(t);
    assert_int_equal(t->begin, t->end);
    t = ws_safetensors_find(st, "scalar");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 0);
    assert_null(ws_safetensors_find(st, "absent"));
    assert_null(ws_safetensors_find(st, "__metadata__"));
}

static void test_stock_file(void **state)
{
    const size_t bytes = sizeof(stock) - 1;
    struct ws_safetensors *st;

    (void)state;
    assert_int_equal(ws_safetensors_parse(stock, bytes, bytes, &st, &err), 0);
    assert_stock(st);
    struct ws_safetensors *copy = ws_safetensors_copy(st);
    ws_safetensors_free(st); /* of which the copy needs nothing */
    assert_non_null(copy);
    assert_stock(copy);
    ws_safetensors_free(copy);
}

static void test_stock_file_cut(void **state)
{
    const size_t bytes = sizeof(stock) - 1;
    struct ws_safetensors *st = NULL;

    (void)state;
    for (size_t n = 0; n < bytes; n++) {
        char *cut = malloc(n ? n : 1);
        assert_non_null(cut);
        memcpy(cut, stock, n);
        assert_int_equal(ws_safetensors_parse(cut, n, n, &st, &err), -EBADMSG);
        free(cut);
    }
    assert_int_equal(ws_safetensors_parse(stock, bytes, bytes + 1, &st, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "1 bytes follow the last tensor"));
    /* The file is complete, but fewer bytes of its header were passed. */
    assert_int_equal(ws_safetensors_parse(stock, 5, bytes, &st, &err), -EBADMSG);
    assert_int_equal(ws_safetensors_parse(stock, 100, bytes, &st, &err), -EBADMSG);
    assert_null(st);
}

#define ONE "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}"

static void test_good_headers(void **state)
{
    static const struct {
        const char *json;
        uint64_t data_bytes;
        size_t n_tensors;
    } cases[] = {
        {"{}", 0, 0},
        {"{}          ", 0, 0},
        {"{\"__metadata__\":{}}", 0, 0},
        {"{\"a\":" ONE "}", 1, 1},
        {"{ \"a\"\t:\n" ONE " }  ", 1, 1},
        {"{\"a\":{\"data_offsets\":[0,1],\"shape\":[1],\"dtype\":\"U8\"}}", 1, 1},
        {"{\"\\u0061\":" ONE "}", 1, 1},
        {"{\"a/b%\\n\":" ONE "}", 1, 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, 1},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}", 8, 1},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3,2],\"data_offsets\":[0,3]}}", 3, 1},
        /* The data may lie in any order. */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
         3, 2},
        /* Empty tensors may lie between the others. */
        {"{\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},\"a\":" ONE ","
         "\"f\":{\"dtype\":\"F32\",\"shape\":[7,0],\"data_offsets\":[1,1]}}",
         1, 3},
    };

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct ws_safetensors *st = NULL;
        int rc = parse(cases[i].json, cases[i].data_bytes, &st);
        if (rc != 0)
            fail_msg("%s: %s", cases[i].json, err.text);
        assert_int_equal(st->n_tensors, cases[i].n_tensors);
        ws_safetensors_free(st);
    }
}

#define T(dtype, shape, offsets)                                                                             \
    "{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets "]}"

static void test_bad_headers(void **state)
{
    static const struct {
        const char *json;
        uint64_t data_bytes;
        const char *reason; /* a part of the sentence */
    } cases[] = {
        /* JSON */
        {"", 0, "header has 0 bytes"},
        {"{", 0, "header has 1 bytes"},
        {" {}", 0, "does not begin with '{'"},
        {"[]", 0, "does not begin with '{'"},
        {"\xEF\xBB\xBF{}", 0, "does not begin with '{'"},
        {"{}\n", 0, "only spaces may pad it"},
        {"{}x", 0, "only spaces may pad it"},
        {"{}{}", 0, "only spaces may pad it"},
        {"{\"a\":" ONE, 1, "the JSON ends"},
        {"{\"a\":" ONE ",}", 1, "a key should be"},
        {"{\"a\":" ONE " \"b\":" ONE "}", 1, "',' or '}' should be"},
        {"{\"a\xFF\":" ONE "}", 1, "unable to decode byte"},
        {"{\"a\xC0\xAF\":" ONE "}", 1, "unable to decode byte"},
        {"{\"a\\u0000b\":" ONE "}", 1, "bad JSON"},
        {"{\"a\\ud800\":" ONE "}", 1, "bad JSON"},
        {"{\"a\n\":" ONE "}", 1, "bad JSON"},
        /* names */
        {"{\"a\":" ONE ",\"a\":" T("U8", "1", "1,2") "}", 2, "\"a\" is there twice"},
        {"{\"a\":" ONE ",\"\\u0061\":" T("U8", "1", "1,2") "}", 2, "\"a\" is there twice"},
        {"{\"a\":" T("U8", "0", "0,0") ",\"a\":" T("U8", "0", "0,0") "}", 0, "twice"},
        {"{\"\":" ONE "}", 1, "empty name"},
        /* fields */
        {"{\"a\":{}}", 0, "no \"dtype\""},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "no \"shape\""},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "no \"data_offsets\""},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         "\"dtype\" twice"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         "\"shape\" twice"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"data_offsets\":[0,1]}}", 1,
         "\"data_offsets\" twice"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"stride\":[1]}}", 1, "\"stride\""},
        {"{\"a\":[]}", 0, "an object should be"},
        {"{\"a\":null}", 0, "an object should be"},
        {"{\"a\":\"b\"}", 0, "an object should be"},
        /* dtypes */
        {"{\"a\":" T("F128", "1", "0,16") "}", 16, "\"F128\" is unknown"},
        {"{\"a\":" T("f32", "1", "0,4") "}", 4, "unknown"},
        {"{\"a\":" T("", "1", "0,4") "}", 4, "unknown"},
        {"{\"a\":" T("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "1", "0,4") "}", 4, "dtype"},
        {"{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "a string should be"},
        {"{\"a\":{\"dtype\":null,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "a string should be"},
        /* shapes */
        {"{\"a\":" T("U8", "1,1,1,1,1,1,1,1,1", "0,1") "}", 1, "more than 8 numbers"},
        {"{\"a\":" T("U8", "-1", "0,1") "}", 1, "no integer of 0 or more"},
        {"{\"a\":" T("U8", "-0", "0,0") "}", 0, "no integer of 0 or more"},
        {"{\"a\":" T("U8", "1.0", "0,1") "}", 1, "no integer"},
        {"{\"a\":" T("U8", "1e0", "0,1") "}", 1, "no integer"},
        {"{\"a\":" T("U8", "01", "0,1") "}", 1, "bad JSON"},
        {"{\"a\":" T("U8", "\"1\"", "0,1") "}", 1, "a number should be"},
        {"{\"a\":" T("U8", "true", "0,1") "}", 1, "a number should be"},
        {"{\"a\":" T("U8", "null", "0,1") "}", 1, "a number should be"},
        {"{\"a\":" T("U8", "[1]", "0,1") "}", 1, "a number should be"},
        {"{\"a\":" T("U8", "9007199254740993", "0,1") "}", 1, "2^53"},
        {"{\"a\":" T("U8", "9223372036854775807", "0,1") "}", 1, "2^53"},
        {"{\"a\":" T("U8", "9223372036854775808", "0,1") "}", 1, "too big integer"},
        {"{\"a\":" T("U8", "18446744073709551617", "0,1") "}", 1, "too big integer"},
        {"{\"a\":" T("U8", "4294967296,4294967296", "0,0") "}", 0, "larger than any memory"},
        {"{\"a\":" T("F32", "4294967296,4294967296,0", "0,0") "}", 0, "larger than any memory"},
        {"{\"a\":" T("F32", "0,4294967296,4294967296", "0,0") "}", 0, "larger than any memory"},
        {"{\"a\":" T("F64", "4611686018427387904", "0,0") "}", 0, "2^53"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1, "an array should be"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":{},\"data_offsets\":[0,1]}}", 1, "an array should be"},
        {"{\"a\":" T("F4", "3", "0,2") "}", 2, "whole byte"},
        {"{\"a\":" T("F6_E2M3", "2", "0,2") "}", 2, "whole byte"},
        /* offsets */
        {"{\"a\":" T("U8", "1", "") "}", 1, "not two numbers"},
        {"{\"a\":" T("U8", "1", "0") "}", 1, "not two numbers"},
        {"{\"a\":" T("U8", "1", "0,1,1") "}", 1, "more than 2 numbers"},
        {"{\"a\":" T("U8", "1", "1,0") "}", 1, "ends before"},
        {"{\"a\":" T("U8", "1", "-1,0") "}", 1, "no integer of 0 or more"},
        {"{\"a\":" T("U8", "1", "0,1.0") "}", 1, "no integer"},
        {"{\"a\":" T("U8", "2", "0,1") "}", 1, "need 2 bytes, its data_offsets span 1"},
        {"{\"a\":" T("U8", "0", "0,1") "}", 1, "need 0 bytes"},
        {"{\"a\":" T("U8", "2", "0,2") "}", 1, "cut off"},
        {"{\"a\":" T("U8", "1", "9007199254740991,9007199254740992") "}", 1, "cut off"},
        {"{\"a\":" T("U8", "1", "18446744073709551615,0") "}", 1, "too big integer"},
        {"{\"a\":" T("U8", "1", "1,2") "}", 2, "a gap of 1 bytes"},
        {"{\"a\":" ONE ",\"b\":" T("U8", "1", "2,3") "}", 3, "a gap of 1 bytes"},
        {"{\"a\":" T("U8", "2", "0,2") ",\"b\":" T("U8", "2", "1,3") "}", 3, "\"a\" and \"b\" overlap"},
        {"{\"a\":" ONE ",\"b\":" ONE "}", 1, "overlap"},
        {"{\"a\":" T("U8", "3", "0,3") ",\"b\":" T("U8", "1", "1,2") "}", 3, "overlap"},
        {"{\"a\":" T("U8", "2", "0,2") ",\"b\":" T("U8", "0", "1,1") "}", 2, "overlap"},
        {"{\"a\":" T("U8", "0", "1,1") "}", 1, "a gap of 1 bytes"},
        {"{\"a\":" ONE "}", 2, "1 bytes follow the last tensor"},
        {"{}", 1, "1 bytes follow the last tensor"},
        /* metadata */
        {"{\"__metadata__\":null}", 0, "is no object"},
        {"{\"__metadata__\":[]}", 0, "is no object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "value of \"a\" is no string"},
        {"{\"__metadata__\":{\"a\":{}}}", 0, "value of \"a\" is no string"},
        {"{\"__metadata__\":{\"a\":\"b\",\"a\":\"b\"}}", 0, "duplicate"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice"},
        {"{\"__metadata__\":" ONE "}", 1, "no string"},
    };

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct ws_safetensors *st = NULL;
        int rc = parse(cases[i].json, cases[i].data_bytes, &st);
        if (rc != -EBADMSG || err.code != EBADMSG || !strstr(err.text, cases[i].reason))
            fail_msg("%s: %d \"%s\", expected \"%s\"", cases[i].json, rc, err.text, cases[i].reason);
        assert_null(st);
    }
}

static void test_nul_in_header(void **state)
{
    static const char inside[] = "{\"a\0\":" ONE "}", behind[] = "{}\0\0";
    struct ws_safetensors *st = NULL;

    (void)state;
    assert_int_equal(parse_bytes(inside, sizeof(inside) - 1, 1, &st), -EBADMSG);
    assert_int_equal(parse_bytes(behind, sizeof(behind) - 1, 0, &st), -EBADMSG);
    assert_null(st);
}

static void test_header_length(void **state)
{
    static const uint64_t lengths[] = {
        0, 1, 3, WS_MAX_HEADER_BYTES, WS_MAX_HEADER_BYTES + 1, 1UL << 62, UINT64_MAX - 7, UINT64_MAX};
    struct ws_safetensors *st = NULL;
    uint64_t out = 0;

    (void)state;
    for (size_t i = 0; i < LENGTH(lengths); i++) {
        unsigned char file[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        uint64_t length = htole64(lengths[i]);
        memcpy(file, &length, 8);
        assert_int_equal(ws_safetensors_header_bytes(file, sizeof(file), &out, &err), -EBADMSG);
        assert_int_equal(ws_safetensors_parse(file, sizeof(file), sizeof(file), &st, &err), -EBADMSG);
    }
    /* Within the limits and the file: accepted, however much of it was passed. */
    {
        uint64_t length = htole64(WS_MAX_HEADER_BYTES);
        assert_int_equal(ws_safetensors_header_bytes(&length, 1UL << 40, &out, &err), 0);
        assert_int_equal(out, WS_MAX_HEADER_BYTES + 8);
        length = htole64(WS_MAX_HEADER_BYTES + 1);
        assert_int_equal(ws_safetensors_header_bytes(&length, 1UL << 40, &out, &err), -EBADMSG);
    }
    assert_int_equal(ws_safetensors_header_bytes("", 0, &out, &err), -EBADMSG);
    assert_int_equal(ws_safetensors_header_bytes("\2\0\0\0\0\0", 7, &out, &err), -EBADMSG);
    assert_null(st);
}

static void test_name_length(void **state)
{
    struct ws_safetensors *st = NULL;
    char name[WS_MAX_TENSOR_NAME + 2], json[2 * sizeof(name)];

    (void)state;
    memset(name, 'n', sizeof(name));
    name[WS_MAX_TENSOR_NAME] = '\0';
    snprintf(json, sizeof(json), "{\"%s\":" ONE "}", name);
    assert_int_equal(parse(json, 1, &st), 0);
    assert_string_equal(st->tensors[0].name, name);
    ws_safetensors_free(st);
    st = NULL;
    name[WS_MAX_TENSOR_NAME] = 'n';
    name[WS_MAX_TENSOR_NAME + 1] = '\0';
    snprintf(json, sizeof(json), "{\"%s\":" ONE "}", name);
    assert_int_equal(parse(json, 1, &st), -EBADMSG);
    assert_null(st);
}

static void test_hostile_name_in_sentence(void **state)
{
    struct ws_safetensors *st = NULL;

    (void)state;
    assert_int_equal(parse("{\"a\\nerror forged\\u001b\":" T("U8", "2", "0,1") "}", 1, &st), -EBADMSG);
    assert_null(strchr(err.text, '\n'));
    assert_null(strchr(err.text, '\x1B'));
    assert_non_null(strstr(err.text, "need 2 bytes"));
}

static void test_errors_are_optional(void **state)
{
    static const char file[] = "\x03\0\0\0\0\0\0\0{}x";
    struct ws_safetensors *st = NULL;

    (void)state;
    assert_int_equal(ws_safetensors_parse(file, 11, 11, &st, NULL), -EBADMSG);
    assert_int_equal(ws_safetensors_parse("{\"a\":1}", 4, 4, &st, NULL), -EBADMSG);
    assert_int_equal(ws_safetensors_read("/nonexistent", &st, NULL), -ENOENT);
}

/* As many tensors as in the benchmark of a large version. */
static void test_100000_tensors(void **state)
{
    const unsigned n = 100000;
    size_t used = 0, room = n * 96UL;
    struct ws_safetensors *st = NULL;
    char *json = malloc(room), name[32];

    (void)state;
    assert_non_null(json);
    used += (size_t)snprintf(json, room, "{");
    for (unsigned i = 0; i < n; i++) /* in descending order of names and offsets */
        used += (size_t)snprintf(json + used, room - used, "%s\"layer.%06u\":" T("BF16", "2,1", "%u,%u"),
                                 i ? "," : "", n - 1 - i, 4 * (n - 1 - i), 4 * (n - i));
    used += (size_t)snprintf(json + used, room - used, "}");
    assert_int_equal(parse_bytes(json, used, 4UL * n, &st), 0);
    assert_int_equal(st->n_tensors, n);
    for (unsigned i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "layer.%06u", i);
        assert_string_equal(st->tensors[i].name, name);
        assert_int_equal(st->tensors[i].begin, st->data_begin + 4UL * i);
        assert_ptr_equal(ws_safetensors_find(st, name), &st->tensors[i]);
    }
    ws_safetensors_free(st);
    free(json);
}

static void check_round_trip(const struct ws_safetensors *laid, const void *header)
{
    struct ws_safetensors *read;
    uint64_t length;

    memcpy(&length, header, 8);
    assert_int_equal(le64toh(length) + 8, laid->data_begin);
    assert_int_equal(laid->data_begin % WS_PAGE_BYTES, 0);
    assert_int_equal(ws_safetensors_parse(header, laid->data_begin, laid->file_bytes, &read, &err), 0);
    assert_int_equal(read->n_tensors, laid->n_tensors);
    for (size_t i = 0; i < read->n_tensors; i++) {
        const struct ws_tensor *a = &read->tensors[i], *b = &laid->tensors[i];
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->dtype, b->dtype);
        assert_int_equal(a->n_dims, b->n_dims);
        assert_memory_equal(a->shape, b->shape, sizeof(a->shape));
        assert_int_equal(a->begin, b->begin);
        assert_int_equal(a->end, b->end);
        if (ws_dtype_bits(a->dtype) >= 8)
            assert_int_equal(a->begin % (ws_dtype_bits(a->dtype) / 8), 0);
    }
    ws_safetensors_free(read);
}

static void test_layout_in_name_order(void **state)
{
    static const struct ws_tensor specs[] = {
        {.name = "w/2", .dtype = WS_BF16, .n_dims = 2, .shape = {3, 4}},
        {.name = "w/10", .dtype = WS_F32, .n_dims = 1, .shape = {5}},
        {.name = "e", .dtype = WS_F32, .n_dims = 1, .shape = {0}},
        {.name = "a \"quoted\" \xC3\xA4\n", .dtype = WS_F64, .n_dims = 0},
    };
    static const char *const order[] = {"a \"quoted\" \xC3\xA4\n", "e", "w/10", "w/2"};
    struct ws_safetensors *st;
    uint64_t at;
    void *header;

    (void)state;
    assert_int_equal(ws_safetensors_layout(specs, LENGTH(specs), "{\"format\":\"pt\"}", &st, &header, &err),
                     0);
    assert_int_equal(st->data_begin, WS_PAGE_BYTES);
    assert_int_equal(st->n_tensors, LENGTH(order));
    assert_string_equal(st->metadata, "{\"format\":\"pt\"}");
    at = st->data_begin;
    for (size_t i = 0; i < LENGTH(order); i++) {
        assert_string_equal(st->tensors[i].name, order[i]);
        assert_int_equal(st->tensors[i].begin, at);
        at = st->tensors[i].end;
    }
    assert_int_equal(at, st->file_bytes);
    check_round_trip(st, header);
    ws_safetensors_free(st);
    free(header);
}

/* Name order would put the F32 at an odd byte: widest first then, by name within. */
static void test_layout_keeps_tensors_aligned(void **state)
{
    static const struct ws_tensor specs[] = {
        {.name = "a", .dtype = WS_U8, .n_dims = 1, .shape = {3}},
        {.name = "b", .dtype = WS_F32, .n_dims = 1, .shape = {1}},
        {.name = "c", .dtype = WS_BF16, .n_dims = 1, .shape = {1}},
        {.name = "d", .dtype = WS_F64, .n_dims = 0},
        {.name = "f", .dtype = WS_F4, .n_dims = 1, .shape = {2}},
        {.name = "g", .dtype = WS_F32, .n_dims = 0},
    };
    static const char order[] = "dbgcaf";
    struct ws_safetensors *st;
    uint64_t at;
    void *header;

    (void)state;
    assert_int_equal(ws_safetensors_layout(specs, LENGTH(specs), NULL, &st, &header, &err), 0);
    assert_null(st->metadata);
    at = st->data_begin;
    for (size_t i = 0; i < LENGTH(specs); i++) {
        char name[2] = {order[i], '\0'};
        const struct ws_tensor *t = ws_safetensors_find(st, name);
        assert_non_null(t);
        assert_int_equal(t->begin, at);
        at = t->end;
    }
    check_round_trip(st, header);
    ws_safetensors_free(st);
    free(header);
}

static void test_layout_of_nothing(void **state)
{
    struct ws_safetensors *st;
    void *header;

    (void)state;
    assert_int_equal(ws_safetensors_layout(NULL, 0, NULL, &st, &header, &err), 0);
    assert_int_equal(st->n_tensors, 0);
    assert_int_equal(st->file_bytes, WS_PAGE_BYTES);
    check_round_trip(st, header);
    ws_safetensors_free(st);
    free(header);
}

/* The padding must be right for each length of the text, including lengths that need none. */
static void test_layout_padding(void **state)
{
    static char fixed[3][1001], variable[WS_MAX_TENSOR_NAME + 1];
    const struct ws_tensor specs[] = {
        {.name = fixed[0], .dtype = WS_U8},
        {.name = fixed[1], .dtype = WS_U8},
        {.name = fixed[2], .dtype = WS_U8},
        {.name = variable, .dtype = WS_U8},
    };
    unsigned without_padding = 0;

    (void)state;
    for (size_t i = 0; i < LENGTH(fixed); i++) {
        memset(fixed[i], 'x', sizeof(fixed[i]) - 1);
        fixed[i][0] = (char)('a' + i);
    }
    for (size_t n = 1; n < sizeof(variable); n++) {
        struct ws_safetensors *st;
        void *header;

        variable[n - 1] = 'y';
        assert_int_equal(ws_safetensors_layout(specs, LENGTH(specs), NULL, &st, &header, &err), 0);
        check_round_trip(st, header);
        without_padding += ((const char *)header)[st->data_begin - 1] == '}';
        ws_safetensors_free(st);
        free(header);
    }
    assert_int_equal(without_padding, 1); /* the lengths pass one page's end */
}

static void test_layout_refuses(void **state)
{
    static char long_name[WS_MAX_TENSOR_NAME + 2];
    const struct {
        struct ws_tensor specs[2];
        size_t n;
        const char *metadata, *reason;
        int rc;
    } cases[] = {
        {{{.name = "a"}, {.name = "a"}}, 2, NULL, "twice", -EINVAL},
        {{{.name = ""}}, 1, NULL, "no name", -EINVAL},
        {{{.name = NULL}}, 1, NULL, "no name", -EINVAL},
        {{{.name = "__metadata__"}}, 1, NULL, "__metadata__", -EINVAL},
        {{{.name = "a\xFF"}}, 1, NULL, "not UTF-8", -EINVAL},
        {{{.name = long_name}}, 1, NULL, "1024", -EINVAL},
        {{{.name = "a", .n_dims = 9}}, 1, NULL, "9 dimensions", -EINVAL},
        {{{.name = "a", .dtype = WS_DTYPE_COUNT}}, 1, NULL, "unknown", -EINVAL},
        {{{.name = "a", .dtype = WS_F4, .n_dims = 1, .shape = {1}}}, 1, NULL, "byte", -EINVAL},
        {{{.name = "a", .n_dims = 2, .shape = {1UL << 40, 1UL << 40}}}, 1, NULL, "memory", -EINVAL},
        {{{.name = "a", .n_dims = 1, .shape = {WS_MAX_FILE_BYTES + 1}}}, 1, NULL, "more", -E2BIG},
        {{{.name = "a", .n_dims = 1, .shape = {WS_MAX_FILE_BYTES}}, {.name = "b"}}, 2, NULL, "more", -E2BIG},
        {{{.name = "a"}}, 1, "{\"format\":1}", "no string", -EINVAL},
        {{{.name = "a"}}, 1, "[]", "no object", -EINVAL},
        {{{.name = "a"}}, 1, "{\"format\":", "the metadata", -EINVAL},
        {{{.name = "a"}}, 1, "{} {}", "the metadata", -EINVAL},
        {{{.name = "a"}}, 1, "", "the metadata", -EINVAL},
        {{{.name = "a"}}, 1, "7", "no object", -EINVAL},
        {{{.name = "a"}}, WS_MAX_TENSORS + 1, NULL, "1000000", -E2BIG},
    };

    (void)state;
    memset(long_name, 'x', sizeof(long_name) - 1);
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct ws_safetensors *st = NULL;
        void *header = NULL;
        int rc = ws_safetensors_layout(cases[i].specs, cases[i].n, cases[i].metadata, &st, &header, &err);
        if (rc != cases[i].rc || err.code != -rc || !strstr(err.text, cases[i].reason))
            fail_msg("case %zu: %d \"%s\", expected %d \"%s\"", i, rc, err.text, cases[i].rc,
                     cases[i].reason);
        assert_null(st);
        assert_null(header);
    }
}

static void test_read(void **state)
{
    char path[96];
    struct ws_safetensors *st = NULL;

    (void)state;
    assert_true(private_path(path, sizeof(path), "test.XXXXXX"));
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(ws_safetensors_read(path, &st, &err), -EBADMSG); /* empty */
    assert_non_null(strstr(err.text, path));
    assert_int_equal(write(fd, stock, sizeof(stock) - 1), sizeof(stock) - 1);
    assert_int_equal(ws_safetensors_read(path, &st, &err), 0);
    assert_int_equal(st->n_tensors, 5);
    ws_safetensors_free(st);
    st = NULL;
    assert_int_equal(ftruncate(fd, sizeof(stock) - 2), 0);
    assert_int_equal(ws_safetensors_read(path, &st, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "cut off"));
    assert_int_equal(ftruncate(fd, 20), 0);
    assert_int_equal(ws_safetensors_read(path, &st, &err), -EBADMSG);
    assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0);
    assert_int_equal(ws_safetensors_read(path, &st, &err), -EBADMSG);
    close(fd);
    unlink(path);
    assert_int_equal(ws_safetensors_read(path, &st, &err), -ENOENT);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(ws_safetensors_read("/tmp", &st, &err), -EINVAL);
    assert_null(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stock_file),           cmocka_unit_test(test_stock_file_cut),
        cmocka_unit_test(test_good_headers),         cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_nul_in_header),        cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_name_length),          cmocka_unit_test(test_hostile_name_in_sentence),
        cmocka_unit_test(test_errors_are_optional),  cmocka_unit_test(test_100000_tensors),
        cmocka_unit_test(test_layout_in_name_order), cmocka_unit_test(test_layout_keeps_tensors_aligned),
        cmocka_unit_test(test_layout_of_nothing),    cmocka_unit_test(test_layout_padding),
        cmocka_unit_test(test_layout_refuses),       cmocka_unit_test(test_read),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
