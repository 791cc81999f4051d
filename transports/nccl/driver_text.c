/* What of NCCL is text in JSON and in messages: ids and releases, in builds with NCCL and without. */
#include "transports/nccl/driver.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ws_nccl_release_format(int release, char out[WS_NCCL_RELEASE_TEXT])
{
    int major = release >= 10000 ? release / 10000 : release / 1000;
    int minor = release >= 10000 ? release % 10000 / 100 : release % 1000 / 100;
    snprintf(out, WS_NCCL_RELEASE_TEXT, "%d.%d.%d", major, minor, release % 100);
}

void ws_nccl_id_format(const unsigned char id[WS_NCCL_ID_BYTES], char out[WS_NCCL_ID_TEXT])
{
    for (size_t i = 0; i < WS_NCCL_ID_BYTES; i++)
        sprintf(out + 2 * i, "%02x", (unsigned)id[i]);
}

int ws_nccl_id_parse(const char *text, unsigned char out[WS_NCCL_ID_BYTES])
{
    if (!text || strlen(text) != WS_NCCL_ID_TEXT - 1)
        return -EPROTO;
    for (size_t i = 0; i < WS_NCCL_ID_BYTES; i++) {
        const char digits[3] = {text[2 * i], text[2 * i + 1], 0};
        if (!isxdigit((unsigned char)digits[0]) || !isxdigit((unsigned char)digits[1]))
            return -EPROTO;
        out[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    return 0;
}
