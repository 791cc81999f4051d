/* Manifests: construction, digest, JSON both ways, and everything that a peer can get wrong. */
#include "transports/format/manifest.h"
#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static struct ws_error err;

static struct ws_manifest_file *add(struct ws_manifest *m, const char *name, uint64_t size, uint64_t header)
{
    struct ws_manifest_file *f = NULL;

    if (ws_manifest_add(m, name, size, header, &f, &err) < 0)
        fail_msg("%s", err.text);
    return f;
}

static struct ws_manifest *sample(void)
{
    struct ws_manifest *m = NULL;
    struct ws_manifest_file *f;

    assert_int_equal(ws_manifest_new(&m, "actor", 13, "run-1", &err), 0);
    f = add(m, "model.safetensors", WS_BLOCK_BYTES + 5, 4096);
    f->hashes[0] = 0x0123456789abcdef;
    f->hashes[1] = 0xfedcba9876543210;
    f = add(m, "config.json", 3, 0);
    f->hashes[0] = 1;
    add(m, "empty.txt", 0, 0);
    assert_int_equal(ws_manifest_freeze(m, "vision.\"tower\"", &err), 0);
    assert_int_equal(ws_manifest_freeze(m, "mtp", &err), 0);
    m->created_ns = 1700000000000000001;
    ws_manifest_seal(m);
    return m;
}

static void assert_same(const struct ws_manifest *a, const struct ws_manifest *b)
{
    assert_string_equal(a->model, b->model);
    assert_string_equal(a->lineage, b->lineage);
    assert_string_equal(a->digest, b->digest);
    assert_int_equal(a->version, b->version);
    assert_int_equal(a->created_ns, b->created_ns);
    assert_int_equal(a->total_bytes, b->total_bytes);
    assert_int_equal(a->n_files, b->n_files);
    for (size_t i = 0; i < a->n_files; i++) {
        const struct ws_manifest_file *x = &a->files[i], *y = &b->files[i];
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->size_bytes, y->size_bytes);
        assert_int_equal(x->header_bytes, y->header_bytes);
        assert_int_equal(x->n_blocks, y->n_blocks);
        assert_memory_equal(x->hashes, y->hashes, x->n_blocks * sizeof(*x->hashes));
    }
    assert_int_equal(a->n_frozen, b->n_frozen);
    for (size_t i = 0; i < a->n_frozen; i++)
        assert_string_equal(a->frozen[i], b->frozen[i]);
}

static void test_blocks(void **state)
{
    struct ws_manifest_file f = {.size_bytes = 2 * WS_BLOCK_BYTES + 1, .n_blocks = 3};

    (void)state;
    assert_int_equal(ws_manifest_count_blocks(0), 0);
    assert_int_equal(ws_manifest_count_blocks(1), 1);
    assert_int_equal(ws_manifest_count_blocks(WS_BLOCK_BYTES), 1);
    assert_int_equal(ws_manifest_count_blocks(WS_BLOCK_BYTES + 1), 2);
    assert_int_equal(ws_manifest_count_blocks(WS_MAX_FILE_BYTES), WS_MAX_FILE_BYTES / WS_BLOCK_BYTES);
    assert_int_equal(ws_manifest_block_bytes(&f, 0), WS_BLOCK_BYTES);
    assert_int_equal(ws_manifest_block_bytes(&f, 1), WS_BLOCK_BYTES);
    assert_int_equal(ws_manifest_block_bytes(&f, 2), 1);
    f = (struct ws_manifest_file){.size_bytes = WS_BLOCK_BYTES, .n_blocks = 1};
    assert_int_equal(ws_manifest_block_bytes(&f, 0), WS_BLOCK_BYTES);
}

static void test_new_refuses(void **state)
{
    static const struct {
        const char *model;
        uint64_t version;
        const char *run;
    } cases[] = {
        {"", 1, "r"},
        {"..", 1, "r"},
        {"a/b", 1, "r"},
        {"a\n", 1, "r"},
        {NULL, 1, "r"},
        {"m", 1, ""},
        {"m", 1, "a b"},
        {"m", 1, "a/b"},
        {"m", 1, NULL},
        {"m", 1, "\xC3\xA4"},
        {"m", 1, "123456789012345678901234567890123"},
        {"m", 1UL << 63, "r"},
    };
    struct ws_manifest *m = NULL;

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++)
        assert_int_equal(ws_manifest_new(&m, cases[i].model, cases[i].version, cases[i].run, &err), -EINVAL);
    assert_null(m);
    assert_int_equal(ws_manifest_new(&m, "m", INT64_MAX, "12345678901234567890123456789.-_", &err), 0);
    ws_manifest_free(m);
    ws_manifest_free(NULL);
}

static void test_files_are_sorted_and_found(void **state)
{
    struct ws_manifest *m = NULL;
    char name[16];

    (void)state;
    assert_int_equal(ws_manifest_new(&m, "m", 0, "r", &err), 0);
    assert_null(ws_manifest_find(m, "f"));
    for (unsigned i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "f%03u", i * 7 % 300);
        add(m, name, i * 7 % 300, 0);
    }
    assert_int_equal(m->n_files, 300);
    for (unsigned i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "f%03u", i);
        assert_string_equal(m->files[i].name, name);
        assert_int_equal(m->files[i].size_bytes, i);
        assert_ptr_equal(ws_manifest_find(m, name), &m->files[i]);
    }
    assert_null(ws_manifest_find(m, "f"));
    assert_null(ws_manifest_find(m, "f300"));
    ws_manifest_free(m);
}

static void test_add_refuses(void **state)
{
    static const struct {
        const char *name;
        uint64_t size, header;
        int rc;
    } cases[] = {
        {"there", 1, 0, -EEXIST},       {"", 1, 0, -EINVAL},
        {"..", 1, 0, -EINVAL},          {"a/b", 1, 0, -EINVAL},
        {"a\x01", 1, 0, -EINVAL},       {"big", WS_MAX_FILE_BYTES + 1, 0, -E2BIG},
        {"max", UINT64_MAX, 0, -E2BIG}, {"h", 100, 101, -EINVAL},
        {"h", 100, 9, -EINVAL},         {"h", WS_MAX_FILE_BYTES, WS_MAX_HEADER_BYTES + 9, -EINVAL},
        {"h", 0, UINT64_MAX, -EINVAL},
    };
    struct ws_manifest *m = NULL;
    struct ws_manifest_file *f = NULL;

    (void)state;
    assert_int_equal(ws_manifest_new(&m, "m", 0, "r", &err), 0);
    add(m, "there", 1, 0);
    for (size_t i = 0; i < LENGTH(cases); i++)
        assert_int_equal(ws_manifest_add(m, cases[i].name, cases[i].size, cases[i].header, &f, &err),
                         cases[i].rc);
    assert_int_equal(m->n_files, 1);
    assert_int_equal(ws_manifest_freeze(m, "", &err), -EINVAL);
    ws_manifest_free(m);
}

static void test_too_many_files(void **state)
{
    struct ws_manifest *m = NULL;
    struct ws_manifest_file *f;
    char name[16];

    (void)state;
    assert_int_equal(ws_manifest_new(&m, "m", 0, "r", &err), 0);
    for (int i = 0; i < WS_MAX_FILES; i++) {
        snprintf(name, sizeof(name), "%05d", i);
        add(m, name, 0, 0);
    }
    assert_int_equal(ws_manifest_add(m, "more", 0, 0, &f, &err), -E2BIG);
    ws_manifest_free(m);
}

/* Readers of tensors keep all headers in memory, however many files there are. */
static void test_too_long_headers(void **state)
{
    struct ws_manifest *m = NULL;
    struct ws_manifest_file *f;

    (void)state;
    assert_int_equal(ws_manifest_new(&m, "m", 0, "r", &err), 0);
    add(m, "a", WS_MAX_HEADER_BYTES, WS_MAX_HEADER_BYTES - 4096);
    assert_int_equal(ws_manifest_add(m, "b", 8192, 4096 + 9, &f, &err), -E2BIG);
    assert_int_equal(ws_manifest_add(m, "b", 8192, 4096 + 8, &f, &err), 0);
    assert_int_equal(ws_manifest_add(m, "c", 8192, 16, &f, &err), -E2BIG);
    assert_int_equal(ws_manifest_add(m, "c", 8192, 0, &f, &err), 0);
    ws_manifest_free(m);
}

static void test_json_round_trip(void **state)
{
    struct ws_manifest *m = sample(), *back = NULL;
    size_t length;
    char *json;

    (void)state;
    assert_int_equal(ws_manifest_to_json(m, &json, &length, &err), 0);
    assert_int_equal(strlen(json), length);
    assert_int_equal(ws_manifest_from_json(json, length, &back, &err), 0);
    assert_same(m, back);
    ws_manifest_free(back);
    ws_manifest_free(m);
    free(json);
}

/* The text as documented, and as every JSON parser reads it. */
static void test_json_form(void **state)
{
    struct ws_manifest *m = sample();
    json_t *root, *file;
    size_t length;
    char *json;

    (void)state;
    assert_int_equal(ws_manifest_to_json(m, &json, &length, &err), 0);
    root = json_loads(json, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    assert_int_equal(json_integer_value(json_object_get(root, "format")), 1);
    assert_int_equal(json_integer_value(json_object_get(root, "version")), 13);
    assert_int_equal(json_integer_value(json_object_get(root, "block_bytes")), 4194304);
    assert_int_equal(json_integer_value(json_object_get(root, "total_bytes")), 4194304 + 5 + 3);
    assert_string_equal(json_string_value(json_object_get(root, "model")), "actor");
    assert_string_equal(json_string_value(json_object_get(root, "run")), "run-1");
    assert_int_equal(json_array_size(json_object_get(root, "files")), 3);
    file = json_array_get(json_object_get(root, "files"), 2);
    assert_string_equal(json_string_value(json_object_get(file, "name")), "model.safetensors");
    assert_int_equal(json_integer_value(json_object_get(file, "header_bytes")), 4096);
    assert_string_equal(json_string_value(json_array_get(json_object_get(file, "xxh3"), 0)),
                        "0123456789abcdef");
    assert_int_equal(json_array_size(json_object_get(root, "frozen")), 2);
    assert_true(json_is_array(json_object_get(root, "deltas")));
    json_decref(root);
    ws_manifest_free(m);
    free(json);
}

/* The identity of a version must not change between releases. The value was computed by another
 * program (Python's xxhash) from the input that format/manifest.h describes. */
static void test_digest_is_stable(void **state)
{
    struct ws_manifest *m = sample();

    (void)state;
    assert_string_equal(m->digest, "15a1dc4a10a4f218b6419ec7ced4156e");
    ws_manifest_free(m);
}

static void test_digest_covers_everything(void **state)
{
    struct ws_manifest *m = sample();
    char digest[sizeof(m->digest)];

    (void)state;
    strcpy(digest, m->digest);
    m->created_ns++; /* the time is not part of the identity */
    ws_manifest_seal(m);
    assert_string_equal(m->digest, digest);
#define CHANGES(change, undo)                                                                                \
    do {                                                                                                     \
        change;                                                                                              \
        ws_manifest_seal(m);                                                                                 \
        assert_string_not_equal(m->digest, digest);                                                          \
        undo;                                                                                                \
        ws_manifest_seal(m);                                                                                 \
        assert_string_equal(m->digest, digest);                                                              \
    } while (0)
    CHANGES(m->version++, m->version--);
    CHANGES(m->lineage[0] = 'R', m->lineage[0] = 'r');
    CHANGES(m->model[0] = 'A', m->model[0] = 'a');
    CHANGES(m->files[0].name[0] = 'C', m->files[0].name[0] = 'c');
    CHANGES(m->files[0].size_bytes++, m->files[0].size_bytes--);
    CHANGES(m->files[2].header_bytes++, m->files[2].header_bytes--);
    CHANGES(m->files[2].hashes[1] ^= 1, m->files[2].hashes[1] ^= 1);
    CHANGES(m->frozen[1][0] = 'x', m->frozen[1][0] = 'm');
    CHANGES(m->n_frozen--, m->n_frozen++);
#undef CHANGES
    ws_manifest_free(m);
}

static void test_copy(void **state)
{
    struct ws_manifest *m = sample(), *copy = NULL;

    (void)state;
    assert_int_equal(ws_manifest_copy(m, &copy), 0);
    assert_same(m, copy);
    assert_ptr_not_equal(m->files[2].hashes, copy->files[2].hashes);
    ws_manifest_free(m);
    assert_string_equal(copy->files[0].name, "config.json"); /* nothing is shared */
    ws_manifest_free(copy);
}

/* A manifest with one text replaced. `from` must occur in it. */
static char *exchange(const char *json, const char *from, const char *to)
{
    const char *at = strstr(json, from);
    char *out = NULL;

    if (!at)
        fail_msg("no %s in %s", from, json);
    if (asprintf(&out, "%.*s%s%s", (int)(at - json), json, to, at + strlen(from)) < 0)
        fail_msg("no memory");
    return out;
}

static void test_from_json_refuses(void **state)
{
    static const struct {
        const char *from, *to, *reason;
    } cases[] = {
        {"\"format\":1", "\"format\":2", "format is 2"},
        {"\"format\":1,", "", "no \"format\""},
        {"\"format\":1", "\"format\":1,\"format\":1", "twice"},
        {"\"format\":1", "\"format\":1.0", "no integer"},
        {"\"model\":\"actor\"", "\"model\":\"\"", "cannot be a model's name"},
        {"\"model\":\"actor\"", "\"model\":\"../x\"", "cannot be a model's name"},
        {"\"model\":\"actor\"", "\"model\":\"critic\"", "digest"},
        {"\"model\":\"actor\"", "\"model\":5", "a string should be"},
        {"\"version\":13", "\"version\":14", "digest"},
        {"\"version\":13", "\"version\":-13", "no integer of 0 or more"},
        {"\"version\":13", "\"version\":9223372036854775808", "too big"},
        {"\"version\":13", "\"version\":\"13\"", "a number should be"},
        {"\"run\":\"run-1\"", "\"run\":\"run-2\"", "digest"},
        {"\"run\":\"run-1\"", "\"run\":\"\"", "run id"},
        {"\"run\":\"run-1\"", "\"run\":\"a b\"", "run id"},
        {"\"run\":\"run-1\"", "\"run\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"", "\"run\""},
        {"\"block_bytes\":4194304", "\"block_bytes\":1048576", "blocks have 1048576 bytes"},
        {"\"total_bytes\":4194312", "\"total_bytes\":4194311", "it says 4194311"},
        {"\"digest\":\"", "\"digest\":\"0", "\"digest\""},
        {"\"digest\":\"", "\"digest\":\"\",\"was\":\"", "digest"},
        {"\"config.json\"", "\"config.jsom\"", "digest"},
        {"\"config.json\"", "\"model.safetensors\"", "twice"},
        {"\"config.json\"", "\"a/b\"", "cannot be a file's name"},
        {"\"config.json\"", "\"..\"", "cannot be a file's name"},
        {"\"config.json\"", "\"\"", "cannot be a file's name"},
        {"\"config.json\"", "\"a\\u0000b\"", "bad JSON"},
        {"\"config.json\"", "\"a\xFF\"", "bad JSON"},
        {"\"config.json\"", "\"a\\n\"", "cannot be a file's name"},
        {"\"size\":3", "\"size\":4", "it says"},
        {"\"size\":3", "\"size\":4194305", "has 1 hashes"},
        {"\"size\":3", "\"size\":0", "has 1 hashes"},
        {"\"size\":3", "\"size\":9223372036854775807", "has 1 hashes"},
        {"\"size\":3", "\"size\":3,\"size\":3", "twice"},
        {"\"size\":3,", "", "lacks one of"},
        {"\"header_bytes\":4096", "\"header_bytes\":4194310", "cannot have a header"},
        {"\"header_bytes\":4096", "\"header_bytes\":5000", "digest"},
        {"\"header_bytes\":4096", "\"header_bytes\":null", "a number should be"},
        {"0123456789abcdef", "0123456789abcdee", "digest"},
        {"0123456789abcdef", "0123456789ABCDEF", "no hash"},
        {"0123456789abcdef", "0123456789abcde", "no hash"},
        {"0123456789abcdef", "0123456789abcdef0", "limit of 16"},
        {"0123456789abcdef", "0x23456789abcdef", "no hash"},
        {"\"0123456789abcdef\",", "", "has 1 hashes"},
        {"\"0123456789abcdef\"", "1", "a string should be"},
        {"\"xxh3\":[]", "\"xxh3\":{}", "an array should be"},
        {"\"xxh3\":[]", "\"xxh3\":[],\"xxh3\":[]", "twice"},
        {"\"files\":[", "\"files\":[],\"old\":[", "it says"},
        {"\"files\":[{", "\"files\":[1,{", "an object should be"},
        {"\"mtp\"", "\"mtq\"", "digest"},
        {"\"mtp\"", "\"\"", "cannot be a tensor's name"},
        {"\"mtp\"", "7", "a string should be"},
        {"\"deltas\":[]}", "\"deltas\":[]", "the JSON ends"},
        {"\"deltas\":[]}", "\"deltas\":[]}x", "its end should be"},
        {"\"deltas\":[]", "\"deltas\":[", "bad JSON"},
        {"{\"format\"", "[{\"format\"", "an object should be"},
    };
    struct ws_manifest *m = sample(), *out = NULL;
    size_t length;
    char *json;

    (void)state;
    assert_int_equal(ws_manifest_to_json(m, &json, &length, &err), 0);
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char *bad = exchange(json, cases[i].from, cases[i].to);
        int rc = ws_manifest_from_json(bad, strlen(bad), &out, &err);
        if (rc != -EBADMSG || err.code != EBADMSG || !strstr(err.text, cases[i].reason))
            fail_msg("%s -> %s: %d \"%s\", expected \"%s\"", cases[i].from, cases[i].to, rc, err.text,
                     cases[i].reason);
        assert_null(out);
        free(bad);
    }
    free(json);
    ws_manifest_free(m);
}

/* Unknown keys, deltas among them, and any order of keys are accepted. */
static void test_from_json_is_lenient(void **state)
{
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"\"deltas\":[]", "\"deltas\":[{\"base\":12,\"bytes\":5}]"},
        {",\"deltas\":[]", ""},
        {"{\"format\":1", "{\"new\":{\"x\":[1,2.5,null]},\"format\":1"},
        {"{\"name\":\"config.json\"", "{\"mode\":420,\"name\":\"config.json\""},
        {"{\"format\":1,\"model\":\"actor\"", " {\n \"model\" : \"actor\",\t\"format\": 1"},
        {"{\"name\":\"config.json\",\"size\":3,\"header_bytes\":0,\"xxh3\":[\"0000000000000001\"]}",
         "{\"xxh3\":[\"0000000000000001\"],\"header_bytes\":0,\"size\":3,\"name\":\"config.json\"}"},
    };
    struct ws_manifest *m = sample();
    size_t length;
    char *json;

    (void)state;
    assert_int_equal(ws_manifest_to_json(m, &json, &length, &err), 0);
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char *text = exchange(json, cases[i].from, cases[i].to);
        struct ws_manifest *out = NULL;
        if (ws_manifest_from_json(text, strlen(text), &out, &err) < 0)
            fail_msg("%s: %s", cases[i].to, err.text);
        assert_same(m, out);
        ws_manifest_free(out);
        free(text);
    }
    free(json);
    ws_manifest_free(m);
}

static void test_from_json_cut(void **state)
{
    struct ws_manifest *m = sample(), *out = NULL;
    size_t length;
    char *json;

    (void)state;
    assert_int_equal(ws_manifest_to_json(m, &json, &length, &err), 0);
    for (size_t n = 0; n < length; n++) {
        char *cut = malloc(n ? n : 1);
        assert_non_null(cut);
        memcpy(cut, json, n);
        assert_int_equal(ws_manifest_from_json(cut, n, &out, &err), -EBADMSG);
        free(cut);
    }
    assert_int_equal(ws_manifest_from_json(json, WS_MAX_MANIFEST_BYTES + 1, &out, &err), -EBADMSG);
    assert_null(out);
    free(json);
    ws_manifest_free(m);
}

/* One terabyte: 262,144 blocks. */
static void test_large(void **state)
{
    struct ws_manifest *m = NULL, *back = NULL;
    struct ws_manifest_file *f;
    size_t length;
    char *json;

    (void)state;
    assert_int_equal(ws_manifest_new(&m, "big", 1, "r", &err), 0);
    f = add(m, "model.safetensors", 1UL << 40, 4096);
    assert_int_equal(f->n_blocks, 262144);
    for (size_t i = 0; i < f->n_blocks; i++)
        f->hashes[i] = i * 0x9E3779B97F4A7C15;
    ws_manifest_seal(m);
    assert_int_equal(ws_manifest_to_json(m, &json, &length, &err), 0);
    assert_int_equal(ws_manifest_from_json(json, length, &back, &err), 0);
    assert_same(m, back);
    ws_manifest_free(back);
    ws_manifest_free(m);
    free(json);
}

static void test_to_json_refuses_bad_text(void **state)
{
    struct ws_manifest *m = sample();
    size_t length;
    char *json = NULL;

    (void)state;
    m->frozen[0][0] = (char)0xFF;
    assert_int_equal(ws_manifest_to_json(m, &json, &length, &err), -EINVAL);
    assert_null(json);
    ws_manifest_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_new_refuses),
        cmocka_unit_test(test_files_are_sorted_and_found),
        cmocka_unit_test(test_add_refuses),
        cmocka_unit_test(test_too_many_files),
        cmocka_unit_test(test_too_long_headers),
        cmocka_unit_test(test_json_round_trip),
        cmocka_unit_test(test_json_form),
        cmocka_unit_test(test_digest_is_stable),
        cmocka_unit_test(test_digest_covers_everything),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_from_json_refuses),
        cmocka_unit_test(test_from_json_is_lenient),
        cmocka_unit_test(test_from_json_cut),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_to_json_refuses_bad_text),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("manifest", tests, NULL, NULL);
}
