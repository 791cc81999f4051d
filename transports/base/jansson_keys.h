/* Jansson keys: members of objects whose names are parts of a text. Jansson has these functions since 2.14; Debian 11 and Ubuntu 22.04,
 * for which wheels are made, have 2.13. There, a name with a NUL is refused. Pure; callers' locks. */
#ifndef WS_BASE_JANSSON_KEYS_H
#define WS_BASE_JANSSON_KEYS_H
#include <jansson.h>
#if JANSSON_VERSION_HEX < 0x020e00
#include <stdlib.h>
#include <string.h>

static inline json_t *json_object_getn(const json_t *object, const char *key, size_t n)
{
    char *name = memchr(key, 0, n) ? NULL : strndup(key, n);
    json_t *found = name ? json_object_get(object, name) : NULL;
    free(name);
    return found;
}

static inline int json_object_setn_new(json_t *object, const char *key, size_t n, json_t *value)
{
    char *name = memchr(key, 0, n) ? NULL : strndup(key, n);
    int rc = -1;
    if (name)
        rc = json_object_set_new(object, name, value);
    else
        json_decref(value);
    free(name);
    return rc;
}

static inline int json_object_setn(json_t *object, const char *key, size_t n, json_t *value)
{
    return json_object_setn_new(object, key, n, json_incref(value));
}
#endif

#endif
