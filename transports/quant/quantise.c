/* The arithmetic of recipes over one weight: which elements share a scale, and what the scale is. */
#include "transports/quant/quantise.h"
#include "transports/base/cpu_features.h"
#include "transports/quant/code.h"
#include "transports/simd/convert_bits.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* Rows of a piece whose every row has scales of its own: as many as the first cache holds, since they are read twice. */
#define PIECE_BYTES 16384U

enum target { CODES, SCALES, SHAPE };

const struct ws_quant_code *const ws_quant_codes[] = {
    [WS_PORTABLE] = &ws_quant_portable,
#ifdef WS_HAS_VECTORS
    [WS_AVX2] = &ws_quant_avx2,
    [WS_AVX512] = &ws_quant_avx512,
#endif
};

static const struct ws_quant_code *the_code(void)
{
    static struct ws_cpu_choice choice = {.variable = "WSYNC_QUANT"};
    return ws_quant_codes[ws_cpu_choose(&choice)];
}

const char *ws_quantise_code(void)
{
    return the_code()->name;
}

/* --- element types --- */

static const struct {
    unsigned bytes;
    uint32_t infinite; /* bits of infinity; NaN's are above them */
} types[WS_QUANT_TYPES] = {
    [WS_QUANT_BF16] = {2, 0x7f80},
    [WS_QUANT_F16] = {2, 0x7c00},
    [WS_QUANT_F32] = {4, 0x7f800000},
};

static enum ws_quant_type type_of(enum ws_dtype dtype)
{
    assert(dtype == WS_BF16 || dtype == WS_F16 || dtype == WS_F32);
    return dtype == WS_BF16 ? WS_QUANT_BF16 : dtype == WS_F16 ? WS_QUANT_F16 : WS_QUANT_F32;
}

/* --- methods --- */

enum stored { AS_F32, AS_SOURCE, AS_E8M0 };

static const struct arithmetic {
    enum ws_quant_codes codes;
    enum ws_quant_scale scale;
    float largest_code; /* what amax becomes */
    enum stored stored;
} methods[] = {
    [WS_FP8_BLOCK] = {WS_QUANT_E4M3, WS_QUANT_DIVIDE, 448, AS_F32},
    [WS_FP8_BLOCK_UE8M0] = {WS_QUANT_E4M3, WS_QUANT_UE8M0, 448, AS_F32},
    [WS_FP8_CHANNEL] = {WS_QUANT_E4M3, WS_QUANT_DIVIDE, 448, AS_F32},
    [WS_FP8_CHANNEL_CT] = {WS_QUANT_E4M3_CT, WS_QUANT_CT, 448, AS_SOURCE},
    [WS_INT8_CHANNEL] = {WS_QUANT_INT8_CT, WS_QUANT_CT, 127.5F, AS_SOURCE},
    [WS_INT4_GROUP] = {WS_QUANT_INT4_CT, WS_QUANT_CT, 7.5F, AS_SOURCE},
    [WS_INT4_SLIME] = {WS_QUANT_INT4, WS_QUANT_SLIME, 7, AS_SOURCE},
    [WS_MXFP8] = {WS_QUANT_E4M3, WS_QUANT_MX, 448, AS_E8M0},
};

static unsigned scale_bytes(enum stored stored, enum ws_quant_type type)
{
    return stored == AS_F32 ? sizeof(float) : stored == AS_E8M0 ? 1 : types[type].bytes;
}

/* Scales of n blocks, in the type that they are stored in. */
static void store(unsigned char *at, const float *scales, size_t n, enum stored stored,
                  enum ws_quant_type type)
{
    if (stored == AS_F32 || (stored == AS_SOURCE && type == WS_QUANT_F32)) {
        memcpy(at, scales, n * sizeof(*scales));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &scales[i], sizeof(bits));
        if (stored == AS_E8M0) {
            at[i] = (unsigned char)(bits >> 23); /* the exponent; 0 of 2^-127 */
        } else {
            const uint16_t half = type == WS_QUANT_BF16 ? ws_bf16_from_f32(bits) : ws_f16_from_f32(bits);
            memcpy(at + i * sizeof(half), &half, sizeof(half));
        }
    }
}

/* --- rows --- */

static uint64_t blocks(uint64_t n, uint64_t size)
{
    return n / size + (n % size != 0);
}

/* Of so many columns of a row. */
static uint64_t code_bytes(const struct ws_quantise *q, uint64_t columns)
{
    const enum ws_quant_codes codes = methods[q->recipe->method].codes;
    return codes == WS_QUANT_INT4_CT || codes == WS_QUANT_INT4 ? columns / 2 : columns;
}

/* Bytes of a number of the tensor SHAPE; 0: there is none. */
static unsigned shape_bytes(const struct ws_quantise *q)
{
    return q->recipe->method == WS_INT4_GROUP   ? sizeof(int64_t)
           : q->recipe->method == WS_INT4_SLIME ? sizeof(int32_t)
                                                : 0;
}

static void put_shape(const struct ws_quantise *q)
{
    const int64_t wide[2] = {(int64_t)q->rows, (int64_t)q->columns};
    const int32_t narrow[2] = {(int32_t)q->rows, (int32_t)q->columns};
    memcpy(q->dst[SHAPE], shape_bytes(q) == sizeof(int64_t) ? (const void *)wide : narrow,
           2UL * shape_bytes(q));
}

static uint64_t columns_of_block(const struct ws_quantise *q)
{
    return q->recipe->block_columns ? q->recipe->block_columns : q->columns;
}

/* The place of the first element of a piece that is no number. */
static int refuse(const struct ws_quantise *q, const struct ws_quant_piece *p, enum ws_quant_type type,
                  struct ws_error *err)
{
    const uint64_t width = types[type].bytes, row_bytes = q->columns * width;

    for (size_t r = 0; r < p->blocks * p->rows; r++) {
        for (size_t c = 0; c < p->columns; c++) {
            const unsigned char *at = p->src + r * p->src_stride + c * width;
            const uint64_t offset = (uint64_t)(at - (const unsigned char *)q->src);
            uint32_t bits = 0;
            memcpy(&bits, at, width);
            bits &= type == WS_QUANT_F32 ? 0x7fffffff : 0x7fff;
            if (bits >= types[type].infinite)
                return ws_error_set(
                    err, EBADMSG,
                    "cannot quantise tensor \"%.160s\": element [%" PRIu64 ", %" PRIu64
                    "] is %s, and all that share its scale would be lost with it: look at the "
                    "trainer's step that made it",
                    q->name, q->row + offset / row_bytes, offset % row_bytes / width,
                    bits > types[type].infinite ? "NaN" : "infinite");
        }
    }
    return ws_error_set(err, EBADMSG,
                        "cannot quantise tensor \"%.160s\": its bytes change while they are read", q->name);
}

/* Codes and scales of a piece. Blocks go together so that the processor need not wait for one's scale. */
static int quantise_piece(const struct ws_quantise *q, const struct ws_quant_piece *p, unsigned char *codes,
                          size_t code_stride, unsigned char *scale_at, struct ws_error *err)
{
    const struct arithmetic *a = &methods[q->recipe->method];
    const struct ws_quant_code *code = the_code();
    const enum ws_quant_type type = type_of(q->dtype);
    uint32_t largest[WS_QUANT_BLOCKS] = {0};
    float scales[WS_QUANT_BLOCKS];

    assert(p->blocks <= WS_QUANT_BLOCKS);
    code->largest[type](p, largest);
    for (size_t b = 0; b < p->blocks; b++)
        if (largest[b] >= types[type].infinite)
            return refuse(q, p, type, err);
    code->scales(a->scale, type, largest, p->blocks, a->largest_code, scales);
    store(scale_at, scales, p->blocks, a->stored, type);
    code->codes[a->codes][type](p, scales, codes, code_stride);
    return 0;
}

/* What ends within a block ends with the weight. */
static void check_rows(const struct ws_quantise *q)
{
    assert(q->row <= q->rows && q->n_rows <= q->rows - q->row && q->row % q->recipe->block_rows == 0);
    assert(q->n_rows % q->recipe->block_rows == 0 || q->row + q->n_rows == q->rows);
    assert(q->columns % q->recipe->whole_columns == 0);
}

static uint64_t bytes_of_scales(const struct ws_quantise *q) /* of the rows of a block */
{
    const unsigned one = scale_bytes(methods[q->recipe->method].stored, type_of(q->dtype));
    return q->columns ? blocks(q->columns, columns_of_block(q)) * one : 0;
}

void ws_quantise_range(const struct ws_quantise *q, unsigned k, uint64_t *begin, uint64_t *end)
{
    const uint64_t first = q->row / q->recipe->block_rows;
    const uint64_t last = first + blocks(q->n_rows, q->recipe->block_rows);

    check_rows(q);
    switch (k) {
    case CODES:
        *begin = q->row * code_bytes(q, q->columns);
        *end = (q->row + q->n_rows) * code_bytes(q, q->columns);
        return;
    case SCALES:
        *begin = first * bytes_of_scales(q);
        *end = last * bytes_of_scales(q);
        return;
    default: /* with the first rows, so that one thread alone writes it */
        assert(k == SHAPE && shape_bytes(q) > 0);
        *begin = 0;
        *end = q->row == 0 && q->n_rows > 0 ? 2UL * shape_bytes(q) : 0;
        return;
    }
}

/* Rows of which no two share a scale: they lie one after another, and so do the parts of a row that have their own. */
static int quantise_rows(const struct ws_quantise *q, struct ws_error *err)
{
    const enum ws_quant_type type = type_of(q->dtype);
    const uint64_t columns = columns_of_block(q), codes = code_bytes(q, columns);
    const unsigned one = scale_bytes(methods[q->recipe->method].stored, type);
    const size_t bytes = columns * types[type].bytes, fit = PIECE_BYTES / bytes;
    const uint64_t most = fit > WS_QUANT_BLOCKS ? WS_QUANT_BLOCKS
                          : fit                 ? fit
                                                : 1,
                   n = q->n_rows * q->columns / columns;
    int rc = 0;

    for (uint64_t b = 0; rc == 0 && b < n; b += most) {
        const struct ws_quant_piece p = {.src = (const unsigned char *)q->src + b * bytes,
                                         .src_stride = bytes,
                                         .blocks = n - b < most ? n - b : most,
                                         .rows = 1,
                                         .columns = columns};
        rc = quantise_piece(q, &p, (unsigned char *)q->dst[CODES] + b * codes, codes,
                            (unsigned char *)q->dst[SCALES] + b * one, err);
    }
    return rc;
}

/* Blocks of several rows, side by side. */
static int quantise_blocks(const struct ws_quantise *q, uint64_t r, unsigned char *scale_at,
                           struct ws_error *err)
{
    const enum ws_quant_type type = type_of(q->dtype);
    const size_t width = types[type].bytes, stride = q->columns * width;
    const uint64_t block = columns_of_block(q), left = q->n_rows - r;
    const unsigned one = scale_bytes(methods[q->recipe->method].stored, type);
    unsigned char *codes = (unsigned char *)q->dst[CODES] + r * code_bytes(q, q->columns);
    int rc = 0;

    for (uint64_t c = 0; rc == 0 && c < q->columns; c += block, scale_at += one) {
        const struct ws_quant_piece p = {
            .src = (const unsigned char *)q->src + r * stride + c * width,
            .src_stride = stride,
            .blocks = 1,
            .rows = left < q->recipe->block_rows ? left : q->recipe->block_rows,
            .columns = q->columns - c < block ? q->columns - c : block,
        };
        rc = quantise_piece(q, &p, codes + code_bytes(q, c), code_bytes(q, q->columns), scale_at, err);
    }
    return rc;
}

int ws_quantise(const struct ws_quantise *q, struct ws_error *err)
{
    const uint64_t scales = bytes_of_scales(q);
    unsigned char *scale_at = q->dst[SCALES];
    int rc = 0;

    check_rows(q);
    if (q->recipe->block_rows == 1)
        rc = q->columns ? quantise_rows(q, err) : 0;
    else
        for (uint64_t r = 0; rc == 0 && r < q->n_rows; r += q->recipe->block_rows, scale_at += scales)
            rc = quantise_blocks(q, r, scale_at, err);
    if (rc == 0 && shape_bytes(q) > 0 && q->row == 0 && q->n_rows > 0)
        put_shape(q);
    return rc;
}
