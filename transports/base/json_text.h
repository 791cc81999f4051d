/* Json_text: text from outside as a JSON string. */
#ifndef WS_TRANSPORTS_BASE_JSON_TEXT_H
#define WS_TRANSPORTS_BASE_JSON_TEXT_H
#include <jansson.h>

/* A string with each byte that is no UTF-8 as U+FFFD; JSON's null for NULL. NULL only without memory. */
json_t *ws_json_text(const char *text);

#endif
