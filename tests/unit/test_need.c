/* What a node needs of a checkpoint: patterns, what ranks of expert-parallel engines read, and the map of a subset, which has each
 * byte of the blocks that come in one place. */
#include "transports/format/need.h"
#include "transports/format/subset.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST 64

static struct ws_error err;

/* A letter a tensor: which of them the text chooses; "!" where it chooses none and is refused. */
static void expect(const char *text, const char *const *names, size_t n, const char *chosen, const char *why)
{
    struct ws_tensor tensors[MOST] = {0};
    const struct ws_tensor *all[MOST];
    struct ws_need *need;
    bool is[MOST];

    for (size_t i = 0; i < n; i++) {
        tensors[i].name = names[i];
        all[i] = &tensors[i];
    }
    int rc = ws_need_parse(text, &need, &err);
    if (rc == 0) {
        assert_string_equal(ws_need_text(need), text);
        rc = ws_need_select(need, all, n, is, &err);
        ws_need_free(need);
    }
    if (why) {
        assert_int_equal(rc, -EINVAL);
        assert_non_null(strstr(err.text, why));
        return;
    }
    assert_int_equal(rc, 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(is[i], strchr(chosen, (int)('a' + i)) != NULL);
}

static void test_patterns(void **state)
{
    static const char *const names[] = {"a", "ab", "model.layers.0.x", "model.layers.10.x", "b*c"};

    (void)state;
    expect("a", names, 5, "a", NULL);
    expect("a;ab", names, 5, "ab", NULL);
    expect("a?", names, 5, "b", NULL);
    expect("*", names, 5, "abcde", NULL);
    expect("*.x", names, 5, "cd", NULL);
    expect("model.layers.?.x", names, 5, "c", NULL);
    expect("**1*x", names, 5, "d", NULL);
    expect("b?c", names, 5, "e", NULL);
    expect("re:model\\.layers\\.[0-9]+\\.x", names, 5, "cd", NULL);
    expect("re:ab?", names, 5, "ab", NULL);
    expect("re:b", names, 5, "e", NULL); /* from the name's begin */
    expect("re:a|b", names, 5, "abe", NULL);
    expect("A", names, 5, NULL, "'A' matches none");
    expect("a;x*", names, 5, NULL, "'x*' matches none");
    expect("", names, 5, NULL, "empty");
    expect("a;", names, 5, NULL, "empty");
    expect("re:(", names, 5, NULL, "regular expression");
    expect("re:(((x+)+)+)+(((((((((y+)+)+)+)+)+)+)+)+)+", names, 5, NULL, "is too large");
    expect("re:(a)\\2", names, 5, NULL, "refers to a group");
    expect("a\nb", names, 5, NULL, "control characters");
}

static void test_ranks(void **state)
{
    static const char *const names[] = {"m.experts.0.w", "m.experts.1.w",   "m.experts.2.w",
                                        "m.experts.3.w", "m.experts.4.w",   "m.norm",
                                        "m.experts.x.w", "shared.experts.w"};
    static const char *const fused[] = {"m.experts.w", "m.norm"};
    static const char *const none[] = {"m.norm", "m.experts"};

    (void)state;
    expect("ep:0/1", names, 8, "abcdefgh", NULL);
    expect("ep:0/2", names, 8, "abcfgh", NULL); /* the first ranks have one more */
    expect("ep:1/2", names, 8, "defgh", NULL);
    expect("ep:0/3", names, 8, "abfgh", NULL);
    expect("ep:1/3", names, 8, "cdfgh", NULL);
    expect("ep:2/3", names, 8, "efgh", NULL);
    expect("ep:4/5", names, 8, "efgh", NULL);
    expect("ep:0/5;m.experts.4.*", names, 8, "aefgh", NULL);
    expect("ep:0/6", names, 8, NULL, "divides 5 experts");
    expect("ep:5/5", names, 8, NULL, "no rank");
    expect("ep:1", names, 8, NULL, "no rank");
    expect("ep:1/x", names, 8, NULL, "no rank");
    expect("ep:18446744073709551616/2", names, 8, NULL, "no rank");
    expect("ep:0/2", fused, 2, NULL, "m.experts.w has all experts of a layer in one");
    expect("ep:0/2", none, 2, NULL, "no tensor is called like one");
}

static void test_limits(void **state)
{
    char text[2 * 1025 + 1];
    struct ws_need *need;

    (void)state;
    for (int i = 0; i < 1025; i++)
        memcpy(text + 2 * i, "x;", 3);
    assert_int_equal(ws_need_parse(text, &need, &err), -E2BIG);
    memset(text, 'x', 1025);
    text[1025] = '\0';
    assert_int_equal(ws_need_parse(text, &need, &err), -EINVAL);
    text[1024] = '\0';
    assert_int_equal(ws_need_parse(text, &need, &err), 0);
    ws_need_free(need);
}

/* --- maps --- */

#define ROWS 1500000UL /* bytes of a tensor: blocks begin in the middle of some */

/* One file with n tensors "t0", ... of ROWS bytes, and a config. */
struct source {
    struct ws_manifest *manifest;
    unsigned char *header;
    const unsigned char *files[2];
    struct ws_node_part_source is;
};

static void make_source(struct source *s, size_t n)
{
    struct ws_tensor specs[MOST] = {0};
    char names[MOST][8];
    struct ws_safetensors *st;
    struct ws_manifest_file *f;
    void *header;

    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof(names[i]), "t%02zu", i);
        specs[i] = (struct ws_tensor){.name = names[i], .dtype = WS_U8, .n_dims = 1, .shape = {ROWS}};
    }
    assert_int_equal(ws_safetensors_layout(specs, n, NULL, &st, &header, &err), 0);
    assert_int_equal(ws_manifest_new(&s->manifest, "m", 1, "r", &err), 0);
    assert_int_equal(ws_manifest_add(s->manifest, "config.json", 10, 0, &f, &err), 0);
    assert_int_equal(
        ws_manifest_add(s->manifest, "model.safetensors", st->file_bytes, st->data_begin, &f, &err), 0);
    ws_manifest_seal(s->manifest);
    s->header = header;
    s->files[0] = NULL;
    s->files[1] = s->header;
    s->is = (struct ws_node_part_source){"here", s->manifest, s->files};
    ws_safetensors_free(st);
}

static void free_source(struct source *s)
{
    ws_manifest_free(s->manifest);
    free(s->header);
}

/* How often each byte of the whole is written to. */
struct coverage {
    unsigned char *of[8];
    uint64_t bytes;
};

static void cover(void *arg, size_t file, uint64_t to, uint64_t at, uint64_t n)
{
    struct coverage *c = arg;

    (void)at;
    for (uint64_t i = to; i < to + n; i++)
        c->of[file][i]++;
    c->bytes += n;
}

static void cover_made(void *arg, size_t file, const unsigned char *bytes, uint64_t n)
{
    assert_non_null(bytes);
    cover(arg, file, 0, 0, n);
}

static void check_map(const char *text, size_t n_tensors)
{
    struct source s;
    struct ws_need *need;
    struct ws_node_part_map *map;
    struct coverage c = {0};
    uint64_t left_out = 0;

    make_source(&s, n_tensors);
    assert_int_equal(ws_need_parse(text, &need, &err), 0);
    assert_int_equal(ws_subset_map_new(&map, &s.is, need, &err), 0);
    assert_true(ws_subset_is(map));
    const size_t n = ws_node_part_map_n_files(map);
    for (size_t i = 0; i < n; i++) {
        assert_true(i == 0 ||
                    strcmp(ws_node_part_map_file(map, i - 1)->name, ws_node_part_map_file(map, i)->name) < 0);
        c.of[i] = calloc(ws_node_part_map_file(map, i)->size_bytes + 1, 1);
        assert_non_null(c.of[i]);
    }
    for (size_t i = 0; i < s.manifest->n_files; i++) {
        const struct ws_manifest_file *f = &s.manifest->files[i];
        for (size_t b = 0; b < f->n_blocks; b++) {
            const struct ws_node_part_range r = {
                .file = i, .at = b * WS_BLOCK_BYTES, .n = ws_manifest_block_bytes(f, b)};
            const uint64_t before = c.bytes;
            ws_node_part_map_each(map, &r, cover, &c);
            /* all of a block that comes, but the header, which is made anew; nothing of one that does not */
            const uint64_t header = b == 0 ? f->header_bytes : 0;
            assert_int_equal(c.bytes - before, ws_subset_wants(map, i, b) ? r.n - header : 0);
            left_out += ws_subset_wants(map, i, b) ? 0 : r.n;
        }
    }
    assert_int_equal(left_out, ws_subset_left_out_bytes(map));
    assert_int_equal(ws_subset_each_made(map, s.manifest, cover_made, &c), 0);
    for (size_t i = 0; i < n; i++) {
        for (uint64_t k = 0; k < ws_node_part_map_file(map, i)->size_bytes; k++)
            assert_int_equal(c.of[i][k], 1);
        free(c.of[i]);
    }
    ws_node_part_map_put(map);
    ws_need_free(need);
    free_source(&s);
}

static void test_every_byte_once(void **state)
{
    (void)state;
    check_map("*", 12);
    check_map("t00", 12);
    check_map("t11", 12);
    check_map("t0?", 12);
    check_map("t03;t08", 12);
    check_map("t05", 6);
}

static void test_what_is_left_out(void **state)
{
    struct source s;
    struct ws_need *need, *had;
    struct ws_node_part_map *map;
    const char *some;
    size_t n;

    (void)state;
    make_source(&s, 4);
    assert_int_equal(ws_need_parse("t01", &need, &err), 0);
    assert_int_equal(ws_subset_map_new(&map, &s.is, need, &err), 0);
    assert_true(ws_subset_has_tensor(map, "t01") && !ws_subset_has_tensor(map, "t02"));
    assert_false(ws_subset_has_tensor(map, "x") && ws_subset_leaves_out(map, "x"));
    assert_true(ws_subset_leaves_out(map, "t02") && !ws_subset_leaves_out(map, "t01"));
    assert_int_equal(ws_subset_compare(map, NULL, &n, &some, &err), 0);
    assert_int_equal(n, 3);
    assert_string_equal(some, "t00");
    assert_int_equal(ws_need_parse("t01;t03", &had, &err), 0);
    assert_int_equal(ws_subset_compare(map, had, &n, &some, &err), 0);
    assert_int_equal(n, 1);
    assert_string_equal(some, "t03");
    assert_int_equal(ws_subset_compare(map, need, &n, &some, &err), 0);
    assert_int_equal(n, 0);
    assert_null(some);
    ws_need_free(had);
    ws_node_part_map_put(map);
    ws_need_free(need);
    free_source(&s);
}

/* A header that is no header, or of another size than is said. */
static void test_damaged(void **state)
{
    struct source s;
    struct ws_need *need;
    struct ws_node_part_map *map;

    (void)state;
    make_source(&s, 4);
    assert_int_equal(ws_need_parse("*", &need, &err), 0);
    s.files[1] = NULL;
    assert_int_equal(ws_subset_map_new(&map, &s.is, need, &err), -EBADMSG);
    s.files[1] = s.header;
    s.manifest->files[1].header_bytes -= 1;
    assert_int_equal(ws_subset_map_new(&map, &s.is, need, &err), -EBADMSG);
    s.manifest->files[1].header_bytes += 1;
    s.header[9] = 'x';
    assert_int_equal(ws_subset_map_new(&map, &s.is, need, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "model.safetensors"));
    ws_need_free(need);
    free_source(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns),         cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_limits),           cmocka_unit_test(test_every_byte_once),
        cmocka_unit_test(test_what_is_left_out), cmocka_unit_test(test_damaged),
    };

    return cmocka_run_group_tests_name("need", tests, NULL, NULL);
}
