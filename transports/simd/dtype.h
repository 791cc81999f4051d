/* Element types of the safetensors format, with the names that its header uses. */
#ifndef WS_TRANSPORTS_SIMD_DTYPE_H
#define WS_TRANSPORTS_SIMD_DTYPE_H
#include <stdint.h>

enum ws_dtype {
    WS_BOOL,
    WS_U8,
    WS_I8,
    WS_F8_E5M2,
    WS_F8_E4M3,
    WS_F8_E8M0,
    WS_F8_E4M3FNUZ,
    WS_F8_E5M2FNUZ,
    WS_F4,
    WS_F6_E2M3,
    WS_F6_E3M2,
    WS_I16,
    WS_U16,
    WS_F16,
    WS_BF16,
    WS_I32,
    WS_U32,
    WS_F32,
    WS_F64,
    WS_I64,
    WS_U64,
    WS_C64,
    WS_DTYPE_COUNT
};

const char *ws_dtype_name(enum ws_dtype dtype);           /* "BF16" */
unsigned ws_dtype_bits(enum ws_dtype dtype);              /* 16; 4 and 6 for the packed ones */
int ws_dtype_parse(const char *name, enum ws_dtype *out); /* 0 or -EINVAL */
/* torch's names: str(dtype), "torch.bfloat16"; NULL where torch has no such type. What follows the dot is the
 * attribute's name. */
const char *ws_dtype_torch(enum ws_dtype dtype);
int ws_dtype_parse_torch(const char *name, enum ws_dtype *out); /* either form; 0 or -EINVAL */
/* Row-major byte size of a tensor: 0, -EOVERFLOW, or -EINVAL where a packed type does not end on a
 * byte. n_dims <= WS_MAX_DIMS; a scalar has n_dims 0. */
int ws_dtype_bytes(enum ws_dtype dtype, const uint64_t *shape, unsigned n_dims, uint64_t *out);

#endif
