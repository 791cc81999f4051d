/* beside others */
/* Chunks against a simple model of the rule: which parameters are together, their offsets when packed, and
 * the copy of every kind of piece, element by element. */
#include "backends/trainer/wsync.h"
#include "transports/simd/dtype.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_PARAMS 24
#define NAME_CHARS 64
#define FILL       0xa5

static uint64_t seed = 7;

static uint64_t below(uint64_t n)
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (seed >> 33) % n;
}

static wsync_chunks *chunks_of(const wsync_param *params, size_t n, const wsync_chunk_options *options)
{
    wsync_chunks *c;
    if (wsync_chunks_open(params, n, options, &c) < 0)
        fail_msg("%s", wsync_error());
    return c;
}

/* A whole tensor of n elements of bf16. */
static wsync_param tensor(const char *name, uint64_t n)
{
    return (wsync_param){.name = name, .dtype = WSYNC_BF16, .n_dims = 1, .shape = {n}};
}

/* --- grouping --- */

/* ".".join(name.split(".")[:-2]) */
static void module_of(const char *name, char out[NAME_CHARS])
{
    snprintf(out, NAME_CHARS, "%s", name);
    for (int i = 0; i < 2; i++) {
        char *dot = strrchr(out, '.');
        if (!dot) {
            out[0] = 0;
            return;
        }
        *dot = 0;
    }
}

/* SkyRL's own loop: out[i] is the chunk of the i-th parameter in order[]; returns the number of chunks. */
static size_t model(const wsync_param *p, const uint64_t *bytes, size_t n, uint64_t threshold, size_t *order,
                    size_t *chunk, char modules[][NAME_CHARS])
{
    char seen[MAX_PARAMS][NAME_CHARS], module[NAME_CHARS];
    size_t n_seen = 0, at = 0, chunks = 0;
    uint64_t current = 0;
    for (size_t i = 0; i < n; i++) {
        bool known = false;
        module_of(p[i].name, module);
        for (size_t k = 0; k < n_seen; k++)
            known = known || strcmp(seen[k], module) == 0;
        if (!known)
            strcpy(seen[n_seen++], module);
    }
    for (size_t k = 0; k < n_seen; k++) {
        uint64_t size = 0;
        for (size_t i = 0; i < n; i++) {
            module_of(p[i].name, module);
            size += strcmp(module, seen[k]) == 0 ? bytes[i] : 0;
        }
        bool fresh = chunks == 0 || (current > 0 && current + size > threshold);
        if (fresh) {
            strcpy(modules[chunks++], seen[k]);
            current = 0;
        } else {
            strcpy(modules[chunks - 1], "several");
        }
        current += size;
        for (size_t i = 0; i < n; i++) {
            module_of(p[i].name, module);
            if (strcmp(module, seen[k]) == 0) {
                order[at] = i;
                chunk[at++] = chunks - 1;
            }
        }
    }
    return chunks;
}

static void compare(const wsync_param *p, const uint64_t *bytes, size_t n, uint64_t threshold)
{
    size_t order[MAX_PARAMS] = {0}, chunk[MAX_PARAMS] = {0}, at = 0;
    char modules[MAX_PARAMS][NAME_CHARS];
    wsync_chunk_options o = {.struct_size = sizeof(o), .threshold_bytes = threshold};
    wsync_chunks *c = chunks_of(p, n, &o);
    size_t want = model(p, bytes, n, threshold, order, chunk, modules);
    assert_int_equal(wsync_chunks_count(c), want);
    for (int round = 0; round < 2; round++, at = 0) { /* next() begins again after the end */
        for (size_t k = 0; k < want; k++) {
            const wsync_chunk *one = wsync_chunks_next(c);
            uint64_t total = 0, numel = 0;
            assert_ptr_equal(one, wsync_chunks_get(c, k));
            if (strcmp(modules[k], "several") == 0)
                assert_null(one->module_name);
            else
                assert_string_equal(one->module_name, modules[k]);
            for (size_t i = 0; i < one->n; i++, at++) {
                assert_int_equal(chunk[at], k);
                assert_ptr_equal(one->entries[i].param, &p[order[at]]);
                assert_int_equal(one->entries[i].size_bytes, bytes[order[at]]);
                assert_int_equal(one->entries[i].offset, total);
                total += bytes[order[at]];
                numel += bytes[order[at]] / 2;
            }
            assert_int_equal(one->total_size_bytes, total);
            assert_int_equal(one->packed_bytes, total); /* one dtype, no alignment */
            assert_int_equal(one->total_numel, numel);
            assert_true(one->one_dtype);
        }
        assert_int_equal(at, n);
        assert_null(wsync_chunks_next(c));
    }
    assert_null(wsync_chunks_get(c, want));
    wsync_chunks_close(c);
}

static void test_grouping_against_a_model(void **state)
{
    static const char *const parts[] = {"a", "b", "weight", "layers.0", ""};
    (void)state;
    for (int round = 0; round < 20000; round++) {
        char names[MAX_PARAMS][NAME_CHARS];
        wsync_param p[MAX_PARAMS];
        uint64_t bytes[MAX_PARAMS];
        size_t n = below(MAX_PARAMS + 1);
        for (size_t i = 0; i < n; i++) {
            size_t k = 1 + below(4), used = 0;
            for (size_t j = 0; j < k; j++)
                used += (size_t)snprintf(names[i] + used, NAME_CHARS - used, "%s%s", j ? "." : "",
                                         parts[below(sizeof(parts) / sizeof(parts[0]))]);
            if (!used)
                strcpy(names[i], "w");
            p[i] = tensor(names[i], below(4) * below(10));
            bytes[i] = 2 * p[i].shape[0];
        }
        compare(p, bytes, n, below(3) ? below(100) : below(2) ? 0 : UINT64_MAX);
    }
}

/* As in the comment of SkyRL's weight_extractor_utils, with q, k and v together. */
static void test_seeds_example(void **state)
{
    const wsync_param p[] = {
        tensor("model.embed_tokens.weight", 64),
        tensor("model.layers.0.self_attn.q_proj.weight", 16),
        tensor("model.layers.0.mlp.up_proj.weight", 32),
        tensor("model.layers.0.self_attn.k_proj.weight", 16),
        tensor("model.norm.weight", 4),
        tensor("lm_head.weight", 64),
    };
    static const char *const want[][3] = {
        {"model", "model.embed_tokens.weight", "model.norm.weight"},
        {"model.layers.0.self_attn", "model.layers.0.self_attn.q_proj.weight",
         "model.layers.0.self_attn.k_proj.weight"},
        {"model.layers.0.mlp", "model.layers.0.mlp.up_proj.weight", NULL},
        {"", "lm_head.weight", NULL},
    };
    wsync_chunks *c = chunks_of(p, 6, NULL);
    (void)state;
    assert_int_equal(wsync_chunks_count(c), 4);
    for (size_t i = 0; i < 4; i++) {
        const wsync_chunk *one = wsync_chunks_next(c);
        assert_string_equal(one->module_name, want[i][0]);
        assert_int_equal(one->n, want[i][2] ? 2 : 1);
        for (size_t k = 0; k < one->n; k++)
            assert_string_equal(one->entries[k].param->name, want[i][k + 1]);
    }
    wsync_chunks_close(c);
}

static void test_ungrouped(void **state)
{
    const wsync_param p[] = {tensor("a.b.c", 1), tensor("a.b.d", 0), tensor("a.b.e", 2)};
    wsync_chunk_options o = {.struct_size = sizeof(o), .ungrouped = 1};
    wsync_chunks *c = chunks_of(p, 3, &o);
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const wsync_chunk *one = wsync_chunks_next(c);
        assert_int_equal(one->n, 1);
        assert_ptr_equal(one->entries[0].param, &p[i]);
        assert_null(one->module_name);
    }
    assert_null(wsync_chunks_next(c));
    wsync_chunks_close(c);
    c = chunks_of(NULL, 0, NULL);
    assert_null(wsync_chunks_next(c));
    wsync_chunks_close(c);
    wsync_chunks_close(NULL);
}

/* A model of 100,000 tensors in which modules alternate: the order is that of first appearance. */
static void test_many(void **state)
{
    enum { N = 100000, MODULES = 1000 };
    wsync_param *p = calloc(N, sizeof(*p));
    char(*names)[NAME_CHARS] = calloc(N, sizeof(*names));
    (void)state;
    assert_true(p && names);
    for (size_t i = 0; i < N; i++) {
        snprintf(names[i], NAME_CHARS, "layers.%zu.p%zu.weight", i % MODULES, i / MODULES);
        p[i] = tensor(names[i], 8);
    }
    wsync_chunks *c = chunks_of(p, N, NULL);
    assert_int_equal(wsync_chunks_count(c), MODULES);
    for (size_t i = 0; i < MODULES; i++) {
        const wsync_chunk *one = wsync_chunks_next(c);
        assert_int_equal(one->n, N / MODULES);
        for (size_t k = 0; k < one->n; k++)
            assert_ptr_equal(one->entries[k].param, &p[k * MODULES + i]);
    }
    wsync_chunks_close(c);
    free(p);
    free(names);
}

/* --- packing --- */

static const struct {
    wsync_dtype dtype;
    size_t bytes;
} types[] = {{WSYNC_U8, 1}, {WSYNC_BF16, 2}, {WSYNC_F32, 4}, {WSYNC_F64, 8}};

struct source {
    wsync_param param;
    size_t element_bytes, held;   /* elements */
    unsigned char *memory, *want; /* want: the held elements, dense */
};

/* A random piece of a random tensor, of random bytes. */
static void make_source(struct source *s, size_t k)
{
    wsync_param *p = &s->param;
    wsync_piece *piece = &p->piece;
    uint64_t total = 1, held = 1;
    *p = (wsync_param){.name = "m.p.w", .dtype = types[k].dtype, .n_dims = (unsigned)below(4)};
    s->element_bytes = types[k].bytes;
    piece->kind = (wsync_piece_kind)below(3);
    for (unsigned d = 0; d < p->n_dims; d++) {
        p->shape[d] = below(5);
        total *= p->shape[d];
        piece->size[d] = below(p->shape[d] + 1);
        piece->offset[d] = below(p->shape[d] - piece->size[d] + 1);
    }
    if (piece->kind == WSYNC_RANGE) {
        piece->count = held = below(total + 1);
        piece->start = below(total - held + 1);
    }
    const uint64_t *size = piece->kind == WSYNC_BOX ? piece->size : p->shape;
    for (unsigned d = 0; d < p->n_dims && piece->kind != WSYNC_RANGE; d++)
        held *= size[d];
    /* a strided source: dimensions in another order, with gaps */
    bool strided = piece->kind == WSYNC_BOX && p->n_dims && below(2);
    int64_t step = 1, at[WSYNC_MAX_DIMS] = {0};
    unsigned turn = p->n_dims ? (unsigned)below(p->n_dims) : 0;
    for (unsigned i = 0; strided && i < p->n_dims; i++) {
        unsigned d = (i + turn) % p->n_dims;
        piece->strides[d] = step;
        step *= (int64_t)(size[d] ? size[d] : 1) + (int64_t)below(3);
    }
    s->held = held;
    size_t room = (strided ? (size_t)step : held) * s->element_bytes + 1;
    s->memory = malloc(room);
    s->want = malloc(held * s->element_bytes + 1);
    assert_true(s->memory && s->want);
    for (size_t i = 0; i < room; i++)
        s->memory[i] = (unsigned char)below(256);
    p->data = s->memory;
    for (size_t i = 0; i < held; i++) {
        int64_t from = strided ? 0 : (int64_t)i;
        for (unsigned d = 0; strided && d < p->n_dims; d++)
            from += at[d] * piece->strides[d];
        memcpy(s->want + i * s->element_bytes, s->memory + from * (int64_t)s->element_bytes,
               s->element_bytes);
        for (unsigned d = p->n_dims; strided && d-- > 0;) {
            if ((uint64_t)++at[d] < size[d])
                break;
            at[d] = 0;
        }
    }
}

static void check_pack(const wsync_chunk *c, const struct source *s, size_t n, uint64_t alignment)
{
    unsigned char *got = malloc(c->packed_bytes + 64), *want = calloc(1, c->packed_bytes + 64);
    uint64_t end = 0;
    bool one_dtype = true;
    assert_true(got && want);
    memset(got, FILL, c->packed_bytes + 64);
    for (size_t i = 0; i < n; i++) {
        uint64_t unit = alignment > s[i].element_bytes ? alignment : s[i].element_bytes;
        while (end % unit)
            end++;
        assert_int_equal(c->entries[i].offset, end);
        assert_int_equal(c->entries[i].numel, s[i].held);
        memcpy(want + end, s[i].want, s[i].held * s[i].element_bytes);
        end += s[i].held * s[i].element_bytes;
        one_dtype = one_dtype && s[i].param.dtype == s[0].param.dtype;
    }
    assert_int_equal(c->packed_bytes, end);
    assert_int_equal(c->alignment, alignment);
    assert_int_equal(c->one_dtype, one_dtype);
    memset(want + end, FILL, 64);
    assert_int_equal(wsync_chunk_pack(c, got, end), 0);
    assert_memory_equal(got, want, end + 64);
    if (end) {
        assert_int_equal(wsync_chunk_pack(c, got, end - 1), -ENOSPC);
        assert_non_null(strstr(wsync_error(), "room"));
    }
    free(got);
    free(want);
}

static void test_pack_against_a_model(void **state)
{
    (void)state;
    for (int round = 0; round < 5000; round++) {
        struct source s[6];
        wsync_param p[6];
        size_t n = 1 + below(6), same = below(2) ? below(4) : 4;
        wsync_chunk_options o = {.struct_size = sizeof(o), .alignment = below(2) ? 1UL << below(10) : 0};
        for (size_t i = 0; i < n; i++) {
            make_source(&s[i], same < 4 ? same : below(4));
            p[i] = s[i].param;
        }
        wsync_chunks *c = chunks_of(p, n, &o);
        assert_int_equal(wsync_chunks_count(c), 1);
        check_pack(wsync_chunks_get(c, 0), s, n, o.alignment);
        wsync_chunks_close(c);
        for (size_t i = 0; i < n; i++) {
            free(s[i].memory);
            free(s[i].want);
        }
    }
}

static void test_packed_already(void **state)
{
    _Alignas(256) unsigned char memory[1024];
    wsync_param p[] = {tensor("m.a.w", 100), tensor("m.e.w", 0), tensor("m.b.w", 28), tensor("m.c.w", 1)};
    static const struct {
        uint64_t alignment;
        size_t at[4];
        bool packed;
    } cases[] = {
        {0, {0, 500, 200, 256}, true}, {0, {0, 500, 202, 256}, false}, {2, {10, 0, 210, 266}, true},
        {256, {0, 1, 256, 512}, true}, {256, {0, 0, 200, 256}, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        wsync_chunk_options o = {.struct_size = sizeof(o), .alignment = cases[i].alignment};
        for (size_t k = 0; k < 4; k++)
            p[k].data = memory + cases[i].at[k];
        wsync_chunks *c = chunks_of(p, 4, &o);
        assert_int_equal(wsync_chunks_get(c, 0)->packed, cases[i].packed);
        wsync_chunks_close(c);
        p[2].data = NULL;
        c = chunks_of(p, 4, &o);
        assert_false(wsync_chunks_get(c, 0)->packed);
        assert_int_equal(wsync_chunk_pack(wsync_chunks_get(c, 0), memory, sizeof(memory)), -EINVAL);
        assert_non_null(strstr(wsync_error(), "m.b.w"));
        wsync_chunks_close(c);
    }
    wsync_param box = {.name = "m.a.w", .dtype = WSYNC_BF16, .n_dims = 2, .shape = {4, 4}, .data = memory};
    box.piece = (wsync_piece){.kind = WSYNC_BOX, .size = {2, 4}, .strides = {8, 1}};
    wsync_chunks *c = chunks_of(&box, 1, NULL);
    assert_false(wsync_chunks_get(c, 0)->packed); /* strided */
    wsync_chunks_close(c);
    box.piece.strides[0] = 4;
    c = chunks_of(&box, 1, NULL);
    assert_true(wsync_chunks_get(c, 0)->packed);
    wsync_chunks_close(c);
}

/* --- what is refused --- */

static void refused(const wsync_param *p, size_t n, const wsync_chunk_options *o, int code, const char *says)
{
    wsync_chunks *c = (wsync_chunks *)1;
    assert_int_equal(wsync_chunks_open(p, n, o, &c), -code);
    assert_null(c);
    if (!strstr(wsync_error(), says))
        fail_msg("\"%s\" does not say \"%s\"", wsync_error(), says);
}

static void test_refusals(void **state)
{
    wsync_param p[2] = {tensor("m.a.w", 4), tensor("m.b.w", 4)};
    wsync_chunk_options o = {.struct_size = sizeof(o)};
    (void)state;
    o.alignment = 3;
    refused(p, 2, &o, EINVAL, "power of two");
    o.alignment = 1UL << 21;
    refused(p, 2, &o, EINVAL, "power of two");
    o = (wsync_chunk_options){.struct_size = sizeof(o), .ungrouped = 1, .threshold_bytes = 1};
    refused(p, 2, &o, EINVAL, "threshold");
    o = (wsync_chunk_options){.struct_size = 0};
    refused(p, 2, &o, EINVAL, "struct_size");
    p[1].name = NULL;
    refused(p, 2, NULL, EINVAL, "parameter 1");
    p[1] = tensor("m.b.w", 4);
    p[1].dtype = (wsync_dtype)99;
    refused(p, 2, NULL, EINVAL, "m.b.w");
    p[1] = tensor("m.b.w", 4);
    p[1].n_dims = 9;
    refused(p, 2, NULL, EINVAL, "m.b.w");
    p[1] = tensor("m.b.w", 4);
    p[1].piece = (wsync_piece){.kind = WSYNC_BOX, .offset = {1}, .size = {4}};
    refused(p, 2, NULL, EINVAL, "m.b.w");
    p[1].piece = (wsync_piece){.kind = WSYNC_RANGE, .start = 4, .count = 1};
    refused(p, 2, NULL, EINVAL, "m.b.w");
    p[1].piece.kind = (wsync_piece_kind)7;
    refused(p, 2, NULL, EINVAL, "m.b.w");
    p[1] = tensor("m.b.w", 4);
    p[1].dtype = WSYNC_F4;
    p[1].piece = (wsync_piece){.kind = WSYNC_RANGE, .count = 2};
    refused(p, 2, NULL, EINVAL, "whole");
    wsync_param huge[5];
    for (size_t i = 0; i < 5; i++) {
        huge[i] = tensor("m.b.w", (1UL << 61) - 1);
        huge[i].dtype = WSYNC_U8;
    }
    wsync_chunks_close(chunks_of(huge, 4, NULL));
    refused(huge, 5, NULL, E2BIG, "m.b.w"); /* over 2^63 bytes together */
    refused(p, 2000000, NULL, E2BIG, "at most");
}

/* F4 has half a byte: two of them make one, and a chunk may contain an even number. */
static void test_half_bytes(void **state)
{
    unsigned char memory[3] = {1, 2, 3}, out[4] = {0};
    wsync_param p[2] = {tensor("m.a.w", 6), tensor("m.b.w", 1)};
    wsync_chunks *c;
    (void)state;
    p[0].dtype = WSYNC_F4;
    p[0].data = memory;
    p[1].dtype = WSYNC_U8;
    p[1].data = memory;
    c = chunks_of(p, 2, NULL);
    const wsync_chunk *one = wsync_chunks_get(c, 0);
    assert_int_equal(one->total_numel, 7);
    assert_int_equal(one->packed_bytes, 4);
    assert_int_equal(wsync_chunk_pack(one, out, sizeof(out)), 0);
    assert_memory_equal(out, "\x01\x02\x03\x01", 4);
    wsync_chunks_close(c);
}

static void test_dtype_names(void **state)
{
    static const char *const bad[] = {"", "BF16", "torch.", "torch", "torch.torch.int8", "bfloat16 ", NULL};
    wsync_dtype back;
    size_t known = 0;
    (void)state;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(wsync_dtype_parse(bad[i], &back), -EINVAL);
    for (int d = 0; d < WS_DTYPE_COUNT; d++) {
        const char *str = wsync_dtype_str((wsync_dtype)d), *name = wsync_dtype_name((wsync_dtype)d);
        assert_true(!str == !name);
        if (!str)
            continue;
        known++;
        assert_int_equal(strncmp(str, "torch.", 6), 0);
        assert_string_equal(str + 6, name);
        assert_int_equal(wsync_dtype_parse(str, &back), 0);
        assert_int_equal(back, d);
        assert_int_equal(wsync_dtype_parse(name, &back), 0);
        assert_int_equal(back, d);
    }
#pragma GCC diagnostic pop
    assert_int_equal(known, WS_DTYPE_COUNT - 3); /* F4, F6 twice */
    assert_string_equal(wsync_dtype_str(WSYNC_BF16), "torch.bfloat16");
    assert_string_equal(wsync_dtype_name(WSYNC_F8_E4M3), "float8_e4m3fn");
    assert_null(wsync_dtype_name((wsync_dtype)1000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grouping_against_a_model),
        cmocka_unit_test(test_seeds_example),
        cmocka_unit_test(test_ungrouped),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_pack_against_a_model),
        cmocka_unit_test(test_packed_already),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_half_bytes),
        cmocka_unit_test(test_dtype_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
