#include "transports/ucx/hex.h"
#include <errno.h>
#include <string.h>

static const char digits[] = "0123456789abcdef";

void ws_ucx_hex_format(const unsigned char *bytes, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++) {
        *out++ = digits[bytes[i] >> 4];
        *out++ = digits[bytes[i] & 15];
    }
    *out = 0;
}

int ws_ucx_hex_parse(const char *text, unsigned char *out, size_t cap, size_t *n)
{
    const size_t chars = text ? strlen(text) : 0;
    if (chars == 0 || chars % 2 != 0 || chars / 2 > cap)
        return -EPROTO;
    for (size_t i = 0; i < chars; i++) {
        const char *d = strchr(digits, text[i]);
        if (!d)
            return -EPROTO;
        const unsigned value = (unsigned)(d - digits);
        out[i / 2] = (unsigned char)(i % 2 ? out[i / 2] | value : value << 4);
    }
    *n = chars / 2;
    return 0;
}
