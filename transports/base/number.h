/* Numbers as they are written in JSON, settings and arguments. Pure functions, callable from any thread. */
#ifndef WS_TRANSPORTS_BASE_NUMBER_H
#define WS_TRANSPORTS_BASE_NUMBER_H
#include <jansson.h>
#include <stdint.h>

/* A hash as a JSON string that ws_text_hash reads. New reference; NULL: no memory. */
json_t *ws_number_hash(uint64_t hash);

#endif
