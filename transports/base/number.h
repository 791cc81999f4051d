/* Numbers as they are written in JSON, settings and arguments. Pure functions, callable from any thread. */
#ifndef WS_TRANSPORTS_BASE_NUMBER_H
#define WS_TRANSPORTS_BASE_NUMBER_H
#include <jansson.h>
#include <stdint.h>

/* An integer of 0 or more. -EINVAL, and *out stays: it is none, or NULL. */
int ws_number_read(const json_t *value, uint64_t *out);
/* A hash as a JSON string that ws_text_hash reads. New reference; NULL: no memory. */
json_t *ws_number_hash(uint64_t hash);
/* Bytes, as "4096", "512M" or "80g" says. -EINVAL: it is no size, or has more than 64 bits. */
int ws_number_size(const char *text, uint64_t *out);

#endif
