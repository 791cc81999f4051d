/* When a folder that a framework writes is whole: what each writes, in its order. */
#include "tests/fixtures/private_folder.h"
#include "transports/format/commit_rule.h"
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
#define INDEX_OF_TWO                                                                                         \
    "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00002-of-00002."              \
    "safetensors\"}}"

static struct ws_error err;
static char dir[64];
static enum ws_commit_part part;

static int setup(void **state)
{
    (void)state;
    part = WS_COMMIT_WHOLE;
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

static void move(const char *from, const char *to)
{
    char a[512], b[512];

    snprintf(a, sizeof(a), "%s/%s", dir, from);
    snprintf(b, sizeof(b), "%s/%s", dir, to);
    assert_int_equal(rename(a, b), 0);
}

static void expect_whole(const char *marker)
{
    struct ws_folder *f = NULL;

    if (ws_commit_rule_read(dir, marker, part, &f, &err) < 0)
        fail_msg("%s", err.text);
    assert_non_null(f);
    ws_folder_free(f);
}

static void expect_partial(const char *marker, const char *reason)
{
    struct ws_folder *f = NULL;
    int rc = ws_commit_rule_read(dir, marker, part, &f, &err);

    assert_null(f);
    if (rc != -EAGAIN || err.code != EAGAIN || !strstr(err.text, reason))
        fail_msg("%d \"%s\", expected \"%s\"", rc, err.text, reason);
}

/* PRIME-RL: each rank renames its own, then the index, then the marker. */
static void test_marker(void **state)
{
    (void)state;
    expect_partial("STABLE", "STABLE is missing");
    put_weights("tmp-rank0.safetensors", "a");
    put_weights("tmp-rank1.safetensors", "b");
    move("tmp-rank0.safetensors", "model-00001-of-00002.safetensors");
    expect_partial("STABLE", "STABLE is missing");
    move("tmp-rank1.safetensors", "model-00002-of-00002.safetensors");
    put_text(INDEX, INDEX_OF_TWO);
    expect_partial("STABLE", "STABLE is missing");
    put_text("STABLE", "");
    expect_whole("STABLE");
    put_weights("tmp-rank0.safetensors", "a"); /* it is written again after a resume */
    expect_partial("STABLE", "tmp-rank0.safetensors");
    remove_file("tmp-rank0.safetensors");
    remove_file("model-00002-of-00002.safetensors");
    expect_partial("STABLE", "model-00002-of-00002.safetensors");
}

/* slime: the index before the other ranks have renamed. */
static void test_early_index(void **state)
{
    (void)state;
    put_weights("model-00001.safetensors", "a");
    put_weights("model-00002.safetensors", "b");
    put_text("config.json", "{}");
    expect_partial(NULL, INDEX);
    move("model-00001.safetensors", "model-00001-of-00002.safetensors");
    put_text(INDEX, INDEX_OF_TWO);
    expect_partial(NULL, "model-00002-of-00002.safetensors");
    move("model-00002.safetensors", "model-00002-of-00002.safetensors");
    expect_whole(NULL);
}

/* An index that json.dump has written half. */
static void test_half_index(void **state)
{
    (void)state;
    put_weights("model-00001-of-00002.safetensors", "a");
    put_weights("model-00002-of-00002.safetensors", "b");
    for (size_t n = 0; n < strlen(INDEX_OF_TWO); n++) {
        put(INDEX, INDEX_OF_TWO, n);
        expect_partial(NULL, INDEX);
    }
    put_text(INDEX, INDEX_OF_TWO);
    expect_whole(NULL);
}

/* safetensors 0.4 writes in place, 0.8 to a temporary name. */
static void test_one_file(void **state)
{
    char path[512];
    struct stat stat_;

    (void)state;
    put_weights("model.safetensors", "ab");
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_int_equal(stat(path, &stat_), 0);
    expect_whole(NULL);
    for (off_t n = 0; n < stat_.st_size; n++) {
        assert_int_equal(truncate(path, n), 0);
        expect_partial(NULL, "model.safetensors");
    }
    put_weights("model.safetensors", "ab");
    put_text(".tmpa8X0qZ", "");
    expect_partial(NULL, ".tmpa8X0qZ");
    move(".tmpa8X0qZ", ".config.json.77.tmp");
    expect_partial(NULL, ".config.json.77.tmp");
    remove_file(".config.json.77.tmp");
    expect_whole(NULL);
}

static void test_adapter(void **state)
{
    (void)state;
    put_weights("adapter_model.safetensors", "a");
    expect_partial(NULL, "adapter_config.json");
    put_text("adapter_config.json", "{}");
    expect_whole(NULL);
    remove_file("adapter_model.safetensors");
    expect_partial(NULL, "adapter_model.safetensors");
}

/* No file, but a name. */
static void test_no_marker(void **state)
{
    char path[512];
    struct ws_folder *f = NULL;

    (void)state;
    put_weights("model.safetensors", "a");
    snprintf(path, sizeof(path), "%s/STABLE", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_partial("STABLE", "STABLE is missing");
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(symlink("model.safetensors", path), 0);
    expect_partial("STABLE", "STABLE is missing");
    assert_int_equal(ws_commit_rule_read(dir, "../STABLE", part, &f, &err), -EINVAL);
    assert_int_equal(ws_commit_rule_read(dir, "", part, &f, &err), -EINVAL);
    assert_int_equal(ws_commit_rule_read(dir, ".tmp", part, &f, &err), -EINVAL);
    snprintf(path, sizeof(path), "%s/none", dir);
    assert_int_equal(ws_commit_rule_read(path, NULL, part, &f, &err), -EAGAIN);
    assert_null(f);
}

/* Two nodes: what the first one's index names lies on the other; what a writer calls otherwise is not done. */
static void test_parts(void **state)
{
    (void)state;
    part = WS_COMMIT_OTHER;
    expect_partial(NULL, "no *.safetensors");
    put_weights("model-00001.safetensors", "a");
    expect_partial(NULL, "model-00001.safetensors is not called");
    move("model-00001.safetensors", "model-00001-of-00002.safetensors");
    expect_whole(NULL);
    expect_whole("STABLE");
    put_text(".tmpa8X0qZ", "");
    expect_partial(NULL, ".tmpa8X0qZ");
    remove_file(".tmpa8X0qZ");
    part = WS_COMMIT_FIRST;
    expect_partial("STABLE", "STABLE is missing");
    expect_partial(NULL, "index " INDEX " is missing");
    put_text(INDEX, INDEX_OF_TWO);
    expect_whole(NULL);
    expect_partial("STABLE", "STABLE is missing");
    put_weights("model-00001-of-00002.safetensors", "b"); /* not what the index says */
    expect_partial(NULL, "model-00001-of-00002.safetensors");
    part = WS_COMMIT_WHOLE;
    put_weights("model-00001-of-00002.safetensors", "a");
    expect_partial(NULL, "model-00002-of-00002.safetensors");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_marker),  CASE(test_early_index), CASE(test_half_index), CASE(test_one_file),
        CASE(test_adapter), CASE(test_no_marker),   CASE(test_parts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
