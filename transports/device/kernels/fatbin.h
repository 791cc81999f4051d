/* The kernels as nvcc made them, to be loaded by the driver; without bytes in a build that had no nvcc. */
#ifndef WS_TRANSPORTS_DEVICE_KERNELS_FATBIN_H
#define WS_TRANSPORTS_DEVICE_KERNELS_FATBIN_H
#include <stddef.h>

extern const unsigned char ws_kernels_fatbin[];
extern const size_t ws_kernels_fatbin_bytes; /* 0: there are none */

#endif
