/* Recipes: how a bf16 checkpoint becomes a quantised one. A recipe is named after what its bytes equal, and its name
 * is all that a derived model's name, MODEL@RECIPE, carries of it; so each choice that changes bytes is part of it.
 *
 * A recipe says what one weight [rows, columns] becomes: codes of the same shape, and scales that many elements share.
 * Which tensors of a checkpoint are weights in that sense says select.h; derive.h makes whole checkpoints.
 *
 * Scales multiply: weight = code * scale. "fp32" below: amax, scale and quotient are IEEE binary32, each operation
 * rounded once, whatever the source's type. An amax below 1e-12 counts as that, rounded to the source's type where it is
 * bf16; in f16 slime would round it to 0, and the codes of zeros would be NaN, so that it is 1e-12 there.
 *
 *   fp8-block128        blocks of 128 x 128, cut at the edges; scale = amax / 448, code = e4m3(weight / scale), fp32:
 *                       the "divide" arithmetic of slime's convert_hf_to_fp8.py (block_fp8) and of prime-rl
 *   fp8-block128-ue8m0  the same blocks; scale = 2^ceil(log2(max(amax, 1e-4) / 448)): vLLM's and SGLang's
 *                       per_block_cast_to_fp8 with use_ue8m0
 *   fp8-channel         a scale for each row, as slime's channel_fp8, fp32
 *   fp8-channel-ct      the same by compressed-tensors (FP8_DYNAMIC): scale and quotient are rounded to the weight's
 *                       type, in which the scale is stored; a scale of 0 becomes the type's epsilon, and the code
 *                       of a quotient of -0 is 0
 *   int8-channel        compressed-tensors' W8A8: int8 codes, scale = amax / 127.5, rounded as in fp8-channel-ct
 *   int4-g32, int4-g128 compressed-tensors' W4A16: a scale for 32 or 128 columns of a row, amax / 7.5, rounded likewise;
 *                       codes are -8 to 7 and 8 more, eight in an I32, the first one lowest; the shape as I64
 *   int4-g32-slime      slime's INT4 of 32 columns, as its convert_hf_to_int4_direct.py makes it: fp32; scale = amax * (1 / 7), not
 *                       below 1e-5, rounded to the weight's type only where it is stored; codes are -7 to 7; the shape
 *                       as I32
 *   mxfp8               vLLM's _mxfp8_e4m3_quantize_torch: 32 columns of a row share 2^(e - 127), e = 127 +
 *                       ceil(log2(amax / 448)) from 0 to 254, stored as U8
 *
 * Sources are BF16, F16 or F32. A NaN or an infinity among the weights is refused: it would make a block or a row of
 * NaN that an engine serves without a word. Pure data, any thread. */
#ifndef WS_TRANSPORTS_QUANT_RECIPE_H
#define WS_TRANSPORTS_QUANT_RECIPE_H
#include "transports/base/error.h"
#include "transports/format/safetensors.h"
#include <stdbool.h>
#include <stdint.h>

#define WS_RECIPE_MAX_TARGETS 3 /* tensors that one weight becomes */

enum ws_recipe_method {
    WS_FP8_BLOCK,
    WS_FP8_BLOCK_UE8M0,
    WS_FP8_CHANNEL,
    WS_FP8_CHANNEL_CT,
    WS_INT8_CHANNEL,
    WS_INT4_GROUP,
    WS_INT4_SLIME,
    WS_MXFP8,
};

struct ws_recipe {
    const char *name;   /* of [a-z0-9-] */
    const char *equals; /* whose arithmetic it is, for people */
    enum ws_recipe_method method;
    unsigned block_rows;    /* rows that share scales: work begins at a multiple of these */
    unsigned block_columns; /* columns that share a scale; 0: all of a row */
    unsigned whole_columns; /* a weight's columns must be a multiple of these */
    unsigned whole_parts;   /* rows of a part of a fused layer (q, k of q, k, v; gate of gate, up) likewise */
};

/* What one weight becomes. */
struct ws_recipe_target {
    const char *suffix; /* takes the place of ".weight" */
    enum ws_dtype dtype;
    unsigned n_dims;
    uint64_t shape[2];
};

/* The recipes in the order of the table; NULL at its end. */
const struct ws_recipe *ws_recipe_at(size_t i);
/* -EINVAL: there is none of this name; the sentence has those that there are. */
WS_MUST_USE int ws_recipe_find(const char *name, const struct ws_recipe **out, struct ws_error *err);
/* May a weight of this type be its source: BF16, F16 or F32? */
bool ws_recipe_takes(const struct ws_recipe *recipe, enum ws_dtype dtype);
/* The tensors that a weight of [rows, columns] becomes; returns how many. Codes come first. */
unsigned ws_recipe_targets(const struct ws_recipe *recipe, enum ws_dtype source, uint64_t rows,
                           uint64_t columns, struct ws_recipe_target out[WS_RECIPE_MAX_TARGETS]);

#endif
