/* Parts of several nodes: random models, meshes, boxes and ranges are laid out, distributed over nodes,
 * written as ranks write them, and scattered by their map: the result is compared with the directly made whole, byte by
 * byte, and gathered again.
 * Parts that do not belong together are refused by name. */
#include "backends/trainer/tensor/node_placement.h"
#include "transports/format/node_part_map.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_RANKS   WS_MAX_NODE_PARTS
#define FEW_RANKS   6
#define MAX_TENSORS 12
#define SIDECAR     "config.json"
#define SIDECAR_IS  "{\"a\":1}"

static uint64_t seed = 88172645463325252ULL;

static unsigned any(unsigned below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return below ? (unsigned)(seed % below) : 0;
}

struct node {
    struct ws_placement *share;
    unsigned char **files; /* by file of the share */
    struct ws_manifest *manifest;
};

struct world {
    unsigned n_ranks, n_nodes, node_of[MAX_RANKS];
    struct ws_registration *ranks[MAX_RANKS];
    struct ws_placement *whole;
    unsigned char **want; /* by file of the whole */
    struct node nodes[MAX_RANKS];
};

/* --- what the ranks register --- */

static json_t *numbers(const uint64_t *v, unsigned n)
{
    json_t *a = json_array();
    for (unsigned i = 0; i < n; i++)
        json_array_append_new(a, json_integer((json_int_t)v[i]));
    return a;
}

static json_t *param(const char *name, const char *dtype, const uint64_t *shape, unsigned n_dims)
{
    return json_pack("{s:s,s:s,s:o}", "name", name, "dtype", dtype, "shape", numbers(shape, n_dims));
}

/* A cut of n into at most `parts` pieces, uneven, some of them empty: ends[parts - 1] == n. */
static void cut(uint64_t n, unsigned parts, uint64_t *ends)
{
    for (unsigned i = 0; i < parts; i++)
        ends[i] = i + 1 == parts ? n : any((unsigned)n + 1);
    for (unsigned i = 0; i < parts; i++) /* sorted */
        for (unsigned j = i + 1; j < parts; j++)
            if (ends[j] < ends[i]) {
                uint64_t t = ends[i];
                ends[i] = ends[j];
                ends[j] = t;
            }
}

/* Flat partitions, by ranks in any order. */
static void give_ranges(json_t **params, unsigned n_ranks, const char *name, const char *dtype,
                        const uint64_t *shape, unsigned n_dims, uint64_t elements)
{
    uint64_t ends[MAX_RANKS * 2], begin = 0;
    unsigned pieces = 1 + any(n_ranks * 2);
    cut(elements, pieces, ends);
    for (unsigned i = 0; i < pieces; begin = ends[i++]) {
        json_t *p = param(name, dtype, shape, n_dims);
        json_object_set_new(p, "kind", json_string("range"));
        json_object_set_new(p, "start", json_integer((json_int_t)begin));
        json_object_set_new(p, "count", json_integer((json_int_t)(ends[i] - begin)));
        json_array_append_new(params[any(n_ranks)], p);
    }
}

/* A mesh: each dimension is cut, each cell belongs to one rank or, for replicas, to several. */
static void give_boxes(json_t **params, unsigned n_ranks, const char *name, const char *dtype,
                       const uint64_t *shape, unsigned n_dims)
{
    uint64_t ends[WS_MAX_DIMS][3];
    unsigned cuts[WS_MAX_DIMS], at[WS_MAX_DIMS] = {0};
    for (unsigned d = 0; d < n_dims; d++) {
        cuts[d] = 1 + any(3);
        cut(shape[d], cuts[d], ends[d]);
    }
    for (bool more = true; more;) {
        uint64_t offset[WS_MAX_DIMS], size[WS_MAX_DIMS];
        for (unsigned d = 0; d < n_dims; d++) {
            offset[d] = at[d] ? ends[d][at[d] - 1] : 0;
            size[d] = ends[d][at[d]] - offset[d];
        }
        unsigned copies = 1 + any(2), first = any(n_ranks);
        for (unsigned c = 0; c < copies && c < n_ranks; c++) {
            json_t *p = param(name, dtype, shape, n_dims);
            json_object_set_new(p, "kind", json_string("box"));
            json_object_set_new(p, "offset", numbers(offset, n_dims));
            json_object_set_new(p, "size", numbers(size, n_dims));
            json_array_append_new(params[(first + c) % n_ranks], p);
        }
        more = false;
        for (unsigned d = 0; d < n_dims && !more; d++) {
            more = ++at[d] < cuts[d];
            at[d] = more ? at[d] : 0;
        }
    }
}

static void give_tensor(json_t **params, unsigned n_ranks, unsigned i)
{
    static const char *const dtypes[] = {"BF16", "F32", "U8", "F64"};
    uint64_t shape[4], elements = 1;
    unsigned n_dims = any(4);
    char name[64];
    const char *dtype = dtypes[any(4)];
    snprintf(name, sizeof(name), "layer.%u/weight", i);
    for (unsigned d = 0; d < n_dims; d++) {
        shape[d] = any(20) ? 1 + any(40) : 0; /* some tensors are empty */
        elements *= shape[d];
    }
    if (any(4) == 0) {
        json_array_append_new(params[any(n_ranks)], param(name, dtype, shape, n_dims)); /* whole */
    } else if (any(2)) {
        give_ranges(params, n_ranks, name, dtype, shape, n_dims, elements);
    } else {
        give_boxes(params, n_ranks, name, dtype, shape, n_dims);
    }
}

/* --- what the ranks write --- */

/* The bytes of element e of the tensor that begins there in the whole file, whichever rank holds it. */
static void element_is(unsigned char *out, uint64_t begin, uint64_t e, size_t bytes)
{
    uint64_t v = (begin * 2654435761u + e + 1) * 0x9e3779b97f4a7c15ULL;
    for (size_t i = 0; i < bytes; i++)
        out[i] = (unsigned char)(v >> (8 * (i % 8)));
}

/* The elements of a piece in order, each with its index in the flat tensor. */
static void each_element(const struct ws_tensor *t, const struct ws_piece *p,
                         void (*visit)(void *arg, uint64_t nth, uint64_t flat), void *arg)
{
    uint64_t n = ws_piece_elements(p, t->n_dims);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t flat = p->start + i, left = i, step = 1;
        if (!p->range) {
            flat = 0;
            for (unsigned d = t->n_dims; d-- > 0; step *= t->shape[d], left /= p->size[d])
                flat += (p->offset[d] + left % p->size[d]) * step;
        }
        visit(arg, i, flat);
    }
}

struct writing {
    unsigned char *whole, *share;
    uint64_t whole_begin;
    size_t bytes;
};

static void write_whole(void *arg, uint64_t nth, uint64_t flat)
{
    struct writing *w = arg;
    (void)nth;
    element_is(w->whole + flat * w->bytes, w->whole_begin, flat, w->bytes);
}

static void write_share(void *arg, uint64_t nth, uint64_t flat)
{
    struct writing *w = arg;
    element_is(w->share + nth * w->bytes, w->whole_begin, flat, w->bytes);
}

static unsigned char **memory_of(const struct ws_placement *l)
{
    unsigned char **files = calloc(l->n_files + 1, sizeof(*files));
    assert_non_null(files);
    for (size_t i = 0; i < l->n_files; i++) {
        files[i] = calloc(1, l->files[i].size_bytes + 1);
        assert_non_null(files[i]);
        if (l->files[i].content)
            memcpy(files[i], l->files[i].content, l->files[i].content_bytes);
        else
            memcpy(files[i], SIDECAR_IS, sizeof(SIDECAR_IS)); /* its end too */
    }
    return files;
}

static void free_memory(const struct ws_placement *l, unsigned char **files)
{
    for (size_t i = 0; l && files && i < l->n_files; i++)
        free(files[i]);
    free(files);
}

static void fill_whole(struct world *w)
{
    w->want = memory_of(w->whole);
    for (unsigned r = 0; r < w->n_ranks; r++)
        for (size_t i = 0; i < w->ranks[r]->n_entries; i++) {
            const struct ws_entry *e = &w->ranks[r]->entries[i];
            struct writing to = {.whole = w->want[e->file_index] + e->tensor.begin,
                                 .whole_begin = e->tensor.begin,
                                 .bytes = ws_dtype_bits(e->tensor.dtype) / 8};
            if (e->writes)
                each_element(&e->tensor, &e->piece, write_whole, &to);
        }
}

static void describe(struct world *w, struct node *n, unsigned index, uint64_t version)
{
    char model[WS_MAX_NAME + 1];
    struct ws_manifest_file *f;
    assert_int_equal(ws_node_part_model(model, "actor", index, w->n_nodes, NULL), 0);
    assert_true(ws_name_is_offered(model) && !ws_name_is_model(model));
    assert_int_equal(ws_manifest_new(&n->manifest, model, version, "r1", NULL), 0);
    for (size_t i = 0; i < n->share->n_files; i++)
        assert_int_equal(ws_manifest_add(n->manifest, n->share->files[i].name, n->share->files[i].size_bytes,
                                         n->share->files[i].header_bytes, &f, NULL),
                         0);
    ws_manifest_seal(n->manifest);
}

static void share_out(struct world *w)
{
    uint64_t begins[MAX_RANKS][256] = {{0}};
    struct ws_error err = {0};
    for (unsigned r = 0; r < w->n_ranks; r++)
        for (size_t i = 0; i < w->ranks[r]->n_entries; i++)
            begins[r][i] = w->ranks[r]->entries[i].tensor.begin;
    for (unsigned k = 0; k < w->n_nodes; k++) {
        struct node *n = &w->nodes[k];
        int rc = ws_node_placement_make(w->whole, w->ranks, w->n_ranks, w->node_of, k, w->n_nodes, &n->share,
                                        &err);
        if (rc < 0)
            fail_msg("%s", err.text);
        n->files = memory_of(n->share);
        for (unsigned r = 0; r < w->n_ranks; r++)
            for (size_t i = 0; w->node_of[r] == k && i < w->ranks[r]->n_entries; i++) {
                const struct ws_entry *e = &w->ranks[r]->entries[i];
                if (!e->writes)
                    continue; /* its file is also one of the whole */
                struct writing to = {.share = n->files[e->file_index] + e->tensor.begin,
                                     .whole_begin = begins[r][i],
                                     .bytes = ws_dtype_bits(e->tensor.dtype) / 8};
                each_element(&e->tensor, &e->piece, write_share, &to);
            }
        describe(w, n, k, 7);
    }
}

static void make_world_of(struct world *w, unsigned n_ranks, unsigned n_nodes, unsigned n_tensors,
                          uint64_t shard_bytes)
{
    json_t *params[MAX_RANKS];
    struct ws_error err = {0};
    *w = (struct world){.n_ranks = n_ranks, .n_nodes = n_nodes};
    for (unsigned r = 0; r < w->n_ranks; r++) {
        w->node_of[r] = r < w->n_nodes ? r : any(w->n_nodes);
        params[r] = json_array();
    }
    for (unsigned i = 0; i < n_tensors; i++)
        give_tensor(params, w->n_ranks, i);
    for (unsigned r = 0; r < w->n_ranks; r++) {
        json_t *body = json_pack("{s:o}", "params", params[r]);
        if (r == 0)
            json_object_set_new(
                body, "sidecars",
                json_pack("[{s:s,s:i,s:i}]", "name", SIDECAR, "bytes", (int)strlen(SIDECAR_IS), "hash", 5));
        assert_true(json_array_size(params[r]) < 256);
        /* to JSON and back, as between agents */
        struct ws_registration *once;
        if (ws_registration_from_json(body, r, &once, &err) < 0)
            fail_msg("%s", err.text);
        json_decref(body);
        body = ws_registration_to_json(once);
        ws_registration_free(once);
        assert_int_equal(ws_registration_from_json(body, r, &w->ranks[r], &err), 0);
        json_decref(body);
    }
    if (ws_placement_make(w->ranks, w->n_ranks, shard_bytes, &w->whole, &err) < 0)
        fail_msg("%s", err.text);
    fill_whole(w);
    share_out(w);
}

static void make_world(struct world *w, unsigned n_tensors, uint64_t shard_bytes)
{
    const unsigned n_ranks = 2 + any(FEW_RANKS - 1);
    make_world_of(w, n_ranks, 2 + any(n_ranks - 1), n_tensors, shard_bytes);
}

static void end_world(struct world *w)
{
    for (unsigned k = 0; k < w->n_nodes; k++) {
        free_memory(w->nodes[k].share, w->nodes[k].files);
        ws_manifest_free(w->nodes[k].manifest);
        ws_placement_free(w->nodes[k].share);
    }
    free_memory(w->whole, w->want);
    ws_placement_free(w->whole);
    for (unsigned r = 0; r < w->n_ranks; r++)
        ws_registration_free(w->ranks[r]);
}

static void parts_of(const struct world *w, struct ws_node_part_source *parts)
{
    static char names[MAX_RANKS][8];
    for (unsigned k = 0; k < w->n_nodes; k++)
        snprintf(names[k], sizeof(names[k]), "n%u", k);
    for (unsigned k = 0; k < w->n_nodes; k++) /* in any order: reversed */
        parts[w->n_nodes - 1 - k] =
            (struct ws_node_part_source){.from = names[k],
                                         .manifest = w->nodes[k].manifest,
                                         .files = (const unsigned char *const *)w->nodes[k].files};
}

/* Scatters or gathers every part, a few bytes at a time. */
static void move_all(const struct ws_node_part_map *map, const struct ws_node_part_source *parts, size_t n,
                     unsigned char **whole, bool again)
{
    for (unsigned k = 0; k < n; k++) {
        for (size_t i = 0; i < parts[k].manifest->n_files; i++) {
            const uint64_t size = parts[k].manifest->files[i].size_bytes;
            struct ws_node_part_range r = {.part = k, .file = i};
            for (; r.at < size; r.at += r.n) {
                r.n = 1 + any(5000);
                if (r.n > size - r.at)
                    r.n = size - r.at;
                unsigned char bytes[5000];
                assert_true(ws_node_part_map_fits(map, &r, parts[k].files[i] + r.at));
                if (!again) {
                    ws_node_part_map_scatter(map, &r, parts[k].files[i] + r.at,
                                             &(struct ws_node_part_target){.files = whole});
                    continue;
                }
                ws_node_part_map_gather(map, &r, bytes, whole);
                assert_memory_equal(bytes, parts[k].files[i] + r.at, r.n);
            }
        }
    }
}

static void check_map(struct world *w, char digest[33])
{
    struct ws_node_part_source parts[MAX_RANKS];
    const struct ws_manifest *manifests[MAX_RANKS];
    struct ws_node_part_map *map;
    struct ws_manifest *m = NULL;
    struct ws_error err = {0};
    parts_of(w, parts);
    for (unsigned k = 0; k < w->n_nodes; k++)
        manifests[k] = parts[k].manifest;
    if (ws_node_part_map_new(&map, parts, w->n_nodes, NULL, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(ws_node_part_map_n_files(map), w->whole->n_files);
    unsigned char **dst = calloc(w->whole->n_files, sizeof(*dst));
    for (size_t i = 0; i < w->whole->n_files; i++) {
        assert_string_equal(ws_node_part_map_file(map, i)->name, w->whole->files[i].name);
        assert_int_equal(ws_node_part_map_file(map, i)->size_bytes, w->whole->files[i].size_bytes);
        dst[i] = malloc(w->whole->files[i].size_bytes + 1);
        memset(dst[i], 0xee, w->whole->files[i].size_bytes + 1);
    }
    move_all(map, parts, w->n_nodes, dst, false);
    move_all(map, parts, w->n_nodes, dst, true);
    if (ws_node_part_map_manifest(map, "actor", manifests, &m, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(m->digest, "");
    for (size_t i = 0; i < w->whole->n_files; i++) {
        const uint64_t size = w->whole->files[i].size_bytes;
        assert_memory_equal(dst[i], w->want[i], size);
        assert_int_equal(dst[i][size], 0xee);
        assert_string_equal(m->files[i].name, w->whole->files[i].name);
        assert_int_equal(m->files[i].header_bytes, w->whole->files[i].header_bytes);
        for (size_t b = 0; b < m->files[i].n_blocks; b++)
            m->files[i].hashes[b] =
                ws_hash(dst[i] + b * WS_BLOCK_BYTES, ws_manifest_block_bytes(&m->files[i], b));
        free(dst[i]);
    }
    free(dst);
    ws_manifest_seal(m);
    assert_string_equal(m->model, "actor");
    assert_int_equal(m->version, 7);
    memcpy(digest, m->digest, sizeof(m->digest));
    ws_manifest_free(m);
    ws_node_part_map_put(map);
}

static void test_random(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct world w;
        char one[33], two[33];
        make_world(&w, 1 + any(MAX_TENSORS), any(3) ? 0 : 5000);
        uint64_t shared = 0;
        check_map(&w, one);
        check_map(&w, two);
        assert_string_equal(one, two);
        for (unsigned k = 0; k < w.n_nodes; k++)
            for (size_t i = 0; i < w.nodes[k].share->n_files; i++)
                if (w.nodes[k].share->files[i].header_bytes)
                    shared += w.nodes[k].share->files[i].size_bytes - w.nodes[k].share->files[i].header_bytes;
        for (size_t i = 0; i < w.whole->n_files; i++)
            if (w.whole->files[i].header_bytes)
                shared -= w.whole->files[i].size_bytes - w.whole->files[i].header_bytes;
        assert_int_equal(shared, 0); /* every byte is held once */
        end_world(&w);
    }
}

static void test_most_nodes(void **state)
{
    struct world *w = malloc(sizeof(*w));
    char digest[33];
    (void)state;
    assert_non_null(w);
    make_world_of(w, MAX_RANKS, MAX_RANKS, MAX_TENSORS, 5000);
    check_map(w, digest);
    end_world(w);
    free(w);
}

static void refuse(struct world *w, int rc, const char *a, const char *b)
{
    struct ws_node_part_source parts[MAX_RANKS];
    struct ws_node_part_map *map;
    struct ws_error err = {0};
    parts_of(w, parts);
    assert_int_equal(ws_node_part_map_new(&map, parts, w->n_nodes, NULL, &err), rc);
    assert_null(map);
    if (!strstr(err.text, a) || !strstr(err.text, b))
        fail_msg("%s", err.text);
}

static size_t file_at(const struct node *n, const char *name)
{
    const struct ws_manifest_file *f = ws_manifest_find(n->manifest, name);
    assert_non_null(f);
    return (size_t)(f - n->manifest->files);
}

static void test_refused(void **state)
{
    struct world w;
    (void)state;
    make_world(&w, 8, 0);
    struct node *n1 = &w.nodes[1];
    unsigned char *text = n1->files[file_at(n1, WS_NODE_PART_FILE)];

    ws_manifest_free(n1->manifest);
    describe(&w, n1, 1, 8);
    refuse(&w, -EPROTO, "different versions", "n1");
    ws_manifest_free(n1->manifest);
    describe(&w, n1, 1, 7);

    const char other = n1->manifest->lineage[0];
    n1->manifest->lineage[0] = other == 'x' ? 'y' : 'x';
    refuse(&w, -EPROTO, "different runs", "n1");
    n1->manifest->lineage[0] = other;

    char *id = strstr((char *)text, "\"placement\":\"");
    assert_non_null(id);
    id += strlen("\"placement\":\"");
    const char was = *id;
    *id = was == '0' ? '1' : '0';
    refuse(&w, -EPROTO, "different placements", "n1");
    *id = was;

    char *index = strstr((char *)text, "\"index\":1");
    assert_non_null(index);
    index[strlen("\"index\":")] = '0';
    refuse(&w, -EPROTO, "another is this one, too", "n");
    index[strlen("\"index\":")] = '1';

    text[0] = '[';
    refuse(&w, -EBADMSG, "damaged", "n1");
    text[0] = '{';

    char digest[33];
    check_map(&w, digest); /* as it was */
    end_world(&w);
}

/* A piece with a dimension longer than its tensor's, in an otherwise valid text. */
static void test_hostile_text(void **state)
{
    struct world w;
    struct ws_node_part *part;
    (void)state;
    make_world(&w, 6, 0);
    for (unsigned k = 0; k < w.n_nodes; k++) {
        struct node *n = &w.nodes[k];
        size_t i = file_at(n, WS_NODE_PART_FILE), bytes = n->manifest->files[i].size_bytes;
        for (size_t cut_at = 0; cut_at < bytes; cut_at += 1 + any(50))
            assert_int_equal(ws_node_part_from_json((char *)n->files[i], cut_at, &part, NULL), -EBADMSG);
        unsigned char *was = malloc(bytes + 1);
        memcpy(was, n->files[i], bytes);
        for (int tries = 0; tries < 300; tries++) { /* digits change: refused, or used within bounds */
            size_t at = any((unsigned)bytes);
            if (n->files[i][at] < '0' || n->files[i][at] > '9')
                continue;
            n->files[i][at] = (unsigned char)('0' + any(10));
            struct ws_node_part_source parts[MAX_RANKS];
            struct ws_node_part_map *map = NULL;
            parts_of(&w, parts);
            if (ws_node_part_map_new(&map, parts, w.n_nodes, NULL, NULL) == 0) {
                unsigned char **dst = calloc(ws_node_part_map_n_files(map), sizeof(*dst));
                for (size_t f = 0; f < ws_node_part_map_n_files(map); f++)
                    dst[f] = malloc(ws_node_part_map_file(map, f)->size_bytes + 1);
                move_all(map, parts, w.n_nodes, dst, false);
                for (size_t f = 0; f < ws_node_part_map_n_files(map); f++)
                    free(dst[f]);
                free(dst);
            }
            ws_node_part_map_put(map);
            memcpy(n->files[i], was, bytes);
        }
        free(was);
    }
    end_world(&w);
}

static int reads(const char *text, size_t n)
{
    struct ws_node_part *part;
    struct ws_error err = {0};
    int rc = ws_node_part_from_json(text, n, &part, &err);
    ws_node_part_free(part);
    return rc;
}

#define PLACED "\"placement\":\"0123456789abcdef0123456789abcdef\""

/* Descriptions of parts, and what is made from them, have limits; the order of keys is free. */
static void test_limits(void **state)
{
    char text[512];
    (void)state;
    const char *format =
        "{\"files\":[{\"pieces\":[],\"header_bytes\":%lu,\"bytes\":%lu,\"name\":\"a\",\"x\":[1]}],"
        "\"y\":{},\"count\":1,\"index\":0," PLACED ",\"wsync_part\":1%s}";
    snprintf(text, sizeof(text), format, WS_MAX_HEADER_BYTES + 8, WS_MAX_FILE_BYTES, "");
    assert_int_equal(reads(text, strlen(text)), 0);
    assert_int_equal(reads(text, WS_MAX_NODE_PART_BYTES + 1), -EBADMSG); /* and is ignored */
    snprintf(text, sizeof(text), format, WS_MAX_HEADER_BYTES + 9, WS_MAX_FILE_BYTES, "");
    assert_int_equal(reads(text, strlen(text)), -EBADMSG);
    snprintf(text, sizeof(text), format, 0, WS_MAX_FILE_BYTES + 1, "");
    assert_int_equal(reads(text, strlen(text)), -EBADMSG);
    snprintf(text, sizeof(text), format, 0, 0, ",\"count\":1");
    assert_int_equal(reads(text, strlen(text)), -EBADMSG);
}

/* Who has a map made can end that. */
static void test_stopped(void **state)
{
    struct ws_node_part_source parts[MAX_RANKS];
    struct ws_node_part_map *map;
    struct world w;
    const atomic_bool stop = true;
    (void)state;
    make_world(&w, 8, 0);
    parts_of(&w, parts);
    assert_int_equal(ws_node_part_map_new(&map, parts, w.n_nodes, &stop, NULL), -ECANCELED);
    end_world(&w);
}

static void test_names(void **state)
{
    char base[WS_MAX_NAME + 1], name[WS_MAX_NAME + 1], lengthy[WS_MAX_NAME + 1];
    unsigned index, count;
    (void)state;
    assert_int_equal(ws_node_part_model(name, "actor", 3, 16, NULL), 0);
    assert_string_equal(name, "actor@3.16");
    assert_true(ws_name_is_node_part(name, base, &index, &count));
    assert_string_equal(base, "actor");
    assert_true(index == 3 && count == 16);
    assert_true(ws_name_is_node_part("actor@255.256", base, &index, &count));
    assert_true(index == 255 && count == WS_MAX_NODE_PARTS);
    static const char *const none[] = {
        "actor",      "actor@", "actor@1", "actor@1.",    "actor@1.1", "actor@2.2",  "actor@02.4",
        "actor@1.4x", "@1.4",   "ctl@1.4", "actor@1.257", "a@b@1.2",   "actor@-1.2", "actor@1.4294967298"};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        assert_false(ws_name_is_node_part(none[i], NULL, NULL, NULL));
    memset(lengthy, 'x', WS_MAX_NAME);
    lengthy[WS_MAX_NAME] = '\0';
    assert_int_equal(ws_node_part_model(name, lengthy, 0, 2, NULL), -ENAMETOOLONG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),       cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_names),        cmocka_unit_test(test_random),
        cmocka_unit_test(test_most_nodes),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_hostile_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
