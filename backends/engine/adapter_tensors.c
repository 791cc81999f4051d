#include "backends/engine/adapter_tensors.h"
#include "backends/engine/adapter_config.h"
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define SHOWN "%.160s"

/* How the names of PEFT's tensors end; those of a row belong together. */
static const char *const halves[][2] = {{".lora_A.weight", ".lora_B.weight"},
                                        {".lora_embedding_A", ".lora_embedding_B"}};
#define N_KINDS (sizeof(halves) / sizeof(halves[0]))

/* Which half is it? 0: A, 1: B; -1: neither. *length: of the name without the ending. */
static int half_of(const char *name, size_t *kind, size_t *length)
{
    const size_t n = strlen(name);

    for (*kind = 0; *kind < N_KINDS; (*kind)++) {
        for (int half = 0; half < 2; half++) {
            size_t k = strlen(halves[*kind][half]);
            if (n > k && strcmp(name + n - k, halves[*kind][half]) == 0) {
                *length = n - k;
                return half;
            }
        }
    }
    return -1;
}

/* Stacked experts have the ranks of all of them in one tensor. */
static bool is_rank(const json_t *config, uint64_t rank)
{
    const uint64_t r = (uint64_t)json_integer_value(json_object_get(config, "r"));
    const char *key;
    json_t *v;

    if (rank == r)
        return true;
    json_object_foreach(json_object_get(config, "rank_pattern"), key, v)
    {
        if (rank == (uint64_t)json_integer_value(v))
            return true;
    }
    return rank > 0 && rank % r == 0 && json_array_size(json_object_get(config, "target_parameters")) > 0;
}

static int check_pair(const json_t *config, const struct ws_tensor *a, const struct ws_tensor *b,
                      struct ws_error *err)
{
    if (a->n_dims < 2 || b->n_dims < 2 || a->shape[0] != b->shape[1])
        return ws_error_set(err, EBADMSG,
                            "\"" SHOWN "\" and \"" SHOWN "\" do not fit each other: the rows of the one are "
                            "the columns of the other, which is the rank",
                            a->name, b->name);
    if (!is_rank(config, a->shape[0]))
        return ws_error_set(err, EBADMSG,
                            "\"" SHOWN "\" has rank %" PRIu64 ", and " WS_ADAPTER_CONFIG_NAME
                            " has r %" JSON_INTEGER_FORMAT " and no such rank in rank_pattern",
                            a->name, a->shape[0], json_integer_value(json_object_get(config, "r")));
    return 0;
}

static int check_tensor(const json_t *config, const struct ws_safetensors *st, const struct ws_tensor *t,
                        struct ws_error *err)
{
    char name[WS_MAX_TENSOR_NAME + 1];
    size_t kind, length;
    const int half = half_of(t->name, &kind, &length);

    if (half < 0)
        return ws_error_set(err, EBADMSG,
                            "\"" SHOWN
                            "\" is no lora_A or lora_B as PEFT names them, and engines load nothing "
                            "else of an adapter: publish the merged model where more was trained",
                            t->name);
    snprintf(name, sizeof(name), "%.*s%s", (int)length, t->name, halves[kind][1 - half]);
    const struct ws_tensor *other = ws_safetensors_find(st, name);
    if (!other)
        return ws_error_set(err, EBADMSG, "\"" SHOWN "\" is there without \"" SHOWN "\"", t->name, name);
    return half == 0 ? check_pair(config, t, other, err) : 0;
}

int ws_adapter_check_tensors(const json_t *config, const struct ws_safetensors *st, struct ws_error *err)
{
    int rc = st->n_tensors ? 0 : ws_error_set(err, EBADMSG, "it holds no tensors");

    for (size_t i = 0; rc == 0 && i < st->n_tensors; i++)
        rc = check_tensor(config, st, &st->tensors[i], err);
    return rc < 0 ? ws_error_prefix(err, WS_ADAPTER_WEIGHTS_NAME) : 0;
}
