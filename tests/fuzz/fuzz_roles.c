/* Lists of roles under libFuzzer: what is accepted is printed and read again as the same. */
#include "transports/access/role.h"
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
    struct ws_error err = {0};
    unsigned roles, again;
    char text[WS_ROLES_TEXT];
    char *exact = malloc(size ? size : 1); /* nothing follows: a read beyond it is seen */
    require(exact != NULL);
    if (size)
        memcpy(exact, data, size);
    if (ws_roles_parse(exact, size, &roles, &err) == 0) {
        require(roles && !(roles & ~WS_ROLES_ALL));
        require(strlen(ws_roles_print(roles, text)) < WS_ROLES_TEXT);
        require(ws_roles_parse(text, strlen(text), &again, &err) == 0 && again == roles);
    } else {
        require(err.code > 0 && err.text[0] && !strchr(err.text, '\n'));
    }
    free(exact);
    return 0;
}
