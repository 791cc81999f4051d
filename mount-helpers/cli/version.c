#include "mount-helpers/cli/version.h"
#include "fs/fuse/fs.h"
#include "transports/memory/region.h"
#include "transports/simd/copy.h"
#include "transports/ucx/engine.h"
#include <curl/curl.h>
#include <microhttpd.h>
#include <stdio.h>

/* The Makefile says of what release the headers and nvcc are. */
bool cli_has_cuda(const char **text)
{
#ifdef WS_HAVE_CUDA
    *text = "CUDA " WS_CUDA_RELEASE " (headers; the driver is opened at run time)";
    return true;
#else
    *text = "no CUDA: cuda.h was not there when this was built (CUDA_HOME)";
    return false;
#endif
}

bool cli_has_nccl(const char **text)
{
#ifdef WS_HAVE_NCCL
    *text = "NCCL " WS_NCCL_RELEASE " (headers; the library is opened at run time)";
    return true;
#else
    *text = "no NCCL: nccl.h was not there when this was built (NCCL_HOME)";
    return false;
#endif
}

bool cli_has_kernels(const char **text)
{
#ifdef WS_HAVE_NVCC
    *text = "kernels by nvcc " WS_NVCC_RELEASE " for " WS_KERNEL_ARCHS;
    return true;
#else
    *text = "no kernels: nvcc was not there when this was built";
    return false;
#endif
}

void cli_libfuse_text(char out[CLI_LIBFUSE_CHARS])
{
    snprintf(out, CLI_LIBFUSE_CHARS, "%s (built with %d.%d%s)", fuse_pkgversion(), FUSE_MAJOR_VERSION,
             FUSE_MINOR_VERSION, WS_HAVE_PASSTHROUGH ? ", passthrough" : ", no passthrough");
}

void cli_print_version(void)
{
    char libfuse[CLI_LIBFUSE_CHARS];
    const char *cuda, *nccl, *kernels;
    cli_libfuse_text(libfuse);
    (void)cli_has_cuda(&cuda);
    (void)cli_has_nccl(&nccl);
    (void)cli_has_kernels(&kernels);
    printf("wsync %s\n", WS_VERSION);
    printf("libfuse %s, libcurl %s, libmicrohttpd %s\n", libfuse, curl_version_info(CURLVERSION_NOW)->version,
           MHD_get_version());
    printf("copies %s, regions %s\n", ws_copy_code(), ws_region_tmpfs() >= 0 ? "huge-page tmpfs" : "memfd");
    printf("transports tcp ipc dir ucx\n");
    printf("%s\n%s\n%s\n", cuda, nccl, kernels);
    if (*ws_ucx_build())
        printf("UCX %s (headers; the library is opened at run time)\n", ws_ucx_build());
    else
        printf("no UCX: ucp/api/ucp.h was not there when this was built\n");
}
