/* Keys: the values in what a rank sends, each of the kind that is wanted or refused with its key, itself and
 * what is wanted. A key that is not there leaves what the caller had put. `of` says in errors whose key it
 * is. */
#ifndef WS_TRAINER_TENSOR_KEYS_H
#define WS_TRAINER_TENSOR_KEYS_H
#include "transports/base/error.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* All -EINVAL where it is refused. */
WS_MUST_USE int ws_key_number(const json_t *o, const char *key, const char *of, uint64_t least, uint64_t most,
                              uint64_t *out, struct ws_error *err);
/* An array of exactly n numbers, which must be there. */
WS_MUST_USE int ws_key_numbers(const json_t *o, const char *key, const char *of, unsigned n, uint64_t *out,
                               struct ws_error *err);
WS_MUST_USE int ws_key_flag(const json_t *o, const char *key, const char *of, bool *out,
                            struct ws_error *err);
/* Borrowed from o. */
WS_MUST_USE int ws_key_text(const json_t *o, const char *key, const char *of, const char **out,
                            struct ws_error *err);
/* Borrowed; NULL where it is not there. */
WS_MUST_USE int ws_key_list(const json_t *o, const char *key, const char *of, const json_t **out,
                            struct ws_error *err);
int ws_key_refuse(const json_t *value, const char *key, const char *of, const char *wanted,
                  struct ws_error *err);

#endif
