#include "backends/trainer/tensor/keys.h"
#include "transports/base/number.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int ws_key_refuse(const json_t *value, const char *key, const char *of, const char *wanted,
                  struct ws_error *err)
{
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    ws_error_set(err, EINVAL, "\"%s\" of %.200s is %.100s: it has to be %s", key, of,
                 value ? text ? text : "of no JSON" : "not there", wanted);
    free(text);
    return -EINVAL;
}

int ws_key_number(const json_t *o, const char *key, const char *of, uint64_t least, uint64_t most,
                  uint64_t *out, struct ws_error *err)
{
    char wanted[80];
    uint64_t n;
    const json_t *v = json_object_get(o, key);
    if (!v)
        return 0;
    if (ws_number_read(v, &n) == 0 && n >= least && n <= most) {
        *out = n;
        return 0;
    }
    snprintf(wanted, sizeof(wanted), "a whole number from %" PRIu64 " to %" PRIu64, least, most);
    return ws_key_refuse(v, key, of, wanted, err);
}

int ws_key_numbers(const json_t *o, const char *key, const char *of, unsigned n, uint64_t *out,
                   struct ws_error *err)
{
    char wanted[80];
    const json_t *v = json_object_get(o, key);
    bool good = json_is_array(v) && json_array_size(v) == n;
    for (unsigned i = 0; good && i < n; i++)
        good = ws_number_read(json_array_get(v, i), &out[i]) == 0;
    snprintf(wanted, sizeof(wanted), "an array of %u whole numbers, each 0 or more", n);
    return good ? 0 : ws_key_refuse(v, key, of, wanted, err);
}

int ws_key_flag(const json_t *o, const char *key, const char *of, bool *out, struct ws_error *err)
{
    const json_t *v = json_object_get(o, key);
    if (v && !json_is_boolean(v))
        return ws_key_refuse(v, key, of, "true or false", err);
    *out = v ? json_is_true(v) : *out;
    return 0;
}

int ws_key_text(const json_t *o, const char *key, const char *of, const char **out, struct ws_error *err)
{
    const json_t *v = json_object_get(o, key);
    if (v && !json_is_string(v))
        return ws_key_refuse(v, key, of, "a string", err);
    *out = v ? json_string_value(v) : *out;
    return 0;
}

int ws_key_list(const json_t *o, const char *key, const char *of, const json_t **out, struct ws_error *err)
{
    *out = json_object_get(o, key);
    return *out && !json_is_array(*out) ? ws_key_refuse(*out, key, of, "an array", err) : 0;
}
