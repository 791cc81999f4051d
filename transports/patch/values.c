#include "transports/patch/values.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int ws_patch_values_room(struct ws_patch_values *v, uint64_t n, uint64_t elements)
{
    v->is_wide = elements > (uint64_t)UINT32_MAX + 1;
    v->n = n;
    if (n == 0)
        return 0;
    v->places = malloc(n * (v->is_wide ? sizeof(uint64_t) : sizeof(uint32_t)));
    v->before = malloc(n * v->element_bytes);
    v->after = malloc(n * v->element_bytes);
    return v->places && v->before && v->after ? 0 : -ENOMEM;
}

void ws_patch_values_free(struct ws_patch_values *v)
{
    free(v->places);
    free(v->before);
    free(v->after);
    *v = (struct ws_patch_values){.element_bytes = v->element_bytes};
}

void ws_patch_values_set(struct ws_patch_values *v, uint64_t i, uint64_t place, const void *before,
                         const void *after)
{
    const unsigned w = v->element_bytes;
    if (v->is_wide)
        ((uint64_t *)v->places)[i] = place;
    else
        ((uint32_t *)v->places)[i] = (uint32_t)place;
    memcpy(v->before + i * w, before, w);
    memcpy(v->after + i * w, after, w);
}

uint64_t ws_patch_values_bytes(const struct ws_patch_values *v)
{
    return v->n * ((v->is_wide ? sizeof(uint64_t) : sizeof(uint32_t)) + 2UL * v->element_bytes);
}

/* Memory may be at any address that suits its elements; lists are malloc's. */
#define LOOPS(place_type, type)                                                                              \
    static void write_##place_type##_##type(const struct ws_patch_values *v, type *restrict memory,          \
                                            const type *restrict values, uint64_t i, uint64_t end)           \
    {                                                                                                        \
        const place_type *places = v->places;                                                                \
        for (; i < end; i++)                                                                                 \
            memory[places[i]] = values[i];                                                                   \
    }                                                                                                        \
    static uint64_t compare_##place_type##_##type(const struct ws_patch_values *v, const type *memory,       \
                                                  uint64_t i, uint64_t end)                                  \
    {                                                                                                        \
        const place_type *places = v->places;                                                                \
        const type *values = (const type *)(const void *)v->before;                                          \
        while (i < end && memory[places[i]] == values[i])                                                    \
            i++;                                                                                             \
        return i;                                                                                            \
    }

LOOPS(uint32_t, uint8_t)
LOOPS(uint32_t, uint16_t)
LOOPS(uint32_t, uint32_t)
LOOPS(uint32_t, uint64_t)
LOOPS(uint64_t, uint8_t)
LOOPS(uint64_t, uint16_t)
LOOPS(uint64_t, uint32_t)
LOOPS(uint64_t, uint64_t)

#define PICK(verb, type, ...)                                                                                \
    (v->is_wide ? verb##_uint64_t_##type(__VA_ARGS__) : verb##_uint32_t_##type(__VA_ARGS__))

void ws_patch_values_write(const struct ws_patch_values *v, void *memory, bool before, uint64_t i,
                           uint64_t end)
{
    const void *values = before ? v->before : v->after;
    switch (v->element_bytes) {
    case 1:
        PICK(write, uint8_t, v, memory, values, i, end);
        return;
    case 2:
        PICK(write, uint16_t, v, memory, values, i, end);
        return;
    case 4:
        PICK(write, uint32_t, v, memory, values, i, end);
        return;
    default:
        PICK(write, uint64_t, v, memory, values, i, end);
    }
}

uint64_t ws_patch_values_compare(const struct ws_patch_values *v, const void *memory, uint64_t i,
                                 uint64_t end)
{
    switch (v->element_bytes) {
    case 1:
        return PICK(compare, uint8_t, v, memory, i, end);
    case 2:
        return PICK(compare, uint16_t, v, memory, i, end);
    case 4:
        return PICK(compare, uint32_t, v, memory, i, end);
    default:
        return PICK(compare, uint64_t, v, memory, i, end);
    }
}
