/* Element types: one table, in the order of enum ws_dtype, with the header's names, widths and torch's names.
 */
#include "transports/simd/dtype.h"
#include "transports/base/limits.h"
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned bits;
    const char *torch;
} types[] = {
    [WS_BOOL] = {"BOOL", 8, "torch.bool"},
    [WS_U8] = {"U8", 8, "torch.uint8"},
    [WS_I8] = {"I8", 8, "torch.int8"},
    [WS_F8_E5M2] = {"F8_E5M2", 8, "torch.float8_e5m2"},
    [WS_F8_E4M3] = {"F8_E4M3", 8, "torch.float8_e4m3fn"},
    [WS_F8_E8M0] = {"F8_E8M0", 8, "torch.float8_e8m0fnu"},
    [WS_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8, "torch.float8_e4m3fnuz"},
    [WS_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8, "torch.float8_e5m2fnuz"},
    [WS_F4] = {"F4", 4, NULL},
    [WS_F6_E2M3] = {"F6_E2M3", 6, NULL},
    [WS_F6_E3M2] = {"F6_E3M2", 6, NULL},
    [WS_I16] = {"I16", 16, "torch.int16"},
    [WS_U16] = {"U16", 16, "torch.uint16"},
    [WS_F16] = {"F16", 16, "torch.float16"},
    [WS_BF16] = {"BF16", 16, "torch.bfloat16"},
    [WS_I32] = {"I32", 32, "torch.int32"},
    [WS_U32] = {"U32", 32, "torch.uint32"},
    [WS_F32] = {"F32", 32, "torch.float32"},
    [WS_F64] = {"F64", 64, "torch.float64"},
    [WS_I64] = {"I64", 64, "torch.int64"},
    [WS_U64] = {"U64", 64, "torch.uint64"},
    [WS_C64] = {"C64", 64, "torch.complex64"},
};
_Static_assert(sizeof(types) / sizeof(types[0]) == WS_DTYPE_COUNT, "every type has its row");

const char *ws_dtype_name(enum ws_dtype dtype)
{
    assert((unsigned)dtype < WS_DTYPE_COUNT);
    return types[dtype].name;
}

unsigned ws_dtype_bits(enum ws_dtype dtype)
{
    assert((unsigned)dtype < WS_DTYPE_COUNT);
    return types[dtype].bits;
}

int ws_dtype_parse(const char *name, enum ws_dtype *out)
{
    for (size_t i = 0; i < WS_DTYPE_COUNT; i++) {
        if (strcmp(types[i].name, name) == 0) {
            *out = (enum ws_dtype)i;
            return 0;
        }
    }
    return -EINVAL;
}

const char *ws_dtype_torch(enum ws_dtype dtype)
{
    assert((unsigned)dtype < WS_DTYPE_COUNT);
    return types[dtype].torch;
}

int ws_dtype_parse_torch(const char *name, enum ws_dtype *out)
{
    for (size_t i = 0; i < WS_DTYPE_COUNT; i++) {
        const char *torch = types[i].torch;
        if (torch && (strcmp(torch, name) == 0 || strcmp(strchr(torch, '.') + 1, name) == 0)) {
            *out = (enum ws_dtype)i;
            return 0;
        }
    }
    return -EINVAL;
}

int ws_dtype_bytes(enum ws_dtype dtype, const uint64_t *shape, unsigned n_dims, uint64_t *out)
{
    uint64_t bits = ws_dtype_bits(dtype);
    int empty = 0;

    assert(n_dims <= WS_MAX_DIMS);
    /* A zero does not excuse the other dimensions: readers multiply them in any order, and some
     * overflow before they meet it. */
    for (unsigned i = 0; i < n_dims; i++) {
        if (shape[i] == 0)
            empty = 1;
        else if (__builtin_mul_overflow(bits, shape[i], &bits))
            return -EOVERFLOW;
    }
    if (empty)
        bits = 0;
    if (bits % 8 != 0)
        return -EINVAL;
    *out = bits / 8;
    return 0;
}
