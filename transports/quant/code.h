/* What each version of the inner loops of quantise.c provides; quantise.c picks one by what the processor can do. All
 * give the same bytes. A piece is blocks of rows of elements in memory, one below another, all rows `src_stride` bytes
 * apart; the elements of a block share a scale. Sources are told apart by enum ws_quant_type, and their elements are
 * finite but in `largest`. No address needs an alignment. */
#ifndef WS_TRANSPORTS_QUANT_CODE_H
#define WS_TRANSPORTS_QUANT_CODE_H
#include <stddef.h>
#include <stdint.h>

enum ws_quant_type { WS_QUANT_BF16, WS_QUANT_F16, WS_QUANT_F32, WS_QUANT_TYPES };

/* What an element becomes of the quotient of it and the scale, which is rounded to f32, and to the source's type, too,
 * where compressed-tensors does so (CT). All are rounded to nearest, to even at a tie. */
enum ws_quant_codes {
    WS_QUANT_E4M3,    /* of a quotient of at most just over 448 */
    WS_QUANT_E4M3_CT, /* saturating; 0 for a quotient of -0 */
    WS_QUANT_INT8_CT, /* -128 to 127, saturating */
    WS_QUANT_INT4_CT, /* -8 to 7 and 8 more, saturating: two in a byte, the first one low; columns are even */
    WS_QUANT_INT4, /* the same of a quotient of at most just over 7, which is not rounded to the source's type */
    WS_QUANT_CODES,
};

/* What a block's scale becomes of its largest magnitude, divided by the largest code: recipe.h has the arithmetic. */
enum ws_quant_scale {
    WS_QUANT_DIVIDE, /* at least 1e-12 before */
    WS_QUANT_UE8M0,  /* at least 1e-4 before; up to a power of two */
    WS_QUANT_MX,     /* up to a power of two, from 2^-127 to 2^127 */
    WS_QUANT_CT,     /* rounded to the source's type; its epsilon for 0 */
    WS_QUANT_SLIME,  /* times the inverse of the largest code instead; at least 1e-5 */
};

/* Blocks of a piece at most: that many numbers there is room for, all of which the vectors' code may touch. */
#define WS_QUANT_BLOCKS 128

struct ws_quant_piece {
    const unsigned char *src;
    size_t src_stride, blocks, rows, columns; /* rows: of a block */
};
/* The largest magnitude of each block, as the element's bits without the sign: those of numbers are in order, and
 * infinity and NaN come last. */
typedef void ws_quant_largest_fn(const struct ws_quant_piece *p, uint32_t *largest);
typedef void ws_quant_scales_fn(enum ws_quant_scale scale, enum ws_quant_type type,
                                const uint32_t largest[WS_QUANT_BLOCKS], size_t n, float largest_code,
                                float scales[WS_QUANT_BLOCKS]);
/* By the scale of each block. */
typedef void ws_quant_codes_fn(const struct ws_quant_piece *p, const float scales[WS_QUANT_BLOCKS],
                               unsigned char *dst, size_t dst_stride);

struct ws_quant_code {
    const char *name;
    ws_quant_largest_fn *largest[WS_QUANT_TYPES];
    ws_quant_scales_fn *scales;
    ws_quant_codes_fn *codes[WS_QUANT_CODES][WS_QUANT_TYPES];
};
extern const struct ws_quant_code ws_quant_portable, ws_quant_avx2, ws_quant_avx512;
extern const struct ws_quant_code *const ws_quant_codes[]; /* by enum ws_vector */

#endif
