/* The table of recipes. Beside a row here, a new one needs its arithmetic (quantise.c) and the quantization_config
 * that engines read (quantization_config.c). */
#include "transports/quant/recipe.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define BLOCK 128

static const struct ws_recipe recipes[] = {
    {
        .name = "fp8-block128",
        .equals = "slime's convert_hf_to_fp8.py, block_fp8",
        .method = WS_FP8_BLOCK,
        .block_rows = BLOCK,
        .block_columns = BLOCK,
        .whole_columns = 1,
        .whole_parts = BLOCK,
    },
    {
        .name = "fp8-block128-ue8m0",
        .equals = "vLLM's per_block_cast_to_fp8 with use_ue8m0",
        .method = WS_FP8_BLOCK_UE8M0,
        .block_rows = BLOCK,
        .block_columns = BLOCK,
        .whole_columns = 1,
        .whole_parts = BLOCK,
    },
    {
        .name = "fp8-channel",
        .equals = "slime's convert_hf_to_fp8.py, channel_fp8",
        .method = WS_FP8_CHANNEL,
        .block_rows = 1,
        .whole_columns = 1,
        .whole_parts = 1,
    },
    {
        .name = "fp8-channel-ct",
        .equals = "compressed-tensors' FP8_DYNAMIC",
        .method = WS_FP8_CHANNEL_CT,
        .block_rows = 1,
        .whole_columns = 1,
        .whole_parts = 1,
    },
    {
        .name = "int8-channel",
        .equals = "compressed-tensors' W8A8",
        .method = WS_INT8_CHANNEL,
        .block_rows = 1,
        .whole_columns = 1,
        .whole_parts = 1,
    },
    {
        .name = "int4-g32",
        .equals = "compressed-tensors' W4A16 with groups of 32",
        .method = WS_INT4_GROUP,
        .block_rows = 1,
        .block_columns = 32,
        .whole_columns = 32,
        .whole_parts = 1,
    },
    {
        .name = "int4-g128",
        .equals = "compressed-tensors' W4A16",
        .method = WS_INT4_GROUP,
        .block_rows = 1,
        .block_columns = 128,
        .whole_columns = 128,
        .whole_parts = 1,
    },
    {
        .name = "int4-g32-slime",
        .equals = "slime's convert_hf_to_int4_direct.py",
        .method = WS_INT4_SLIME,
        .block_rows = 1,
        .block_columns = 32,
        .whole_columns = 32,
        .whole_parts = 1,
    },
    {
        .name = "mxfp8",
        .equals = "vLLM's _mxfp8_e4m3_quantize_torch",
        .method = WS_MXFP8,
        .block_rows = 1,
        .block_columns = 32,
        .whole_columns = 32,
        .whole_parts = 1,
    },
};
#define N_RECIPES (sizeof(recipes) / sizeof(recipes[0]))

const struct ws_recipe *ws_recipe_at(size_t i)
{
    return i < N_RECIPES ? &recipes[i] : NULL;
}

int ws_recipe_find(const char *name, const struct ws_recipe **out, struct ws_error *err)
{
    char known[512] = "";
    size_t n = 0;

    for (size_t i = 0; i < N_RECIPES; i++) {
        if (strcmp(recipes[i].name, name) == 0) {
            *out = &recipes[i];
            return 0;
        }
        n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s", i ? ", " : "", recipes[i].name);
        assert(n < sizeof(known));
    }
    return ws_error_set(err, EINVAL, "there is no recipe \"%.80s\"; there are: %s", name, known);
}

bool ws_recipe_takes(const struct ws_recipe *recipe, enum ws_dtype dtype)
{
    (void)recipe; /* so far all take the same */
    return dtype == WS_BF16 || dtype == WS_F16 || dtype == WS_F32;
}

unsigned ws_recipe_targets(const struct ws_recipe *recipe, enum ws_dtype source, uint64_t rows,
                           uint64_t columns, struct ws_recipe_target out[WS_RECIPE_MAX_TARGETS])
{
    const uint64_t groups = recipe->block_columns ? columns / recipe->block_columns : 1;

    switch (recipe->method) {
    case WS_FP8_BLOCK:
    case WS_FP8_BLOCK_UE8M0:
        out[0] = (struct ws_recipe_target){".weight", WS_F8_E4M3, 2, {rows, columns}};
        out[1] = (struct ws_recipe_target){
            ".weight_scale_inv", WS_F32, 2, {(rows + BLOCK - 1) / BLOCK, (columns + BLOCK - 1) / BLOCK}};
        return 2;
    case WS_FP8_CHANNEL:
    case WS_FP8_CHANNEL_CT:
        out[0] = (struct ws_recipe_target){".weight", WS_F8_E4M3, 2, {rows, columns}};
        out[1] = (struct ws_recipe_target){
            ".weight_scale", recipe->method == WS_FP8_CHANNEL ? WS_F32 : source, 2, {rows, 1}};
        return 2;
    case WS_INT8_CHANNEL:
        out[0] = (struct ws_recipe_target){".weight", WS_I8, 2, {rows, columns}};
        out[1] = (struct ws_recipe_target){".weight_scale", source, 2, {rows, 1}};
        return 2;
    case WS_INT4_GROUP:
    case WS_INT4_SLIME:
        out[0] = (struct ws_recipe_target){".weight_packed", WS_I32, 2, {rows, columns / 8}};
        out[1] = (struct ws_recipe_target){".weight_scale", source, 2, {rows, groups}};
        out[2] = (struct ws_recipe_target){
            ".weight_shape", recipe->method == WS_INT4_GROUP ? WS_I64 : WS_I32, 1, {2}};
        return 3;
    case WS_MXFP8:
        out[0] = (struct ws_recipe_target){".weight", WS_F8_E4M3, 2, {rows, columns}};
        out[1] = (struct ws_recipe_target){".weight_scale", WS_U8, 2, {rows, groups}};
        return 2;
    }
    assert(!"a method");
    return 0;
}
