/* The public table of element types: names of torch and safetensors, and widths. */
#include "backends/trainer/api/last_error.h"
#include "backends/trainer/wsync.h"
#include "transports/simd/dtype.h"
#include <errno.h>
#include <string.h>

_Static_assert(WSYNC_BOOL + 0 == WS_BOOL && WSYNC_C64 + 0 == WS_C64 && WSYNC_C64 + 1 == WS_DTYPE_COUNT,
               "wsync.h and dtype.h have one order");

const char *wsync_dtype_str(wsync_dtype dtype)
{
    return (unsigned)dtype < WS_DTYPE_COUNT ? ws_dtype_torch((enum ws_dtype)dtype) : NULL;
}

const char *wsync_dtype_name(wsync_dtype dtype)
{
    const char *torch = wsync_dtype_str(dtype);
    return torch ? strchr(torch, '.') + 1 : NULL;
}

const char *wsync_dtype_safetensors(wsync_dtype dtype)
{
    return (unsigned)dtype < WS_DTYPE_COUNT ? ws_dtype_name((enum ws_dtype)dtype) : NULL;
}

unsigned wsync_dtype_bits(wsync_dtype dtype)
{
    return (unsigned)dtype < WS_DTYPE_COUNT ? ws_dtype_bits((enum ws_dtype)dtype) : 0;
}

int wsync_dtype_parse(const char *name, wsync_dtype *out)
{
    for (unsigned i = 0; name && i < WS_DTYPE_COUNT; i++) {
        const char *torch = wsync_dtype_str((wsync_dtype)i);
        if (torch && (strcmp(name, torch) == 0 || strcmp(name, wsync_dtype_name((wsync_dtype)i)) == 0)) {
            *out = (wsync_dtype)i;
            return 0;
        }
    }
    return ws_error_set(ws_last_error(), EINVAL, "'%.100s' is no type of torch's", name ? name : "");
}
