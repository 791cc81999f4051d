#include "fs/switch/adapter_base.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "base_model.model."

/* "base_model.model.M.lora_A.weight": the name of M's weight. is_a: of the matrix that takes the module's input. */
static bool find_weight_name(const char *name, char out[WS_MAX_TENSOR_NAME + 1], bool *is_a)
{
    static const char *const ends[] = {".lora_A.weight", ".lora_B.weight"};
    const size_t n = strlen(name), k = strlen(ends[0]);
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || n < strlen(PREFIX) + k)
        return false;
    *is_a = strcmp(name + n - k, ends[0]) == 0;
    if (!*is_a && strcmp(name + n - k, ends[1]) != 0)
        return false;
    snprintf(out, WS_MAX_TENSOR_NAME + 1, "%.*s.weight", (int)(n - k - strlen(PREFIX)),
             name + strlen(PREFIX));
    return true;
}

static const struct ws_tensor *find_weight(const struct ws_safetensors *const *base, size_t n,
                                           const char *name)
{
    const struct ws_tensor *found = NULL;
    for (size_t i = 0; i < n && !found; i++)
        found = ws_safetensors_find(base[i], name);
    return found && found->n_dims == 2 ? found : NULL;
}

/* --- shapes --- */

static int check_shapes(const struct ws_safetensors *adapter, const struct ws_safetensors *const *base,
                        size_t n_base, struct ws_error *err)
{
    for (size_t i = 0; i < adapter->n_tensors; i++) {
        const struct ws_tensor *t = &adapter->tensors[i];
        char name[WS_MAX_TENSOR_NAME + 1];
        bool is_a = false;
        const struct ws_tensor *w =
            t->n_dims == 2 && find_weight_name(t->name, name, &is_a) ? find_weight(base, n_base, name) : NULL;
        const uint64_t has = is_a ? t->shape[1] : t->shape[0], wants = !w     ? has
                                                                       : is_a ? w->shape[1]
                                                                              : w->shape[0];
        if (has != wants)
            return ws_error_set(err, EPROTO,
                                "it was trained on another base: %.200s is for %" PRIu64
                                " %s, and %.200s has %" PRIu64,
                                t->name, has, is_a ? "inputs" : "outputs", name, wants);
    }
    return 0;
}

/* --- modules --- */

/* Where the layer begins, as layers.7.mlp.up_proj of model.layers.7.mlp.up_proj.weight: what stands before that differs
 * between checkpoints and the modules that transformers makes of them. NULL: it is outside of all layers. */
static const char *find_layer(const char *name)
{
    const char *word = name;
    for (const char *dot; (dot = strchr(word, '.')); word = dot + 1) {
        const char *number = dot + 1;
        const size_t n = strspn(number, "0123456789");
        if (n > 0 && (number[n] == '.' || !number[n]))
            return word;
    }
    return NULL;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The module of an adapter's tensor, from its layer on and with the dot behind it. False: its name tells nothing. A head outside
 * of the layers may be tied, and have no tensor; and experts have other names once transformers has stacked them. */
static bool find_module(const char *tensor, char out[WS_MAX_TENSOR_NAME + 1])
{
    const char *begin = find_layer(tensor), *end = begin ? strstr(begin, ".lora_") : NULL;
    if (!end || strstr(begin, ".experts."))
        return false;
    snprintf(out, WS_MAX_TENSOR_NAME + 1, "%.*s", (int)(end + 1 - begin), begin);
    return true;
}

/* Is one of the sorted names of the module: its weight, or what a quantiser has made of that? */
static bool has_module(const char *const *names, size_t n, const char *module)
{
    size_t low = 0, high = n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(names[middle], module) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && strncmp(names[low], module, strlen(module)) == 0;
}

/* The names of the base's tensors from their layers on, sorted. malloc'ed; NULL: no memory. */
static const char **list_names(const struct ws_safetensors *const *base, size_t n_base, size_t *n)
{
    size_t room = 1;
    *n = 0;
    for (size_t i = 0; i < n_base; i++)
        room += base[i]->n_tensors;
    const char **names = calloc(room, sizeof(*names));
    for (size_t i = 0; names && i < n_base; i++)
        for (size_t k = 0; k < base[i]->n_tensors; k++) {
            const char *name = find_layer(base[i]->tensors[k].name);
            if (name)
                names[(*n)++] = name;
        }
    if (names)
        qsort(names, *n, sizeof(*names), compare_names);
    return names;
}

static int check_modules(const struct ws_safetensors *adapter, const struct ws_safetensors *const *base,
                         size_t n_base, struct ws_error *err)
{
    char module[WS_MAX_TENSOR_NAME + 1];
    const char *first = NULL;
    size_t n;
    const char **names = list_names(base, n_base, &n);
    bool is_there = false;
    if (!names)
        return ws_error_set(err, ENOMEM, "no memory for the names of its base's tensors");
    for (size_t i = 0; !is_there && i < adapter->n_tensors; i++) {
        if (!find_module(adapter->tensors[i].name, module))
            continue;
        first = first ? first : adapter->tensors[i].name;
        is_there = has_module(names, n, module);
    }
    free(names);
    if (is_there || !first)
        return 0;
    return ws_error_set(err, EPROTO,
                        "it was trained on another base: none of its modules is there, the first of which is "
                        "that of %.200s",
                        first);
}

int ws_adapter_base_check(const struct ws_safetensors *adapter, const struct ws_safetensors *const *base,
                          size_t n_base, bool is_whole, struct ws_error *err)
{
    int rc = check_shapes(adapter, base, n_base, err);
    return rc == 0 && is_whole ? check_modules(adapter, base, n_base, err) : rc;
}
