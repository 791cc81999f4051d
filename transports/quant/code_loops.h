/* The body of a version of the quantising loops: included by code_portable.c, code_avx2.c and code_avx512.c, each
 * compiled with its own flags, which define
 *   LANES                         elements of a vector of 32 bits
 *   words_of(halves)              a vector of f16 as f32
 *   halves_of(words)              a vector of f32 as f16, rounded to nearest even
 *   bytes_of(words)               each, which is at most 255, as a byte
 *   pair_bytes_of(pair)           each of twice as many halves, which are at most 255, as a byte
 *   larger, smaller(words, words) lane by lane, unsigned
 *   within(floats, least, most)   lane by lane, at least `least` and at most `most`
 *   larger_halves(pair, pair)     the same of twice as many halves
 *   largest_half(pair)            the largest lane
 *   corrected(x, q, by, inverse)  q + (x - q * by) * inverse, each product and its sum rounded once; not defined where
 *                                 that is slower than a division
 * Vectors are GCC's, so that the rest is written once. Each operation on f32 is IEEE's, rounded once: nothing here may
 * be compiled with -ffast-math or contracted. */
#include "transports/quant/code.h"
#include <stdbool.h>
#include <string.h>

#define AHEAD    256 /* bytes of a row of several blocks: the next one's part of it */
#define ELEMENTS (2UL * LANES)
#define SIGN     0x80000000U
#define SIZE     0x7fffffffU

#define LEAST       1e-12F /* amax of zeros: slime's */
#define LEAST_UE8M0 1e-4F  /* vLLM's and SGLang's */
#define LEAST_INT4  1e-5F  /* the scale, of slime's INT4 */

#define GROUP 32 /* columns of the smallest blocks, which are compiled apart, without loops */

/* --- elements as f32 --- */

/* ELEMENTS of them: the even ones, the odd ones, and the upper halves of all in their order. In this way bf16, of which
 * two lie in a word, needs no shuffle, and codes of two fit one byte. */
struct elements {
    words even, odd;
    pair tops;
};

static inline struct elements bf16_at(const unsigned char *p)
{
    words x;
    memcpy(&x, p, sizeof(x));
    return (struct elements){x << 16, x & 0xffff0000U, (pair)x};
}

static inline struct elements joined(words even, words odd)
{
    return (struct elements){even, odd, (pair)(even >> 16 | (odd & 0xffff0000U))};
}

static inline struct elements f16_at(const unsigned char *p)
{
    words x;
    memcpy(&x, p, sizeof(x));
    return joined(words_of(__builtin_convertvector(x & 0xffffU, halves)),
                  words_of(__builtin_convertvector(x >> 16, halves)));
}

static inline struct elements f32_at(const unsigned char *p)
{
    uint32_t all[ELEMENTS];
    words even = {0}, odd = {0};
    memcpy(all, p, sizeof(all));
    for (size_t i = 0; i < LANES; i++) {
        even[i] = all[2 * i];
        odd[i] = all[2 * i + 1];
    }
    return joined(even, odd);
}

/* --- rounding to the source's type --- */

static inline words to_bf16(words size)
{
    return (size + 0x7fffU + (size >> 16 & 1U)) & 0xffff0000U;
}

static inline words to_f16(words size)
{
    return words_of(halves_of(size));
}

static inline words to_f32(words size)
{
    return size;
}

/* --- codes --- */

/* A division takes as long as all else together, so that quotients come by the inverse where that gives the same code:
 * - of a power of two always, since the product is the quotient;
 * - of a bf16 by a bf16, rounded to bf16: both have 8 bits, so that the quotient is at least 2^-17 of it away from where
 *   rounding changes, or is there in the subnormal numbers alone, whose own rounding brings the product there, too;
 * - of another bf16 by one step of Newton's method after the product: for all significands of a bf16 and of an f32 scale
 *   that was compared with the division, and is the same.
 * The scale and its inverse are so far from the ends of f32 that no step but the product is subnormal where the code is
 * not 0. */
enum how { BY_INVERSE, BY_STEP, BY_DIVISION };

struct divisor {
    floats by, inverse;
};

#define LEAST_USUAL 0x12800000U /* 2^-90 */
#define MOST_USUAL  0x71800000U /* 2^100 */

static inline enum how how_of(float scale, enum ws_quant_type type, bool rounds)
{
    uint32_t bits;
    memcpy(&bits, &scale, sizeof(bits));
    const bool narrow = type == WS_QUANT_BF16;
    if (bits < LEAST_USUAL || bits > MOST_USUAL)
        return BY_DIVISION;
    if ((bits & (narrow && rounds ? 0xffffU : 0x7fffffU)) == 0)
        return BY_INVERSE;
#ifdef corrected
    if (narrow && !rounds)
        return BY_STEP;
#endif
    return BY_DIVISION;
}

/* The one that is right for the blocks of all these scales: a later one is right wherever one before it is. */
static inline enum how how_of_all(const float *scales, size_t n, enum ws_quant_type type, bool rounds)
{
    enum how how = BY_INVERSE;
    for (size_t i = 0; i < n; i++) {
        const enum how one = how_of(scales[i], type, rounds);
        how = one > how ? one : how;
    }
    return how;
}

static inline void invert(const float *scales, size_t n, float *inverses)
{
    for (size_t i = 0; i < n; i += LANES) {
        floats x;
        memcpy(&x, scales + i, sizeof(x));
        x = 1 / x;
        memcpy(inverses + i, &x, sizeof(x));
    }
}

static inline __attribute__((always_inline)) words quotient(words x, const struct divisor *d, enum how how)
{
    if (how == BY_INVERSE)
        return (words)((floats)x * d->inverse);
#ifdef corrected
    if (how == BY_STEP)
        return (words)corrected((floats)x, (floats)x * d->inverse, d->by, d->inverse);
#endif
    return (words)((floats)x / d->by);
}

/* The step between codes near a number of exponent e is 2^(e - 3), and never below 2^-9. A number plus 2^(e + 20) is
 * rounded to that step, to even at a tie, and its low bits then count steps. The code is BIAS more. */
#define BIAS 968
static inline words biased_e4m3(words size)
{
    const words power = larger(size & 0x7f800000U, (words){0} + 0x3c800000U); /* 2^-6 */
    const words above = power + (20U << 23);
    return ((words)((floats)size + (floats)above) - above) + (power >> 20);
}

static inline pair_bytes e4m3_of(words even, words odd, pair signs)
{
    return pair_bytes_of(((pair)(biased_e4m3(even) | biased_e4m3(odd) << 16) - BIAS) | (signs & 0x80));
}

static inline words at_most(words size, uint32_t bits)
{
    return smaller(size, (words){0} + bits);
}

/* A number plus 2^23 + 2^22 is rounded to an integer, to even at a tie, which the low bits then are; `more` is even, and
 * is added to it. */
static inline words integer_of(words x, float least, float most, float more)
{
    return (words)(within((floats)x, (floats){0} + least, (floats){0} + most) +
                   ((floats){0} + (0x1.8p23F + more)));
}

#define CODES_OF(type, round)                                                                                \
    static inline __attribute__((always_inline))                                                             \
    pair_bytes type##_e4m3_of(const unsigned char *p, const struct divisor *d, enum how how)                 \
    {                                                                                                        \
        const struct elements x = type##_at(p);                                                              \
        return e4m3_of(quotient(x.even & SIZE, d, how), quotient(x.odd & SIZE, d, how), x.tops >> 8);        \
    }                                                                                                        \
    static inline __attribute__((always_inline))                                                             \
    pair_bytes type##_e4m3_ct_of(const unsigned char *p, const struct divisor *d, enum how how)              \
    {                                                                                                        \
        const struct elements x = type##_at(p);                                                              \
        const words even = at_most(round(quotient(x.even & SIZE, d, how)), 0x43e00000U); /* 448 */           \
        const words odd = at_most(round(quotient(x.odd & SIZE, d, how)), 0x43e00000U);                       \
        const words some = (words)(even != 0) >> 16 | ((words)(odd != 0) & 0xffff0000U);                     \
        return e4m3_of(even, odd, x.tops >> 8 & (pair)some);                                                 \
    }                                                                                                        \
    static inline __attribute__((always_inline))                                                             \
    pair_bytes type##_int8_ct_of(const unsigned char *p, const struct divisor *d, enum how how)              \
    {                                                                                                        \
        const struct elements x = type##_at(p);                                                              \
        const words even = integer_of(round(quotient(x.even, d, how)), -128, 127, 0);                        \
        const words odd = integer_of(round(quotient(x.odd, d, how)), -128, 127, 0);                          \
        return pair_bytes_of((pair)((even & 0xffU) | (odd & 0xffU) << 16));                                  \
    }                                                                                                        \
    static inline __attribute__((always_inline))                                                             \
    bytes type##_int4_ct_of(const unsigned char *p, const struct divisor *d, enum how how)                   \
    {                                                                                                        \
        const struct elements x = type##_at(p);                                                              \
        const words even = integer_of(round(quotient(x.even, d, how)), -8, 7, 8);                            \
        const words odd = integer_of(round(quotient(x.odd, d, how)), -8, 7, 8);                              \
        return bytes_of((even & 0xfU) | (odd & 0xfU) << 4);                                                  \
    }                                                                                                        \
    static inline __attribute__((always_inline))                                                             \
    bytes type##_int4_of(const unsigned char *p, const struct divisor *d, enum how how)                      \
    {                                                                                                        \
        const struct elements x = type##_at(p);                                                              \
        const words even = integer_of(quotient(x.even, d, how), -8, 7, 8);                                   \
        const words odd = integer_of(quotient(x.odd, d, how), -8, 7, 8);                                     \
        return bytes_of((even & 0xfU) | (odd & 0xfU) << 4);                                                  \
    }
CODES_OF(bf16, to_bf16)
CODES_OF(f16, to_f16)
CODES_OF(f32, to_f32)

/* The last elements of a row go through ELEMENTS of which the others are 0. vector: of their codes. Meanwhile memory
 * brings what lies `ahead`, which is quantised next. */
#define CODES(type, codes_name, width, vector, rounds)                                                       \
    static inline __attribute__((always_inline)) void type##_##codes_name##_rows(                            \
        const unsigned char *src, size_t src_stride, size_t rows, size_t columns, size_t ahead,              \
        const struct divisor *d, enum how how, unsigned char *dst, size_t dst_stride)                        \
    {                                                                                                        \
        for (size_t r = 0; r < rows; r++) {                                                                  \
            const unsigned char *from = src + r * src_stride;                                                \
            unsigned char *to = dst + r * dst_stride, last[ELEMENTS * (width)];                              \
            size_t n = columns;                                                                              \
            vector codes;                                                                                    \
            for (; n >= ELEMENTS; n -= ELEMENTS, from += sizeof(last), to += sizeof(codes)) {                \
                __builtin_prefetch(from + ahead, 0, 2);                                                      \
                codes = type##_##codes_name##_of(from, d, how);                                              \
                memcpy(to, &codes, sizeof(codes));                                                           \
            }                                                                                                \
            if (n > 0) {                                                                                     \
                memset(last, 0, sizeof(last));                                                               \
                memcpy(last, from, n *(width));                                                              \
                codes = type##_##codes_name##_of(last, d, how);                                              \
                memcpy(to, &codes, n * sizeof(codes) / ELEMENTS);                                            \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    static inline __attribute__((always_inline)) void type##_##codes_name##_blocks(                          \
        const struct ws_quant_piece *p, const float *scales, enum how how, unsigned char *dst,               \
        size_t dst_stride)                                                                                   \
    {                                                                                                        \
        const unsigned char *src = p->src;                                                                   \
        const size_t ahead = p->rows == 1 ? p->blocks * p->src_stride : AHEAD;                               \
        for (size_t b = 0; b < p->blocks; b++) {                                                             \
            const struct divisor d = {(floats){0} + scales[b], (floats){0} + 1 / scales[b]};                 \
            type##_##codes_name##_rows(src, p->src_stride, p->rows, p->columns, ahead, &d, how, dst,         \
                                       dst_stride);                                                          \
            src += p->rows * p->src_stride;                                                                  \
            dst += p->rows * dst_stride;                                                                     \
        }                                                                                                    \
    }                                                                                                        \
    static inline __attribute__((always_inline)) void type##_##codes_name##_groups(                          \
        const struct ws_quant_piece *p, const float *scales, enum how how, unsigned char *dst,               \
        size_t dst_stride)                                                                                   \
    {                                                                                                        \
        float inverses[WS_QUANT_BLOCKS];                                                                     \
        const size_t ahead = p->blocks * p->src_stride;                                                      \
        invert(scales, p->blocks, inverses);                                                                 \
        for (size_t b = 0; b < p->blocks; b++) {                                                             \
            const struct divisor d = {(floats){0} + scales[b], (floats){0} + inverses[b]};                   \
            const unsigned char *src = p->src + b * p->src_stride;                                           \
            type##_##codes_name##_rows(src, 0, 1, GROUP, ahead, &d, how, dst + b * dst_stride, 0);           \
        }                                                                                                    \
    }                                                                                                        \
    static void type##_##codes_name(const struct ws_quant_piece *p, const float *scales, unsigned char *dst, \
                                    size_t dst_stride)                                                       \
    {                                                                                                        \
        const enum how how = how_of_all(scales, p->blocks, type_of_##type, rounds);                          \
        const bool groups = p->rows == 1 && p->columns == GROUP;                                             \
        if (groups && how == BY_INVERSE)                                                                     \
            type##_##codes_name##_groups(p, scales, BY_INVERSE, dst, dst_stride);                            \
        else if (groups && how == BY_STEP)                                                                   \
            type##_##codes_name##_groups(p, scales, BY_STEP, dst, dst_stride);                               \
        else if (how == BY_INVERSE)                                                                          \
            type##_##codes_name##_blocks(p, scales, BY_INVERSE, dst, dst_stride);                            \
        else if (how == BY_STEP)                                                                             \
            type##_##codes_name##_blocks(p, scales, BY_STEP, dst, dst_stride);                               \
        else                                                                                                 \
            type##_##codes_name##_blocks(p, scales, BY_DIVISION, dst, dst_stride);                           \
    }
#define CODES_OF_TYPE(type, width)                                                                           \
    CODES(type, e4m3, width, pair_bytes, false)                                                              \
    CODES(type, e4m3_ct, width, pair_bytes, true)                                                            \
    CODES(type, int8_ct, width, pair_bytes, true)                                                            \
    CODES(type, int4_ct, width, bytes, true)                                                                 \
    CODES(type, int4, width, bytes, false)
#define type_of_bf16 WS_QUANT_BF16
#define type_of_f16  WS_QUANT_F16
#define type_of_f32  WS_QUANT_F32
CODES_OF_TYPE(bf16, 2)
CODES_OF_TYPE(f16, 2)
CODES_OF_TYPE(f32, 4)

/* --- the largest --- */

static inline uint32_t largest_word(words x)
{
    uint32_t found = 0;
    for (size_t i = 0; i < LANES; i++)
        found = x[i] > found ? x[i] : found;
    return found;
}

#define LARGEST(name, vector, element, all, larger_of, largest_of)                                           \
    static inline __attribute__((always_inline))                                                             \
    uint32_t name##_of(const unsigned char *src, size_t src_stride, size_t rows, size_t columns)             \
    {                                                                                                        \
        vector most = {0};                                                                                   \
        for (size_t r = 0; r < rows; r++) {                                                                  \
            const unsigned char *from = src + r * src_stride;                                                \
            size_t n = columns * sizeof(element);                                                            \
            vector x;                                                                                        \
            for (; n >= sizeof(x); n -= sizeof(x), from += sizeof(x)) {                                      \
                memcpy(&x, from, sizeof(x));                                                                 \
                most = larger_of(most, x & (element)(all));                                                  \
            }                                                                                                \
            if (n > 0) {                                                                                     \
                x = (vector){0};                                                                             \
                memcpy(&x, from, n);                                                                         \
                most = larger_of(most, x & (element)(all));                                                  \
            }                                                                                                \
        }                                                                                                    \
        return largest_of(most);                                                                             \
    }                                                                                                        \
    static void name(const struct ws_quant_piece *p, uint32_t *largest)                                      \
    {                                                                                                        \
        const size_t n = p->blocks, stride = p->src_stride, rows = p->rows, columns = p->columns;            \
        if (rows == 1 && columns == GROUP)                                                                   \
            for (size_t b = 0; b < n; b++)                                                                   \
                largest[b] = name##_of(p->src + b * stride, 0, 1, GROUP);                                    \
        else                                                                                                 \
            for (size_t b = 0; b < n; b++)                                                                   \
                largest[b] = name##_of(p->src + b * rows * stride, stride, rows, columns);                   \
    }
LARGEST(largest_halves, pair, uint16_t, 0x7fff, larger_halves, largest_half)
LARGEST(largest_words, words, uint32_t, SIZE, larger, largest_word)

/* --- scales --- */

static inline words number_of(enum ws_quant_type type, words bits)
{
    if (type == WS_QUANT_BF16)
        return bits << 16;
    return type == WS_QUANT_F16 ? words_of(__builtin_convertvector(bits, halves)) : bits;
}

static inline words number(float x)
{
    return (words)((floats){0} + x);
}

/* slime takes the larger one in the source's type; 1e-12 is 0 in f16, and the codes would be NaN. */
static inline words scale_of_divide(enum ws_quant_type type, words amax, floats largest_code)
{
    const words least = type == WS_QUANT_BF16 ? to_bf16(number(LEAST)) : number(LEAST);
    return (words)((floats)larger(amax, least) / largest_code);
}

static inline words scale_of_ue8m0(words amax, floats largest_code)
{
    return ((words)((floats)larger(amax, number(LEAST_UE8M0)) / largest_code) + 0x7fffffU) & 0x7f800000U;
}

/* 2^-127, up to which the smallest ones go, is subnormal. */
static inline words scale_of_mx(words amax, floats largest_code)
{
    const words x = (words)((floats)amax / largest_code);
    const words subnormal = (words)(x < 0x800000U);
    const words exponent = smaller((x + 0x7fffffU - (subnormal & 0x400000U)) >> 23, (words){0} + 254U);
    return exponent << 23 | ((words)(exponent == 0) & 0x400000U);
}

static inline words scale_of_ct(enum ws_quant_type type, words amax, floats largest_code)
{
    static const float epsilon[] = {
        [WS_QUANT_BF16] = 0x1p-7F, [WS_QUANT_F16] = 0x1p-10F, [WS_QUANT_F32] = 0x1p-23F};
    const words x = (words)((floats)amax / largest_code);
    const words scale = type == WS_QUANT_BF16 ? to_bf16(x) : type == WS_QUANT_F16 ? to_f16(x) : x;
    return scale | ((words)(scale == 0) & number(epsilon[type]));
}

static inline words scale_of_slime_int4(words amax, floats largest_code)
{
    return larger((words)((floats)amax * (1 / largest_code)), number(LEAST_INT4));
}

static void scales_of(enum ws_quant_scale scale, enum ws_quant_type type,
                      const uint32_t largest[WS_QUANT_BLOCKS], size_t n, float largest_code,
                      float scales[WS_QUANT_BLOCKS])
{
    const floats by = (floats){0} + largest_code;
    for (size_t i = 0; i < n; i += LANES) {
        words x;
        memcpy(&x, largest + i, sizeof(x));
        x = number_of(type, x);
        x = scale == WS_QUANT_DIVIDE  ? scale_of_divide(type, x, by)
            : scale == WS_QUANT_UE8M0 ? scale_of_ue8m0(x, by)
            : scale == WS_QUANT_MX    ? scale_of_mx(x, by)
            : scale == WS_QUANT_SLIME ? scale_of_slime_int4(x, by)
                                      : scale_of_ct(type, x, by);
        memcpy(scales + i, &x, sizeof(x));
    }
}

#define OF_TYPES(codes)                                                                                      \
    {                                                                                                        \
        bf16_##codes, f16_##codes, f32_##codes                                                               \
    }
#define WS_QUANT_CODE(text)                                                                                  \
    {                                                                                                        \
        .name = (text), .largest = {largest_halves, largest_halves, largest_words}, .scales = scales_of,     \
        .codes = {                                                                                           \
            [WS_QUANT_E4M3] = OF_TYPES(e4m3),                                                                \
            [WS_QUANT_E4M3_CT] = OF_TYPES(e4m3_ct),                                                          \
            [WS_QUANT_INT8_CT] = OF_TYPES(int8_ct),                                                          \
            [WS_QUANT_INT4_CT] = OF_TYPES(int4_ct),                                                          \
            [WS_QUANT_INT4] = OF_TYPES(int4),                                                                \
        }                                                                                                    \
    }
