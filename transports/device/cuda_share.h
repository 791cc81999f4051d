/* CUDA share: memory of a CUDA device between processes of one host. These are slots of the cuda kind's table
 * (cuda_ops.c), with the contracts of device.h. */
#ifndef WS_TRANSPORTS_DEVICE_CUDA_SHARE_H
#define WS_TRANSPORTS_DEVICE_CUDA_SHARE_H
#include "transports/device/device.h"

int ws_cuda_share_extent(const void *p, struct ws_device_extent *out, struct ws_error *err);
int ws_cuda_share_handle(const struct ws_device_extent *e, unsigned char handle[WS_DEVICE_HANDLE_BYTES],
                         struct ws_error *err);
int ws_cuda_share_fd(const struct ws_device_extent *e, int *fd, struct ws_error *err);
int ws_cuda_share_open(int device, const unsigned char handle[WS_DEVICE_HANDLE_BYTES], void **out,
                       struct ws_error *err);
int ws_cuda_share_open_fds(int device, const int *fds, const uint64_t *bytes, size_t n, void **out,
                           struct ws_error *err);
void ws_cuda_share_close(int device, void *p);

#endif
