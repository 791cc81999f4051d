/* Placements of pieces from several ranks: every sharding covers a tensor exactly, with one writer per piece;
 * others are refused with a message that names the tensor. */
#include "backends/trainer/tensor/placement.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_RANKS 8

/* A registration as a rank sends it: one tensor, one or more pieces. */
static json_t *body_of(const char *name, const char *dtype, json_t *shape, json_t *pieces)
{
    json_t *params = json_array(), *piece;
    size_t i;
    json_array_foreach(pieces, i, piece)
    {
        json_t *p = json_pack("{s:s,s:s,s:O}", "name", name, "dtype", dtype, "shape", shape);
        json_object_update(p, piece);
        json_array_append_new(params, p);
    }
    json_decref(shape);
    json_decref(pieces);
    return json_pack("{s:o}", "params", params);
}

static json_t *box(int row, int column, int rows, int columns)
{
    return json_pack("{s:s,s:[ii],s:[ii]}", "kind", "box", "offset", row, column, "size", rows, columns);
}

static json_t *range(int start, int count)
{
    return json_pack("{s:s,s:i,s:i}", "kind", "range", "start", start, "count", count);
}

struct group {
    unsigned n;
    struct ws_registration *ranks[MAX_RANKS];
    struct ws_placement *placement;
    struct ws_error err;
};

static void join(struct group *g, json_t *body)
{
    int rc = ws_registration_from_json(body, g->n, &g->ranks[g->n], &g->err);
    if (rc < 0)
        fail_msg("%s", g->err.text);
    g->n++;
    json_decref(body);
}

static int place(struct group *g)
{
    return ws_placement_make(g->ranks, g->n, 0, &g->placement, &g->err);
}

static void leave(struct group *g)
{
    ws_placement_free(g->placement);
    for (unsigned i = 0; i < g->n; i++)
        ws_registration_free(g->ranks[i]);
    *g = (struct group){0};
}

static unsigned writers(const struct group *g)
{
    unsigned n = 0;
    for (unsigned r = 0; r < g->n; r++)
        for (size_t i = 0; i < g->ranks[r]->n_entries; i++)
            n += g->ranks[r]->entries[i].writes;
    return n;
}

static json_t *matrix(json_t *piece)
{
    return body_of("w", "BF16", json_pack("[ii]", 10, 6), json_pack("[o]", piece));
}

static json_t *flat(json_t *piece)
{
    return body_of("w", "BF16", json_pack("[i]", 100), json_pack("[o]", piece));
}

static void test_shards(void **state)
{
    struct group g = {0};
    (void)state;
    join(&g, matrix(box(0, 0, 4, 6))); /* rows, uneven, the last rank has none */
    join(&g, matrix(box(4, 0, 6, 6)));
    join(&g, matrix(box(10, 0, 0, 6)));
    assert_int_equal(place(&g), 0);
    assert_int_equal(g.placement->n_files, 1);
    assert_string_equal(g.placement->files[0].name, "model.safetensors");
    assert_int_equal(g.placement->files[0].size_bytes - g.placement->files[0].header_bytes, 120);
    leave(&g);
    for (int r = 0; r < 4; r++) /* a mesh of 2 x 2: blocks */
        join(&g, matrix(box(r / 2 * 5, r % 2 * 3, 5, 3)));
    assert_int_equal(place(&g), 0);
    assert_int_equal(writers(&g), 4);
    leave(&g);
    for (int r = 0; r < 4; r++) /* flat partitions, as ZeRO has them */
        join(&g, flat(range(r * 30, r < 3 ? 30 : 10)));
    assert_int_equal(place(&g), 0);
    leave(&g);
}

static void test_replicas(void **state)
{
    struct group g = {0};
    (void)state;
    for (int r = 0; r < 4; r++)
        join(&g, matrix(box(r % 2 * 5, 0, 5, 6))); /* each half on two ranks */
    assert_int_equal(place(&g), 0);
    assert_int_equal(writers(&g), 2);
    leave(&g);
    for (int r = 0; r < 4; r++) { /* eight equal tensors, all on all ranks: two for each */
        json_t *all = json_array(), *body;
        for (int t = 0; t < 8; t++) {
            char name[8] = {'t', (char)('0' + t), 0};
            body = body_of(name, "F32", json_pack("[i]", 16), json_pack("[o]", range(0, 16)));
            json_array_extend(all, json_object_get(body, "params"));
            json_decref(body);
        }
        join(&g, json_pack("{s:o}", "params", all));
    }
    assert_int_equal(place(&g), 0);
    for (unsigned r = 0; r < 4; r++) {
        unsigned mine = 0;
        for (size_t i = 0; i < 8; i++)
            mine += g.ranks[r]->entries[i].writes;
        assert_int_equal(mine, 2);
    }
    leave(&g);
}

static void refused(json_t *a, json_t *b, int rc, const char *word)
{
    struct group g = {0};
    join(&g, a);
    if (b)
        join(&g, b);
    assert_int_equal(place(&g), rc);
    assert_non_null(strstr(g.err.text, word));
    assert_non_null(strstr(g.err.text, "w"));
    assert_null(g.placement);
    leave(&g);
}

static void test_refusals(void **state)
{
    (void)state;
    refused(matrix(box(0, 0, 4, 6)), matrix(box(5, 0, 5, 6)), -ENODATA, "w");      /* no rank holds row 4 */
    refused(matrix(box(0, 0, 5, 6)), matrix(box(4, 0, 6, 6)), -EINVAL, "overlap"); /* two ranks hold row 4 */
    refused(flat(range(0, 99)), NULL, -ENODATA, "w");                              /* the last element */
    refused(matrix(box(0, 0, 10, 6)), flat(range(0, 100)), -EPROTO, "w");          /* two shapes */
    refused(matrix(box(0, 0, 5, 6)),
            body_of("w", "F16", json_pack("[ii]", 10, 6), json_pack("[o]", box(5, 0, 5, 6))), -EPROTO,
            "w"); /* two dtypes */
}

static void test_bad_registrations(void **state)
{
    static const char *const bad[] = {
        "{\"params\":[{}]}",
        "{\"params\":[{\"name\":\"w\",\"dtype\":\"BF17\",\"shape\":[1],\"kind\":\"range\",\"start\":0,"
        "\"count\":1}]}",
        "{\"params\":[{\"name\":\"w\",\"dtype\":\"BF16\",\"shape\":[-1],\"kind\":\"range\",\"start\":0,"
        "\"count\":1}]}",
        "{\"params\":[{\"name\":\"w\",\"dtype\":\"BF16\",\"shape\":[4],\"kind\":\"range\",\"start\":3,"
        "\"count\":2}]}",
        "{\"params\":[{\"name\":\"w\",\"dtype\":\"BF16\",\"shape\":[4],\"kind\":\"box\",\"offset\":[3],"
        "\"size\":[2]}]}",
        "{\"params\":[{\"name\":\"w\",\"dtype\":\"BF16\",\"shape\":[4],\"kind\":\"box\",\"offset\":[0,0],"
        "\"size\":[2,2]}]}",
        "{\"params\":[{\"name\":\"w\",\"dtype\":\"BF16\",\"shape\":[4,9223372036854775807,16],\"kind\":"
        "\"range\",\"start\":0,\"count\":1}]}",
        "{\"params\":[{\"name\":\"w\",\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1,1,1,1,1],\"kind\":\"range\","
        "\"start\":0,\"count\":1}]}",
        "{\"params\":[{\"name\":\"w\",\"dtype\":\"BF16\",\"shape\":[4],\"kind\":\"range\",\"start\":0,"
        "\"count\":4,\"file\":\"../x.safetensors\"}]}",
        "{\"params\":[{\"name\":\"w\",\"dtype\":\"BF16\",\"shape\":[4],\"kind\":\"range\",\"start\":0,"
        "\"count\":4,\"file\":\"tensors\"}]}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ws_registration *r = NULL;
        struct ws_error err = {0};
        json_t *body = json_loads(bad[i], 0, NULL);
        assert_non_null(body);
        assert_true(ws_registration_from_json(body, 0, &r, &err) < 0);
        assert_true(err.text[0] != 0);
        json_decref(body);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bad_registrations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
