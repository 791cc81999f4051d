/* No kernels. */
#include <stddef.h>
extern const unsigned char ws_kernels_fatbin[];
extern const size_t ws_kernels_fatbin_bytes;
const unsigned char ws_kernels_fatbin[1] = {0};
const size_t ws_kernels_fatbin_bytes = 0;
