#include "mount-helpers/cli/json_print.h"
#include "mount-helpers/cli/cli.h"
#include <stdbool.h>
#include <stdio.h>

int json_print(json_t *value)
{
    bool good = value && json_dumpf(value, stdout, JSON_INDENT(1)) == 0 && putchar('\n') != EOF &&
                fflush(stdout) == 0;
    const char *why = value ? "it cannot be written" : "there is no memory for it";
    json_decref(value);
    return good ? CLI_OK : cli_fail("cannot print JSON: %s", why);
}
