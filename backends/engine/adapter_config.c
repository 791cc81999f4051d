#include "backends/engine/adapter_config.h"
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define MOST_RANK 65536 /* above that it is a mistake, whoever is to serve it */

/* What changes the arithmetic, and no kind does: vLLM refuses these, SGLang does not look. */
static const char *const foreign[] = {"lora_bias", "alora_invocation_tokens", "layer_replication",
                                      "use_bdlora", "use_qalora"};
/* What only SGLang does not look at. */
static const char *const ignored_by_sglang[] = {"use_rslora", "rank_pattern", "alpha_pattern"};
/* How an adapter began, where that leaves the base model as it is. Others (PiSSA, OLoRA, CorDA, LoftQ) take a part of
 * the base's weights into the adapter. */
static const char *const plain_inits[] = {"gaussian", "eva", "orthogonal", "mica", "lora_ga"};

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

/* Is it set? PEFT writes null, false, [] and {} for what is not. */
static bool is_set(const json_t *value)
{
    return value && !json_is_null(value) && !json_is_false(value) &&
           !(json_is_array(value) && json_array_size(value) == 0) &&
           !(json_is_object(value) && json_object_size(value) == 0);
}

static int read_rank(const json_t *value, const char *key, unsigned *most, struct ws_error *err)
{
    const json_int_t rank = json_integer_value(value);
    if (!json_is_integer(value) || rank < 1 || rank > MOST_RANK)
        return ws_error_set(err, EBADMSG,
                            "%s of " WS_ADAPTER_CONFIG_NAME " is no rank: a whole number from 1 on", key);
    *most = rank > (json_int_t)*most ? (unsigned)rank : *most;
    return 0;
}

static int read_ranks(const json_t *config, unsigned *most, struct ws_error *err)
{
    const json_t *pattern = json_object_get(config, "rank_pattern");
    const char *key;
    json_t *value;
    int rc = read_rank(json_object_get(config, "r"), "r", most, err);
    if (rc || !is_set(pattern))
        return rc;
    if (!json_is_object(pattern))
        return ws_error_set(err, EBADMSG, "rank_pattern of " WS_ADAPTER_CONFIG_NAME " is no object");
    json_object_foreach((json_t *)pattern, key, value)
    {
        rc = read_rank(value, "rank_pattern", most, err);
        if (rc)
            return rc;
    }
    return 0;
}

static bool names_modules(const json_t *targets)
{
    bool good = json_is_string(targets) ? json_string_length(targets) > 0 : json_array_size(targets) > 0;
    for (size_t i = 0; good && i < json_array_size(targets); i++)
        good = json_is_string(json_array_get(targets, i));
    return good;
}

/* The keys that both kinds need. */
static int read_config(const json_t *config, struct ws_adapter_config *out, struct ws_error *err)
{
    const char *type = json_string_value(json_object_get(config, "peft_type"));
    const char *base = json_string_value(json_object_get(config, "base_model_name_or_path"));
    if (!type || strcmp(type, "LORA") != 0)
        return ws_error_set(err, EBADMSG,
                            "peft_type of " WS_ADAPTER_CONFIG_NAME " is %.40s; engines load LORA only",
                            type ? type : "missing");
    if (!json_is_number(json_object_get(config, "lora_alpha")))
        return ws_error_set(err, EBADMSG, "lora_alpha of " WS_ADAPTER_CONFIG_NAME " is no number");
    if (!names_modules(json_object_get(config, "target_modules")))
        return ws_error_set(err, EBADMSG, "target_modules of " WS_ADAPTER_CONFIG_NAME " name no modules");
    if (base && strlen(base) >= sizeof(out->base))
        return ws_error_set(err, EBADMSG,
                            "base_model_name_or_path of " WS_ADAPTER_CONFIG_NAME " has %zu bytes",
                            strlen(base));
    snprintf(out->base, sizeof(out->base), "%s", base ? base : "");
    return read_ranks(config, &out->rank, err);
}

static bool saves_a_head_only(const json_t *modules)
{
    bool good = json_is_array(modules);
    for (size_t i = 0; good && i < json_array_size(modules); i++) {
        const char *name = json_string_value(json_array_get(modules, i));
        good = name && (strcmp(name, "classifier") == 0 || strcmp(name, "score") == 0);
    }
    return good;
}

static bool is_plain_init(const json_t *init)
{
    const char *word = json_string_value(init);
    bool plain = !word;
    for (size_t i = 0; !plain && i < LENGTH(plain_inits); i++)
        plain = strcasecmp(word, plain_inits[i]) == 0;
    return plain;
}

/* What no kind serves as it was trained. */
static int check_features(const json_t *config, bool vllm, struct ws_error *err)
{
    const json_t *modules = json_object_get(config, "modules_to_save"),
                 *bias = json_object_get(config, "bias");
    if (is_set(json_object_get(config, "use_dora")))
        return ws_error_set(err, EPROTO,
                            "the adapter is a DoRA (use_dora), which engines do not serve: train it without");
    if (is_set(bias) && (!json_is_string(bias) || strcmp(json_string_value(bias), "none") != 0))
        return ws_error_set(err, EPROTO,
                            "the adapter has trained biases (bias), which engines do not serve: train it "
                            "with bias=\"none\"");
    if (is_set(modules) && !(vllm && saves_a_head_only(modules)))
        return ws_error_set(err, EPROTO,
                            "the adapter has whole modules beside its matrices (modules_to_save), which "
                            "engines do not serve: publish the merged model instead");
    if (!is_plain_init(json_object_get(config, "init_lora_weights")))
        return ws_error_set(err, EPROTO,
                            "the adapter began as a part of its base (init_lora_weights=%.40s), so that it "
                            "fits a changed base only: convert it with PEFT's "
                            "path_initial_model_for_weight_conversion",
                            json_string_value(json_object_get(config, "init_lora_weights")));
    for (size_t i = 0; i < LENGTH(foreign); i++) {
        if (is_set(json_object_get(config, foreign[i])))
            return ws_error_set(err, EPROTO, "the adapter needs %s, which engines do not serve", foreign[i]);
    }
    return 0;
}

static int check_for_sglang(const json_t *config, struct ws_error *err)
{
    for (size_t i = 0; i < LENGTH(ignored_by_sglang); i++) {
        if (is_set(json_object_get(config, ignored_by_sglang[i])))
            return ws_error_set(
                err, EPROTO,
                "the adapter has %s, which SGLang ignores: it scales each module by lora_alpha / r, so "
                "its answers would be wrong; use vLLM, or train it without",
                ignored_by_sglang[i]);
    }
    return 0;
}

static int check_server(const struct ws_adapter_config *has, const struct ws_adapter_server *server,
                        struct ws_error *err)
{
    if (server->max_rank && has->rank > server->max_rank)
        return ws_error_set(
            err, EPROTO,
            "the adapter has rank %u, and the engine takes %u at most: start it with --max-lora-rank %u",
            has->rank, server->max_rank, has->rank);
    if (server->base && strcmp(server->base, has->base) != 0)
        return ws_error_set(
            err, EPROTO,
            "the adapter was trained on %.300s (base_model_name_or_path), and the engine serves %.300s",
            has->base[0] ? has->base : "a base that it does not name", server->base);
    return 0;
}

int ws_adapter_check(const char *json, size_t n, const struct ws_adapter_server *server,
                     struct ws_adapter_config *out, struct ws_error *err)
{
    const bool vllm = server->kind && strcmp(server->kind, "vllm") == 0;
    struct ws_adapter_config found = {0};
    json_error_t why;
    if (n > WS_MAX_ADAPTER_CONFIG_BYTES)
        return ws_error_set(err, EBADMSG, WS_ADAPTER_CONFIG_NAME " has %zu bytes", n);
    json_t *config = json_loadb(json, n, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(config)) {
        int rc = ws_error_set(err, EBADMSG, WS_ADAPTER_CONFIG_NAME " is no JSON object%s%.200s",
                              config ? "" : ": ", config ? "" : why.text);
        json_decref(config);
        return rc;
    }
    int rc = read_config(config, &found, err);
    if (!rc)
        rc = check_features(config, vllm, err);
    if (!rc && !vllm)
        rc = check_for_sglang(config, err);
    if (!rc)
        rc = check_server(&found, server, err);
    json_decref(config);
    if (!rc && out)
        *out = found;
    return rc;
}
