/* Extraction by brute force: every tensor is written index by index, cut over random meshes by splitting
 * lists as torch does, and reassembled from the extractors' pieces, of which the claims choose one writer
 * each. */
#include "backends/trainer/tensor/piece.h"
#include "backends/trainer/wsync.h"
#include "tests/fixtures/private_folder.h"
#include "transports/simd/box.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_RANKS 24
#define MAX_SIDE  16

static uint64_t seed = 20261121;

static unsigned below(unsigned n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (unsigned)((seed >> 11) % n);
}

/* --- a file's tensors, and the ranks' descriptions of their parts --- */

struct tensor {
    char name[128];
    unsigned n_dims;
    uint64_t shape[WSYNC_MAX_DIMS];
    size_t n;
    uint32_t *values;  /* the expected value */
    uint32_t *written; /* the value by the pieces */
    uint8_t *times;
};
struct world {
    size_t n_tensors;
    struct tensor tensors[512];
    unsigned n_ranks;
    struct {
        wsync_extraction *e;
        void *memory[1024];
        size_t n_memory;
    } ranks[MAX_RANKS];
};
static uint32_t next_value;

static struct tensor *tensor_named(struct world *w, const char *name)
{
    for (size_t i = 0; i < w->n_tensors; i++)
        if (strcmp(w->tensors[i].name, name) == 0)
            return &w->tensors[i];
    return NULL;
}

static struct tensor *tensor_add(struct world *w, const char *name, unsigned n_dims, const uint64_t *shape)
{
    struct tensor *t = &w->tensors[w->n_tensors++];
    assert_true(w->n_tensors <= 512);
    *t = (struct tensor){.n_dims = n_dims, .n = 1};
    snprintf(t->name, sizeof(t->name), "%s", name);
    for (unsigned d = 0; d < n_dims; d++) {
        t->shape[d] = shape[d];
        t->n *= shape[d];
    }
    t->values = calloc(t->n + 1, sizeof(*t->values));
    t->written = calloc(t->n + 1, sizeof(*t->written));
    t->times = calloc(t->n + 1, 1);
    for (size_t i = 0; i < t->n; i++)
        t->values[i] = ++next_value;
    return t;
}

static void world_free(struct world *w)
{
    for (size_t i = 0; i < w->n_tensors; i++) {
        free(w->tensors[i].values);
        free(w->tensors[i].written);
        free(w->tensors[i].times);
    }
    for (unsigned r = 0; r < w->n_ranks; r++) {
        wsync_extraction_free(w->ranks[r].e);
        for (size_t i = 0; i < w->ranks[r].n_memory; i++)
            free(w->ranks[r].memory[i]);
    }
    free(w);
}

static void *rank_memory(struct world *w, unsigned rank, size_t bytes)
{
    void *p = calloc(1, bytes + 1);
    w->ranks[rank].memory[w->ranks[rank].n_memory++] = p;
    return p;
}

static void write_piece(struct tensor *t, const wsync_param *p)
{
    if (p->piece.kind == WSYNC_RANGE) {
        memcpy(t->written + p->piece.start, p->data, p->piece.count * sizeof(uint32_t));
        for (uint64_t i = 0; i < p->piece.count; i++)
            t->times[p->piece.start + i]++;
        return;
    }
    struct ws_box box = {.n_dims = t->n_dims,
                         .shape = t->shape,
                         .offset = p->piece.offset,
                         .size = p->piece.size,
                         .src_strides = p->piece.strides,
                         .element_bytes = sizeof(uint32_t)};
    uint8_t one = 1;
    int64_t zero[WSYNC_MAX_DIMS] = {0};
    (void)ws_box_copy(t->written, p->data, &box);
    box.element_bytes = 1;
    box.src_strides = zero;
    (void)ws_box_copy(t->times, &one, &box);
}

/* Every tensor of the file is written exactly, each piece by one writer, and nothing else is. */
static void check_world(struct world *w)
{
    uint64_t load[MAX_RANKS] = {0};
    size_t claimed = 0, said = 0;
    for (unsigned r = 0; r < w->n_ranks; r++) {
        size_t n;
        (void)wsync_extraction_params(w->ranks[r].e, &n);
        said += n;
    }
    for (size_t i = 0; i < w->n_tensors; i++) {
        struct tensor *t = &w->tensors[i];
        struct ws_tensor meta = {.name = t->name, .dtype = WS_U32, .n_dims = t->n_dims};
        struct ws_piece_holder *claims = calloc(said + 1, sizeof(*claims));
        struct ws_error err = {0};
        size_t n_claims = 0;
        memcpy(meta.shape, t->shape, sizeof(meta.shape));
        for (unsigned r = 0; r < w->n_ranks; r++) {
            size_t n;
            const wsync_param *p = wsync_extraction_params(w->ranks[r].e, &n);
            for (size_t k = 0; k < n; k++) {
                if (strcmp(p[k].name, t->name) != 0)
                    continue;
                assert_int_equal(p[k].n_dims, t->n_dims);
                assert_memory_equal(p[k].shape, t->shape, t->n_dims * sizeof(t->shape[0]));
                claims[n_claims] = (struct ws_piece_holder){.rank = r, .param = k};
                assert_int_equal(ws_piece_from_public(&p[k].piece, &meta, &claims[n_claims].piece, &err), 0);
                n_claims++;
            }
        }
        if (ws_piece_assign_writers(&meta, claims, n_claims, load, &err))
            fail_msg("%s: %s", t->name, err.text);
        for (size_t k = 0; k < n_claims; k++) {
            size_t n;
            const wsync_param *p = wsync_extraction_params(w->ranks[claims[k].rank].e, &n);
            if (claims[k].writes)
                write_piece(t, &p[claims[k].param]);
        }
        for (size_t k = 0; k < t->n; k++)
            if (t->times[k] != 1 || t->written[k] != t->values[k])
                fail_msg("%s[%zu] is %u, written %u times, and should be %u", t->name, k, t->written[k],
                         t->times[k], t->values[k]);
        claimed += n_claims;
        free(claims);
    }
    assert_int_equal(claimed, said); /* no piece of a tensor that the file does not have */
}

/* --- a held tensor, all ranks together, and lists of indices --- */

struct indices {
    size_t n;
    unsigned at[4 * MAX_SIDE * MAX_SIDE];
};

/* torch.chunk of a list, piece i of k. */
static void list_chunk(const struct indices *from, size_t begin, size_t end, unsigned k, unsigned i,
                       struct indices *to)
{
    size_t each = (end - begin + k - 1) / k;
    for (size_t j = begin; j < end; j++)
        if (each && (j - begin) / each == i)
            to->at[to->n++] = from->at[j];
}

static void list_place(struct indices *list, const wsync_placement *p)
{
    struct indices *out = calloc(1, sizeof(*out));
    unsigned factor = p->kind == WSYNC_STRIDED_SHARD ? p->split_factor : 1;
    size_t each = (list->n + factor - 1) / factor;
    for (unsigned k = 0; k < factor; k++) {
        size_t begin = k * each < list->n ? k * each : list->n,
               end = begin + each < list->n ? begin + each : list->n;
        list_chunk(list, begin, end, p->size, p->coordinate, out);
    }
    *list = *out;
    free(out);
}

/* A tensor with one value per element, or 0 for padding. */
struct global {
    unsigned n_dims;
    uint64_t shape[WSYNC_MAX_DIMS];
    uint32_t *values;
};

/* The rank's local tensor as lists; the memory has gaps around each row, so strides are not dense. */
static void hold(struct world *w, unsigned rank, const struct global *g, wsync_held *h, bool roomy)
{
    struct indices *lists = calloc(g->n_dims ? g->n_dims : 1, sizeof(*lists));
    size_t n = 1, at[WSYNC_MAX_DIMS] = {0};
    int64_t step = 1;
    h->n_dims = g->n_dims;
    memcpy(h->shape, g->shape, sizeof(h->shape));
    for (unsigned d = 0; d < g->n_dims; d++) {
        for (unsigned i = 0; i < g->shape[d]; i++)
            lists[d].at[lists[d].n++] = i;
        for (unsigned m = 0; m < h->n_placements; m++)
            if (h->placements[m].kind != WSYNC_REPLICATE && h->placements[m].dim == d)
                list_place(&lists[d], &h->placements[m]);
        h->local[d] = lists[d].n;
        n *= lists[d].n;
    }
    for (unsigned d = g->n_dims; d-- > 0;) {
        if (roomy)
            h->strides[d] = step;
        step *= (int64_t)h->local[d] + (roomy ? (int64_t)below(3) : 0);
    }
    uint32_t *data = rank_memory(w, rank, ((size_t)step + 1) * 4 * sizeof(uint32_t));
    h->data = data;
    for (size_t k = 0; k < n; k++) {
        uint64_t from = 0;
        int64_t to = 0, dense = 1;
        for (unsigned d = 0; d < g->n_dims; d++)
            from = from * g->shape[d] + lists[d].at[at[d]];
        for (unsigned d = g->n_dims; d-- > 0; dense *= (int64_t)h->local[d])
            to += (int64_t)at[d] * (roomy ? h->strides[d] : dense);
        data[to] = g->values[from];
        for (unsigned d = g->n_dims; d-- > 0 && ++at[d] == h->local[d];)
            at[d] = 0;
    }
    free(lists);
}

static void extract(struct world *w, unsigned rank, const wsync_extract_options *o, const wsync_held *h,
                    size_t n)
{
    if (wsync_extract(o, h, n, &w->ranks[rank].e))
        fail_msg("rank %u: %s", rank, wsync_error());
}

/* A random mesh of at most MAX_RANKS ranks. */
static unsigned mesh(unsigned sizes[4], unsigned *n)
{
    unsigned ranks = 1;
    *n = 1 + below(3);
    for (unsigned m = 0; m < *n; m++) {
        sizes[m] = 1 + below(*n == 1 ? 6 : 3);
        if (ranks * sizes[m] > MAX_RANKS)
            sizes[m] = 1;
        ranks *= sizes[m];
    }
    return ranks;
}

static void place(wsync_placement *p, const wsync_placement *how, const unsigned *sizes, unsigned n,
                  unsigned rank)
{
    for (unsigned m = n; m-- > 0;) {
        p[m] = how[m];
        p[m].size = sizes[m];
        p[m].coordinate = rank % sizes[m];
        rank /= sizes[m];
    }
}

static void random_placements(wsync_placement *how, unsigned n_mesh, unsigned n_dims)
{
    for (unsigned m = 0; m < n_mesh; m++) {
        unsigned kind = below(5);
        how[m] = (wsync_placement){.kind = kind == 0 || n_dims == 0 ? WSYNC_REPLICATE
                                           : kind == 1              ? WSYNC_STRIDED_SHARD
                                                                    : WSYNC_SHARD,
                                   .dim = n_dims ? below(n_dims) : 0,
                                   .split_factor = 1 + below(4)};
    }
}

static const wsync_extract_options fsdp = {.struct_size = sizeof(fsdp), .kind = "fsdp"};

static void test_meshes(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 3000; round++) {
        struct world *w = calloc(1, sizeof(*w));
        unsigned sizes[4], n_mesh;
        wsync_placement how[4];
        struct global g = {.n_dims = below(4)};
        w->n_ranks = mesh(sizes, &n_mesh);
        for (unsigned d = 0; d < g.n_dims; d++)
            g.shape[d] = below(10) == 0 ? 0 : 1 + below(MAX_SIDE - 1);
        struct tensor *t = tensor_add(w, "model.a.weight", g.n_dims, g.shape);
        g.values = t->values;
        random_placements(how, n_mesh, g.n_dims);
        for (unsigned r = 0; r < w->n_ranks; r++) {
            wsync_held h = {.name = "model._fsdp_wrapped_module.a.weight", .dtype = WSYNC_U32};
            h.n_placements = n_mesh;
            place(h.placements, how, sizes, n_mesh, r);
            hold(w, r, &g, &h, below(2));
            extract(w, r, &fsdp, &h, 1);
        }
        check_world(w);
        world_free(w);
    }
}

/* [experts, 2 x inner, hidden] and [experts, hidden, inner], by boxes and by flat partitions. */
static void test_stacked_experts(void **state)
{
    static const char *const gate_up[] = {"experts.*.gate_proj.weight", "experts.*.up_proj.weight"};
    static const char *const down[] = {"experts.*.down_proj.weight"};
    static const wsync_fusion fusions[] = {
        {.held = "experts.gate_up_proj", .names = gate_up, .n_names = 2, .stacked = 1, .dim = 1},
        {.held = "experts.down_proj", .names = down, .n_names = 1, .stacked = 1, .dim = 1}};
    static const wsync_rename rename = {".mlp.", ".block_sparse_moe."};
    (void)state;
    for (unsigned round = 0; round < 1500; round++) {
        struct world *w = calloc(1, sizeof(*w));
        unsigned sizes[4], n_mesh, experts = 1 + below(6), inner = 1 + below(5), hidden = 1 + below(6);
        bool flat = below(2), renamed = below(2);
        wsync_extract_options o = fsdp;
        wsync_placement how[2][4];
        const char *base = renamed ? "model.layers.3.block_sparse_moe" : "model.layers.3.mlp";
        struct global g[2] = {{.n_dims = 3, .shape = {experts, 2 * inner, hidden}},
                              {.n_dims = 3, .shape = {experts, hidden, inner}}};
        o.kind = flat ? "deepspeed" : "fsdp";
        o.fusions = fusions;
        o.n_fusions = 2;
        o.renames = &rename;
        o.n_renames = renamed;
        w->n_ranks = mesh(sizes, &n_mesh);
        if (flat)
            n_mesh = 1, sizes[0] = w->n_ranks;
        for (unsigned k = 0; k < 2; k++) {
            g[k].values = calloc(g[k].shape[0] * g[k].shape[1] * g[k].shape[2] + 1, sizeof(uint32_t));
            random_placements(how[k], n_mesh, 3);
        }
        for (unsigned e = 0; e < experts; e++) {
            for (unsigned k = 0; k < 3; k++) {
                static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
                uint64_t shape[2] = {k == 2 ? hidden : inner, k == 2 ? inner : hidden};
                char name[128];
                snprintf(name, sizeof(name), "%s.experts.%u.%s.weight", base, e, names[k]);
                struct tensor *t = tensor_add(w, name, 2, shape);
                size_t at = k == 2 ? e * t->n : (2 * e + k) * t->n;
                memcpy(g[k == 2].values + at, t->values, t->n * sizeof(uint32_t));
            }
        }
        for (unsigned r = 0; r < w->n_ranks; r++) {
            wsync_held h[2] = {{.name = "model.layers.3.mlp.experts.gate_up_proj", .dtype = WSYNC_U32},
                               {.name = "model.layers.3.mlp.experts.down_proj", .dtype = WSYNC_U32}};
            for (unsigned k = 0; k < 2; k++) {
                size_t n = g[k].shape[0] * g[k].shape[1] * g[k].shape[2],
                       each = (n + w->n_ranks - 1) / w->n_ranks, begin = r * each < n ? r * each : n,
                       end = begin + each < n ? begin + each : n;
                h[k].n_placements = n_mesh;
                place(h[k].placements, how[k], sizes, n_mesh, r);
                if (!flat) {
                    hold(w, r, &g[k], &h[k], below(2));
                    continue;
                }
                h[k].flat = 1;
                h[k].n_dims = 3;
                memcpy(h[k].shape, g[k].shape, sizeof(h[k].shape));
                h[k].data = memcpy(rank_memory(w, r, each * 4), g[k].values + begin, (end - begin) * 4);
                h[k].placements[0].kind = WSYNC_SHARD;
                h[k].placements[0].dim = 0;
                if (below(2)) { /* the same range by its numbers */
                    h[k].n_placements = 0;
                    h[k].start = begin;
                    h[k].count = end - begin;
                }
            }
            extract(w, r, &o, h, 2);
        }
        check_world(w);
        free(g[0].values);
        free(g[1].values);
        world_free(w);
    }
}

/* --- Megatron --- */

struct gpt {
    unsigned heads, kv_heads, head_dim, hidden, inner, moe_inner, vocab, padded, layers, experts;
    unsigned tp, pp, ep, etp;
    bool tied, moe, bias, grouped;
    char config[64];
};

static void write_config(struct gpt *m)
{
    char text[600];
    assert_true(private_path(m->config, sizeof(m->config), "config.XXXXXX"));
    int fd = mkstemp(m->config),
        n = snprintf(text, sizeof(text),
                     "{\"model_type\":\"qwen3_moe\",\"num_attention_heads\":%u,\"num_key_value_heads\":%u,"
                     "\"head_dim\":%u,"
                     "\"hidden_size\":%u,\"intermediate_size\":%u,\"moe_intermediate_size\":%u,"
                     "\"vocab_size\":%u,\"num_experts\":%u,\"tie_word_embeddings\":%s}",
                     m->heads, m->kv_heads, m->head_dim, m->hidden, m->inner, m->moe_inner, m->vocab,
                     m->experts, m->tied ? "true" : "false");
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, (size_t)n), n);
    close(fd);
}

/* A Megatron tensor of all ranks: rows from the file's tensors, in order; 0: padding. */
struct rows {
    struct global g;
    uint64_t next;
};

static void rows_new(struct rows *s, uint64_t rows, uint64_t columns)
{
    *s = (struct rows){.g = {.n_dims = columns ? 2 : 1, .shape = {rows, columns}}};
    s->g.values = calloc(rows * (columns ? columns : 1) + 1, sizeof(uint32_t));
}

static void rows_take(struct rows *s, const struct tensor *t, uint64_t first, uint64_t n)
{
    uint64_t columns = s->g.n_dims == 2 ? s->g.shape[1] : 1;
    memcpy(s->g.values + s->next * columns, t->values + first * columns, n * columns * sizeof(uint32_t));
    s->next += n;
}

/* Puts the local part into held[n]: by lists, over a group. */
static void megatron_hold(struct world *w, unsigned rank, const struct global *g, wsync_held *h,
                          const char *name, unsigned layer, int kind, unsigned dim, unsigned at,
                          unsigned size)
{
    char *copy = rank_memory(w, rank, strlen(name) + 1);
    strcpy(copy, name);
    *h = (wsync_held){.name = copy, .dtype = WSYNC_U32, .layer = layer};
    if (kind != WSYNC_REPLICATE) {
        h->n_placements = 1;
        h->placements[0] = (wsync_placement){(wsync_placement_kind)kind, dim, 2, size, at};
    }
    hold(w, rank, g, h, false);
    h->n_placements = 0; /* they are derived from the name */
    memset(h->placements, 0, sizeof(h->placements));
    memcpy(h->shape, h->local, sizeof(h->shape));
}

static struct tensor *file_tensor(struct world *w, const char *name, uint64_t rows, uint64_t columns)
{
    struct tensor *t = tensor_named(w, name);
    uint64_t shape[2] = {rows, columns};
    return t ? t : tensor_add(w, name, columns ? 2 : 1, shape);
}

#define NAME(...) (snprintf(name, sizeof(name), __VA_ARGS__), name)

static void whole(struct world *w, unsigned rank, wsync_held *h, const char *held, unsigned layer,
                  const char *file, uint64_t rows, uint64_t columns)
{
    struct tensor *t = file_tensor(w, file, rows, columns);
    struct global g = {.n_dims = columns ? 2 : 1, .shape = {rows, columns}, .values = t->values};
    megatron_hold(w, rank, &g, h, held, layer, WSYNC_REPLICATE, 0, 0, 1);
}

static void mlp(struct world *w, unsigned rank, wsync_held **h, const struct gpt *m, unsigned layer,
                int expert, int local_expert, unsigned at, unsigned size)
{
    char name[128], held[2][96];
    uint64_t inner = expert < 0 ? m->inner : m->moe_inner;
    struct rows s;
    for (int k = 0; k < 2; k++) {
        if (expert < 0)
            snprintf(held[k], sizeof(held[k]), "decoder.layers.%u.mlp.linear_fc%d.weight", layer % 2, k + 1);
        else if (m->grouped)
            snprintf(held[k], sizeof(held[k]), "decoder.layers.%u.mlp.experts.linear_fc%d.weight%d",
                     layer % 2, k + 1, local_expert);
        else
            snprintf(held[k], sizeof(held[k]),
                     "decoder.layers.%u.mlp.experts.local_experts.%d.linear_fc%d.weight", layer % 2,
                     local_expert, k + 1);
    }
    char base[64];
    if (expert < 0)
        snprintf(base, sizeof(base), "model.layers.%u.mlp", layer);
    else
        snprintf(base, sizeof(base), "model.layers.%u.mlp.experts.%d", layer, expert);
    rows_new(&s, 2 * inner, m->hidden);
    rows_take(&s, file_tensor(w, NAME("%s.gate_proj.weight", base), inner, m->hidden), 0, inner);
    rows_take(&s, file_tensor(w, NAME("%s.up_proj.weight", base), inner, m->hidden), 0, inner);
    megatron_hold(w, rank, &s.g, (*h)++, held[0], layer + 1, WSYNC_STRIDED_SHARD, 0, at, size);
    free(s.g.values);
    struct tensor *down = file_tensor(w, NAME("%s.down_proj.weight", base), m->hidden, inner);
    struct global g = {.n_dims = 2, .shape = {m->hidden, inner}, .values = down->values};
    megatron_hold(w, rank, &g, (*h)++, held[1], layer + 1, WSYNC_SHARD, 1, at, size);
}

static void attention(struct world *w, unsigned rank, wsync_held **h, const struct gpt *m, unsigned layer,
                      unsigned at)
{
    char name[128];
    unsigned queries = m->heads / m->kv_heads, d = m->head_dim;
    for (int bias = 0; bias <= m->bias; bias++) {
        const char *what = bias ? "bias" : "weight";
        struct tensor *t[3];
        struct rows s;
        for (int k = 0; k < 3; k++)
            t[k] = file_tensor(w, NAME("model.layers.%u.self_attn.%c_proj.%s", layer, "qkv"[k], what),
                               (k ? m->kv_heads : m->heads) * d, bias ? 0 : m->hidden);
        rows_new(&s, (m->heads + 2 * m->kv_heads) * d, bias ? 0 : m->hidden);
        for (unsigned group = 0; group < m->kv_heads; group++) {
            rows_take(&s, t[0], group * queries * d, queries * d);
            rows_take(&s, t[1], group * d, d);
            rows_take(&s, t[2], group * d, d);
        }
        megatron_hold(w, rank, &s.g, (*h)++,
                      NAME("module.decoder.layers.%u.self_attention.linear_qkv.%s", layer % 2, what),
                      layer + 1, WSYNC_SHARD, 0, at, m->tp);
        free(s.g.values);
    }
    struct tensor *o =
        file_tensor(w, NAME("model.layers.%u.self_attn.o_proj.weight", layer), m->hidden, m->heads * d);
    struct global g = {.n_dims = 2, .shape = {m->hidden, (uint64_t)m->heads * d}, .values = o->values};
    megatron_hold(w, rank, &g, (*h)++, NAME("decoder.layers.%u.self_attention.linear_proj.weight", layer % 2),
                  layer + 1, WSYNC_SHARD, 1, at, m->tp);
}

static void vocabulary(struct world *w, unsigned rank, wsync_held **h, const struct gpt *m, const char *held,
                       const char *file, unsigned at)
{
    struct rows s;
    rows_new(&s, m->padded, m->hidden);
    rows_take(&s, file_tensor(w, file, m->vocab, m->hidden), 0, m->vocab);
    megatron_hold(w, rank, &s.g, (*h)++, held, 0, WSYNC_SHARD, 0, at, m->tp);
    free(s.g.values);
}

static void megatron_rank(struct world *w, struct gpt *m, unsigned rank)
{
    wsync_held *held = calloc(256, sizeof(*held)), *h = held;
    char name[128], file[128];
    unsigned stage = rank / (w->n_ranks / m->pp), in_stage = rank % (w->n_ranks / m->pp),
             per_stage = m->layers / m->pp;
    unsigned tp = in_stage % m->tp, etp = in_stage % m->etp, ep = in_stage / m->etp % m->ep;
    if (stage == 0)
        vocabulary(w, rank, &h, m, "embedding.word_embeddings.weight", "model.embed_tokens.weight", tp);
    for (unsigned layer = stage * per_stage; layer < (stage + 1) * per_stage; layer++) {
        snprintf(file, sizeof(file), "model.layers.%u.input_layernorm.weight", layer);
        whole(w, rank, h++, NAME("decoder.layers.%u.input_layernorm.weight", layer % 2), layer + 1, file,
              m->hidden, 0);
        attention(w, rank, &h, m, layer, tp);
        if (!m->moe) {
            mlp(w, rank, &h, m, layer, -1, 0, tp, m->tp);
            continue;
        }
        snprintf(file, sizeof(file), "model.layers.%u.mlp.gate.weight", layer);
        whole(w, rank, h++, NAME("decoder.layers.%u.mlp.router.weight", layer % 2), layer + 1, file,
              m->experts, m->hidden);
        for (unsigned j = 0; j < m->experts / m->ep; j++)
            mlp(w, rank, &h, m, layer, (int)(ep * (m->experts / m->ep) + j), (int)j, etp, m->etp);
    }
    if (stage == m->pp - 1) {
        whole(w, rank, h++, "decoder.final_layernorm.weight", 0, "model.norm.weight", m->hidden, 0);
        if (!m->tied)
            vocabulary(w, rank, &h, m, "output_layer.weight", "lm_head.weight", tp);
        else if (m->pp > 1) /* the last stage's copy of the embedding */
            vocabulary(w, rank, &h, m, "output_layer.weight", "model.embed_tokens.weight", tp);
    }
    wsync_extract_options o = {.struct_size = sizeof(o),
                               .kind = "megatron",
                               .hf_config = m->config,
                               .tensor = {tp, m->tp},
                               .expert = {ep, m->ep},
                               .expert_tensor = {etp, m->etp}};
    extract(w, rank, &o, held, (size_t)(h - held));
    free(held);
}

static void test_megatron(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 400; round++) {
        struct world *w = calloc(1, sizeof(*w));
        struct gpt m = {.kv_heads = 1U << below(3),
                        .head_dim = 1 + below(4),
                        .tp = 1U << below(3),
                        .pp = 1 + below(2),
                        .ep = 1,
                        .tied = below(2),
                        .moe = below(2),
                        .bias = below(2),
                        .grouped = below(2),
                        .layers = 4};
        m.heads = m.kv_heads * (1 + below(3));
        while ((m.heads + 2 * m.kv_heads) * m.head_dim % m.tp || m.heads * m.head_dim % m.tp)
            m.tp /= 2;
        m.hidden = 1 + below(7);
        m.inner = m.tp * (1 + below(4));
        m.moe_inner = 4 * (1 + below(2));
        m.vocab = 1 + below(20);
        m.padded = (m.vocab + 2 * m.tp - 1) / (2 * m.tp) * 2 * m.tp;
        m.etp = m.tp;
        if (m.moe) {
            m.ep = 1U << below(2);
            m.experts = m.ep * (1 + below(3));
            m.etp = 1U << below(2);
        }
        unsigned stage = m.tp > m.ep * m.etp ? m.tp : m.ep * m.etp;
        w->n_ranks = stage * m.pp;
        write_config(&m);
        for (unsigned r = 0; r < w->n_ranks; r++)
            megatron_rank(w, &m, r);
        check_world(w);
        assert_int_equal(tensor_named(w, "lm_head.weight") == NULL, m.tied);
        unlink(m.config);
        world_free(w);
    }
}

/* --- what is refused --- */

static void refused(int rc, const wsync_extract_options *o, const wsync_held *h, const char *name,
                    const char *says)
{
    wsync_extraction *e;
    assert_int_equal(wsync_extract(o, h, 1, &e), rc);
    assert_null(e);
    if (!strstr(wsync_error(), name) || !strstr(wsync_error(), says))
        fail_msg("'%s' does not say '%s' of %s", wsync_error(), says, name);
}

static void test_refusals(void **state)
{
    struct gpt m = {.heads = 2,
                    .kv_heads = 1,
                    .head_dim = 2,
                    .hidden = 4,
                    .inner = 8,
                    .vocab = 10,
                    .experts = 4,
                    .moe_inner = 4};
    wsync_held h = {.name = "w", .dtype = WSYNC_F32, .n_dims = 2, .shape = {4, 4}, .local = {4, 4}};
    (void)state;
    write_config(&m);
    wsync_extract_options meg = {
        .struct_size = sizeof(meg), .kind = "megatron", .hf_config = m.config, .tensor = {0, 2}};
    wsync_extract_options bad = fsdp;
    bad.kind = "jax";
    refused(-EINVAL, &bad, &h, "jax", "no extractor");
    bad = fsdp;
    bad.dtype = "I8";
    refused(-EINVAL, &bad, &h, "I8", "published as");
    h.local[0] = 3;
    refused(-EINVAL, &fsdp, &h, "w", "holds 3 of the 4");
    h.local[0] = 4;
    h.n_placements = 1;
    h.placements[0] = (wsync_placement){.kind = WSYNC_SHARD, .dim = 2, .size = 2};
    refused(-EINVAL, &fsdp, &h, "w", "dimension 2");
    h.placements[0] = (wsync_placement){.kind = WSYNC_SHARD, .size = 2, .coordinate = 2};
    refused(-EINVAL, &fsdp, &h, "w", "coordinate 2");
    h.placements[0] = (wsync_placement){.kind = (wsync_placement_kind)7, .size = 2};
    refused(-EINVAL, &fsdp, &h, "w", "placement");
    h.n_placements = 0;
    h.flat = 1;
    h.start = 10;
    h.count = 7;
    refused(-EINVAL, &fsdp, &h, "w", "range held begins at 10");
    h.start = 0;
    h.count = 7; /* the placement says 8 */
    h.n_placements = 1;
    h.placements[0] = (wsync_placement){.kind = WSYNC_SHARD, .size = 2};
    refused(-EINVAL, &fsdp, &h, "w", "holds 7 elements");
    h.n_placements = 0;
    h.flat = 0;
    h.name = "base_model.model.layers.0.q_proj.base_layer.weight";
    refused(-EOPNOTSUPP, &fsdp, &h, h.name, "merge_and_unload");
    h.name = "layers.0.q_proj.lora_A.default.weight";
    refused(-EOPNOTSUPP, &fsdp, &h, h.name, "merge_and_unload");
    h.layer = 1;
    h.name = "decoder.layers.0.mlp.router.expert_bias";
    refused(-EOPNOTSUPP, &meg, &h, h.name, "moe_router_enable_expert_bias");
    h.name = "decoder.layers.0.mlp.experts.weight1";
    refused(-EOPNOTSUPP, &meg, &h, h.name, "transposed");
    h.name = "decoder.layers.0.mlp.something.weight";
    refused(-EOPNOTSUPP, &meg, &h, h.name, "guess");
    h.name = "decoder.layers.0.mlp.linear_fc1.weight"; /* 4 rows over 2 ranks, config says 16 */
    refused(-EINVAL, &meg, &h, h.name, "config.json says 16");
    h.layer = 0;
    refused(-EINVAL, &meg, &h, h.name, "number of its layer");
    h.name = "embedding.word_embeddings.weight"; /* 8 rows of a vocabulary of 10 */
    refused(-EINVAL, &meg, &h, "model.embed_tokens.weight", "10 are needed");
    static const char *const features[] = {"gated_linear_unit", "attention_output_gate"};
    meg.features = features;
    meg.n_features = 2;
    refused(-EOPNOTSUPP, &meg, &h, "attention_output_gate", "interleaved");
    meg.n_features = 0;
    FILE *f = fopen(m.config, "w");
    assert_non_null(f);
    fputs("{\"model_type\":\"mixtral\",\"num_attention_heads\":2,\"head_dim\":2,\"vocab_size\":10}", f);
    fclose(f);
    refused(-EOPNOTSUPP, &meg, &h, "mixtral", "by name");
    unlink(m.config);
    write_config(&m);
    meg.hf_config = m.config;
    meg.hf_config = "/nowhere";
    refused(-ENOENT, &meg, &h, "/nowhere", "config");
    meg.hf_config = NULL;
    refused(-EINVAL, &meg, &h, "hf_config", "needs");
    unlink(m.config);
}

static void test_wrappers(void **state)
{
    static const struct {
        const char *held, *file;
    } all[] = {{"module.model.norm.weight", "model.norm.weight"},
               {"_orig_mod.module.model.norm.weight", "model.norm.weight"},
               {"base_model.model.model.norm.weight", "model.norm.weight"},
               {"model._fsdp_wrapped_module.layers.0._checkpoint_wrapped_module.w", "model.layers.0.w"},
               {"model.my_orig_mod.w", "model.my_orig_mod.w"},
               {"model.module.w", "model.module.w"}};
    float data[4] = {0};
    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const wsync_held h = {
            .name = all[i].held, .dtype = WSYNC_F32, .n_dims = 1, .shape = {4}, .local = {4}, .data = data};
        wsync_extraction *e;
        size_t n;
        assert_int_equal(wsync_extract(&fsdp, &h, 1, &e), 0);
        const wsync_param *p = wsync_extraction_params(e, &n);
        assert_int_equal(n, 1);
        assert_string_equal(p[0].name, all[i].file);
        wsync_extraction_free(e);
    }
}

static void test_dtypes_and_moves(void **state)
{
    static const char text[] = "{\"torch_dtype\":\"bfloat16\",\"tie_word_embeddings\":true}";
    char dir[64], path[96];
    float first[4] = {1}, second[4] = {2};
    int64_t whole_numbers[2] = {0};
    wsync_held h[3] = {
        {.name = "a", .dtype = WSYNC_F32, .n_dims = 1, .shape = {4}, .local = {4}, .data = first},
        {.name = "b", .dtype = WSYNC_I64, .n_dims = 1, .shape = {2}, .local = {2}, .data = whole_numbers},
        {.name = "lm_head.weight",
         .dtype = WSYNC_F32,
         .n_dims = 1,
         .shape = {4},
         .local = {4},
         .data = first}};
    wsync_extract_options o = {.struct_size = sizeof(o), .kind = "fsdp", .hf_config = dir};
    wsync_extraction *e;
    size_t n;
    (void)state;
    assert_true(private_folder(dir, sizeof(dir), "extract"));
    snprintf(path, sizeof(path), "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(wsync_extract(&o, h, 3, &e), 0);
    const wsync_param *p = wsync_extraction_params(e, &n);
    assert_int_equal(n, 2); /* the file has no tied output layer */
    assert_int_equal(p[0].dtype, WSYNC_BF16);
    assert_true(p[0].converts);
    assert_int_equal(p[0].data_dtype, WSYNC_F32);
    assert_int_equal(p[1].dtype, WSYNC_I64);
    assert_false(p[1].converts);
    assert_ptr_equal(p[0].data, first);
    const void *moved[3] = {second, whole_numbers, NULL};
    wsync_extraction_move(e, moved);
    assert_ptr_equal(p[0].data, second);
    void *const streams[3] = {&n, NULL, NULL};
    wsync_extraction_follow(e, streams);
    assert_ptr_equal(p[0].stream, &n);
    assert_null(p[1].stream);
    wsync_extraction_free(e);
    o.dtype = "F16";
    assert_int_equal(wsync_extract(&o, h, 1, &e), 0);
    assert_int_equal(wsync_extraction_params(e, &n)->dtype, WSYNC_F16);
    wsync_extraction_free(e);
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meshes),   cmocka_unit_test(test_stacked_experts),
        cmocka_unit_test(test_megatron), cmocka_unit_test(test_wrappers),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_dtypes_and_moves),
    };
    return cmocka_run_group_tests_name("extract", tests, NULL, NULL);
}
