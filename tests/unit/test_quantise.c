/* Quantising: every implementation gives the bytes of a slow reference that searches the nearest code in doubles, for all
 * bf16 and f16 and for f32 of all magnitudes, at ragged edges; rows in parts are the same as all at once; what no number is
 * gets refused by its place. */
#include "tests/fixtures/choice.h"
#include "transports/base/cpu_features.h"
#include "transports/quant/code.h"
#include "transports/quant/quantise.h"
#include "transports/simd/convert_bits.h"
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FILL 0xa5

static uint64_t any(void)
{
    static uint64_t seed = 88172645463325252ULL;
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

/* --- the reference --- */

static const enum ws_dtype dtypes[WS_QUANT_TYPES] = {WS_BF16, WS_F16, WS_F32};
static const unsigned widths[WS_QUANT_TYPES] = {2, 2, 4};
static const uint32_t infinities[WS_QUANT_TYPES] = {0x7f80, 0x7c00, 0x7f800000};

static float number_of(enum ws_quant_type type, const void *p, size_t i)
{
    uint32_t bits = 0;
    float x;
    memcpy(&bits, (const char *)p + i * widths[type], widths[type]);
    bits = type == WS_QUANT_BF16  ? ws_f32_from_bf16((uint16_t)bits)
           : type == WS_QUANT_F16 ? ws_f32_from_f16((uint16_t)bits)
                                  : bits;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static float rounded(enum ws_quant_type type, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    const uint16_t narrow = type == WS_QUANT_BF16 ? ws_bf16_from_f32(bits) : ws_f16_from_f32(bits);
    return (type == WS_QUANT_F32 ? x : number_of(type, &narrow, 0)) + 0.0F; /* the zero point: 0 for -0 */
}

static double e4m3_size(unsigned code)
{
    const unsigned exponent = code >> 3, rest = code & 7;
    return exponent ? ldexp(8 + rest, (int)exponent - 10) : ldexp(rest, -9);
}

/* The nearest of the codes that are numbers, of two the even one. */
static unsigned char e4m3_nearest(float x)
{
    const double size = fabs((double)x);
    unsigned low = 0, high = 0x7e;
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        *(e4m3_size(middle) <= size ? &low : &high) = middle;
    }
    const double below = size - e4m3_size(low), above = e4m3_size(high) - size;
    const unsigned code = below < above || (below == above && low % 2 == 0) ? low : high;
    return (unsigned char)(code | (signbit(x) ? 0x80 : 0));
}

static float scale_of(const struct ws_recipe *r, enum ws_quant_type type, float amax)
{
    static const float epsilon[] = {0x1p-7F, 0x1p-10F, 0x1p-23F};
    const float least = type == WS_QUANT_BF16 ? rounded(type, 1e-12F) : 1e-12F;
    switch (r->method) {
    case WS_FP8_BLOCK_UE8M0:
        return exp2f(ceilf(log2f(fmaxf(amax, 1e-4F) / 448)));
    case WS_FP8_CHANNEL_CT:
    case WS_INT8_CHANNEL:
    case WS_INT4_GROUP: {
        const float most = r->method == WS_FP8_CHANNEL_CT ? 448
                           : r->method == WS_INT8_CHANNEL ? 127.5F
                                                          : 7.5F;
        const float scale = rounded(type, amax / most);
        return scale == 0 ? epsilon[type] : scale;
    }
    case WS_INT4_SLIME:
        return fmaxf(amax * (1.0F / 7.0F), 1e-5F);
    case WS_MXFP8:
        return (float)ldexp(1, (int)fmax(ceil(log2((double)(fmaxf(amax, 0x1p-126F) / 448))), -127));
    case WS_FP8_BLOCK:
    case WS_FP8_CHANNEL:
        break;
    }
    return fmaxf(amax, least) / 448;
}

static bool is_ct(const struct ws_recipe *r)
{
    return r->method == WS_FP8_CHANNEL_CT || r->method == WS_INT8_CHANNEL || r->method == WS_INT4_GROUP;
}

static bool is_int4(const struct ws_recipe *r)
{
    return r->method == WS_INT4_GROUP || r->method == WS_INT4_SLIME;
}

static int integer(float x, int least, int most)
{
    return (int)rintf(fminf(fmaxf(x, (float)least), (float)most));
}

/* Stores the code of element i. */
static void put_code(const struct ws_recipe *r, unsigned char *codes, size_t i, float x)
{
    if (r->method == WS_INT8_CHANNEL) {
        codes[i] = (unsigned char)integer(x, -128, 127);
    } else if (is_int4(r)) {
        const int shift = i % 2 ? 4 : 0, least = r->method == WS_INT4_SLIME ? -7 : -8;
        codes[i / 2] = (unsigned char)((codes[i / 2] & ~(15 << shift)) | (integer(x, least, 7) + 8) << shift);
    } else {
        codes[i] = e4m3_nearest(x);
    }
}

/* Stores a scale; returns its bytes. */
static unsigned put_scale(const struct ws_recipe *r, enum ws_quant_type type, unsigned char *at, float scale)
{
    const bool as_source = is_ct(r) || r->method == WS_INT4_SLIME;
    const unsigned bytes = as_source ? widths[type] : r->method == WS_MXFP8 ? 1 : 4;
    uint32_t bits;
    scale = r->method == WS_INT4_SLIME ? rounded(type, scale) : scale;
    memcpy(&bits, &scale, sizeof(bits));
    if (r->method == WS_MXFP8)
        bits = (uint32_t)(ilogbf(scale) + 127);
    else if (as_source && type != WS_QUANT_F32)
        bits = type == WS_QUANT_BF16 ? bits >> 16 : ws_f16_from_f32(bits);
    memcpy(at, &bits, bytes);
    return bytes;
}

static void reference(const struct ws_quantise *q, enum ws_quant_type type, unsigned char *codes,
                      unsigned char *scales)
{
    const size_t height = q->recipe->block_rows,
                 width = q->recipe->block_columns ? q->recipe->block_columns : q->columns;
    for (size_t r0 = 0; r0 < q->rows; r0 += height) {
        for (size_t c0 = 0; c0 < q->columns; c0 += width) {
            float amax = 0;
            for (size_t r = r0; r < q->rows && r < r0 + height; r++)
                for (size_t c = c0; c < q->columns && c < c0 + width; c++)
                    amax = fmaxf(amax, fabsf(number_of(type, q->src, r * q->columns + c)));
            const float scale = scale_of(q->recipe, type, amax);
            for (size_t r = r0; r < q->rows && r < r0 + height; r++)
                for (size_t c = c0; c < q->columns && c < c0 + width; c++) {
                    const float x = number_of(type, q->src, r * q->columns + c) / scale;
                    put_code(q->recipe, codes, r * q->columns + c, is_ct(q->recipe) ? rounded(type, x) : x);
                }
            scales += put_scale(q->recipe, type, scales, scale);
        }
    }
}

/* --- pieces, by each implementation --- */

/* All elements of 16 bits; of 32 bits, all upper halves with others below. Those that are no number become 0. */
static void *all_elements(enum ws_quant_type type)
{
    unsigned char *p = malloc((size_t)widths[type] << 16);
    assert_non_null(p);
    for (uint32_t i = 0; i < 1U << 16; i++) {
        uint32_t bits = type == WS_QUANT_F32 ? i << 16 | (uint32_t)(any() & 0xffff) : i;
        if ((bits & (type == WS_QUANT_F32 ? 0x7fffffff : 0x7fff)) >= infinities[type])
            bits = 0;
        memcpy(p + (size_t)i * widths[type], &bits, widths[type]);
    }
    return p;
}

static void check_codes(const struct ws_quant_code *code, enum ws_quant_type type, const unsigned char *all,
                        float scale)
{
    static unsigned char got[1 << 16];
    const struct ws_quant_piece p = {all, 1000UL * widths[type], 1, 65, 1000};
    const float scales[WS_QUANT_BLOCKS] = {scale};
    code->codes[WS_QUANT_E4M3_CT][type](&p, scales, got, 1000);
    for (size_t i = 0; i < 65000; i++)
        assert_int_equal(got[i], e4m3_nearest(rounded(type, number_of(type, all, i) / scale)));
    code->codes[WS_QUANT_INT8_CT][type](&p, scales, got, 1000);
    for (size_t i = 0; i < 65000; i++)
        assert_int_equal((signed char)got[i],
                         integer(rounded(type, number_of(type, all, i) / scale), -128, 127));
    code->codes[WS_QUANT_INT4_CT][type](&p, scales, got, 500);
    for (size_t i = 0; i < 65000; i++)
        assert_int_equal((got[i / 2] >> (i % 2 ? 4 : 0) & 15) - 8,
                         integer(rounded(type, number_of(type, all, i) / scale), -8, 7));
    /* the others are for quotients that do not overflow */
    code->codes[WS_QUANT_INT4][type](&p, scales, got, 500);
    for (size_t i = 0; i < 65000; i++) {
        const float x = number_of(type, all, i) / scale;
        if (fabsf(x) <= 7.5F)
            assert_int_equal((got[i / 2] >> (i % 2 ? 4 : 0) & 15) - 8, integer(x, -8, 7));
    }
    for (size_t i = 0; i < 1 << 16; i++) {
        const struct ws_quant_piece one = {all + i * widths[type], 0, 1, 1, 1};
        const float x = number_of(type, all, i) / scale;
        unsigned char c = FILL;
        if (fabsf(x) > 449)
            continue;
        code->codes[WS_QUANT_E4M3][type](&one, scales, &c, 1);
        assert_int_equal(c, e4m3_nearest(x));
    }
}

static void test_all_elements(void **state)
{
    (void)state;
    /* bf16 and others, powers of two, and those whose inverse is far out */
    const float scales[] = {1,        0x1p-20F,     0x1.36p-8F, 0x1.fep-91F, 0x1.02p100F, 3e-5F,
                            1.0F / 3, 1e-12F / 448, 1e30F,      0x1p-133F,   7e-40F};
    for (int v = 0; v <= (int)ws_cpu_vector(NULL); v++) {
        for (int type = 0; type < WS_QUANT_TYPES; type++) {
            unsigned char *all = all_elements(type);
            for (size_t s = 0; s < sizeof(scales) / sizeof(scales[0]); s++)
                check_codes(ws_quant_codes[v], type, all, scales[s]);
            free(all);
        }
    }
}

/* A bf16 of a magnitude of at most most * scale. */
static uint16_t any_bf16(float scale, float most)
{
    const float y = (float)(any() >> 40) / 16777216.0F * most * scale * (any() & 1 ? 1 : -1);
    uint32_t bits;
    memcpy(&bits, &y, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

/* Blocks of a row of so many bf16: some groups, which have code of their own, or others. */
static void check_blocks(enum ws_quant_codes codes, size_t blocks, size_t columns, bool narrow)
{
    uint16_t x[7 * 78];
    float scales[WS_QUANT_BLOCKS] = {0};
    unsigned char got[7 * 78];
    const bool int4 = codes == WS_QUANT_INT4 || codes == WS_QUANT_INT4_CT;
    const bool ct = codes == WS_QUANT_INT4_CT || codes == WS_QUANT_E4M3_CT;
    const size_t row = int4 ? columns / 2 : columns;
    for (size_t b = 0; b < blocks; b++) {
        scales[b] = ldexpf(1 + (float)(any() >> 40) / 16777216.0F, (int)(any() % 60) - 40);
        scales[b] = narrow ? rounded(WS_QUANT_BF16, scales[b]) : scales[b];
        for (size_t i = 0; i < columns; i++)
            x[b * columns + i] = any_bf16(scales[b], int4 ? 7 : 448);
    }
    const struct ws_quant_piece p = {(void *)x, columns * 2, blocks, 1, columns};
    for (int v = 0; v <= (int)ws_cpu_vector(NULL); v++) {
        ws_quant_codes[v]->codes[codes][WS_QUANT_BF16](&p, scales, got, row);
        for (size_t i = 0; i < blocks * columns; i++) {
            const float q = number_of(WS_QUANT_BF16, x, i) / scales[i / columns];
            const float y = ct ? rounded(WS_QUANT_BF16, q) : q;
            if (int4)
                assert_int_equal((got[i / 2] >> (i % 2 ? 4 : 0) & 15) - 8, integer(y, -8, 7));
            else
                assert_int_equal(got[i], e4m3_nearest(y));
        }
    }
}

/* Scales are as likely as any; each bf16 of a range meets many of them. */
static void test_random_scales(void **state)
{
    (void)state;
    for (int round = 0; round < 3000; round++) {
        const size_t blocks = 1 + any() % 7, columns = round % 2 ? 32 : 1 + any() % 77;
        check_blocks(WS_QUANT_E4M3, blocks, columns, false);
        check_blocks(WS_QUANT_E4M3_CT, blocks, columns, true);
        check_blocks(WS_QUANT_INT4, blocks, columns + columns % 2, false);
        check_blocks(WS_QUANT_INT4_CT, blocks, columns + columns % 2, true);
    }
}

static void test_largest(void **state)
{
    (void)state;
    for (int type = 0; type < WS_QUANT_TYPES; type++) {
        unsigned char x[6 * 200 * 4];
        for (size_t columns = 1; columns < 200; columns += 1 + columns / 9) {
            uint32_t most[2] = {0}, got[2] = {0};
            for (size_t i = 0; i < sizeof(x); i++)
                x[i] = (unsigned char)any();
            for (size_t r = 0; r < 6; r++)
                for (size_t c = 0; c < columns; c++) {
                    uint32_t bits = 0;
                    memcpy(&bits, x + (r * 200 + c) * widths[type], widths[type]);
                    bits &= type == WS_QUANT_F32 ? 0x7fffffff : 0x7fff;
                    most[r / 3] = bits > most[r / 3] ? bits : most[r / 3];
                }
            const struct ws_quant_piece p = {x, 200UL * widths[type], 2, 3, columns};
            for (int v = 0; v <= (int)ws_cpu_vector(NULL); v++) {
                ws_quant_codes[v]->largest[type](&p, got);
                assert_memory_equal(got, most, sizeof(most));
            }
        }
    }
}

/* Of all elements of 16 bits, and of any of 32. */
static void test_scales(void **state)
{
    (void)state;
    for (size_t i = 0; ws_recipe_at(i); i++) {
        static const enum ws_quant_scale of_method[] = {
            [WS_FP8_BLOCK] = WS_QUANT_DIVIDE,   [WS_FP8_BLOCK_UE8M0] = WS_QUANT_UE8M0,
            [WS_FP8_CHANNEL] = WS_QUANT_DIVIDE, [WS_FP8_CHANNEL_CT] = WS_QUANT_CT,
            [WS_INT8_CHANNEL] = WS_QUANT_CT,    [WS_INT4_GROUP] = WS_QUANT_CT,
            [WS_INT4_SLIME] = WS_QUANT_SLIME,   [WS_MXFP8] = WS_QUANT_MX};
        const struct ws_recipe *recipe = ws_recipe_at(i);
        const float most = recipe->method == WS_INT8_CHANNEL ? 127.5F
                           : recipe->method == WS_INT4_GROUP ? 7.5F
                           : recipe->method == WS_INT4_SLIME ? 7
                                                             : 448;
        for (int type = 0; type < WS_QUANT_TYPES; type++) {
            for (uint32_t first = 0; first < infinities[type] >> (type == WS_QUANT_F32 ? 16 : 0);
                 first += 100) {
                uint32_t largest[WS_QUANT_BLOCKS] = {0};
                float got[WS_QUANT_BLOCKS];
                for (uint32_t k = 0; k < 100; k++) {
                    largest[k] =
                        type == WS_QUANT_F32 ? (first + k) << 16 | (uint32_t)(any() & 0xffff) : first + k;
                    if (largest[k] >= infinities[type])
                        largest[k] = 0;
                }
                for (int v = 0; v <= (int)ws_cpu_vector(NULL); v++) {
                    ws_quant_codes[v]->scales(of_method[recipe->method], type, largest, 100, most, got);
                    for (size_t k = 0; k < 100; k++)
                        assert_true(got[k] == scale_of(recipe, type, number_of(type, &largest[k], 0)));
                }
            }
        }
    }
}

/* --- recipes --- */

struct weight {
    struct ws_quantise q;
    unsigned char *src, *codes, *scales;
    unsigned char *shape; /* two numbers of shape_bytes */
    size_t shape_bytes;
    size_t code_bytes, scale_bytes;
};

static void fill(struct weight *w, enum ws_quant_type type, int kind)
{
    for (size_t i = 0; i < w->q.rows * w->q.columns; i++) {
        const size_t r = i / w->q.columns, c = i % w->q.columns;
        uint32_t bits = (uint32_t)any();
        if (kind == 0) { /* as weights are */
            const float y = ((float)(any() >> 40) / 16777216.0F - 0.5F) * 0.04F;
            memcpy(&bits, &y, sizeof(bits));
            bits = type == WS_QUANT_F32 ? bits : type == WS_QUANT_BF16 ? bits >> 16 : ws_f16_from_f32(bits);
        } else if (kind == 1) { /* subnormals, blocks of zeros */
            bits =
                (r / 128 + c / 128) % 2 ? (bits & 0x8000) << (type == WS_QUANT_F32 ? 16 : 0) : bits & 0x807f;
        }
        if ((bits & (type == WS_QUANT_F32 ? 0x7fffffff : 0x7fff)) >= infinities[type] ||
            (type != WS_QUANT_F32 && (bits & 0x7fff) >= infinities[type]))
            bits = 0;
        memcpy(w->src + i * widths[type], &bits, widths[type]);
    }
}

static struct weight make(const struct ws_recipe *recipe, enum ws_quant_type type, size_t rows,
                          size_t columns, int kind)
{
    columns = (columns + recipe->whole_columns - 1) / recipe->whole_columns * recipe->whole_columns;
    struct ws_recipe_target targets[WS_RECIPE_MAX_TARGETS];
    uint64_t bytes;
    struct weight w = {.q = {.recipe = recipe,
                             .name = "a.weight",
                             .dtype = dtypes[type],
                             .rows = rows,
                             .columns = columns,
                             .n_rows = rows}};
    assert_in_range(ws_recipe_targets(recipe, dtypes[type], rows, columns, targets), 2, 3);
    assert_int_equal(ws_dtype_bytes(targets[0].dtype, targets[0].shape, targets[0].n_dims, &bytes), 0);
    w.code_bytes = bytes;
    assert_int_equal(ws_dtype_bytes(targets[1].dtype, targets[1].shape, targets[1].n_dims, &bytes), 0);
    w.scale_bytes = bytes;
    w.src = malloc(rows * columns * widths[type]);
    w.codes = malloc(w.code_bytes);
    w.shape = calloc(2, sizeof(int64_t));
    w.shape_bytes = recipe->method == WS_INT4_SLIME ? 4 : 8;
    w.scales = malloc(bytes);
    assert_true(w.src && w.codes && w.scales && w.shape);
    fill(&w, type, kind);
    w.q.src = w.src;
    w.q.dst[0] = w.codes;
    w.q.dst[1] = w.scales;
    w.q.dst[2] = w.shape;
    memset(w.codes, FILL, w.code_bytes);
    memset(w.scales, FILL, bytes);
    return w;
}

static void release(struct weight *w)
{
    free(w->src);
    free(w->codes);
    free(w->scales);
    free(w->shape);
}

static void check_whole(struct weight *w, enum ws_quant_type type)
{
    unsigned char *codes = malloc(w->code_bytes), *scales = malloc(w->scale_bytes);
    struct ws_error err = {0};
    assert_true(codes && scales);
    reference(&w->q, type, codes, scales);
    assert_int_equal(ws_quantise(&w->q, &err), 0);
    assert_memory_equal(w->scales, scales, w->scale_bytes);
    assert_memory_equal(w->codes, codes, w->code_bytes);
    for (size_t i = 0; is_int4(w->q.recipe) && i < 2; i++) { /* little-endian */
        int64_t n = 0;
        memcpy(&n, w->shape + i * w->shape_bytes, w->shape_bytes);
        assert_int_equal(n, i ? w->q.columns : w->q.rows);
    }
    free(codes);
    free(scales);
}

static const size_t shapes[][2] = {{128, 128}, {256, 384}, {1, 1}, {130, 257}, {127, 40}, {300, 33}};

static void test_recipes(void **state)
{
    (void)state;
    for (size_t i = 0; ws_recipe_at(i); i++)
        for (int type = 0; type < WS_QUANT_TYPES; type++)
            for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
                for (int kind = 0; kind < 3; kind++) {
                    struct weight w = make(ws_recipe_at(i), type, shapes[s][0], shapes[s][1], kind);
                    check_whole(&w, type);
                    release(&w);
                }
}

static void test_rows_in_parts(void **state)
{
    (void)state;
    for (size_t i = 0; ws_recipe_at(i); i++) {
        struct weight w = make(ws_recipe_at(i), WS_QUANT_BF16, 300, 70, 0);
        const size_t row_bytes = w.q.columns * 2;
        unsigned char *codes = malloc(w.code_bytes), *scales = malloc(w.scale_bytes);
        struct ws_error err;
        assert_true(codes && scales);
        assert_int_equal(ws_quantise(&w.q, &err), 0);
        for (uint64_t row = 0; row < 300; row += 128) {
            struct ws_quantise part = w.q;
            uint64_t begin[2], end[2], shape_begin, shape_end;
            part.row = row;
            part.n_rows = 300 - row < 128 ? 300 - row : 128;
            part.src = w.src + row * row_bytes;
            for (unsigned k = 0; k < 2; k++)
                ws_quantise_range(&part, k, &begin[k], &end[k]);
            part.dst[0] = codes + begin[0];
            part.dst[1] = scales + begin[1];
            if (is_int4(ws_recipe_at(i))) {
                ws_quantise_range(&part, 2, &shape_begin, &shape_end);
                assert_true(shape_begin == 0 && shape_end == (row ? 0 : 2 * w.shape_bytes));
                part.dst[2] = row ? NULL : w.shape;
            }
            assert_int_equal(begin[0], row * w.code_bytes / 300);
            assert_int_equal(end[0], (row + part.n_rows) * w.code_bytes / 300);
            assert_true(end[1] <= w.scale_bytes && (row + part.n_rows < 300 || end[1] == w.scale_bytes));
            assert_int_equal(ws_quantise(&part, &err), 0);
        }
        assert_memory_equal(codes, w.codes, w.code_bytes);
        assert_memory_equal(scales, w.scales, w.scale_bytes);
        free(codes);
        free(scales);
        release(&w);
    }
}

static void test_no_number(void **state)
{
    (void)state;
    for (size_t i = 0; ws_recipe_at(i); i++) {
        for (int type = 0; type < WS_QUANT_TYPES; type++) {
            for (int nan = 0; nan < 2; nan++) {
                struct weight w = make(ws_recipe_at(i), type, 300, 257, 0);
                const uint32_t bits = infinities[type] + (uint32_t)nan;
                struct ws_error err = {0};
                memcpy(w.src + (290 * w.q.columns + 200) * widths[type], &bits, widths[type]);
                assert_int_equal(ws_quantise(&w.q, &err), -EBADMSG);
                assert_non_null(strstr(err.text, "a.weight"));
                assert_non_null(strstr(err.text, "[290, 200]"));
                assert_non_null(strstr(err.text, nan ? "is NaN" : "is infinite"));
                /* the same of rows alone */
                struct ws_quantise part = w.q;
                part.row = 256;
                part.n_rows = 44;
                part.src = w.src + 256 * w.q.columns * widths[type];
                assert_int_equal(ws_quantise(&part, &err), -EBADMSG);
                assert_non_null(strstr(err.text, "[290, 200]"));
                release(&w);
            }
        }
    }
}

static void test_names(void **state)
{
    (void)state;
    const struct ws_recipe *r = NULL;
    struct ws_error err = {0};
    for (size_t i = 0; ws_recipe_at(i); i++) {
        const char *name = ws_recipe_at(i)->name;
        assert_int_equal(strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-"), strlen(name));
        assert_int_equal(ws_recipe_find(name, &r, &err), 0);
        assert_ptr_equal(r, ws_recipe_at(i));
    }
    assert_int_equal(ws_recipe_find("fp4", &r, &err), -EINVAL);
    assert_non_null(strstr(err.text, "\"fp4\""));
    assert_non_null(strstr(
        err.text, "fp8-block128, fp8-block128-ue8m0, fp8-channel, fp8-channel-ct, int8-channel, int4-g32, "
                  "int4-g128, int4-g32-slime, mxfp8"));
    assert_false(ws_recipe_takes(r, WS_F64) || ws_recipe_takes(r, WS_F8_E4M3));
}

static void test_choice(void **state)
{
    (void)state;
    assert_string_equal(ws_quantise_code(), ws_quant_codes[ws_cpu_vector(NULL)]->name);
    for (int v = 0; v <= (int)ws_cpu_vector(NULL); v++)
        assert_chooses("WSYNC_QUANT", ws_quant_codes[v]->name, ws_quant_codes[v]->name);
    assert_chooses("WSYNC_QUANT", "what-is-not-there", "portable");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_elements), cmocka_unit_test(test_random_scales),
        cmocka_unit_test(test_largest),      cmocka_unit_test(test_scales),
        cmocka_unit_test(test_recipes),      cmocka_unit_test(test_rows_in_parts),
        cmocka_unit_test(test_no_number),    cmocka_unit_test(test_names),
        cmocka_unit_test(test_choice),
    };
    if (argc > 1 && strcmp(argv[1], "name") == 0) {
        printf("%s", ws_quantise_code());
        return 0;
    }
    unsetenv("WSYNC_QUANT");
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
