/* What each method's engines read. fp8 with blocks: vLLM's Fp8Config and SGLang's; the names are whole ones, since vLLM
 * compares them so. compressed-tensors: a group for all layers of type Linear; lm_head is one of those. */
#include "transports/quant/quantization_config.h"
#include "transports/base/json_cursor.h"
#include <assert.h>
#include <errno.h>

static int write_modules(FILE *f, const char *key, const char *const *modules, size_t n, struct ws_error *err)
{
    fprintf(f, "    \"%s\": [", key);
    for (size_t i = 0; i < n; i++) {
        fputs(i ? ",\n      " : "\n      ", f);
        const int rc = ws_json_put_string(f, modules[i]);
        if (rc == -EINVAL)
            return ws_error_set(err, EINVAL, "the name \"%.160s\" is not UTF-8", modules[i]);
        if (rc < 0)
            return ws_error_set(err, -rc, "out of memory for a quantization_config");
    }
    fputs(n ? "\n    ]" : "]", f);
    return 0;
}

static int write_block(FILE *f, const struct ws_recipe *recipe, const char *const *modules, size_t n,
                       struct ws_error *err)
{
    fputs("    \"quant_method\": \"fp8\",\n"
          "    \"fmt\": \"e4m3\",\n"
          "    \"activation_scheme\": \"dynamic\",\n",
          f);
    fprintf(f, "    \"weight_block_size\": [%u, %u],\n", recipe->block_rows, recipe->block_columns);
    if (recipe->method == WS_FP8_BLOCK_UE8M0)
        fputs("    \"scale_fmt\": \"ue8m0\",\n", f);
    return write_modules(f, "modules_to_not_convert", modules, n, err);
}

/* The list has two names: vLLM reads the first, SGLang the second. */
static int write_mx(FILE *f, const struct ws_recipe *recipe, const char *const *modules, size_t n,
                    struct ws_error *err)
{
    fputs("    \"quant_method\": \"mxfp8\",\n"
          "    \"fmt\": \"e4m3\",\n"
          "    \"activation_scheme\": \"dynamic\",\n",
          f);
    fprintf(f, "    \"weight_block_size\": [%u, %u],\n", recipe->block_rows, recipe->block_columns);
    fputs("    \"scale_fmt\": \"ue8m0\",\n", f);
    int rc = write_modules(f, "ignored_layers", modules, n, err);
    fputs(",\n", f);
    return rc < 0 ? rc : write_modules(f, "modules_to_not_convert", modules, n, err);
}

/* Arguments of compressed-tensors for tensors of one kind. */
struct ct_args {
    unsigned bits, group; /* group: columns that share a scale; 0: none */
    const char *type, *strategy;
    bool dynamic;
};

static void write_args(FILE *f, const char *key, const struct ct_args *a)
{
    fprintf(f, "        \"%s\": {\n", key);
    fprintf(f, "          \"num_bits\": %u,\n", a->bits);
    fprintf(f, "          \"type\": \"%s\",\n", a->type);
    fprintf(f, "          \"symmetric\": true,\n");
    if (a->group)
        fprintf(f, "          \"group_size\": %u,\n", a->group);
    else
        fprintf(f, "          \"group_size\": null,\n");
    fprintf(f, "          \"strategy\": \"%s\",\n", a->strategy);
    fprintf(f, "          \"block_structure\": null,\n");
    fprintf(f, "          \"dynamic\": %s,\n", a->dynamic ? "true" : "false");
    fprintf(f, "          \"actorder\": null,\n");
    fprintf(f, "          \"observer\": %s,\n", a->dynamic ? "null" : "\"minmax\"");
    fprintf(f, "          \"observer_kwargs\": {}\n");
    fprintf(f, "        }");
}

static int write_ct(FILE *f, const char *format, const struct ct_args *weights,
                    const struct ct_args *activations, const char *const *modules, size_t n,
                    struct ws_error *err)
{
    fprintf(f,
            "    \"quant_method\": \"compressed-tensors\",\n"
            "    \"format\": \"%s\",\n"
            "    \"quantization_status\": \"compressed\",\n"
            "    \"kv_cache_scheme\": null,\n"
            "    \"config_groups\": {\n"
            "      \"group_0\": {\n"
            "        \"targets\": [\"Linear\"],\n",
            format);
    write_args(f, "weights", weights);
    fputs(",\n", f);
    if (activations)
        write_args(f, "input_activations", activations);
    else
        fputs("        \"input_activations\": null", f);
    fputs(",\n"
          "        \"output_activations\": null\n"
          "      }\n"
          "    },\n",
          f);
    return write_modules(f, "ignore", modules, n, err);
}

int ws_quantization_config_write(FILE *f, const struct ws_recipe *recipe, const char *const *modules,
                                 size_t n, struct ws_error *err)
{
    static const struct ct_args float8 = {8, 0, "float", "channel", false},
                                any_float8 = {8, 0, "float", "token", true};
    static const struct ct_args int8 = {8, 0, "int", "channel", false},
                                any_int8 = {8, 0, "int", "token", true};
    const struct ct_args int4 = {4, recipe->block_columns, "int", "group", false};
    int rc = -EINVAL;

    fputs("{\n", f);
    switch (recipe->method) {
    case WS_FP8_BLOCK:
    case WS_FP8_BLOCK_UE8M0:
        rc = write_block(f, recipe, modules, n, err);
        break;
    case WS_FP8_CHANNEL:
    case WS_FP8_CHANNEL_CT:
        rc = write_ct(f, "float-quantized", &float8, &any_float8, modules, n, err);
        break;
    case WS_INT8_CHANNEL:
        rc = write_ct(f, "int-quantized", &int8, &any_int8, modules, n, err);
        break;
    case WS_INT4_GROUP:
    case WS_INT4_SLIME:
        rc = write_ct(f, "pack-quantized", &int4, NULL, modules, n, err);
        break;
    case WS_MXFP8:
        rc = write_mx(f, recipe, modules, n, err);
        break;
    }
    fputs("\n  }", f);
    return rc;
}
