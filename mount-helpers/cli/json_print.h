/* Json_print: JSON as text on standard output. */
#ifndef WS_MOUNT_HELPERS_CLI_JSON_PRINT_H
#define WS_MOUNT_HELPERS_CLI_JSON_PRINT_H
#include <jansson.h>

/* Prints a value, which it takes, and a newline; returns a CLI_* code. NULL and an output that is full are
 * failures, with their sentence. */
int json_print(json_t *value);

#endif
