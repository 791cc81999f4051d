#include "transports/device/device.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define THREADS     256U
#define WARPS       (THREADS / 32) /* of a block */
#define MOST_BLOCKS 16384U /* more than run at once, so that blocks that end early make way for others */

static const struct ws_device_ops *const table[WS_N_KINDS] = {
    [WS_HOST] = &ws_host_device,
    [WS_CUDA] = &ws_cuda_device,
};

const struct ws_device_ops *ws_device_by_kind(enum ws_device_kind k)
{
    return table[k];
}

enum ws_device_kind ws_device_by_address(const void *p, int *device)
{
    for (int k = WS_HOST + 1; k < WS_N_KINDS; k++)
        if (p && table[k]->owns(p, device))
            return (enum ws_device_kind)k;
    *device = 0;
    return WS_HOST;
}

int ws_device_by_uuid(const struct ws_device_ops *ops, const char *uuid, int *device, struct ws_error *err)
{
    char all[WS_ERROR_TEXT / 2] = "";
    size_t n = 0;
    int rc = ops->available(err);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < ops->count(); i++) {
        struct ws_device_info info;
        rc = ops->describe((int)i, &info, err);
        if (rc < 0)
            return rc;
        if (strcmp(info.uuid, uuid) == 0) {
            *device = (int)i;
            return 0;
        }
        if (n < sizeof(all))
            n += (size_t)snprintf(all + n, sizeof(all) - n, "%s%s", i ? ", " : "", info.uuid);
    }
    return ws_error_set(err, ENODEV,
                        "the device %.60s is not visible to this process (CUDA_VISIBLE_DEVICES, or another "
                        "machine's); it sees %s",
                        uuid, all);
}

int ws_device_launch(struct ws_device_queue *q, enum ws_kernel k, uint64_t n, const void *args,
                     struct ws_error *err)
{
    const uint64_t blocks = n / WARPS + (n % WARPS > 0);
    if (n == 0)
        return 0;
    return q->ops->launch(q, k, blocks < MOST_BLOCKS ? (unsigned)blocks : MOST_BLOCKS, THREADS,
                          (void *[]){(void *)(uintptr_t)args}, err);
}
