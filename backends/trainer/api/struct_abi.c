#include "backends/trainer/api/struct_abi.h"
#include <errno.h>
#include <string.h>

#define MAX_BYTES 8192 /* no struct is larger: what says so was not set */

int ws_struct_abi_copy(void *out, size_t bytes, const void *given, const char *name, struct ws_error *err)
{
    size_t size = 0;
    if (given)
        memcpy(&size, given, sizeof(size));
    if (size < sizeof(size) || size > MAX_BYTES) {
        memset(out, 0, bytes);
        return ws_error_set(err, EINVAL, "%s.struct_size is %zu; set it to sizeof(%s)", name, size, name);
    }
    return ws_struct_abi_element(out, bytes, given, size, name, err);
}

int ws_struct_abi_element(void *out, size_t bytes, const void *given, size_t given_size, const char *name,
                          struct ws_error *err)
{
    memset(out, 0, bytes);
    for (size_t i = bytes; i < given_size; i++)
        if (((const unsigned char *)given)[i])
            return ws_error_set(err, EINVAL, "%s has a member set that this libwsync (%s) does not know",
                                name, WS_VERSION);
    memcpy(out, given, given_size < bytes ? given_size : bytes);
    return 0;
}

void ws_struct_abi_give(void *given, const void *ours, size_t bytes)
{
    size_t size, first = sizeof(size);

    memcpy(&size, given, first);
    memcpy((char *)given + first, (const char *)ours + first, (size < bytes ? size : bytes) - first);
}
