#ifndef WS_MOUNT_HELPERS_DOCTOR_DOCTOR_KERNELS_H
#define WS_MOUNT_HELPERS_DOCTOR_DOCTOR_KERNELS_H
#include "transports/device/device.h"

#define DOCTOR_KERNELS_BYTES (16UL << 20) /* of the queue's device, at memory */
/* Runs one there. */
WS_MUST_USE int doctor_try_kernels(struct ws_device_queue *q, unsigned char *memory, struct ws_error *err);

#endif
