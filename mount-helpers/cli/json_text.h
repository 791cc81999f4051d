/* Json_text: text from outside as a JSON string, and JSON as text on standard output. */
#ifndef WS_MOUNT_HELPERS_CLI_JSON_TEXT_H
#define WS_MOUNT_HELPERS_CLI_JSON_TEXT_H
#include <jansson.h>

/* A string with each byte that is no UTF-8 as U+FFFD; JSON's null for NULL. NULL only without memory. */
json_t *json_text(const char *text);
/* Prints a value, which it takes, and a newline; returns a CLI_* code. NULL and an output that is full are
 * failures, with their sentence. */
int json_print(json_t *value);

#endif
