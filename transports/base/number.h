/* Numbers as they are written in JSON, settings, arguments and sentences. Pure functions, callable from any thread. */
#ifndef WS_TRANSPORTS_BASE_NUMBER_H
#define WS_TRANSPORTS_BASE_NUMBER_H
#include <jansson.h>
#include <stdint.h>

#define WS_NUMBER_CHARS 24

/* An integer of 0 or more. -EINVAL, and *out stays: it is none, or NULL. */
int ws_number_read(const json_t *value, uint64_t *out);
/* A hash as a JSON string that ws_text_hash reads. New reference; NULL: no memory. */
json_t *ws_number_hash(uint64_t hash);
/* Bytes, as "4096", "512M" or "80g" says. -EINVAL: it is no size, or has more than 64 bits. */
int ws_number_size(const char *text, uint64_t *out);
/* Bytes for people, in powers of ten with three digits: "512 B", "1.19 GB". The one style of every message. */
void ws_number_size_text(uint64_t bytes, char out[WS_NUMBER_CHARS]);
/* A duration for people: "0.042 s", "12.3 s", "3 min 20 s", "2 h 5 min". */
void ws_number_time_text(double seconds, char out[WS_NUMBER_CHARS]);

#endif
