/* Which tensors are quantised: the family's linear layers, less what is to be ignored. What it refuses would make an
 * engine fail at its start, or answer with noise. */
#include "transports/quant/select.h"
#include "transports/base/expression.h"
#include "transports/base/json_cursor.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN        "%.160s"
#define WEIGHT       ".weight"
#define KEY_CHARS    256
#define FAMILY_CHARS 128
#define N(array)     (sizeof(array) / sizeof((array)[0]))

/* --- families --- */

#define ATTENTION "q_proj", "k_proj", "v_proj", "o_proj"
#define MLP       "gate_proj", "up_proj", "down_proj"

/* model_type of config.json, and the last part of the names of linear layers that are quantised. */
static const struct family {
    const char *model_types[12], *linears[16];
} families[] = {
    {
        {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "qwen2_moe", "qwen3_moe", "glm4_moe"},
        {ATTENTION, MLP},
    },
    {{"mixtral"}, {ATTENTION, "w1", "w2", "w3"}},
    {
        {"deepseek_v2", "deepseek_v3", "kimi_k2"},
        {"q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", MLP},
    },
    {{"qwen3_next"}, {ATTENTION, MLP, "in_proj_qkvz", "out_proj"}},
    {
        {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"},
        {ATTENTION, MLP, "in_proj_qkv", "in_proj_z", "out_proj"},
    },
};

/* Towers for images and sound, whatever their layers are called. */
static const char *const towers[] = {"visual",       "vision_tower", "vision_model", "multi_modal_projector",
                                     "mm_projector", "audio_tower"};
/* Where the family is unknown: what is no linear layer, or one that is too sensitive. */
static const char *const never_within[] = {"embed", "norm",    "lm_head",     "router",
                                           "conv",  "eh_proj", "weights_proj"};
static const char *const never_last[] = {
    "gate",      "shared_expert_gate", "score", "classifier", "head",        "in_proj_ba",
    "in_proj_a", "in_proj_b",          "wte",   "wpe",        "shared_head", "output"};

/* What engines make one layer of, in their order. */
static const char *const fused[][3] = {
    {"q_proj", "k_proj", "v_proj"},     {"gate_proj", "up_proj"},     {"w1", "w3"},
    {"q_a_proj", "kv_a_proj_with_mqa"}, {"in_proj_qkv", "in_proj_z"},
};

static const struct family *family_of(const char *model_type)
{
    for (size_t f = 0; f < N(families); f++)
        for (size_t i = 0; i < N(families[f].model_types) && families[f].model_types[i]; i++)
            if (strcmp(families[f].model_types[i], model_type) == 0)
                return &families[f];
    return NULL;
}

/* --- config.json --- */

static int read_config(const char *config, size_t n, char model_type[FAMILY_CHARS], struct ws_error *err)
{
    char key[KEY_CHARS];
    struct ws_json j;
    int rc;

    model_type[0] = '\0';
    ws_json_start(&j, config, n);
    rc = ws_json_enter(&j, '{', err);
    while (rc == 0 && (rc = ws_json_member(&j, key, sizeof(key), err)) == 1) {
        const bool is_quantised =
            strcmp(key, "quantization_config") == 0 || strcmp(key, "compression_config") == 0;
        if (is_quantised && !ws_json_is_null(&j))
            return ws_error_set(
                err, EINVAL,
                "config.json has a %s: this checkpoint is quantised already; recipes take one in "
                "bf16, f16 or f32",
                key);
        rc = strcmp(key, "model_type") == 0 ? ws_json_string(&j, model_type, FAMILY_CHARS, err)
                                            : ws_json_skip(&j, err);
    }
    if (rc == 0)
        rc = ws_json_finish(&j, err);
    if (rc < 0)
        ws_error_prefix(err, "config.json");
    return rc;
}

static int find_family(const struct ws_select_options *options, const char *config, size_t n,
                       const struct family **out, struct ws_error *err)
{
    char model_type[FAMILY_CHARS];
    int rc = read_config(config, n, model_type, err);

    if (rc < 0)
        return rc;
    *out = family_of(model_type);
    if (*out || options->any_family)
        return 0;
    return ws_error_set(
        err, EINVAL,
        "it is not known which layers of model type \"%s\" (model_type of config.json) are to be "
        "quantised: with the general rule (any-family) all 2-D weights are, but embeddings, norms, "
        "routers and lm_head; name more that are not by ignore=",
        model_type);
}

/* --- names --- */

static size_t module_chars(const char *name)
{
    return strlen(name) - strlen(WEIGHT);
}

bool ws_select_is_module(const struct ws_tensor *t)
{
    const size_t n = strlen(t->name);
    return t->n_dims == 2 && n > strlen(WEIGHT) && strcmp(t->name + n - strlen(WEIGHT), WEIGHT) == 0;
}

/* The last part of a module's name: from *begin, so many characters. */
static size_t last_part(const char *name, size_t *begin)
{
    const size_t end = module_chars(name);
    for (*begin = end; *begin > 0 && name[*begin - 1] != '.';)
        --*begin;
    return end - *begin;
}

static bool last_part_is(const char *name, const char *part)
{
    size_t begin;
    const size_t n = last_part(name, &begin);
    return strlen(part) == n && memcmp(name + begin, part, n) == 0;
}

static bool has_part(const char *name, const char *part)
{
    const size_t n = strlen(part);
    for (const char *at = name; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL)
        if (strncmp(at, part, n) == 0 && (at[n] == '.' || at[n] == '\0'))
            return true;
    return false;
}

static bool in_tower(const char *name)
{
    for (size_t i = 0; i < N(towers); i++)
        if (has_part(name, towers[i]))
            return true;
    return false;
}

static bool is_linear_of(const struct family *f, const char *name)
{
    for (size_t i = 0; i < N(f->linears) && f->linears[i]; i++)
        if (last_part_is(name, f->linears[i]))
            return true;
    return false;
}

static bool seems_linear(const char *name)
{
    for (size_t i = 0; i < N(never_within); i++)
        if (strstr(name, never_within[i]))
            return false;
    for (size_t i = 0; i < N(never_last); i++)
        if (last_part_is(name, never_last[i]))
            return false;
    return true;
}

/* --- the choice --- */

struct selection {
    const struct ws_recipe *recipe;
    const struct ws_select_options *options;
    const struct family *family; /* NULL: any */
    const struct ws_tensor *const *tensors;
    size_t n;
    bool *chosen;
    size_t *by_name; /* the modules' places in tensors, sorted by name */
    size_t n_modules;
};

static int choose(struct selection *s, struct ws_error *err)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct ws_tensor *t = s->tensors[i];
        s->chosen[i] = false;
        if (t->n_dims > 2 && has_part(t->name, "experts"))
            return ws_error_set(err, EINVAL,
                                "tensor \"" SHOWN "\" has %u dimensions: experts that lie in one tensor are "
                                "not quantised; save the model with a tensor for each expert",
                                t->name, t->n_dims);
        if (!ws_select_is_module(t))
            continue;
        s->chosen[i] =
            !in_tower(t->name) && (s->family ? is_linear_of(s->family, t->name) : seems_linear(t->name));
    }
    return 0;
}

/* Does a pattern name the module? `expression` is NULL for an exact name. */
static bool matches(const char *pattern, const regex_t *expression, const char *module)
{
    return expression ? ws_expression_matches(expression, module) : strcmp(pattern, module) == 0;
}

static int ignore_one(struct selection *s, const char *pattern, const regex_t *expression,
                      struct ws_error *err)
{
    bool found = false;

    for (size_t i = 0; i < s->n_modules; i++) {
        const char *name = s->tensors[s->by_name[i]]->name;
        char module[WS_MAX_TENSOR_NAME + 1];
        const size_t n = module_chars(name);
        assert(n < sizeof(module));
        memcpy(module, name, n);
        module[n] = '\0';
        if (!matches(pattern, expression, module))
            continue;
        found = true;
        s->chosen[s->by_name[i]] = false;
    }
    if (found)
        return 0;
    return ws_error_set(
        err, EINVAL,
        "ignore=" SHOWN " matches none of the %zu linear layers: a pattern is a layer's full name, "
        "as model.layers.0.mlp.down_proj, or re: and a regular expression that matches from the "
        "name's begin",
        pattern, s->n_modules);
}

static bool is_expression(const char *pattern)
{
    return strncmp(pattern, "re:", 3) == 0;
}

static int compile(const char *pattern, regex_t *expression, struct ws_error *err)
{
    struct ws_error why;
    const int rc = ws_expression_compile(pattern + strlen("re:"), expression, &why);

    return rc < 0 ? ws_error_set(err, -rc, "ignore=" SHOWN " %s", pattern, why.text) : 0;
}

int ws_select_check_pattern(const char *pattern, struct ws_error *err)
{
    regex_t expression;

    if (!*pattern)
        return ws_error_set(err, EINVAL, "ignore= names no layer");
    if (!is_expression(pattern))
        return 0;
    const int rc = compile(pattern, &expression, err);
    if (rc == 0)
        regfree(&expression);
    return rc;
}

static int ignore_pattern(struct selection *s, const char *pattern, struct ws_error *err)
{
    regex_t expression;

    if (!is_expression(pattern))
        return ignore_one(s, pattern, NULL, err);
    int rc = compile(pattern, &expression, err);
    if (rc < 0)
        return rc;
    rc = ignore_one(s, pattern, &expression, err);
    regfree(&expression);
    return rc;
}

/* --- what the recipe and the engines need --- */

static int by_module_name(const void *a, const void *b, void *tensors)
{
    const struct ws_tensor *const *t = tensors;
    return strcmp(t[*(const size_t *)a]->name, t[*(const size_t *)b]->name);
}

/* The place of the module that `name`'s last part replaced by `part` calls; s->n: there is none. */
static size_t sibling(const struct selection *s, const char *name, const char *part)
{
    char wanted[WS_MAX_TENSOR_NAME + 64];
    size_t begin, low = 0, high = s->n_modules;

    (void)last_part(name, &begin);
    snprintf(wanted, sizeof(wanted), "%.*s%s" WEIGHT, (int)begin, name, part);
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(s->tensors[s->by_name[middle]]->name, wanted);
        if (order == 0)
            return s->by_name[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return s->n;
}

/* t is part `at` of a layer that engines fuse of `parts`. */
static int check_fused(const struct selection *s, const struct ws_tensor *t, const char *const parts[3],
                       size_t at, struct ws_error *err)
{
    for (size_t p = 0; p < 3 && parts[p]; p++) {
        const size_t other = p == at ? s->n : sibling(s, t->name, parts[p]);
        if (other == s->n)
            continue;
        if (!s->chosen[other])
            return ws_error_set(err, EINVAL,
                                "tensor \"" SHOWN "\" would be quantised and \"" SHOWN
                                "\" not, and engines make "
                                "one layer of both: ignore both or neither",
                                t->name, s->tensors[other]->name);
        if (p > at && t->shape[0] % s->recipe->whole_parts != 0)
            return ws_error_set(
                err, EINVAL,
                "tensor \"" SHOWN "\" has %" PRIu64 " rows, no multiple of %u, and \"" SHOWN
                "\" follows it in one layer of engines, where a block of %s would be of both: "
                "ignore both, or take another recipe",
                t->name, t->shape[0], s->recipe->whole_parts, s->tensors[other]->name, s->recipe->name);
    }
    return 0;
}

static int check_chosen(const struct selection *s, const struct ws_tensor *t, struct ws_error *err)
{
    int rc = 0;

    if (t->shape[0] == 0 || t->shape[1] == 0)
        return ws_error_set(err, EINVAL, "tensor \"" SHOWN "\" has no elements: ignore it", t->name);
    if (!ws_recipe_takes(s->recipe, t->dtype))
        return ws_error_set(err, EINVAL, "tensor \"" SHOWN "\" is %s, and %s takes BF16, F16 and F32",
                            t->name, ws_dtype_name(t->dtype), s->recipe->name);
    if (t->shape[1] % s->recipe->whole_columns != 0)
        return ws_error_set(err, EINVAL,
                            "tensor \"" SHOWN "\" has %" PRIu64
                            " columns, and %s takes multiples of %u: ignore "
                            "it, or take another recipe",
                            t->name, t->shape[1], s->recipe->name, s->recipe->whole_columns);
    for (size_t f = 0; rc == 0 && f < N(fused); f++)
        for (size_t at = 0; rc == 0 && at < 3 && fused[f][at]; at++)
            if (last_part_is(t->name, fused[f][at]))
                rc = check_fused(s, t, fused[f], at, err);
    return rc;
}

static int check(const struct selection *s, struct ws_error *err)
{
    bool any = false;

    for (size_t i = 0; i < s->n; i++) {
        if (!s->chosen[i])
            continue;
        any = true;
        int rc = check_chosen(s, s->tensors[i], err);
        if (rc < 0)
            return rc;
    }
    return any ? 0
               : ws_error_set(err, EINVAL,
                              "nothing is left to be quantised: no linear layer, or all are ignored");
}

int ws_select(const struct ws_recipe *recipe, const struct ws_select_options *options, const char *config,
              size_t config_bytes, const struct ws_tensor *const *tensors, size_t n, bool *chosen,
              struct ws_error *err)
{
    struct selection s = {.recipe = recipe, .options = options, .tensors = tensors, .n = n, .chosen = chosen};
    int rc = find_family(options, config, config_bytes, &s.family, err);

    if (rc < 0)
        return rc;
    s.by_name = malloc((n + 1) * sizeof(*s.by_name));
    if (!s.by_name)
        return ws_error_set(err, ENOMEM, "out of memory for the names of %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        if (ws_select_is_module(tensors[i]))
            s.by_name[s.n_modules++] = i;
    qsort_r(s.by_name, s.n_modules, sizeof(*s.by_name), by_module_name, (void *)tensors);
    rc = choose(&s, err);
    for (size_t i = 0; rc == 0 && i < options->n_ignore; i++)
        rc = ignore_pattern(&s, options->ignore[i], err);
    if (rc == 0)
        rc = check(&s, err);
    free(s.by_name);
    return rc;
}
