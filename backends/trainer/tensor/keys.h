/* Keys: reads the values in a rank's request. A value of the wrong kind is refused, with its key, the value
 * and what is expected. A missing key leaves the caller's default. `of` names the object in errors. */
#ifndef WS_TRAINER_TENSOR_KEYS_H
#define WS_TRAINER_TENSOR_KEYS_H
#include "transports/base/error.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* All: -EINVAL, the value is refused. */
WS_MUST_USE int ws_key_number(const json_t *o, const char *key, const char *of, uint64_t least, uint64_t most,
                              uint64_t *out, struct ws_error *err);
/* An array of exactly n numbers; it is required. */
WS_MUST_USE int ws_key_numbers(const json_t *o, const char *key, const char *of, unsigned n, uint64_t *out,
                               struct ws_error *err);
WS_MUST_USE int ws_key_flag(const json_t *o, const char *key, const char *of, bool *out,
                            struct ws_error *err);
/* Borrowed from o. */
WS_MUST_USE int ws_key_text(const json_t *o, const char *key, const char *of, const char **out,
                            struct ws_error *err);
/* Borrowed from o; NULL: it is missing. */
WS_MUST_USE int ws_key_list(const json_t *o, const char *key, const char *of, const json_t **out,
                            struct ws_error *err);
int ws_key_refuse(const json_t *value, const char *key, const char *of, const char *wanted,
                  struct ws_error *err);

#endif
