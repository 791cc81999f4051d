#include "backends/trainer/extract/hf_config.h"
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct reader {
    const json_t *top, *text; /* text: text_config, or NULL */
};

static const json_t *get(const struct reader *r, const char *key)
{
    const json_t *v = json_object_get(r->text, key);
    return v && !json_is_null(v) ? v : json_object_get(r->top, key);
}

static uint64_t number(const struct reader *r, const char *key)
{
    json_int_t n = json_integer_value(get(r, key));
    return n > 0 ? (uint64_t)n : 0;
}

/* torch's names of the types that weights are kept in. */
static bool dtype_of(const char *name, enum ws_dtype *out)
{
    static const struct {
        const char *name;
        enum ws_dtype dtype;
    } all[] = {{"bfloat16", WS_BF16}, {"float16", WS_F16}, {"float32", WS_F32}};
    if (name && strncmp(name, "torch.", 6) == 0)
        name += 6;
    for (size_t i = 0; name && i < sizeof(all) / sizeof(all[0]); i++) {
        if (strcmp(name, all[i].name) == 0) {
            *out = all[i].dtype;
            return true;
        }
    }
    return false;
}

static void fill(const struct reader *r, struct ws_hf_config *c)
{
    static const char *const experts[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    const json_t *dtype = get(r, "dtype");
    const char *type = json_string_value(get(r, "model_type"));
    snprintf(c->model_type, sizeof(c->model_type), "%s", type ? type : "");
    c->hidden_size = number(r, "hidden_size");
    c->heads = number(r, "num_attention_heads");
    c->kv_heads = number(r, "num_key_value_heads");
    c->head_dim = number(r, "head_dim");
    c->intermediate_size = number(r, "intermediate_size");
    c->moe_intermediate_size = number(r, "moe_intermediate_size");
    c->vocab_size = number(r, "vocab_size");
    c->layers = number(r, "num_hidden_layers");
    c->mtp_layers = number(r, "num_nextn_predict_layers");
    c->shared_experts = number(r, "n_shared_experts");
    c->q_lora_rank = number(r, "q_lora_rank");
    c->kv_lora_rank = number(r, "kv_lora_rank");
    c->qk_nope_head_dim = number(r, "qk_nope_head_dim");
    c->qk_rope_head_dim = number(r, "qk_rope_head_dim");
    c->v_head_dim = number(r, "v_head_dim");
    c->linear_key_heads = number(r, "linear_num_key_heads");
    c->linear_key_head_dim = number(r, "linear_key_head_dim");
    c->linear_value_heads = number(r, "linear_num_value_heads");
    c->linear_value_head_dim = number(r, "linear_value_head_dim");
    c->linear_kernel = number(r, "linear_conv_kernel_dim");
    c->shared_expert_size = number(r, "shared_expert_intermediate_size");
    c->mamba_heads = number(r, "mamba_num_heads");
    c->mamba_head_dim = number(r, "mamba_head_dim");
    c->mamba_groups = number(r, "n_groups");
    c->mamba_state = number(r, "ssm_state_size");
    c->mamba_kernel = number(r, "conv_kernel");
    c->moe_shared_expert_size = number(r, "moe_shared_expert_intermediate_size");
    for (size_t i = 0; i < 3 && c->experts == 0; i++)
        c->experts = number(r, experts[i]);
    if (c->kv_heads == 0)
        c->kv_heads = c->heads;
    if (c->head_dim == 0 && c->heads > 0)
        c->head_dim = c->hidden_size / c->heads;
    c->tied = json_is_true(get(r, "tie_word_embeddings"));
    c->has_dtype = dtype_of(json_string_value(dtype ? dtype : get(r, "torch_dtype")), &c->dtype);
}

int ws_hf_config_read(const char *path, struct ws_hf_config *out, struct ws_error *err)
{
    char file[4096];
    struct stat st;
    json_error_t why;
    *out = (struct ws_hf_config){0};
    if (stat(path, &st) < 0)
        return ws_error_set(err, errno, "cannot read the model's config %s: %s", path, strerror(errno));
    if ((size_t)snprintf(file, sizeof(file), "%s%s", path, S_ISDIR(st.st_mode) ? "/config.json" : "") >=
        sizeof(file))
        return ws_error_set(err, ENAMETOOLONG, "the path of the model's config is too long: %.200s...", path);
    if (stat(file, &st) < 0)
        return ws_error_set(err, errno, "cannot read the model's config %s: %s", file, strerror(errno));
    json_t *top = json_load_file(file, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(top)) {
        json_decref(top);
        return ws_error_set(err, EBADMSG, "%s is no JSON object: %s", file, top ? "another value" : why.text);
    }
    struct reader r = {.top = top, .text = json_object_get(top, "text_config")};
    const char *outer = json_string_value(json_object_get(top, "model_type"));
    fill(&r, out);
    out->is_within = outer && strcmp(outer, out->model_type) != 0;
    json_decref(top);
    return 0;
}
