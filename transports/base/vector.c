#include "transports/base/vector.h"
#include <stdint.h>

#define FIRST_BYTES 64 /* less is not worth a move */

void *ws_vector_grow(void *array, size_t *cap, size_t len, size_t more, size_t item_bytes)
{
    size_t want, bytes, first;
    void *grown;
    assert(item_bytes > 0 && len <= *cap);
    if (__builtin_add_overflow(len, more, &want))
        return NULL;
    first = FIRST_BYTES / item_bytes;
    if (want < first)
        want = first;
    if (*cap <= SIZE_MAX / 2 && want < *cap * 2)
        want = *cap * 2;
    if (__builtin_mul_overflow(want, item_bytes, &bytes) || bytes > PTRDIFF_MAX)
        return NULL;
    grown = realloc(array, bytes);
    if (grown)
        *cap = want;
    return grown;
}

void *ws_vector_room(void *array, size_t n, size_t item_bytes)
{
    size_t bytes;
    if (n & (n - 1)) /* between two powers of two */
        return array;
    if (__builtin_mul_overflow(n ? n : 1, n ? 2 * item_bytes : item_bytes, &bytes) || bytes > PTRDIFF_MAX)
        return NULL;
    return realloc(array, bytes);
}
