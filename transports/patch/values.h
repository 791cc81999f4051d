/* Values: places of one memory with what they hold before and after, and the loops over them. Pure functions over memory. */
#ifndef WS_TRANSPORTS_PATCH_VALUES_H
#define WS_TRANSPORTS_PATCH_VALUES_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stdint.h>

struct ws_patch_values {
    unsigned element_bytes; /* 1, 2, 4 or 8 */
    bool is_wide;           /* places are u64 and not u32 */
    uint64_t n;
    void *places; /* element numbers */
    unsigned char *before, *after;
};

/* Room for n, of a memory of so many elements; element_bytes is set. -ENOMEM. */
WS_MUST_USE int ws_patch_values_room(struct ws_patch_values *v, uint64_t n, uint64_t elements);
void ws_patch_values_free(struct ws_patch_values *v); /* element_bytes stays */
void ws_patch_values_set(struct ws_patch_values *v, uint64_t i, uint64_t place, const void *before,
                         const void *after);
static inline uint64_t ws_patch_values_place(const struct ws_patch_values *v, uint64_t i)
{
    return v->is_wide ? ((const uint64_t *)v->places)[i] : ((const uint32_t *)v->places)[i];
}
uint64_t ws_patch_values_bytes(const struct ws_patch_values *v);
/* Of those from i to end: writes what is after, or before. */
void ws_patch_values_write(const struct ws_patch_values *v, void *memory, bool before, uint64_t i,
                           uint64_t end);
/* The first whose place does not hold what is before; end: all do. */
uint64_t ws_patch_values_compare(const struct ws_patch_values *v, const void *memory, uint64_t i,
                                 uint64_t end);

#endif
