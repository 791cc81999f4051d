/* JSON size: what a text would take in memory once it is parsed. jansson needs some 450 bytes for an object, which
 * "{}," is in a text, so that 60 MB of a hostile peer would become 9 GB. Looked at before parsing; any thread. */
#ifndef WS_TRANSPORTS_BASE_JSON_SIZE_H
#define WS_TRANSPORTS_BASE_JSON_SIZE_H
#include <stdbool.h>
#include <stddef.h>

/* May a text of n bytes be parsed? It is nested no deeper than what peers send, and would take no more than
 * WS_MAX_JSON_BYTES. It says nothing of whether it is JSON. */
bool ws_json_is_modest(const char *text, size_t n);

#endif
