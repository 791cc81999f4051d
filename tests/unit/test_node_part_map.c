/* Malformed parts: one of two parts of a small version has one wrong number, and is refused for that number.
 * The version has a matrix "w" of 4 rows, two in each part, and four numbers "q" of 4 bits, which the second
 * part has. */
#include "transports/format/node_part_map.h"
#include <endian.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FILE_NAME "model.safetensors"
#define HEADER                                                                                               \
    "{\"q\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]},"                                        \
    "\"w\":{\"dtype\":\"U8\",\"shape\":[4,6],\"data_offsets\":[2,26]}}"
#define DATA_BYTES 26UL
#define MAX_PIECES 3
#define MAX_MEMORY 1024

struct piece {
    struct ws_node_part_piece is;
    const char *dtype;
    uint64_t shape, bytes; /* of its tensor in the part */
};

struct lie {
    struct piece pieces[2][MAX_PIECES];
    size_t n_pieces[2];
    unsigned count[2];
    const char *name[2];                     /* of the file, by part */
    uint64_t size_bytes[2], header_bytes[2]; /* likewise */
    uint64_t header_here;                    /* bytes of the header in the first part */
    const char *more;                        /* a file that the second part has beside */
    const char *side;                        /* another file of the whole, as large as the header */
    uint64_t tail;                           /* bytes of a tensor of the second part that is no piece */
};

static char *const W = (char *)(uintptr_t) "w", *const Q = (char *)(uintptr_t) "q";

/* The valid description. */
static struct lie none(void)
{
    const uint64_t header = 8 + strlen(HEADER);
    struct lie l = {.n_pieces = {1, 2},
                    .count = {2, 2},
                    .name = {FILE_NAME, FILE_NAME},
                    .size_bytes = {header + DATA_BYTES, header + DATA_BYTES},
                    .header_bytes = {header, header},
                    .header_here = header};
    l.pieces[0][0] =
        (struct piece){{.tensor = W, .n_dims = 2, .offset = {0, 0}, .size = {2, 6}}, "U8", 12, 12};
    l.pieces[1][0] =
        (struct piece){{.tensor = W, .n_dims = 2, .offset = {2, 0}, .size = {2, 6}}, "U8", 12, 12};
    l.pieces[1][1] = (struct piece){{.tensor = Q, .range = true, .start = 0, .count = 4}, "F4", 4, 2};
    return l;
}

/* --- the parts in memory --- */

struct made {
    unsigned char pieces[MAX_MEMORY], header[MAX_MEMORY];
    char *text;
    const unsigned char *files[4];
    struct ws_manifest *manifest;
};

static size_t put_length(unsigned char *to, size_t n)
{
    const uint64_t length = htole64(n);
    memcpy(to, &length, 8);
    return 8 + n;
}

static void add(struct made *m, const char *name, const void *memory, size_t bytes, size_t header)
{
    struct ws_manifest_file *f;
    assert_int_equal(ws_manifest_add(m->manifest, name, bytes, header, &f, NULL), 0);
    for (size_t i = 3; i > (size_t)(f - m->manifest->files); i--)
        m->files[i] = m->files[i - 1];
    m->files[f - m->manifest->files] = memory;
}

static void make(struct made *m, const struct lie *l, unsigned k)
{
    struct ws_node_part_piece pieces[MAX_PIECES];
    struct ws_node_part_file files[2] = {
        {.name = (char *)(uintptr_t)l->name[k],
         .size_bytes = l->size_bytes[k],
         .header_bytes = l->header_bytes[k],
         .n_pieces = l->n_pieces[k],
         .pieces = pieces},
        {.name = (char *)(uintptr_t)l->side, .size_bytes = l->header_here},
    };
    struct ws_node_part part = {.index = k, .count = l->count[k], .n_files = l->side ? 2 : 1, .files = files};
    char json[MAX_MEMORY / 2] = "{", model[WS_MAX_NAME + 1];
    uint64_t at = 0;
    memset(part.placement, 'a', WS_NODE_PART_ID_CHARS);
    for (size_t i = 0; i < l->n_pieces[k]; i++) {
        const struct piece *p = &l->pieces[k][i];
        const size_t n = strlen(json);
        char name[WS_NODE_PART_NAME_BYTES];
        ws_node_part_tensor(name, i);
        pieces[i] = p->is;
        snprintf(json + n, sizeof(json) - n,
                 "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%lu],\"data_offsets\":[%lu,%lu]}", i ? "," : "", name,
                 p->dtype, p->shape, at, at + p->bytes);
        at += p->bytes;
    }
    if (k == 1 && l->tail) {
        const size_t n = strlen(json);
        snprintf(json + n, sizeof(json) - n,
                 ",\"x\":{\"dtype\":\"U8\",\"shape\":[%lu],\"data_offsets\":[%lu,%lu]}", l->tail, at,
                 at + l->tail);
        at += l->tail;
    }
    strcat(json, "}");
    *m = (struct made){.text = ws_node_part_to_json(&part)};
    assert_non_null(m->text);
    assert_int_equal(ws_node_part_model(model, "actor", k, 2, NULL), 0);
    assert_int_equal(ws_manifest_new(&m->manifest, model, 7, "r1", NULL), 0);
    memcpy(m->pieces + 8, json, strlen(json));
    const size_t head = put_length(m->pieces, strlen(json));
    for (uint64_t i = 0; i < at; i++) /* the element's place */
        m->pieces[head + i] = (unsigned char)(k == 0 ? 100 + i : i < 12 ? 112 + i : 200 + i);
    add(m, FILE_NAME, m->pieces, head + at, head);
    memcpy(m->header + 8, HEADER, strlen(HEADER));
    (void)put_length(m->header, strlen(HEADER));
    if (k == 0)
        add(m, FILE_NAME WS_NODE_PART_HEADER, m->header, l->header_here, 0);
    if (k == 1 && l->more)
        add(m, l->more, m->header, l->header_here, 0);
    add(m, WS_NODE_PART_FILE, m->text, strlen(m->text), 0);
    ws_manifest_seal(m->manifest);
}

/* Scatters all parts by pieces of `step` bytes, and gathers them again. */
static void use(struct ws_node_part_map *m, const struct made *made, unsigned char *out, uint64_t step)
{
    for (unsigned k = 0; k < 2; k++) {
        for (size_t i = 0; i < made[k].manifest->n_files; i++) {
            const uint64_t size = made[k].manifest->files[i].size_bytes;
            struct ws_node_part_range r = {.part = k, .file = i};
            for (; r.at < size; r.at += r.n) {
                r.n = size - r.at < step ? size - r.at : step;
                assert_true(ws_node_part_map_fits(m, &r, made[k].files[i] + r.at));
                ws_node_part_map_scatter(m, &r, made[k].files[i] + r.at,
                                         &(struct ws_node_part_target){.files = &out});
            }
        }
    }
    for (unsigned k = 0; k < 2; k++) {
        for (size_t i = 0; i < made[k].manifest->n_files; i++) {
            const uint64_t size = made[k].manifest->files[i].size_bytes;
            struct ws_node_part_range r = {.part = k, .file = i};
            unsigned char again[MAX_MEMORY];
            for (; r.at < size; r.at += r.n) {
                r.n = size - r.at < step ? size - r.at : step;
                ws_node_part_map_gather(m, &r, again, &out);
                assert_memory_equal(again, made[k].files[i] + r.at, r.n);
            }
        }
    }
}

/* out NULL: it is to be refused. check: what else is looked at. */
static int map(const struct lie *l, unsigned char *out, uint64_t step,
               void (*check)(struct ws_node_part_map *m, const struct made *made), struct ws_error *err)
{
    static const char *const names[] = {"n0", "n1"};
    static struct made made[2];
    struct ws_node_part_source parts[2];
    struct ws_node_part_map *m;
    for (unsigned k = 0; k < 2; k++) {
        make(&made[k], l, k);
        parts[k] = (struct ws_node_part_source){
            .from = names[k], .manifest = made[k].manifest, .files = made[k].files};
    }
    int rc = ws_node_part_map_new(&m, parts, 2, NULL, err);
    if (rc == 0 && out)
        use(m, made, out, step);
    if (rc == 0 && check)
        check(m, made);
    ws_node_part_map_put(m);
    for (unsigned k = 0; k < 2; k++) {
        ws_manifest_free(made[k].manifest);
        free(made[k].text);
    }
    return rc;
}

static void test_none(void **state)
{
    unsigned char out[MAX_MEMORY];
    struct ws_error err = {0};
    struct lie l = none();
    const size_t header = 8 + strlen(HEADER);
    (void)state;
    for (uint64_t step = 1; step < MAX_MEMORY; step = 2 * step + 1) {
        memset(out, 0, sizeof(out));
        if (map(&l, out, step, NULL, &err) < 0)
            fail_msg("%s", err.text);
        assert_memory_equal(out + 8, HEADER, strlen(HEADER));
        assert_true(out[header] == 212 && out[header + 1] == 213);
        for (size_t i = 0; i < 24; i++)
            assert_int_equal(out[header + 2 + i], 100 + i);
    }
}

/* The matrix by columns: each part has three of every row. */
static struct lie columns(void)
{
    struct lie l = none();
    for (int k = 0; k < 2; k++) {
        l.pieces[k][0].is.offset[0] = 0;
        l.pieces[k][0].is.offset[1] = 3 * (uint64_t)k;
        l.pieces[k][0].is.size[0] = 4;
        l.pieces[k][0].is.size[1] = 3;
    }
    return l;
}

static size_t file_of(const struct made *made, const char *name)
{
    return (size_t)(ws_manifest_find(made->manifest, name) - made->manifest->files);
}

/* Byte 2 + 6 of the data is the second row's first, the first part's fourth. */
static void look_for(struct ws_node_part_map *m, const struct made *made)
{
    const uint64_t header = 8 + strlen(HEADER), head = made[0].manifest->files[0].header_bytes;
    struct ws_node_part_range r;
    size_t segment = 0, file = file_of(&made[0], FILE_NAME);
    assert_true(ws_node_part_map_find(m, 0, file, &segment, 0, header + 2 + 6, 1, &r));
    assert_true(r.file == file && r.at == head + 3 && r.n == 1);
    assert_false(ws_node_part_map_find(m, 0, file, &segment, 0, header + 2 + 6, 1, &r));
    segment = 0;
    assert_false(
        ws_node_part_map_find(m, 1, file_of(&made[1], FILE_NAME), &segment, 0, header + 2 + 6, 1, &r));
    segment = 0; /* the rest of the first row, and the second */
    assert_true(ws_node_part_map_find(m, 0, file, &segment, 0, header + 2 + 1, 11, &r));
    assert_true(r.at == head + 1 && r.n == 5);
    segment = 0;
    assert_true(
        ws_node_part_map_find(m, 0, file_of(&made[0], FILE_NAME WS_NODE_PART_HEADER), &segment, 0, 9, 5, &r));
    assert_true(r.at == 9 && r.n == 5);
}

static void change_header(struct ws_node_part_map *m, const struct made *made)
{
    unsigned char other[MAX_MEMORY];
    const struct ws_node_part_range r = {.file = file_of(&made[0], FILE_NAME), .at = 3, .n = 40};
    memcpy(other, made[0].pieces + 3, 40);
    assert_true(ws_node_part_map_fits(m, &r, other));
    other[7] ^= 1;
    assert_false(ws_node_part_map_fits(m, &r, other));
}

static void test_columns(void **state)
{
    unsigned char out[MAX_MEMORY] = {0};
    struct ws_error err = {0};
    struct lie l = columns();
    const size_t header = 8 + strlen(HEADER);
    (void)state;
    for (uint64_t step = 1; step < MAX_MEMORY; step = 2 * step + 1)
        assert_int_equal(map(&l, out, step, NULL, &err), 0);
    for (size_t row = 0; row < 4; row++)
        for (size_t i = 0; i < 3; i++)
            assert_true(out[header + 2 + row * 6 + i] == 100 + row * 3 + i &&
                        out[header + 2 + row * 6 + 3 + i] == 112 + row * 3 + i);
    assert_int_equal(map(&l, NULL, 1, look_for, &err), 0);
    assert_int_equal(map(&l, NULL, 1, change_header, &err), 0);
}

static void refused(const struct lie *l, int rc, const char *word)
{
    struct ws_error err = {0};
    assert_int_equal(map(l, NULL, 1, NULL, &err), rc);
    if (!strstr(err.text, word))
        fail_msg("'%s' is not in: %s", word, err.text);
}

static void test_other_files(void **state)
{
    struct lie l = none();
    (void)state;
    l.count[1] = 3;
    refused(&l, -EPROTO, "n1 has part 1 of 3, but 2 parts make the version");
    l = none();
    l.name[1] = "model2.safetensors";
    refused(&l, -EPROTO, "different files");
    l = none();
    l.size_bytes[1]++;
    refused(&l, -EPROTO, "different files");
    l = none();
    l.header_bytes[1]--;
    refused(&l, -EPROTO, "different files");
}

static void test_headers(void **state)
{
    struct lie l = none();
    (void)state;
    l.header_here--;
    refused(&l, -EBADMSG, "no part has model.safetensors@header with");
    l = none();
    for (int k = 0; k < 2; k++) { /* as if a byte of the data were the header's */
        l.header_bytes[k]++;
        l.size_bytes[k] = 8 + strlen(HEADER) + DATA_BYTES;
    }
    l.header_here++;
    refused(&l, -EBADMSG, "its header has another size than is said");
}

static void test_more(void **state)
{
    struct lie l = none();
    (void)state;
    l.more = "other.json";
    refused(&l, -EBADMSG, "the part from n1 has other.json, which is no file of the whole");
    l.more = FILE_NAME WS_NODE_PART_HEADER;
    refused(&l, -EPROTO, "the parts from n0 and n1 both have model.safetensors@header");
    l = none();
    l.side = FILE_NAME WS_NODE_PART_HEADER; /* the header is that file, too */
    refused(&l, -EBADMSG, "model.safetensors@header is two files of the whole");
    l = none();
    l.tail = 3;
    refused(&l, -EBADMSG, "belong to no tensor of the whole");
}

static void test_pieces_elsewhere(void **state)
{
    struct lie l = none();
    (void)state;
    l.pieces[1][1].is.start = 1;
    refused(&l, -EBADMSG, "does not lie in q");
    l = none();
    l.pieces[1][0].is.offset[0] = 3;
    refused(&l, -EBADMSG, "does not lie in w");
    l = none();
    l.pieces[1][0].is.n_dims = 3;
    l.pieces[1][0].is.size[2] = 1;
    refused(&l, -EBADMSG, "does not lie in w");
    l = none();
    l.pieces[1][0].is.size[0] = 5;
    refused(&l, -EBADMSG, "does not lie in w");
    l = none();
    l.pieces[1][0].is.tensor = Q;
    refused(&l, -EBADMSG, "of another dtype");
}

static void test_pieces_of_other_sizes(void **state)
{
    struct lie l = none();
    (void)state;
    l.pieces[1][0].shape = l.pieces[1][0].bytes = 11;
    refused(&l, -EBADMSG, "or has another size");
    l = none();
    l.pieces[1][0].shape = l.pieces[1][0].bytes = 13;
    refused(&l, -EBADMSG, "or has another size");
    l = none(); /* halves of a 4-bit type */
    l.pieces[1][1] = (struct piece){{.tensor = Q, .range = true, .start = 0, .count = 2}, "F4", 2, 1};
    l.pieces[1][2] = (struct piece){{.tensor = Q, .range = true, .start = 2, .count = 2}, "F4", 2, 1};
    l.n_pieces[1] = 3;
    refused(&l, -EBADMSG, "does not lie in q");
}

static void test_not_covered(void **state)
{
    struct lie l = none();
    (void)state;
    l.n_pieces[1] = 1;
    refused(&l, -EBADMSG, "the parts have 24 bytes of its 26");
    l = none();
    l.pieces[1][0].is.offset[0] = 1; /* one row twice, one missing */
    refused(&l, -EBADMSG, "two pieces of w overlap");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_none),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_more),
        cmocka_unit_test(test_pieces_elsewhere),
        cmocka_unit_test(test_pieces_of_other_sizes),
        cmocka_unit_test(test_not_covered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
