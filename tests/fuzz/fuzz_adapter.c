/* LoRA adapters under libFuzzer. The input is adapter_config.json, a NUL, and a file of weights up to its data. What is accepted must hold
 * what the checks promise: a rank, and for each A its B of that rank. */
#include "backends/engine/adapter_config.h"
#include "backends/engine/adapter_tensors.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what)
        abort();
}

static void check_pairs(const struct ws_safetensors *st, unsigned most)
{
    require(st->n_tensors > 0 && st->n_tensors % 2 == 0);
    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct ws_tensor *t = &st->tensors[i];
        require(strstr(t->name, ".lora_") != NULL && t->n_dims >= 2);
        require(most == 0 || t->shape[0] <= most || t->shape[1] <= most);
    }
}

static void check_tensors(const json_t *config, const struct ws_adapter_config *has, const uint8_t *data,
                          size_t size)
{
    struct ws_safetensors *st = NULL;
    struct ws_error err = {0};
    uint64_t header;
    if (ws_safetensors_header_bytes(data, UINT32_MAX, &header, &err) < 0 || header > size ||
        ws_safetensors_parse(data, size, size, &st, &err) < 0)
        return;
    if (ws_adapter_check_tensors(config, st, &err) == 0)
        check_pairs(st, json_array_size(json_object_get(config, "target_parameters")) ? 0 : has->rank);
    else
        require(err.text[0] != 0);
    ws_safetensors_free(st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const kinds[] = {NULL, "vllm", "sglang"};
    const uint8_t *end = memchr(data, 0, size);
    const size_t n = end ? (size_t)(end - data) : size;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const struct ws_adapter_server server = {.kind = kinds[i], .max_rank = i == 2 ? 64 : 0};
        struct ws_adapter_config config;
        struct ws_error err = {0};
        if (ws_adapter_check((const char *)data, n, &server, &config, &err) < 0) {
            require(err.text[0] != 0);
            continue;
        }
        require(config.rank > 0 && (server.max_rank == 0 || config.rank <= server.max_rank));
        json_t *all = json_loadb((const char *)data, n, JSON_REJECT_DUPLICATES, NULL);
        require(all != NULL);
        if (end && size - n - 1 >= 8)
            check_tensors(all, &config, end + 1, size - n - 1);
        json_decref(all);
    }
    return 0;
}
