#include "transports/device/cuda_driver.h"
#include "transports/base/library.h"
#include "transports/base/log.h"
#include "transports/device/kernels/fatbin.h"
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OLDEST_DRIVER 12000
#define MAX_DEVICES   64

static const char *const kernel_names[WS_N_KERNELS] = {
    [WS_KERNEL_GATHER] = "ws_kernel_gather",       [WS_KERNEL_DIFF_COUNT] = "ws_kernel_diff_count",
    [WS_KERNEL_DIFF_PACK] = "ws_kernel_diff_pack", [WS_KERNEL_HASH_SUM] = "ws_kernel_hash_sum",
    [WS_KERNEL_HASH_FOLD] = "ws_kernel_hash_fold",
};

struct device {
    CUcontext context; /* its primary one; kept until the process ends, as PyTorch keeps it */
    bool asked_for_kernels;
    int kernels_rc;
    struct ws_error kernels_why;
    CUmodule module;
    CUfunction kernels[WS_N_KERNELS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* guarded by lock, but for reading what was published by these flags */
static struct ws_cuda_driver driver;
static atomic_bool loaded, initialised;
static int init_code; /* an errno: the one attempt of this process has failed */
static char init_why[WS_ERROR_TEXT];
static struct device devices[MAX_DEVICES];

const char *ws_cuda_driver_library(void)
{
    const char *other = getenv("WSYNC_LIBCUDA");
    return other && *other ? other : "libcuda.so.1";
}

/* Under lock. */
static int load(int flags, struct ws_error *why)
{
    static const struct ws_library_symbol symbols[] = {
#define ENTRY(member, symbol) {#symbol, offsetof(struct ws_cuda_driver, member)},
        WS_CUDA_SYMBOLS(ENTRY)
#undef ENTRY
    };
    const char *missing;
    void *handle;
    struct ws_error err = {0};
    if (atomic_load(&loaded))
        return 0;
    int rc = ws_library_open(ws_cuda_driver_library(), flags, symbols, sizeof(symbols) / sizeof(symbols[0]),
                             &driver, &handle, &missing, &err);
    if (rc == 0)
        atomic_store(&loaded, true);
    else if (missing)
        ws_error_set(why, -rc, "the NVIDIA driver %s is too old: it has no %s; release 525 or newer has",
                     ws_cuda_driver_library(), missing);
    else if (getenv("WSYNC_LIBCUDA"))
        ws_error_set(
            why, -rc,
            "the driver that WSYNC_LIBCUDA names cannot be opened (unset it to use the machine's own): %s",
            err.text);
    else
        ws_error_set(why, -rc, "there is no NVIDIA driver on this machine: %s", err.text);
    return rc;
}

/* Under lock. */
static int initialise(struct ws_error *why)
{
    int rc = load(0, why);
    if (rc < 0)
        return rc;
    CUresult r = driver.init(0);
    if (r == CUDA_ERROR_NO_DEVICE)
        return ws_error_set(why, ENODEV, "the NVIDIA driver finds no device that this process may use");
    if (r == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
        return ws_error_set(why, ENOTSUP,
                            "the NVIDIA driver's library and kernel module are of different releases: "
                            "reboot, or reload the module");
    rc = ws_cuda_result(r, why, "starting the NVIDIA driver");
    if (rc == 0)
        rc = ws_cuda_result(driver.driver_version(&driver.driver), why, "asking the driver's release");
    if (rc == 0 && driver.driver < OLDEST_DRIVER)
        return ws_error_set(why, ENOTSUP,
                            "the NVIDIA driver is for CUDA %d.%d, and %d.%d is the oldest that is known to "
                            "work: update it",
                            driver.driver / 1000, driver.driver % 1000 / 10, OLDEST_DRIVER / 1000,
                            OLDEST_DRIVER % 1000 / 10);
    if (rc == 0)
        rc = ws_cuda_result(driver.device_count(&driver.n_devices), why, "counting devices");
    if (rc == 0 && driver.n_devices == 0)
        return ws_error_set(why, ENODEV, "the NVIDIA driver finds no device that this process may use");
    driver.n_devices = driver.n_devices > MAX_DEVICES ? MAX_DEVICES : driver.n_devices;
    return rc;
}

const struct ws_cuda_driver *ws_cuda_driver_open(struct ws_error *why)
{
    struct ws_error err = {0};
    if (atomic_load(&initialised))
        return &driver;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&initialised) && init_code == 0) {
        int rc = initialise(&err);
        if (rc == 0) {
            atomic_store(&initialised, true);
        } else {
            init_code = -rc;
            snprintf(init_why, sizeof(init_why), "%s", err.text);
        }
    }
    pthread_mutex_unlock(&lock);
    if (atomic_load(&initialised))
        return &driver;
    ws_error_set(why, init_code, "%s", init_why);
    return NULL;
}

const struct ws_cuda_driver *ws_cuda_driver_if_open(void)
{
    if (!atomic_load(&loaded)) {
        pthread_mutex_lock(&lock);
        (void)load(RTLD_NOLOAD, NULL);
        pthread_mutex_unlock(&lock);
    }
    return atomic_load(&loaded) ? &driver : NULL;
}

static int errno_of(CUresult rc)
{
    switch (rc) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        return ENOMEM;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
        return EINVAL;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_INVALID_PTX:
        return ENOTSUP;
    case CUDA_ERROR_NOT_READY:
        return EAGAIN;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
        return ENODEV;
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_INVALID_CONTEXT:
        return EXDEV;
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_NOT_INITIALIZED:
        return ESHUTDOWN;
    case CUDA_ERROR_NOT_FOUND:
        return ENOENT;
    case CUDA_ERROR_OPERATING_SYSTEM:
        return EPERM;
    default:
        return EIO;
    }
}

/* A fault in a kernel, or a device that is lost: this process cannot use the device any more. */
static bool is_final(CUresult rc)
{
    switch (rc) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        return true;
    default:
        return false;
    }
}

int ws_cuda_result(CUresult rc, struct ws_error *err, const char *format, ...)
{
    static atomic_uint seen[1024 / 32];
    char what[WS_ERROR_TEXT / 2];
    const char *name = NULL, *text = NULL;
    va_list args;
    if (rc == CUDA_SUCCESS)
        return 0;
    int code = errno_of(rc);
    if (code == EAGAIN)
        return -EAGAIN;
    (void)driver.error_name(rc, &name);
    (void)driver.error_string(rc, &text);
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    unsigned bit = (unsigned)rc % 1024;
    if (!(atomic_fetch_or(&seen[bit / 32], 1U << bit % 32) & 1U << bit % 32))
        ws_log(WS_LOG_WARN, "cuda", "%s failed result=%s (%d): %s", what, name ? name : "?", (int)rc,
               text ? text : "unknown");
    return ws_error_set(err, code, "%s failed on the GPU: %s (%s)%s", what, text ? text : "unknown error",
                        name ? name : "?",
                        is_final(rc) ? "; this process cannot use the device any more: start it anew" : "");
}

/* --- contexts --- */

int ws_cuda_enter(int device, struct ws_error *err)
{
    const struct ws_cuda_driver *c = ws_cuda_driver_open(err);
    if (!c)
        return -init_code;
    if (device < 0 || device >= c->n_devices)
        return ws_error_set(err, ENODEV, "there is no device %d; there are %d", device, c->n_devices);
    struct device *d = &devices[device];
    CUdevice handle;
    int rc = 0;
    pthread_mutex_lock(&lock);
    if (!d->context) {
        rc = ws_cuda_result(c->device_get(&handle, device), err, "finding device %d", device);
        if (rc == 0)
            rc = ws_cuda_result(c->primary_retain(&d->context, handle), err, "opening device %d", device);
    }
    CUcontext context = d->context;
    pthread_mutex_unlock(&lock);
    return rc == 0 ? ws_cuda_result(c->ctx_push(context), err, "using device %d", device) : rc;
}

void ws_cuda_leave(void)
{
    CUcontext context;
    (void)driver.ctx_pop(&context);
}

/* --- kernels --- */

/* Under lock, within the device's context. */
static int load_kernels(struct device *d, struct ws_error *why)
{
    const char *off = getenv("WSYNC_KERNELS");
    if (off && strcmp(off, "0") == 0)
        return ws_error_set(why, ENOTSUP, "kernels are turned off by WSYNC_KERNELS=0");
    if (ws_kernels_fatbin_bytes == 0)
        return ws_error_set(why, ENOTSUP,
                            "this build has no kernels: nvcc was not there when it was made, so many small, "
                            "strided or converted tensors go by way of the CPU, which is slower");
    return ws_cuda_result(driver.module_load(&d->module, ws_kernels_fatbin), why, "loading wsync's kernels");
}

static int find_kernel(struct device *d, enum ws_kernel k, struct ws_error *err)
{
    return d->kernels[k] ? 0
                         : ws_cuda_result(driver.module_function(&d->kernels[k], d->module, kernel_names[k]),
                                          err, "finding the kernel %s", kernel_names[k]);
}

const char *ws_cuda_kernel_name(enum ws_kernel k)
{
    return kernel_names[k];
}

int ws_cuda_kernel(int device, enum ws_kernel k, CUfunction *out, struct ws_error *err)
{
    int rc = ws_cuda_enter(device, err);
    if (rc < 0)
        return rc;
    struct device *d = &devices[device];
    pthread_mutex_lock(&lock);
    if (!d->asked_for_kernels) {
        d->asked_for_kernels = true;
        d->kernels_rc = load_kernels(d, &d->kernels_why);
    }
    rc = d->kernels_rc;
    if (rc < 0)
        ws_error_set(err, -rc, "%s", d->kernels_why.text);
    else
        rc = find_kernel(d, k, err);
    if (rc == 0 && out)
        *out = d->kernels[k];
    pthread_mutex_unlock(&lock);
    ws_cuda_leave();
    return rc;
}
