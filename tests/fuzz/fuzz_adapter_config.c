/* adapter_config.json under libFuzzer. The first byte selects the server; the rest is the file. What one server
 * takes has a rank within its limit; what "any" takes every kind takes; a refusal has its sentence. */
#include "backends/engine/adapter_config.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANK 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const kinds[] = {NULL, "vllm", "sglang"};
    if (size == 0)
        return 0;
    struct ws_adapter_server server = {.kind = kinds[data[0] % 3], .max_rank = data[0] & 4 ? MAX_RANK : 0};
    struct ws_adapter_config found = {0};
    struct ws_error err = {0};
    char *file = malloc(size); /* of its exact size, so that a read beyond it is detected */
    require(file != NULL);
    memcpy(file, data + 1, size - 1);
    const int rc = ws_adapter_check(file, size - 1, &server, &found, &err);
    if (rc)
        require(err.code == -rc && err.text[0] && !found.rank);
    else
        require(found.rank > 0 && (!server.max_rank || found.rank <= MAX_RANK) &&
                strlen(found.base) < sizeof(found.base));
    if (!rc && !server.kind) {
        for (size_t i = 1; i < 3; i++) {
            server.kind = kinds[i];
            require(ws_adapter_check(file, size - 1, &server, NULL, &err) == 0);
        }
    }
    free(file);
    return 0;
}
