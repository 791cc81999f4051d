#include "backends/engine/cpu_reload.h"
#include <errno.h>
#include <string.h>

#define EXPERTS ".experts."
#define MOE                                                                                                  \
    "moe." /* Granite's and Step's files: "block_sparse_moe.input_linear.weight", "moe.gate_proj.weight" */
#define REMEDY                                                                                               \
    "start it with --worker-extension-cls wsync.vllm.Extension and the Python package wsync beside it, "     \
    "which "                                                                                                 \
    "%s them, and add it again"

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), k = strlen(end);
    return n > k && strcmp(name + n - k, end) == 0;
}

static bool is_int8(const struct ws_tensor *t)
{
    return t->dtype == WS_I8 && ends_with(t->name, ".weight");
}

static bool is_within(const struct ws_tensor *t, const char *modules)
{
    return strstr(t->name, modules) && !strstr(t->name, "scale") && !ends_with(t->name, "bias");
}

/* One expert's matrix, or all of a layer in one tensor (DBRX: of two dimensions). Routers beside quantised experts are plain, of two
 * dimensions, and outside of what is called experts. */
static bool is_plain_expert(const struct ws_tensor *t)
{
    return (t->dtype == WS_BF16 || t->dtype == WS_F16 || t->dtype == WS_F32) &&
           ((t->n_dims >= 2 && is_within(t, EXPERTS)) || (t->n_dims == 3 && is_within(t, MOE)));
}

static bool has(struct ws_safetensors *const *headers, size_t n, bool (*is)(const struct ws_tensor *t))
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < headers[i]->n_tensors; k++)
            if (is(&headers[i]->tensors[k]))
                return true;
    return false;
}

int ws_cpu_reload_check(const struct ws_engine_facts *facts, const char *name,
                        struct ws_safetensors *const *headers, size_t n, struct ws_error *err)
{
    if (facts->frees_int8_scales && has(headers, n, is_int8))
        return ws_error_set(
            err, EPROTO,
            "the weights are INT8, and engine %s is a vLLM on a CPU, or does not say what it was started "
            "with: its reload frees scales that are in use, and its answers would be wrong from then "
            "on; " REMEDY,
            name, "keeps");
    if (facts->leaves_experts && has(headers, n, is_plain_expert))
        return ws_error_set(err, EPROTO,
                            "the model has experts that are not quantised, and engine %s is a vLLM on a CPU: "
                            "its reload leaves "
                            "them unpacked, and its answers would be nonsense from then on; " REMEDY,
                            name, "packs");
    return 0;
}
