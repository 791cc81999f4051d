/* Checkpoint folders: which files are published, and which folders are refused first. */
#include "tests/fixtures/private_folder.h"
#include "transports/format/folder.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
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

#include "tests/fixtures/filled_folder.h"

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))
#define INDEX     "model.safetensors.index.json"

static struct ws_error err;
static char dir[64];

static int setup(void **state)
{
    (void)state;
    return private_folder(dir, sizeof(dir), "folder") ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return folder_remove(dir);
}

static void put(const char *name, const void *bytes, size_t n)
{
    folder_put(dir, name, bytes, n);
}

static void put_text(const char *name, const char *text)
{
    put(name, text, strlen(text));
}

static void put_weights(const char *name, const char *tensors)
{
    folder_put_weights(dir, name, tensors);
}

static void remove_file(const char *name)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_int_equal(unlink(path), 0);
}

/* The files that are published, separated by spaces. */
static void expect_files(const char *want)
{
    struct ws_folder *f = NULL;
    char got[1024] = "";

    if (ws_folder_open(dir, &f, &err) < 0)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < f->n_files; i++) {
        if (i > 0)
            strcat(got, " ");
        strcat(got, f->files[i].name);
    }
    ws_folder_free(f);
    assert_string_equal(got, want);
}

static void expect_error(int rc, const char *reason)
{
    struct ws_folder *f = NULL;
    int got;

    err = (struct ws_error){0};
    got = ws_folder_open(dir, &f, &err);
    assert_null(f);
    if (got != rc || err.code != -rc || !strstr(err.text, reason) || !strstr(err.text, dir))
        fail_msg("%d \"%s\", expected %d \"%s\"", got, err.text, rc, reason);
}

static void test_one_file(void **state)
{
    struct ws_folder *f = NULL;
    char path[512];

    (void)state;
    put_weights("model.safetensors", "ab");
    put_text("config.json", "{}");
    snprintf(path, sizeof(path), "%s///", dir);
    assert_int_equal(ws_folder_open(path, &f, &err), 0);
    assert_string_equal(f->path, dir);
    assert_int_equal(f->n_files, 2);
    assert_string_equal(f->files[0].name, "config.json");
    assert_int_equal(f->files[0].size_bytes, 2);
    assert_null(f->files[0].st);
    assert_string_equal(f->files[1].name, "model.safetensors");
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_string_equal(f->files[1].path, path);
    assert_non_null(f->files[1].st);
    assert_int_equal(f->files[1].st->n_tensors, 2);
    assert_int_equal(f->files[1].size_bytes, f->files[1].st->file_bytes);
    ws_folder_free(f);
    ws_folder_free(NULL);
}

static void test_which_files(void **state)
{
    char path[512];

    (void)state;
    put_weights("model.safetensors", "a");
    put_text("config.json", "{}");
    put_text("merges.txt", "");
    put_text("tokenizer.model", "x");
    put_text("qwen.tiktoken", "x");
    put_text("chat_template.jinja", "x");
    put_text("pytorch_model.bin", "x");
    put_text("model.pt", "x");
    put_text("model.pth", "x");
    put_text("README.md", "x");
    put_text("modeling.py", "x");
    put_text(".hidden.json", "x");
    put_text("json", "x");
    put_text(".json", "x");
    snprintf(path, sizeof(path), "%s/folder.json", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_files("chat_template.jinja config.json merges.txt model.safetensors qwen.tiktoken "
                 "tokenizer.model");
}

static void test_is_sidecar(void **state)
{
    static const char *const yes[] = {"config.json", "merges.txt", "tokenizer.model", "a.tiktoken",
                                      "t.jinja"};
    static const char *const no[] = {
        "",         "model.safetensors", "pytorch_model.bin", ".hidden.json", ".json", "json",
        "a\n.json", "a/b.json",          "a\xFF.json",        "x.JSON",       "x.txt~"};

    (void)state;
    for (size_t i = 0; i < LENGTH(yes); i++)
        assert_true(ws_folder_is_sidecar(yes[i]));
    for (size_t i = 0; i < LENGTH(no); i++)
        assert_false(ws_folder_is_sidecar(no[i]));
}

static void test_links(void **state)
{
    char path[512], target[512];

    (void)state;
    /* As in a download cache: names are links to blobs. */
    put_weights("blob", "a");
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_int_equal(symlink("blob", path), 0);
    expect_files("model.safetensors");
    snprintf(target, sizeof(target), "%s/other.safetensors", dir);
    assert_int_equal(symlink("gone", target), 0);
    expect_error(-ENOENT, "other.safetensors is a link that leads nowhere");
}

static void test_no_files(void **state)
{
    char path[512];

    (void)state;
    put_weights("model.safetensors", "a");
    snprintf(path, sizeof(path), "%s/pipe.json", dir);
    assert_int_equal(mkfifo(path, 0600), 0); /* opening it would block */
    expect_error(-EINVAL, "pipe.json is a FIFO");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/zero", path), 0);
    expect_error(-EINVAL, "pipe.json is a character device");
}

static void link_of(const char *name, const char *target, uid_t owner)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    (void)unlink(path);
    assert_int_equal(symlink(target, path), 0);
    assert_int_equal(lchown(path, owner, owner), 0);
}

/* A link of another user must not give that user the daemon's permissions. */
static void test_links_of_others(void **state)
{
    enum { STRANGER = 12345 };
    char path[512], secret[256];

    (void)state;
    if (geteuid() != 0)
        skip(); /* only root can create links of others */
    put_weights("model.safetensors", "a");
    assert_int_equal(chmod(dir, 0755), 0);
    snprintf(secret, sizeof(secret), "%s/private", dir);
    assert_int_equal(mkdir(secret, 0700), 0);
    put_text("private/secret", "s");
    put_text("shadow", "s");
    snprintf(path, sizeof(path), "%s/shadow", dir);
    assert_int_equal(chmod(path, 0600), 0);
    link_of("config.json", path, STRANGER);
    expect_error(-EACCES, "config.json: a link of user 12345");
    link_of("config.json", "shadow", STRANGER);
    expect_error(-EACCES, "config.json: a link of user 12345");
    assert_int_equal(chmod(path, 0644), 0); /* readable by everyone */
    expect_files("config.json model.safetensors");
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(chown(path, STRANGER, STRANGER), 0); /* the user's own */
    expect_files("config.json model.safetensors");
    snprintf(path, sizeof(path), "%s/private/secret", dir);
    assert_int_equal(chmod(path, 0644), 0); /* but the user cannot enter its folder */
    link_of("config.json", "private/secret", STRANGER);
    expect_error(-EACCES, "config.json: a link of user 12345");
    link_of("way", "private", STRANGER); /* or the path contains a link of the user */
    link_of("config.json", "way/secret", 0);
    expect_error(-EACCES, "config.json: a link of user 12345");
    link_of("config.json", "private/secret", 0); /* root's link is followed */
    expect_files("config.json model.safetensors");
    link_of("config.json", "config.json", 0);
    expect_error(-ELOOP, "config.json");
}

static void test_changed_meanwhile(void **state)
{
    struct ws_folder *f = NULL;
    int fd;

    (void)state;
    put_weights("model.safetensors", "a");
    put_text("config.json", "{}");
    assert_int_equal(ws_folder_open(dir, &f, &err), 0);
    fd = ws_folder_file_open(f, &f->files[0], &err);
    assert_true(fd >= 0);
    close(fd);
    remove_file("config.json");
    put_text("config.json", "[]"); /* of the same size */
    assert_int_equal(ws_folder_file_open(f, &f->files[0], &err), -ESTALE);
    assert_non_null(strstr(err.text, "config.json was changed"));
    ws_folder_free(f);
}

static void test_no_weights(void **state)
{
    (void)state;
    expect_error(-ENOENT, "no *.safetensors file");
    put_text("config.json", "{}");
    expect_error(-ENOENT, "no *.safetensors file");
    put_text("pytorch_model.bin", "x");
    expect_error(-ENOENT, "save it with safetensors");
}

static void test_no_folder(void **state)
{
    struct ws_folder *f = NULL;

    (void)state;
    put_weights("model.safetensors", "a");
    strcat(dir, "/model.safetensors");
    expect_error(-ENOTDIR, "cannot open the folder");
    *strrchr(dir, '/') = '\0';
    assert_int_equal(ws_folder_open("/nonexistent/x", &f, &err), -ENOENT);
    assert_non_null(strstr(err.text, "/nonexistent/x"));
    assert_int_equal(ws_folder_open("", &f, NULL), -ENOENT);
    assert_null(f);
}

static void test_bad_file(void **state)
{
    (void)state;
    put_weights("model-a.safetensors", "a");
    put_text("model-b.safetensors", "{\"version\":1}: a pointer file, not the weights");
    expect_error(-EBADMSG, "model-b.safetensors");
    put_text("model-b.safetensors", "");
    expect_error(-EBADMSG, "model-b.safetensors");
    put("model-b.safetensors", "\x40\0\0\0\0\0\0\0{}", 10);
    expect_error(-EBADMSG, "cut off");
}

static void test_bad_name(void **state)
{
    (void)state;
    put_weights("model.safetensors", "a");
    put_text("con\nfig.json", "x");
    expect_error(-EINVAL, "rename it");
    remove_file("con\nfig.json");
    put_text("con\xFF.json", "x");
    expect_error(-EINVAL, "rename it");
}

static void test_same_tensor_in_two_files(void **state)
{
    (void)state;
    put_weights("a.safetensors", "xyz");
    put_weights("b.safetensors", "uvw");
    expect_files("a.safetensors b.safetensors");
    put_weights("b.safetensors", "uvy");
    expect_error(-EBADMSG, "tensor \"y\" is in both");
}

static void test_shards_without_index(void **state)
{
    (void)state;
    put_weights("model-00001-of-00003.safetensors", "a");
    put_weights("model-00003-of-00003.safetensors", "c");
    expect_error(-ENOENT, "model-00002-of-00003.safetensors is missing");
    put_weights("model-00002-of-00003.safetensors", "b");
    expect_files("model-00001-of-00003.safetensors model-00002-of-00003.safetensors "
                 "model-00003-of-00003.safetensors");
    remove_file("model-00001-of-00003.safetensors");
    expect_error(-ENOENT, "model-00001-of-00003.safetensors is missing");
}

static void test_shard_names(void **state)
{
    (void)state;
    /* Counted from 0; another width of the count; two sets; names that only resemble shards. */
    put_weights("a-00000-of-00002.safetensors", "a");
    put_weights("a-00001-of-00002.safetensors", "b");
    put_weights("b-00001-of-000002.safetensors", "c");
    put_weights("b-00002-of-000002.safetensors", "d");
    put_weights("-of-.safetensors", "e");
    put_weights("x-of-5.safetensors", "f");
    put_weights("1-of-2.safetensors", "g");
    put_weights("x-1-of-2b.safetensors", "h");
    expect_files("-of-.safetensors 1-of-2.safetensors a-00000-of-00002.safetensors "
                 "a-00001-of-00002.safetensors b-00001-of-000002.safetensors "
                 "b-00002-of-000002.safetensors x-1-of-2b.safetensors x-of-5.safetensors");
    put_weights("z-00001-of-999999999.safetensors", "i");
    expect_error(-ENOENT, "z-00002-of-999999999.safetensors is missing");
}

static void test_index(void **state)
{
    (void)state;
    put_weights("model-00001-of-00002.safetensors", "ab");
    put_weights("model-00002-of-00002.safetensors", "c");
    put_text(INDEX, "{\"metadata\":{\"total_size\":6},\"weight_map\":{"
                    "\"a\":\"model-00001-of-00002.safetensors\","
                    "\"b\":\"model-00001-of-00002.safetensors\","
                    "\"c\":\"model-00002-of-00002.safetensors\"}}");
    expect_files("model-00001-of-00002.safetensors model-00002-of-00002.safetensors " INDEX);
    /* Weights that the index does not name are ignored, whatever they contain. */
    put_weights("consolidated.safetensors", "abc");
    put_text("other.safetensors", "nonsense");
    expect_files("model-00001-of-00002.safetensors model-00002-of-00002.safetensors " INDEX);
    /* An index that does not name all shards of a set that are there has lost some tensors. */
    put_text(INDEX, "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
                    "\"b\":\"model-00001-of-00002.safetensors\"}}");
    expect_error(-ENOENT, "model-00002-of-00002.safetensors is missing: by their names there are 2");
    put_text(INDEX, "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
                    "\"c\":\"model-00002-of-00002.safetensors\"}}");
    remove_file("model-00002-of-00002.safetensors");
    expect_error(-ENOENT, "model-00002-of-00002.safetensors, which is missing");
}

static void test_bad_index(void **state)
{
    static const struct {
        const char *text;
        int rc;
        const char *reason;
    } cases[] = {
        {"", -EBADMSG, "an object should be"},
        {"[]", -EBADMSG, "an object should be"},
        {"{}", -EBADMSG, "no \"weight_map\""},
        {"{\"weight_map\":[]}", -EBADMSG, "an object should be"},
        {"{\"weight_map\":{\"a\":1}}", -EBADMSG, "a string should be"},
        {"{\"weight_map\":{\"a\":\"m.safetensors\"}", -EBADMSG, "the JSON ends"},
        {"{\"weight_map\":{\"a\":\"m.safetensors\"}} x", -EBADMSG, "its end should be"},
        {"{\"weight_map\":{\"a\":\"m.safetensors\"},\"weight_map\":{}}", -EBADMSG, "twice"},
        {"{\"weight_map\":{\"a\":\"m.safetensors\"}}", -EBADMSG,
         "m.safetensors holds tensor \"b\", which " INDEX " does not place there"},
        {"{\"weight_map\":{\"a\":\"m.safetensors\",\"b\":\"n.safetensors\"}}", -EBADMSG,
         "m.safetensors holds tensor \"b\", which " INDEX " does not place there"},
        {"{\"weight_map\":{\"a\":\"m.safetensors\",\"b\":\"m.safetensors\","
         "\"z\":\"m.safetensors\"}}",
         -EBADMSG, "places tensor \"z\" in m.safetensors, which does not hold it"},
        {"{\"weight_map\":{\"a\":\"m.safetensors\",\"a\":\"m.safetensors\","
         "\"b\":\"m.safetensors\"}}",
         -EBADMSG, "tensor \"a\" twice"},
        {"{\"weight_map\":{\"a\":\"o.safetensors\",\"b\":\"m.safetensors\"}}", -ENOENT,
         "o.safetensors, which is missing"},
        {"{\"weight_map\":{\"a\":\"../m.safetensors\",\"b\":\"m.safetensors\"}}", -ENOENT,
         "../m.safetensors, which is missing"},
        {"{\"weight_map\":{\"a\":\"config.json\",\"b\":\"m.safetensors\"}}", -EBADMSG,
         "which is no *.safetensors file"},
        {"{\"weight_map\":{\"a\":\"\",\"b\":\"m.safetensors\"}}", -EBADMSG, "which is no *.safetensors file"},
        {"{\"weight_map\":{\"a\xFF\":\"m.safetensors\"}}", -EBADMSG, "bad JSON"},
        {"{\"weight_map\":{\"a\\u0000\":\"m.safetensors\"}}", -EBADMSG, "bad JSON"},
    };

    (void)state;
    put_weights("m.safetensors", "ab");
    put_weights("n.safetensors", "c");
    put_text("config.json", "{}");
    for (size_t i = 0; i < LENGTH(cases); i++) {
        put_text(INDEX, cases[i].text);
        expect_error(cases[i].rc, cases[i].reason);
        assert_non_null(strstr(err.text, INDEX));
    }
}

static void test_large_sidecar(void **state)
{
    char path[512];

    (void)state;
    put_weights("model.safetensors", "a");
    put_text("vocab.json", "");
    snprintf(path, sizeof(path), "%s/vocab.json", dir);
    assert_int_equal(truncate(path, (off_t)WS_MAX_SIDECAR_BYTES), 0); /* sparse */
    expect_files("model.safetensors vocab.json");
    assert_int_equal(truncate(path, (off_t)WS_MAX_SIDECAR_BYTES + 1), 0);
    expect_error(-E2BIG, "vocab.json");
    remove_file("vocab.json");
    put_text(INDEX, "");
    snprintf(path, sizeof(path), "%s/" INDEX, dir);
    assert_int_equal(truncate(path, (off_t)WS_MAX_MANIFEST_BYTES + 1), 0);
    expect_error(-E2BIG, INDEX);
}

static void test_too_many_files(void **state)
{
    char name[32];

    (void)state;
    put_weights("model.safetensors", "a");
    for (int i = 0; i < WS_MAX_FILES - 1; i++) {
        snprintf(name, sizeof(name), "%d.json", i);
        put_text(name, "");
    }
    {
        struct ws_folder *f = NULL;
        assert_int_equal(ws_folder_open(dir, &f, &err), 0);
        assert_int_equal(f->n_files, WS_MAX_FILES);
        for (size_t i = 1; i < f->n_files; i++)
            assert_true(strcmp(f->files[i - 1].name, f->files[i].name) < 0);
        ws_folder_free(f);
    }
    put_text("more.json", "");
    expect_error(-E2BIG, "4096 files");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_one_file),
        TEST(test_which_files),
        TEST(test_is_sidecar),
        TEST(test_links),
        TEST(test_no_files),
        TEST(test_links_of_others),
        TEST(test_changed_meanwhile),
        TEST(test_no_weights),
        TEST(test_no_folder),
        TEST(test_bad_file),
        TEST(test_bad_name),
        TEST(test_same_tensor_in_two_files),
        TEST(test_shards_without_index),
        TEST(test_shard_names),
        TEST(test_index),
        TEST(test_bad_index),
        TEST(test_large_sidecar),
        TEST(test_too_many_files),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("folder", tests, NULL, NULL);
}
