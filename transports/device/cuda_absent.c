/* The cuda kind of a build without CUDA's headers: it says so, has no devices and owns no memory, so that no
 * caller reaches the slots that are empty. */
#include "transports/device/device.h"
#include <errno.h>

static int available(struct ws_error *why)
{
    return ws_error_set(why, ENOTSUP,
                        "this build has no CUDA: cuda.h was not there when it was made (CUDA_HOME)");
}

static unsigned count(void)
{
    return 0;
}

static bool is_open(void)
{
    return false;
}

static bool owns(const void *p, int *device)
{
    (void)p;
    (void)device;
    return false;
}

const struct ws_device_ops ws_cuda_device = {
    .name = "cuda", .available = available, .count = count, .is_open = is_open, .owns = owns};
