/* Names of certificates under libFuzzer: whatever the certificate holds, a name is one that a line of a tokens file
 * could have, and none that wsync itself gives. */
#include "transports/http/tls.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ws_http_names names;
    ws_http_tls_names(data, size, &names);
    require(names.n <= WS_HTTP_NAMES);
    for (size_t i = 0; i < names.n; i++) {
        require(names.ptr[i] == names.text[i]);
        require(memchr(names.text[i], 0, sizeof(names.text[i])) != NULL);
        require(ws_identity_is_name(names.ptr[i], strlen(names.ptr[i])));
    }
    return 0;
}
