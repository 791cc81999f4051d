#include "mount-helpers/version.h"
#include "fs/fs.h"
#include "transports/copy.h"
#include "transports/region.h"
#include <curl/curl.h>
#include <microhttpd.h>
#include <stdio.h>

void cli_print_version(void)
{
    printf("wsync %s\n", WS_VERSION);
    printf("libfuse %s (built with %d.%d%s), libcurl %s, libmicrohttpd %s\n", fuse_pkgversion(),
           FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION, WS_HAVE_PASSTHROUGH ? ", passthrough" : ", no passthrough",
           curl_version_info(CURLVERSION_NOW)->version, MHD_get_version());
    printf("copies %s, regions %s\n", ws_copy_code(), ws_region_tmpfs() >= 0 ? "huge-page tmpfs" : "memfd");
    printf("transports tcp ipc dir\n");
}
