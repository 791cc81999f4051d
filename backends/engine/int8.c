#include "backends/engine/int8.h"
#include <errno.h>
#include <string.h>

static bool is_weight(const char *name)
{
    static const char end[] = ".weight";
    const size_t n = strlen(name);
    return n > strlen(end) && strcmp(name + n - strlen(end), end) == 0;
}

static bool has_int8(const struct ws_safetensors *st)
{
    bool found = false;
    for (size_t i = 0; !found && i < st->n_tensors; i++)
        found = st->tensors[i].dtype == WS_I8 && is_weight(st->tensors[i].name);
    return found;
}

int ws_int8_check(const struct ws_engine_facts *facts, const char *name,
                  struct ws_safetensors *const *headers, size_t n, struct ws_error *err)
{
    bool found = false;
    for (size_t i = 0; facts->frees_int8_scales && !found && i < n; i++)
        found = has_int8(headers[i]);
    if (!found)
        return 0;
    return ws_error_set(
        err, EPROTO,
        "the weights are INT8, and engine %s is a vLLM on a CPU, or does not say what it was started with: "
        "its "
        "reload frees scales that are in use, and its answers would be wrong from then on; start it with "
        "--worker-extension-cls wsync.vllm.Extension and the Python package wsync beside it, which keeps "
        "them, and add it again",
        name);
}
